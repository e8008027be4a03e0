"""Which offsets a batch reads: positions, admission, and how they are shared among tasks. Pure functions over plain dicts.

    offset of the source = {"clock": µs, "scans": {"<scan>": {"<topic>": {"<partition>": next offset}}}, "ends": {"<scan>": …}}

It is what Spark writes into its offset log, so it is plain JSON. Invariant: offsets never go back, and the same two offsets
always give the same slices in the same tasks, so that a batch that runs again reads the same."""

from __future__ import annotations

import atexit
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.protocol.client import Client

Place = tuple[str, int]  # topic, partition
EARLIEST, LATEST = -2, -1  # as ListOffsets says them

SPLIT_RECORDS_MIN = 50_000  # a shorter range is not worth a second task

Offsets = dict[Place, int]
Nested = dict[str, dict[str, int]]


class Slice(NamedTuple):
    """Offsets range(start, end) of one partition."""

    topic: str
    partition: int
    start: int
    end: int


_clients: dict[tuple[int, str, float], Client] = {}


def client_of(address: str, *, retry_s: float = 30.0) -> Client:
    """The client of this process for a cluster. A forked child makes its own."""
    key = (os.getpid(), address, retry_s)
    if key not in _clients:
        from penstock.protocol.client import Client

        _clients[key] = Client(address, retry_s=retry_s)
    return _clients[key]


@atexit.register
def _close_clients() -> None:
    for (process, _, _), client in _clients.items():
        if process == os.getpid():  # a forked child leaves its parent's connections alone
            client.close()


def nested(offsets: Mapping[Place, int]) -> Nested:
    """{(topic, partition): offset} as JSON.

    >>> nested({("t", 1): 5})
    {'t': {'1': 5}}
    """
    result: Nested = {}
    for (topic, partition), offset in sorted(offsets.items()):
        result.setdefault(topic, {})[str(partition)] = offset
    return result


def flat(offsets: Mapping[str, Mapping[str, int]]) -> Offsets:
    return {(topic, int(partition)): offset for topic, parts in offsets.items() for partition, offset in parts.items()}


def resolve(client: Client, position: Any, places: list[Place]) -> Offsets:
    """The offsets that a position means now: "earliest", "latest", {"timestamp_ms": n} or {topic: {"0": offset}}."""
    if not places:
        return {}
    match position:
        case "earliest" | "latest":
            return client.list_offsets(dict.fromkeys(places, EARLIEST if position == "earliest" else LATEST))
        case {"timestamp_ms": int(time_ms)}:
            latest = client.list_offsets(dict.fromkeys(places, LATEST))
            found = client.list_offsets(dict.fromkeys(places, time_ms))
            return {place: latest[place] if found[place] < 0 else min(found[place], latest[place]) for place in places}
        case dict():
            return _given(client, position, places)
    raise ConfigError(
        f"{position!r} is no position in a topic", remedy='use "earliest", "latest", {"timestamp_ms": n} or {"topic": {"0": offset}}'
    )


def _given(client: Client, position: Mapping[str, Mapping[str, int]], places: list[Place]) -> Offsets:
    """Offsets by partition; -2 and -1 mean earliest and latest, partitions that are not named begin at the earliest."""
    given = flat(position)
    unknown = [f"{topic}/{partition}" for topic, partition in given if (topic, partition) not in places]
    if unknown:
        raise ConfigError(
            f"a position names {', '.join(unknown)}, which is not there", remedy="name partitions of the topics that are read"
        )
    words = {place: given.get(place, EARLIEST) for place in places}
    asked = client.list_offsets({place: offset for place, offset in words.items() if offset < 0})
    return {place: asked.get(place, offset) for place, offset in words.items()}


def admit(start: Offsets, available: Offsets, records_max: int | None) -> Offsets:
    """How far one batch goes: all that is available, or a fair share of `records_max` for each partition.

    Every partition with a backlog moves by at least one record, so none starves.

    >>> admit({("t", 0): 0, ("t", 1): 0}, {("t", 0): 30, ("t", 1): 10}, 20)
    {('t', 0): 15, ('t', 1): 5}
    """
    backlog = {place: max(end - start.get(place, end), 0) for place, end in available.items()}
    total = sum(backlog.values())
    if records_max is None or total <= records_max:
        return dict(available)
    return {
        place: end if not backlog[place] else start[place] + max(1, backlog[place] * records_max // total)
        for place, end in available.items()
    }


def share(slices: list[Slice], tasks: int) -> list[list[Slice]]:
    """The slices for each task, about equal in records. A long slice is cut, so that one partition can keep several cores busy.

    A task never has two slices of one partition. Tasks without slices are left out."""
    total = sum(each.end - each.start for each in slices)
    fair = max(-(-total // max(tasks, 1)), SPLIT_RECORDS_MIN)
    pieces: list[Slice] = []
    for each in slices:
        parts = min(tasks, max(1, round((each.end - each.start) / fair)))
        size = -(-(each.end - each.start) // parts)
        pieces += [each._replace(start=start, end=min(start + size, each.end)) for start in range(each.start, each.end, max(size, 1))]
    loads: list[list[Slice]] = [[] for _ in range(tasks)]
    weights = [0] * tasks
    for piece in sorted(pieces, key=lambda each: (each.start - each.end, each)):
        free = [index for index in range(tasks) if all(other[:2] != piece[:2] for other in loads[index])]
        lightest = min(free, key=lambda index: (weights[index], index))
        loads[lightest].append(piece)
        weights[lightest] += piece.end - piece.start
    return [sorted(load) for load in loads if load]
