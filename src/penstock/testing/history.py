"""Check a history of sends and polls against the laws of a log.

A history is what clients saw, in the order in which each of them saw it: sends with the offset they were acknowledged at,
polls, and the outcome of transactions. Values are unique identifiers (any hashable), so that a record can be followed. The
laws, after Jepsen's Kafka workload (Kingsbury, 2022):

    lost write           acknowledged, its transaction not aborted, and absent from a read of the whole partition
    duplicate            one value at two places, polled or acknowledged
    inconsistent offset  two values at one offset, polled or acknowledged
    non-monotonic poll   a consumer's offsets do not rise between two assignments
    skipped poll         a consumer passes over an offset that holds a record it may see
    non-monotonic send   acknowledged offsets of one producer in one partition do not rise in the order of sending
    aborted read         a read_committed consumer sees a value of an aborted transaction
    unsent read          a polled value that nobody sent

Invariant: a history without anomalies gives an empty list; a send whose outcome is unknown may be there once or not at all.
Not here: how a history is recorded, and compacted topics, where absence is no loss."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Partition = tuple[str, int]
Kind = Literal[
    "lost write",
    "duplicate",
    "inconsistent offset",
    "non-monotonic poll",
    "skipped poll",
    "non-monotonic send",
    "aborted read",
    "unsent read",
]


@dataclass(frozen=True, slots=True)
class Send:
    """A producer sent `value`. `offset` is where it was acknowledged; None if it was not, so nobody knows whether it is there."""

    producer: str
    partition: Partition
    value: Hashable
    offset: int | None
    transaction: str | None = None


@dataclass(frozen=True, slots=True)
class Poll:
    """A consumer was given `value` at `offset`."""

    consumer: str
    partition: Partition
    offset: int
    value: Hashable


@dataclass(frozen=True, slots=True)
class Assign:
    """A consumer took up a partition, or sought in it: its next poll may start anywhere."""

    consumer: str
    partition: Partition


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a transaction ended: True committed, False aborted, None if nobody knows."""

    transaction: str
    committed: bool | None


Event = Send | Poll | Assign | Outcome


@dataclass(frozen=True, slots=True)
class Anomaly:
    """A broken law: where, and what was seen."""

    kind: Kind
    partition: Partition
    text: str

    def __str__(self) -> str:
        return f"{self.kind} in {self.partition[0]}/{self.partition[1]}: {self.text}"


@dataclass(slots=True)
class _Index:
    """What the events say, arranged for the laws."""

    sends: dict[Hashable, Send] = field(default_factory=dict)
    places: dict[Hashable, set[tuple[Partition, int]]] = field(default_factory=lambda: defaultdict(set))
    values: dict[tuple[Partition, int], set[Hashable]] = field(default_factory=lambda: defaultdict(set))
    outcomes: dict[str, bool | None] = field(default_factory=dict)
    seen: set[Hashable] = field(default_factory=set)

    def visible(self, value: Hashable) -> bool:
        """Must every consumer see it? Not if its transaction was aborted or nobody knows."""
        send = self.sends.get(value)
        return send is not None and (send.transaction is None or self.outcomes.get(send.transaction) is True)


def check(events: Iterable[Event], *, ends: Mapping[Partition, int] | None = None, read_committed: bool = True) -> list[Anomaly]:
    """The broken laws of a history, in a stable order.

    `ends` names partitions that were read from the beginning to that next offset after all sends were over: only there can a
    write be called lost. With `read_committed=False` the consumers asked for everything, so aborted values are no anomaly."""
    events = list(events)
    index = _index(events)
    anomalies = [*_places(index), *_sends(events), *_polls(events, index), *_lost(index, ends or {})]
    if read_committed:
        anomalies += _aborted(index)
    return sorted(set(anomalies), key=lambda anomaly: (anomaly.partition, anomaly.kind, anomaly.text))


def _index(events: list[Event]) -> _Index:
    index = _Index()
    for event in events:
        match event:
            case Send():
                assert event.value not in index.sends, f"values are unique; {event.value!r} was sent twice"
                index.sends[event.value] = event
                if event.offset is not None:
                    index.places[event.value].add((event.partition, event.offset))
                    index.values[event.partition, event.offset].add(event.value)
            case Poll():
                index.seen.add(event.value)
                index.places[event.value].add((event.partition, event.offset))
                index.values[event.partition, event.offset].add(event.value)
            case Outcome():
                index.outcomes[event.transaction] = event.committed
            case Assign():
                pass
    return index


def _places(index: _Index) -> Iterable[Anomaly]:
    """One value, one place; one place, one value; and every value was sent."""
    for value, places in index.places.items():
        send = index.sends.get(value)
        if send is None:
            partition, offset = min(places)
            yield Anomaly("unsent read", partition, f"{value!r} at offset {offset}")
            continue
        if len(places) > 1:
            seen = ", ".join(f"{partition[0]}/{partition[1]}@{offset}" for partition, offset in sorted(places))
            yield Anomaly("duplicate", send.partition, f"{value!r} is at {seen}")
    for (partition, offset), values in index.values.items():
        if len(values) > 1:
            yield Anomaly("inconsistent offset", partition, f"offset {offset} holds {', '.join(sorted(map(repr, values)))}")


def _sends(events: list[Event]) -> Iterable[Anomaly]:
    newest: dict[tuple[str, Partition], Send] = {}
    for event in events:
        if not isinstance(event, Send) or event.offset is None:
            continue
        before = newest.get((event.producer, event.partition))
        if before is not None and before.offset is not None and event.offset <= before.offset:
            text = f"{event.producer} sent {before.value!r} before {event.value!r}, but they are at {before.offset} and {event.offset}"
            yield Anomaly("non-monotonic send", event.partition, text)
        newest[event.producer, event.partition] = event


def _polls(events: list[Event], index: _Index) -> Iterable[Anomaly]:
    """Offsets rise between two assignments, and nothing that must be seen is passed over."""
    known: dict[Partition, list[int]] = defaultdict(list)
    for (partition, offset), values in index.values.items():
        if any(index.visible(value) for value in values):
            known[partition].append(offset)
    for offsets in known.values():
        offsets.sort()
    position = {partition: {offset: n for n, offset in enumerate(offsets)} for partition, offsets in known.items()}
    newest: dict[tuple[str, Partition], int | None] = {}
    for event in events:
        if isinstance(event, Assign):
            newest[event.consumer, event.partition] = None
        if not isinstance(event, Poll):
            continue
        before = newest.get((event.consumer, event.partition))
        if before is not None and event.offset <= before:
            yield Anomaly("non-monotonic poll", event.partition, f"{event.consumer} polled {event.offset} after {before}")
        elif before is not None:
            yield from _passed_over(event, before, known[event.partition], position.get(event.partition, {}))
        newest[event.consumer, event.partition] = event.offset


def _passed_over(event: Poll, before: int, offsets: list[int], position: Mapping[int, int]) -> Iterable[Anomaly]:
    if before not in position or event.offset not in position:  # at least one of the two need not be seen by all: count from there
        between = [offset for offset in offsets if before < offset < event.offset] if event.offset - before > 1 else []
    else:
        between = offsets[position[before] + 1 : position[event.offset]]
    for offset in between:
        text = f"{event.consumer} polled {event.offset} after {before} and passed over {offset}"
        yield Anomaly("skipped poll", event.partition, text)


def _lost(index: _Index, ends: Mapping[Partition, int]) -> Iterable[Anomaly]:
    for value, send in index.sends.items():
        if send.offset is None or send.partition not in ends or not index.visible(value) or value in index.seen:
            continue
        where = "beyond the end" if send.offset >= ends[send.partition] else "but it is not there"
        yield Anomaly("lost write", send.partition, f"{value!r} was acknowledged at {send.offset}, {where} ({ends[send.partition]})")


def _aborted(index: _Index) -> Iterable[Anomaly]:
    for value in index.seen:
        send = index.sends.get(value)
        if send is not None and send.transaction is not None and index.outcomes.get(send.transaction) is False:
            yield Anomaly("aborted read", send.partition, f"{value!r} of transaction {send.transaction}")
