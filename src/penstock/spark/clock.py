"""Processing time as a source: its offset is the time, so Spark's offset log records it and a replay sees the same ticks.

The source of topics carries the clock of its query itself (`source.py`), one process fewer; this one serves plans that read only
DataFrames. A tick is an envelope for every group of every stage that needs the clock. Invariant: time never goes back, also when the
machine's clock does; on an idle stream there is a batch per interval and none between."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from penstock.clock import SystemClock
from penstock.kernels.envelope import DDL, Envelope, tick_to_stage, to_batch
from penstock.planner.physical import PhysicalPlan

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

FORMAT = "penstock-clock"


def due(now_us: int, last_us: int, interval_us: int) -> int:
    """The time of the tick that is due, or the last one if none is: a multiple of the interval.

    >>> due(10_700, 9_000, 500), due(9_200, 9_000, 500), due(8_000, 9_000, 500)
    (10500, 9000, 9000)
    """
    return max(last_us, now_us - now_us % interval_us)


def ticks(plan: PhysicalPlan, now_us: int) -> Iterator[Envelope]:
    """One tick for every group of the stages that need the clock."""
    for stage in plan.stages:
        if stage.needs_clock:
            yield from tick_to_stage(now_us, to=stage.id, groups=stage.groups)


def clock(spark: SparkSession, plan: PhysicalPlan) -> DataFrame:
    """The ticks of a plan as a stream of envelopes."""
    assert plan.clock.interval_us is not None, "the plan asks for ticks"
    spark.dataSource.register(ClockSource)
    stages = ",".join(f"{stage.id}:{stage.groups}" for stage in plan.stages if stage.needs_clock)
    return spark.readStream.format(FORMAT).option("interval_us", str(plan.clock.interval_us)).option("stages", stages).load()


class ClockSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return DDL

    def streamReader(self, schema: Any) -> ClockReader:
        return ClockReader(self.options)


class Tick(InputPartition):
    def __init__(self, now_us: int) -> None:
        self.now_us = now_us


class ClockReader(DataSourceStreamReader):
    def __init__(self, options: Any) -> None:
        self.interval_us = int(options["interval_us"])
        self.stages = [tuple(map(int, stage.split(":"))) for stage in options["stages"].split(",")]

    def initialOffset(self) -> dict[str, int]:
        return {"clock": 0}

    def latestOffset(self, start: dict[str, int], limit: Any = None) -> dict[str, int]:
        return {"clock": due(SystemClock().now_us(), start["clock"], self.interval_us)}

    def getDefaultReadLimit(self) -> Any:
        from pyspark.sql.streaming.datasource import ReadAllAvailable

        return ReadAllAvailable()

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[Tick]:
        return [Tick(end["clock"])] if end["clock"] > start["clock"] else []

    def read(self, partition: Tick) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        yield to_batch([envelope for to, groups in self.stages for envelope in tick_to_stage(partition.now_us, to=to, groups=groups)])
