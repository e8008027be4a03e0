"""Both plans as text: what the pipeline means, how it runs and why, what each sink guarantees, and the weakest link."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from penstock.clock import spoken
from penstock.dataflow.picture import text
from penstock.planner import plan as planned
from penstock.planner.physical import GROUPS, Feed, PhysicalPlan, Scan, Sink, Stage

if TYPE_CHECKING:
    from penstock.dataflow.pipeline import Pipeline

_STRENGTH = ("in order of arrival, not stored", "at-least-once", "exactly-once")


def explain(pipeline: Pipeline, *, groups: int = GROUPS, without: Collection[str] = ()) -> str:
    """The text of `penstock explain`."""
    physical = planned(pipeline, groups=groups, without=without)
    return f"Plan\n{text(pipeline.sinks)}\n\nPhysical plan\n{printed(physical)}"


def printed(plan: PhysicalPlan) -> str:
    """The physical plan, one part per paragraph line, each with its reason."""
    lines: list[str] = []
    for scan in plan.scans:
        lines += _scan(scan, plan)
    for stage in plan.stages:
        lines += _stage(stage, plan)
    for sink in plan.sinks:
        lines += _sink(sink)
    ticks = "no ticks" if plan.clock.interval_us is None else f"a tick every {spoken(plan.clock.interval_us)}"
    lines.append(f"  clock: {ticks}\n      why: {plan.clock.reason}")
    lines.append(f"  rules used: {', '.join(plan.rules) or 'none'}")
    lines += [f"  operator: kernels {', '.join(str(stage.id) for stage in hosted)}" for hosted in plan.operators]
    lines.append(f"  shuffles: {plan.shuffles} (one per operator, by key group)")
    lines.append(f"  weakest link: {weakest(plan)}")
    lines += [f"  note: {note}" for note in plan.notes]
    return "\n".join(lines)


def weakest(plan: PhysicalPlan) -> str:
    """The sink with the least guarantee, and what it means for the whole."""
    sink = min(plan.sinks, key=lambda sink: _STRENGTH.index(sink.guarantee))
    return f"{sink.name} is {sink.guarantee}; reading and state are exactly once"


def _scan(scan: Scan, plan: PhysicalPlan) -> list[str]:
    where = "in the reader" if scan.place == "scan" else "as Spark expressions"
    end = "" if scan.end is None else f" until {scan.end}"
    time = (
        f", event time {scan.event_time or 'of the record'}, lateness {spoken(scan.lateness_us)}"
        if scan.event_time or scan.lateness_us
        else ""
    )
    lines = [f"  {scan.id} scan {scan.name}: {scan.format} from {scan.start}{end}{time}; steps {where}", f"      why: {scan.reason}"]
    lines += [f"      bad unless {requirement.condition}" for requirement in scan.requirements]
    bad = "counted and dropped" if scan.dead_letters is None else f"→ {scan.dead_letters}"
    lines.append(f"      bad records {bad}")
    lines += [f"      {step}" for step in scan.before_time]
    return lines + [line for feed in scan.feeds for line in _feed(feed, plan)]


def _stage(stage: Stage, plan: PhysicalPlan) -> list[str]:
    keys = f"by {', '.join(stage.keys)} in {stage.groups} groups" if stage.keys else "in one group"
    lines = [f"  {stage.id} kernel {stage.name}: {keys}", f"      why: {stage.reason}"]
    return lines + [line for feed in stage.feeds for line in _feed(feed, plan)]


def _feed(feed: Feed, plan: PhysicalPlan) -> list[str]:
    to_sink = any(sink.id == feed.to for sink in plan.sinks)
    what = "" if feed.output == "rows" else f"{feed.output} "
    second = " (second input)" if feed.input else ""
    steps = "; ".join(str(step) for step in feed.steps)
    combined = "; combined per slice" if feed.combine is not None else ""
    why = "" if to_sink else f"\n          why: {feed.reason}"
    return [f"      {what}→ {feed.to}{second}" + (f": {steps}" if steps else "") + combined + why]


def _sink(sink: Sink) -> list[str]:
    key = f", key {', '.join(sink.key)}" if sink.key else ""
    return [f"  {sink.id} sink {sink.name}: {sink.format}{key}, {sink.guarantee}", f"      why: {sink.reason}"]
