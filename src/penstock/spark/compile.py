"""A physical plan as one chain of Spark operators.

    union(packed scans, clock) ─▶ stage ─▶ stage ─▶ … ─▶ envelopes for the sinks

Every row is an envelope; a stage answers those addressed to it and forwards the others. So a plan with branches needs no operator
twice, and late rows, dead letters and counters reach the sink in the same query. Not here: reading and writing topics
(`source.py`, `sink.py`), starting the query (`run.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from typing import TYPE_CHECKING

from penstock.errors import ConfigError
from penstock.kernels.envelope import DDL, open_table
from penstock.planner.physical import PhysicalPlan, Sink
from penstock.spark.host import processor

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


def compile_plan(spark: SparkSession, plan: PhysicalPlan, *, address: str | None, options: Mapping[str, str], job: str) -> DataFrame:
    """The whole plan, from its scans to the envelopes for its sinks."""
    frames = list(_scans(spark, plan, address, options))
    return compile_chain(plan, reduce(lambda a, b: a.unionAll(b), frames), job=job)


def _scans(spark: SparkSession, plan: PhysicalPlan, address: str | None, options: Mapping[str, str]) -> Iterator[DataFrame]:
    from penstock.spark import clock, pack

    in_reader = [scan for scan in plan.scans if scan.topics and scan.place == "scan"]
    if any(scan.topics for scan in plan.scans) and address is None:
        raise ConfigError("the pipeline reads topics, but there is no broker", remedy="name one with --broker, or start `penstock broker`")
    if in_reader and options.get("connector") == "jvm":
        from penstock.spark import jvm_connector

        yield from jvm_connector.envelopes(spark, plan, address=str(address), options=options)
    elif in_reader:
        from penstock.spark import source

        yield source.envelopes(spark, plan, address=str(address), options=options)
    if (not in_reader or options.get("connector") == "jvm") and plan.clock.interval_us is not None:
        yield clock.clock(spark, plan)
    for scan in plan.scans:
        if scan.dataframe is not None:
            yield from pack.packed(scan, plan, pack.from_user(scan))
        elif scan not in in_reader:
            from penstock.spark import source

            groups = {stage.id: stage.groups for stage in plan.stages}
            yield from pack.packed(scan, plan, source.rows(spark, scan, groups=groups, address=str(address), options=options))


def compile_chain(plan: PhysicalPlan, envelopes: DataFrame, *, job: str) -> DataFrame:
    """The operators of a plan on a stream of envelopes, as a stream of envelopes for its sinks. `job` names the state."""
    for stages in plan.operators:
        hosted = processor(plan, stages, job=job)
        envelopes = envelopes.groupBy("_group").transformWithState(hosted, DDL, outputMode="Append", timeMode="None")
    return envelopes


def opened(envelopes: DataFrame, sink: Sink) -> DataFrame:
    """The rows addressed to a sink, as a DataFrame of its columns."""
    names = [field.name for field in sink.schema]

    def open_all(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for to, payload in zip(batch.column("to").to_pylist(), batch.column("payload").to_pylist()):
                if to == sink.id and payload is not None:
                    yield from open_table(payload).select(names).cast(sink.schema.to_arrow()).to_batches()

    return envelopes.mapInArrow(open_all, ", ".join(f"`{field.name}` {field.type}" for field in sink.schema))
