"""The rows that travel on the chain of operators: envelopes.

Python operators of Spark loop over rows and cells, so a stream's rows never cross them one by one. A scan task packs the
rows it has for one key group of one stage into one envelope, the payload an Arrow IPC stream; operators open the
envelopes addressed to them, forward all others unchanged, and answer with envelopes.

    | _group  key group of the addressee (any group, when it only passes through)
    | to      id of the stage or sink it is addressed to, or COUNTS
    | input   which input of the stage: 0, or 1 for the second of two connected streams
    | source  id of the sending scan or stage, or CLOCK
    | times   per source partition the greatest event time seen; or the sending stage's watermark (see `Times`)
    | tick_us processing time, in a clock tick
    | payload rows
    | counts  exact counters of the sender, as a JSON object

Invariant: in every batch every group of a stage gets the same controls (times, ticks), so all groups of a stage have the same
watermark, and group 0 speaks for all of them. Pure: Arrow and numpy, no Spark. Placing keys on groups is in `placement.py`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from penstock.kernels.kernel import FOREVER_US, NEVER_US

GROUPS = 16  # key groups of a stage unless the plan says otherwise: the maximum parallelism
COLUMNS = ("_group", "to", "input", "source", "times", "tick_us", "payload", "counts")
DDL = "_group INT, `to` INT, input INT, source INT, times BINARY, tick_us BIGINT, payload BINARY, counts STRING"
ARROW = pa.schema(
    [("_group", pa.int32()), ("to", pa.int32()), ("input", pa.int32()), ("source", pa.int32()), ("times", pa.binary()),
     ("tick_us", pa.int64()), ("payload", pa.binary()), ("counts", pa.string())]
)  # fmt: skip
COUNTS = -1  # the addressee of counters: the sink's progress file
CLOCK = -2  # the sender of ticks
PAYLOAD_BYTES_MAX = 16 << 20  # a larger payload is cut into several envelopes

ACTIVE, IDLE, ENDED = 0, 1, 2  # what a source says of a partition: counts, does not count until it has data, will never have data


class Times(NamedTuple):
    """One partition's time, as its scan tells it: the greatest event time seen (NEVER_US if none), and its state.

    A stage tells its watermark as partition 0 of itself. `watermark` is the source's own statement when it knows better
    than `greatest - lateness` (a script, a stage); NEVER_US if it does not."""

    partition: int
    greatest_us: int
    state: int = ACTIVE
    watermark_us: int = NEVER_US


_TIMES = np.dtype([("partition", "<i4"), ("state", "<i4"), ("greatest_us", "<i8"), ("watermark_us", "<i8")])


class Envelope(NamedTuple):
    """A row of the chain, in the order of COLUMNS."""

    group: int
    to: int
    input: int = 0
    source: int = CLOCK
    times: bytes | None = None
    tick_us: int | None = None
    payload: bytes | None = None
    counts: str | None = None


def pack_times(times: Iterable[Times]) -> bytes:
    """24 bytes per partition: | partition i32 | state i32 | greatest_us i64 | watermark_us i64 |, little-endian."""
    rows = [(each.partition, each.state, each.greatest_us, each.watermark_us) for each in times]
    return np.array(rows, dtype=_TIMES).tobytes()


def open_times(packed: bytes) -> list[Times]:
    return [
        Times(partition, greatest_us, state, watermark_us)
        for partition, state, greatest_us, watermark_us in np.frombuffer(packed, dtype=_TIMES).tolist()
    ]


def pack_table(table: pa.Table) -> bytes:
    """The rows as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def open_table(payload: bytes) -> pa.Table:
    """The rows of a payload; they share its memory."""
    return pa.ipc.open_stream(pa.BufferReader(payload)).read_all()


def payloads(table: pa.Table) -> Iterator[bytes]:
    """The rows as payloads of bounded size, in order."""
    parts = max(1, -(-table.nbytes // PAYLOAD_BYTES_MAX))
    rows = max(1, -(-table.num_rows // parts))
    for start in range(0, table.num_rows, rows):
        yield pack_table(table.slice(start, rows))


def split(table: pa.Table, *, keys: Sequence[str], groups: int) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each group that has any; inside a group they keep their order."""
    from penstock.kernels.placement import groups_of  # compiled code: a second to import, and planning needs none of it

    if table.num_rows == 0:
        return
    placed = groups_of(table, keys=keys, groups=groups)
    order = np.argsort(placed, kind="stable")
    counts = np.bincount(placed, minlength=groups)
    taken = table.take(pa.array(order))
    start = 0
    for group, count in enumerate(counts.tolist()):
        if count:
            yield group, taken.slice(start, count)
            start += count


def rows_to_stage(table: pa.Table, *, to: int, source: int, keys: Sequence[str], groups: int, input: int = 0) -> Iterator[Envelope]:
    """The rows for a stage, placed on its groups by key."""
    for group, part in split(table, keys=keys, groups=groups):
        for payload in payloads(part):
            yield Envelope(group, to, input, source, payload=payload)


def rows_to_sink(table: pa.Table, *, to: int, source: int, group: int = 0) -> Iterator[Envelope]:
    """The rows for a sink; `group` only spreads the work."""
    for payload in payloads(table) if table.num_rows else ():
        yield Envelope(group, to, 0, source, payload=payload)


def times_to_stage(times: Iterable[Times], *, to: int, source: int, groups: int, input: int = 0) -> Iterator[Envelope]:
    """The control envelopes of one sender in one batch: one for every group of the stage."""
    packed = pack_times(times)
    for group in range(groups):
        yield Envelope(group, to, input, source, times=packed)


def watermark_to_stage(watermark_us: int, *, to: int, source: int, groups: int, input: int = 0) -> Iterator[Envelope]:
    """A stage's watermark, for every group of the stage after it."""
    state = ENDED if watermark_us >= FOREVER_US else ACTIVE
    return times_to_stage([Times(0, NEVER_US, state, watermark_us)], to=to, source=source, groups=groups, input=input)


def tick_to_stage(now_us: int, *, to: int, groups: int) -> Iterator[Envelope]:
    """A clock tick, for every group of a stage."""
    for group in range(groups):
        yield Envelope(group, to, 0, CLOCK, tick_us=now_us)


def counts_envelope(counts: Mapping[str, int], *, source: int, group: int = 0) -> Envelope:
    """Exact counters of one sender in one batch, for the progress file."""
    return Envelope(group, COUNTS, 0, source, counts=json.dumps(dict(counts), sort_keys=True))


def to_batch(envelopes: Iterable[Envelope]) -> pa.RecordBatch:
    """Envelopes as an Arrow batch of the chain's schema: what a scan yields."""
    columns = list(zip(*envelopes)) or [()] * len(COLUMNS)
    return pa.record_batch([pa.array(column, type=field.type) for column, field in zip(columns, ARROW)], schema=ARROW)


def from_batch(batch: pa.RecordBatch) -> Iterator[Envelope]:
    """The envelopes of an Arrow batch (column order as in COLUMNS)."""
    for row in zip(*(batch.column(name).to_pylist() for name in COLUMNS)):
        yield Envelope(*row)
