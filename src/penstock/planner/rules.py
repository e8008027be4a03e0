"""The planner's rules: an ordered tuple of small functions from a physical plan to a better one with the same rows.

Each has a name, which is its switch: `plan(pipeline, without={"combine in the scan"})`. tests/planner runs pipelines with and without each rule and compares the rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from penstock.dataflow import trigger as triggers
from penstock.dataflow import window as windows
from penstock.dataflow.expression import Checked
from penstock.kernels.process import ProcessKernel
from penstock.kernels.window import WindowKernel
from penstock.planner.physical import LATE, Combine, Feed, PhysicalPlan, Scan, Stage
from penstock.planner.stateless import SIGN, Filter, Project, RowStep
from penstock.schema import Schema


@dataclass(frozen=True, slots=True)
class Rule:
    """A rewriting with a name and the reason why the rows stay the same."""

    name: str
    why: str
    rewrite: Callable[[PhysicalPlan], PhysicalPlan]


def apply_rules(plan: PhysicalPlan, *, without: Collection[str] = ()) -> PhysicalPlan:
    """All rules in order, but those switched off. The plan remembers which ones changed it."""
    for rule in RULES:
        if rule.name not in without and (better := rule.rewrite(plan)) != plan:
            plan = replace(better, rules=(*better.rules, rule.name))
    return plan


def _steps_in_scan(plan: PhysicalPlan) -> PhysicalPlan:
    scans = []
    for scan in plan.scans:
        why = next((step.outside for steps in _all_steps(scan) for step in steps if step.outside), None)
        if scan.dataframe is not None:
            scans.append(scan)
        elif why is None:
            scans.append(replace(scan, place="scan"))
        else:
            scans.append(replace(scan, reason=f"{scan.reason}; its steps run as Spark expressions: {why}"))
    return replace(plan, scans=tuple(scans))


def _all_steps(scan: Scan) -> tuple[tuple[RowStep, ...], ...]:
    return (scan.before_time, *(feed.steps for feed in scan.feeds))


def _one_filter(plan: PhysicalPlan) -> PhysicalPlan:
    return _map_feeds(plan, lambda sender, feed: replace(feed, steps=merged_filters(feed.steps)))


def merged_filters(steps: Sequence[RowStep]) -> tuple[RowStep, ...]:
    """Filters that follow each other as one condition: a row passes both or is dropped by one."""
    made: list[RowStep] = []
    for step in steps:
        previous = made[-1] if made else None
        if isinstance(step, Filter) and isinstance(previous, Filter):
            made[-1] = Filter(_both(previous.condition, step.condition), step.schema)
        else:
            made.append(step)
    return tuple(made)


def _both(a: Checked, b: Checked) -> Checked:
    arrow = f"(({a.arrow}) AND ({b.arrow}))" if a.arrow and b.arrow else None
    columns = tuple(dict.fromkeys(a.columns + b.columns))
    return Checked(f"({a.text}) AND ({b.text})", "BOOLEAN", columns, f"(({a.spark}) AND ({b.spark}))", arrow, a.outside or b.outside)


def _narrow(plan: PhysicalPlan) -> PhysicalPlan:
    """Windows get the columns that they read, unless their late records are wanted."""

    def narrowed(sender: Scan | Stage, feed: Feed) -> Feed:
        stage = next((stage for stage in plan.stages if stage.id == feed.to), None)
        if stage is None or not isinstance(stage.kernel, WindowKernel) or LATE in dict(stage.side):
            return feed
        needed = _read_by(stage.kernel)
        if set(feed.schema.names) <= set(needed):
            return feed
        schema = feed.schema.select(*(name for name in feed.schema.names if name in needed))
        project = Project(tuple((name, Checked(name, None, (name,), f"`{name}`", f'"{name}"')) for name in schema.names), schema)
        return replace(feed, steps=_composed(feed.steps, project), schema=schema)

    better = _map_feeds(plan, narrowed)
    stages = tuple(_with_narrow_inputs(stage, better) for stage in better.stages)
    return replace(better, stages=stages)


def _read_by(kernel: WindowKernel) -> tuple[str, ...]:
    columns = [*kernel.keys, *(aggregate.column for aggregate in kernel.aggregates if aggregate.column is not None)]
    columns += [*windows.columns(kernel.window), *(text for text, _ in triggers.columns(kernel.trigger))]
    return tuple(dict.fromkeys([*columns, *((SIGN,) if kernel.signed else ())]))


def _composed(steps: tuple[RowStep, ...], last: Project) -> tuple[RowStep, ...]:
    """A projection that only picks columns of the projection before it becomes one with it."""
    before = steps[-1] if steps else None
    if isinstance(before, Project):
        computed = dict(before.columns)
        return (*steps[:-1], Project(tuple((name, computed[name]) for name, _ in last.columns), last.schema))
    return (*steps, last)


def _with_narrow_inputs(stage: Stage, plan: PhysicalPlan) -> Stage:
    schemas = {feed.schema for _, feed in plan.feeds_to(stage.id)}
    if not isinstance(stage.kernel, WindowKernel) or len(schemas) != 1 or stage.inputs[0].schema in schemas:
        return stage
    schema: Schema = schemas.pop()
    return replace(stage, inputs=(replace(stage.inputs[0], schema=schema),), kernel=replace(stage.kernel, schema=schema))


def _combine(plan: PhysicalPlan) -> PhysicalPlan:
    def combined(sender: Scan | Stage, feed: Feed) -> Feed:
        stage = next((stage for stage in plan.stages if stage.id == feed.to), None)
        if not isinstance(sender, Scan) or stage is None or not isinstance(stage.kernel, WindowKernel):
            return feed
        if not stage.kernel.combinable or LATE in dict(stage.side) or sender.place != "scan":
            return feed
        return replace(
            feed, combine=Combine(stage.kernel), reason=f"{feed.reason}; combined per slice in the scan: fewer rows cross the shuffle"
        )

    return _map_feeds(plan, combined)


def _one_shuffle(plan: PhysicalPlan) -> PhysicalPlan:
    """Puts a stage into the earliest operator that it can share.

    Rows that one stage sends another in the same operator must stay in their group: the edge keeps the keys and their values. An
    operator never waits for one behind it, so a stage comes after all operators whose rows must be shuffled on the way to it."""
    place: dict[int, int] = {}  # stage → index of its operator
    operators: list[list[Stage]] = []
    for stage in plan.stages:
        least = 0
        for sender, feed in plan.feeds_to(stage.id):
            if isinstance(sender, Stage):
                least = max(least, place[sender.id] + (0 if stays_in_group(sender, stage, feed) else 1))
        index = next((i for i in range(least, len(operators)) if operators[i][0].groups == stage.groups), len(operators))
        if index == len(operators):
            operators.append([])
        operators[index].append(stage)
        place[stage.id] = index
    # An operator's number is its place in the chain.
    stages = tuple(replace(stage, operator=place[stage.id]) for stage in plan.stages)
    return plan if len(operators) == len(plan.stages) else replace(plan, stages=stages)


def stays_in_group(sender: Stage, stage: Stage, feed: Feed) -> bool:
    """Whether every row of the edge belongs to the group that sends it: the kernel hands the keys through and no step changes them."""
    if isinstance(sender.kernel, ProcessKernel) or (sender.keys, sender.groups) != (stage.keys, stage.groups):
        return False
    for step in feed.steps:
        if isinstance(step, Project):
            columns = dict(step.columns)
            if not all(key in columns and columns[key].columns == (key,) == (columns[key].text,) for key in stage.keys):
                return False
        elif not isinstance(step, Filter):
            return False
    return True


def _map_feeds(plan: PhysicalPlan, change: Callable[[Scan | Stage, Feed], Feed]) -> PhysicalPlan:
    scans = tuple(replace(scan, feeds=tuple(change(scan, feed) for feed in scan.feeds)) for scan in plan.scans)
    stages = tuple(replace(stage, feeds=tuple(change(stage, feed) for feed in stage.feeds)) for stage in plan.stages)
    return replace(plan, scans=scans, stages=stages)


RULES: tuple[Rule, ...] = (
    Rule("one filter", "a row passes both conditions or is dropped by one", _one_filter),
    Rule("narrow rows", "a window reads only its keys, its aggregates' columns and its conditions", _narrow),
    Rule("steps in the scan", "the typed subset gives Spark's values on Arrow", _steps_in_scan),
    Rule("one shuffle", "rows of a key are in one group, and stay there as long as their keys do", _one_shuffle),
    Rule("combine in the scan", "partial aggregates of a slice add up to the aggregate of its records", _combine),
)
NAMES = tuple(rule.name for rule in RULES)
