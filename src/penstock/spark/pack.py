"""Rows of a DataFrame become envelopes: the scan of plans whose steps run as Spark expressions, or that read a user's DataFrame.

Expressions run in the JVM; one `mapInArrow` at the end packs. What the reader of a topic has to say itself (dead letters, the
partitions' times, counts) comes as rows with nothing but `_envelopes` and is forwarded. A filter does not drop rows on the way but marks them
(`_keep`), so that a row which is filtered out still moves the watermark, as it does when the scan itself filters.
Invariant: the envelopes equal those that the same scan would send if its steps ran in the reader."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.errors import PlanError
from penstock.kernels.envelope import DDL, Envelope, Times, counts_envelope, open_table, times_to_stage, to_batch
from penstock.kernels.kernel import NEVER_US, OFFSET, PARTITION, SOURCE, TIME
from penstock.planner.physical import Feed, PhysicalPlan, Scan
from penstock.planner.stateless import CARRIED, Apply, Filter, Project, RowStep
from penstock.spark.host import send

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

KEEP = "_keep"
ENVELOPES = "_envelopes"  # see reader.py, which is too heavy to import here


def packed(scan: Scan, plan: PhysicalPlan, frame: DataFrame) -> Iterator[DataFrame]:
    """One stream of envelopes for the feeds whose steps Arrow can do, and one for each other feed."""
    stages = {stage.id: stage.groups for stage in plan.stages}
    if ENVELOPES not in frame.columns:
        frame = frame.selectExpr("*", f"CAST(NULL AS BINARY) AS {ENVELOPES}")
    rows = in_spark(scan.before_time, frame.selectExpr("*", f"true AS {KEEP}"), name=scan.name)
    if scan.before_time and scan.event_time is not None:
        rows = rows.withColumn(TIME, _expression(f"unix_micros(CAST(`{scan.event_time}` AS TIMESTAMP))"))
    together = tuple(feed for feed in scan.feeds if all(step.outside is None for step in feed.steps))
    apart = tuple(feed for feed in scan.feeds if feed not in together)
    if together:
        yield rows.mapInArrow(packer(scan, together, stages, speaks=True), DDL)
    for place, feed in enumerate(apart):
        done = in_spark(feed.steps, rows, name=scan.name)
        yield done.mapInArrow(packer(scan, (replace(feed, steps=()),), stages, speaks=not together and place == 0), DDL)


def from_user(scan: Scan) -> DataFrame:
    """A user's DataFrame with our columns. It has no partitions of its own, so its event time is that of one partition."""
    frame = scan.dataframe
    missing = [name for name in scan.schema.names if name not in frame.columns]
    if missing:
        raise PlanError(scan.name, f"the DataFrame has no column '{missing[0]}'", remedy=f"it has {', '.join(frame.columns)}")
    has_time = scan.event_time in frame.columns  # otherwise a step makes it
    time = f"unix_micros(CAST(`{scan.event_time}` AS TIMESTAMP))" if has_time else "unix_micros(current_timestamp())"
    own = [f"CAST(`{field.name}` AS {field.type}) AS `{field.name}`" for field in scan.schema]
    rows: DataFrame = frame.selectExpr(
        *own, f"{time} AS {TIME}", f"{scan.id} AS {SOURCE}", f"0 AS {PARTITION}", f"CAST(-1 AS BIGINT) AS {OFFSET}"
    )
    return rows


def in_spark(steps: Sequence[RowStep], frame: DataFrame, *, name: str) -> DataFrame:
    """Steps as Spark expressions; filters only mark."""
    for step in steps:
        match step:
            case Filter():
                frame = frame.withColumn(KEEP, _expression(f"{KEEP} AND coalesce({step.spark}, false)"))
            case Project():
                kept = [column for column in (*CARRIED, KEEP, ENVELOPES) if column in frame.columns]
                frame = frame.selectExpr(*(f"{text} AS `{column}`" for column, text in step.spark), *kept)
            case Apply():
                frame = frame.mapInArrow(
                    _applied(step), ", ".join([*(f"`{field.name}` {field.type}" for field in step.schema), *_CARRIED_DDL])
                )
            case _:
                raise PlanError(name, f"{type(step).__name__} cannot run on Spark", remedy="use where, select, map or flat_map")
    return frame


_CARRIED_DDL = (f"{TIME} BIGINT", f"{SOURCE} INT", f"{PARTITION} INT", f"{OFFSET} BIGINT", f"{KEEP} BOOLEAN", f"{ENVELOPES} BINARY")


def _expression(text: str) -> Any:
    from pyspark.sql.functions import expr

    return expr(text)


def _applied(step: Apply) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A Python step between Spark expressions. Rows marked as dropped end here."""

    def applied(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        import pyarrow.compute as pc

        for batch in batches:
            table = pa.Table.from_batches([batch])
            said = table.filter(table[ENVELOPES].is_valid())
            rows = table.filter(pc.and_(table[ENVELOPES].is_null(), table[KEEP]))
            done = step.apply(rows.drop_columns([KEEP, ENVELOPES]))
            done = done.append_column(KEEP, pa.array([True] * done.num_rows, pa.bool_())).append_column(
                ENVELOPES, pa.nulls(done.num_rows, pa.binary())
            )
            yield from done.to_batches()
            if said.num_rows:
                nulls = [said[each.name] if each.name == ENVELOPES else pa.nulls(said.num_rows, each.type) for each in done.schema]
                yield from pa.table(nulls, schema=done.schema).to_batches()

    return applied


def packer(
    scan: Scan, feeds: tuple[Feed, ...], stages: dict[int, int], *, speaks: bool
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function of the packing step: one task's rows to envelopes. One of a scan's packing steps `speaks` for the whole scan:
    it forwards what the reader said, or counts the rows of a user's DataFrame."""
    id = scan.id
    counts = speaks and scan.dataframe is not None  # a reader of topics counts itself

    def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        greatest: dict[int, int] = {}
        records = 0
        for batch in batches:
            table = pa.Table.from_batches([batch])
            for said in table[ENVELOPES].drop_null().to_pylist() if speaks else ():
                yield from open_table(said).to_batches()
            table = table.filter(table[ENVELOPES].is_null()).drop_columns([ENVELOPES])
            _maxima(table, greatest)
            table = _numbered(table, records)
            records += table.num_rows
            kept = table.filter(table[KEEP]).drop_columns([KEEP])
            envelopes = [envelope for feed in feeds for envelope in send(kept, feed, source=id, is_stage=feed.to in stages)]
            if envelopes:
                yield to_batch(envelopes)
        if records:
            yield to_batch(list(_controls(id, feeds, stages, greatest, records if counts else 0)))

    return pack


def _numbered(table: pa.Table, first: int) -> pa.Table:
    """Rows of a user's DataFrame have no offset: their place in the task stands for it."""
    import numpy as np
    import pyarrow as pa
    from pyspark import TaskContext

    if table.num_rows == 0 or table[OFFSET][0].as_py() != -1:
        return table
    task = TaskContext.get()
    start = ((task.partitionId() if task is not None else 0) << 40) + first
    offsets = pa.array(np.arange(start, start + table.num_rows, dtype=np.int64))
    return table.set_column(table.schema.get_field_index(OFFSET), OFFSET, offsets)


def _maxima(table: pa.Table, greatest: dict[int, int]) -> None:
    import pyarrow.compute as pc

    for partition, time in zip(*_grouped(table, pc)):
        if time is not None:
            greatest[partition] = max(greatest.get(partition, NEVER_US), time)


def _grouped(table: pa.Table, pc: Any) -> tuple[list[int], list[int | None]]:
    found = table.group_by(PARTITION).aggregate([(TIME, "max")])
    return found[PARTITION].to_pylist(), found[f"{TIME}_max"].to_pylist()


def _controls(scan: int, feeds: tuple[Feed, ...], stages: dict[int, int], greatest: dict[int, int], records: int) -> Iterator[Envelope]:
    times = [Times(partition, time_us) for partition, time_us in sorted(greatest.items())]
    for to, place in sorted({(feed.to, feed.input) for feed in feeds if feed.to in stages}):
        yield from times_to_stage(times, to=to, source=scan, groups=stages[to], input=place)
    if records:
        yield counts_envelope({"records": records}, source=scan)
