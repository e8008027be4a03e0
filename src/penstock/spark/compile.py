"""A physical plan as one chain of Spark operators.

    union(packed scans, clock) ─▶ stage ─▶ stage ─▶ … ─▶ envelopes for the sinks

Every row is an envelope; a stage answers those addressed to it and forwards the others. So a plan with branches needs no operator
twice, and late rows, dead letters and counters reach the sink in the same query. Not here: reading and writing topics
(`source.py`, `sink.py`), starting the query (`run.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.kernels.envelope import DDL
from penstock.planner.physical import PhysicalPlan, Stage
from penstock.spark.host import processor

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def compile_chain(plan: PhysicalPlan, envelopes: DataFrame, *, job: str) -> DataFrame:
    """The stages of a plan on a stream of envelopes, as a stream of envelopes for its sinks. `job` names the state."""
    for stage in plan.stages:
        envelopes = compile_stage(plan, stage, envelopes, job=job)
    return envelopes


def compile_stage(plan: PhysicalPlan, stage: Stage, envelopes: DataFrame, *, job: str) -> DataFrame:
    stages = {each.id: each for each in plan.stages}
    after = sorted({(feed.to, feed.input, stages[feed.to].groups) for feed in stage.feeds if feed.to in stages})
    return envelopes.groupBy("_group").transformWithState(processor(stage, job=job, after=after), DDL, outputMode="Append", timeMode="None")
