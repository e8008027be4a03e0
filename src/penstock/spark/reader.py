"""What a reader task yields: Arrow batches of raw records, typed rows, or envelopes. Runs in Spark's workers.

The imports here are the heavy ones (compiled loops, Arrow); the planner process on the driver never loads this module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from penstock.kernels.envelope import Envelope, pack_table, tick_to_stage, to_batch
from penstock.kernels.kernel import OFFSET, PARTITION, SOURCE, TIME
from penstock.planner.physical import Scan
from penstock.protocol.client import Place
from penstock.spark.decode import Records
from penstock.spark.fetch import OnLost, read_slices
from penstock.spark.scan import ScanTask, raw_table, values

if TYPE_CHECKING:
    from penstock.spark.source import Reading, ScanSlices

YIELD_ROWS = 64_000  # rows in one Arrow batch for the JVM: larger ones stall its reader
YIELD_ENVELOPES = 64
ENVELOPES = "_envelopes"  # in rows for Spark's operators: what the reader itself has to say, packed


def read(reading: Reading, part: ScanSlices) -> Iterator[pa.RecordBatch]:
    match reading.emit:
        case "envelopes":
            yield from _in_batches(_envelopes(reading, part))
        case "rows":
            yield from _rows(reading, part)
        case "typed":
            yield from _typed(reading, part)
        case _:
            for scan, place, records in _chunks(reading, part):
                yield from raw_table(place, records, scan.columns).to_batches(max_chunksize=YIELD_ROWS)


def _chunks(reading: Reading, part: ScanSlices) -> Iterator[tuple[Scan, Place, Records]]:
    for scan in reading.scans:
        slices = part.slices.get(scan.id, [])
        for each, records in read_slices(reading.address, slices, on_lost=cast(OnLost, reading.on_lost), check=reading.check):
            yield scan, (each.topic, each.partition), records


def _envelopes(reading: Reading, part: ScanSlices) -> Iterator[Envelope]:
    groups = dict(reading.groups)
    tasks = {scan.id: ScanTask(scan, frozenset(groups), part.task) for scan in reading.scans}
    for scan, place, records in _chunks(reading, part):
        yield from tasks[scan.id].take(place, records)
    for scan in reading.scans:
        yield from tasks[scan.id].finish(part.places[scan.id], set(part.ended[scan.id]), groups)
    if part.tick_us is not None:
        for stage in reading.ticked:
            yield from tick_to_stage(part.tick_us, to=stage, groups=groups[stage])


def _in_batches(envelopes: Iterator[Envelope]) -> Iterator[pa.RecordBatch]:
    waiting: list[Envelope] = []
    for envelope in envelopes:
        waiting.append(envelope)
        if len(waiting) == YIELD_ENVELOPES:
            yield to_batch(waiting)
            waiting = []
    if waiting:
        yield to_batch(waiting)


def _typed(reading: Reading, part: ScanSlices) -> Iterator[pa.RecordBatch]:
    """The user's columns and `_error`; a bad record has nothing but its error."""
    for scan, place, records in _chunks(reading, part):
        decoded = values(scan, place, records)
        schema = scan.schema.to_arrow().append(pa.field("_error", pa.string()))
        good = decoded.table.append_column("_error", pa.nulls(decoded.table.num_rows, pa.string()))
        yield from good.cast(schema).to_batches(max_chunksize=YIELD_ROWS)
        if decoded.reasons:
            columns = [pa.nulls(len(decoded.bad), field.type) for field in scan.schema.to_arrow()]
            yield pa.record_batch([*columns, pa.array(decoded.reasons, pa.string())], schema=schema)


def _rows(reading: Reading, part: ScanSlices) -> Iterator[pa.RecordBatch]:
    """The user's columns and ours, for Spark's operators; see `source.rows`."""
    (scan,) = reading.scans
    ours = [(TIME, pa.int64()), (SOURCE, pa.int32()), (PARTITION, pa.int32()), (OFFSET, pa.int64()), (ENVELOPES, pa.binary())]
    schema = pa.schema([*scan.schema.to_arrow(), *ours])
    groups = dict(reading.groups)
    task = ScanTask(scan, frozenset(groups), part.task)
    ready: list[Envelope] = []
    for _, place, records in _chunks(reading, part):
        table, letters = task.rows(place, records)
        ready += letters
        if not scan.before_time:  # otherwise Spark computes the time, and the packing step finds the maxima
            table = task.timed(place, table)
        yield from _fitted(table, schema).to_batches(max_chunksize=YIELD_ROWS)
    ready += task.finish(part.places[scan.id], set(part.ended[scan.id]), groups)
    yield from _fitted(pa.table({ENVELOPES: pa.array([_packed(ready)], pa.binary())}), schema).to_batches()


def _packed(envelopes: list[Envelope]) -> bytes:
    return pack_table(pa.Table.from_batches([to_batch(envelopes)]))


def _fitted(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with exactly the schema's columns; those that it lacks are null."""
    columns = [
        table[field.name].cast(field.type) if field.name in table.column_names else pa.nulls(table.num_rows, field.type) for field in schema
    ]
    return pa.table(columns, schema=schema)
