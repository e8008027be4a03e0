"""From the plan to the physical plan, before any rule: every stateful node is a stage, every edge a feed, every read a scan.

Stateless nodes dissolve into the steps of the feeds that lead to the next stage or sink; `union` dissolves into several feeds. Two reads
that differ only in whether they have an event time are one scan, so that a topic is read, and its bad records counted, once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.clock import spoken
from penstock.dataflow import expression, plan, review
from penstock.dataflow import trigger as triggers
from penstock.dataflow import window as windows
from penstock.errors import PlanError
from penstock.kernels.kernel import Kernel
from penstock.kernels.process import ProcessKernel
from penstock.kernels.window import WindowKernel
from penstock.planner import capabilities
from penstock.planner.physical import LATE, ROWS, Clock, Feed, Input, PhysicalPlan, Requirement, Scan, Sender, Sink, Stage
from penstock.planner.stateless import SIGN, Apply, Filter, Project, RowStep
from penstock.schema import Field, Schema

TICK_US_MIN, TICK_US_MAX = 250_000, 5_000_000
TIMER_TICK_US = 1_000_000  # for process steps with timers, whose delays are not known when the plan is built
Stateful = plan.Deduplicate | plan.Aggregated | plan.Processed


@dataclass(frozen=True, slots=True)
class _Source:
    """What makes two reads the same scan."""

    node: plan.Read | plan.FromDataFrame
    requirements: tuple[str, ...] = ()
    before_time: tuple[RowStep, ...] = ()
    time: plan.EventTime | None = None


@dataclass(frozen=True, slots=True)
class _Path:
    """From a sender to here: which output, and the stateless steps since."""

    sender: _Source | Stateful
    output: str
    steps: tuple[RowStep, ...]


def lower(sinks: Sequence[plan.Write], *, groups: int) -> PhysicalPlan:
    """The physical plan in which nothing is optimised: all columns travel, nothing is combined, expressions run on Spark."""
    return _Lowering(tuple(sinks), groups).physical()


class _Lowering:
    """One plan being lowered."""

    def __init__(self, sinks: tuple[plan.Write, ...], groups: int) -> None:
        self.sinks = sinks
        self.groups = groups
        nodes = tuple(plan.walk(sinks))
        self.stateful: tuple[Stateful, ...] = tuple(
            node for node in nodes if isinstance(node, plan.Deduplicate | plan.Aggregated | plan.Processed)
        )
        self.sides = {(node.input, node.name): node for node in nodes if isinstance(node, plan.SideOutput)}
        self.letters = {_read_of(sink.input): sink for sink in sinks if _is_letters(sink)}
        if len(self.letters) < sum(map(_is_letters, sinks)):
            raise PlanError("dead_letters", "the dead letters of one topic are written twice", remedy="write them to one topic")
        self.sources = self._sources()
        self.ids: dict[Any, int] = {}
        for part in (*self.sources, *self.stateful, *sinks):
            self.ids[part] = len(self.ids)
        self.feeds: dict[Any, list[Feed]] = {part: [] for part in (*self.sources, *self.stateful)}

    def physical(self) -> PhysicalPlan:
        made = {node: self._stage(node) for node in self.stateful}
        ends = tuple(self._sink(sink) for sink in self.sinks)
        scans = tuple(self._scan(source) for source in self.sources)
        stages = tuple(replace(made[node], feeds=tuple(self.feeds[node])) for node in self.stateful)
        notes = tuple(map(str, review.notes(self.sinks)))
        return PhysicalPlan(scans, stages, ends, _clock(self.stateful, stages), notes)

    # Scans

    def _sources(self) -> tuple[_Source, ...]:
        """The scans, each once; one without event time joins one with, if they differ in nothing else."""
        found: dict[_Source, None] = {}
        for end in (*self.stateful, *self.sinks):
            node = end.input.left if isinstance(end.input, plan.Connect) else end.input
            for below in (node, end.input.right) if isinstance(end.input, plan.Connect) else (node,):
                for path in [] if _is_letters(end) else paths(below):
                    if isinstance(path.sender, _Source):
                        found.setdefault(path.sender)
        for read, sink in self.letters.items():
            if not any(source.node == read for source in found):
                found.setdefault(_source_of(sink.input))
        timed = {(source.node, source.requirements) for source in found if source.time is not None and not source.before_time}
        return tuple(source for source in found if source.time is not None or (source.node, source.requirements) not in timed)

    def _known(self, source: _Source) -> _Source:
        """The scan that this source has become."""
        if source in self.ids:
            return source
        return next(s for s in self.sources if (s.node, s.requirements) == (source.node, source.requirements) and not s.before_time)

    def _scan(self, source: _Source) -> Scan:
        node, time = source.node, source.time
        letters = self.letters.get(node) if isinstance(node, plan.Read) else None
        first = next(s for s in self.sources if s.node == node) == source
        scan = Scan(
            id=self.ids[source], name="dataframe", schema=node.schema, feeds=tuple(self.feeds[source]), requirements=_requirements(source),
            before_time=source.before_time, event_time=time.column if time else None, lateness_us=time.lateness_us if time else 0,
            idle_us=time.idle_us if time else None, place="spark", reason=capabilities.of(node).why,
        )  # fmt: skip
        if isinstance(node, plan.FromDataFrame):
            return replace(scan, dataframe=node.dataframe)
        return replace(
            scan, name=", ".join(node.topics), topics=node.topics, format=node.format, start=_position(node.start),
            end=None if node.end is None else _position(node.end), dead_letters=self.ids[letters] if letters and first else None,
        )  # fmt: skip

    # Stages

    def _stage(self, node: Stateful) -> Stage:
        branches = (node.input.left, node.input.right) if isinstance(node.input, plan.Connect) else (node.input,)
        names = node.input.names if isinstance(node.input, plan.Connect) else ("",)
        prepared = _prepared(node) if isinstance(node, plan.Aggregated) else ()
        keys = plan.keys_of(branches[0]) or (node.columns if isinstance(node, plan.Deduplicate) else ())
        schemas = tuple(_last_schema(prepared or _renamed(branch, keys), branch.schema) for branch in branches)
        groups = self.groups if keys else 1
        inputs = []
        for index, branch in enumerate(branches):
            extra = prepared or _renamed(branch, keys)
            senders = self._connect(paths(branch), node, index, schema=schemas[index], keys=keys, groups=groups, extra=extra)
            inputs.append(Input(names[index], schemas[index], senders))
        sides = tuple((name, side.schema) for (input, name), side in self.sides.items() if input == node)
        return Stage(
            id=self.ids[node], name=plan.label(node), kernel=_kernel(node, schemas, names), keys=keys, groups=groups, inputs=tuple(inputs),
            output=node.schema, side=sides, feeds=(), needs_clock=_tick_us(node) is not None or any(s.idle_us is not None for i in inputs for s in i.senders),
            reason=capabilities.of(node).why,
        )  # fmt: skip

    def _connect(
        self, found: Sequence[_Path], to: Stateful | plan.Write, input: int, *, schema: Schema, keys: tuple[str, ...], groups: int, extra: tuple[RowStep, ...]
    ) -> tuple[Sender, ...]:  # fmt: skip
        """Adds a feed to each sender, and says which senders there are."""
        senders: dict[Sender, None] = {}
        for path in found:
            sender = self._known(path.sender) if isinstance(path.sender, _Source) else path.sender
            feed = Feed(
                to=self.ids[to], schema=schema, input=input, output=path.output, keys=keys, groups=groups, steps=path.steps + extra,
                reason=f"placed by {', '.join(keys)}" if keys else "one group: no key",
            )  # fmt: skip
            self.feeds[sender].append(feed)
            if isinstance(sender, _Source):
                time = sender.time
                senders[Sender(self.ids[sender], "scan", time.lateness_us if time else 0, time.idle_us if time else None)] = None
            else:
                senders[Sender(self.ids[sender], "stage", groups=self.groups if _keyed(sender) else 1)] = None
        return tuple(senders)

    # Sinks

    def _sink(self, sink: plan.Write) -> Sink:
        letters = _is_letters(sink)
        if not letters:
            self._connect(paths(sink.input), sink, 0, schema=sink.schema, keys=(), groups=1, extra=())
        return Sink(
            id=self.ids[sink], name=plan.label(sink), schema=sink.schema, topic=sink.topic, format="raw" if letters else sink.format, key=sink.key,
            dead_letters=letters, guarantee="at-least-once",
            reason="bad records as they were, with the reason in their headers" if letters else "a batch that is repeated after a failure is written again",
        )  # fmt: skip


def paths(node: plan.Node) -> tuple[_Path, ...]:
    """Who sends what arrives at this node, with the stateless steps on the way."""
    match node:
        case plan.Read() | plan.FromDataFrame():
            return (_Path(_Source(node), ROWS, ()),)
        case plan.Require() | plan.EventTime():
            return (_Path(_source_of(node), ROWS, ()),)
        case plan.Deduplicate() | plan.Aggregated() | plan.Processed():
            return (_Path(node, ROWS, ()),)
        case plan.KeyBy() | plan.Window():
            return paths(node.input)
        case plan.Union():
            return tuple(path for source in node.inputs for path in paths(source))
        case plan.SideOutput():
            back = _restored(node) if node.name == LATE else ()
            return (_Path(node.input, node.name, back),)  # type: ignore[arg-type]  # side outputs of stages; dead letters end in the scan
        case plan.Where() | plan.Select() | plan.Map():
            return tuple(replace(path, steps=(*path.steps, step_of(node))) for path in paths(node.input))
        case _:
            raise PlanError(
                plan.label(node), f"{type(node).__name__} is not lowered", remedy="this is a mistake of the planner: please report it"
            )


def step_of(node: plan.Where | plan.Select | plan.Map) -> RowStep:
    step, schema = plan.label(node), node.input.schema
    match node:
        case plan.Where():
            return Filter(expression.condition(node.condition, schema, step=step), node.schema)
        case plan.Select():
            return Project(tuple((name, expression.check(text, schema, step=step)) for name, text in node.columns), node.schema)
        case plan.Map():
            return Apply(node.function, node.per, schema, node.schema, signed=review.retracting(node) and node.per != "batch")


def _source_of(node: plan.Node) -> _Source:
    match node:
        case plan.Read() | plan.FromDataFrame():
            return _Source(node)
        case plan.Require():
            below = _source_of(node.input)
            return replace(below, requirements=(*below.requirements, node.condition))
        case plan.EventTime():
            steps: list[RowStep] = []
            under = node.input
            while isinstance(under, plan.Where | plan.Select | plan.Map):
                steps.insert(0, step_of(under))
                under = under.input
            return replace(_source_of(under), before_time=tuple(steps), time=node)
        case plan.SideOutput() | plan.Where() | plan.Select():
            return _source_of(node.input)
        case _:
            raise PlanError(plan.label(node), "is not a read", remedy="this is a mistake of the planner: please report it")


def _is_letters(sink: plan.Node) -> bool:
    return isinstance(sink, plan.Write) and isinstance(sink.input, plan.SideOutput) and sink.input.name == plan.DEAD_LETTERS


def _read_of(node: plan.Node) -> plan.Node:
    return next(found for found in plan.walk((node,)) if isinstance(found, plan.Read))


def _keyed(node: Stateful) -> bool:
    below = node.input.left if isinstance(node.input, plan.Connect) else node.input
    return isinstance(node, plan.Deduplicate) or bool(plan.keys_of(below))


def _requirements(source: _Source) -> tuple[Requirement, ...]:
    made = []
    for text in source.requirements:
        checked = expression.condition(text, source.node.schema, step=f"require({text})")
        made.append(Requirement(text, Filter(checked, source.node.schema), f"require({text})"))
    return tuple(made)


def _position(position: plan.Position) -> str | dict[str, Any]:
    match position:
        case str():
            return position
        case ("timestamp_ms", int() as at):
            return {"timestamp_ms": at}
        case ("offsets", offsets):
            return {topic: {str(partition): offset for partition, offset in pairs} for topic, pairs in offsets}
        case _:
            raise AssertionError(f"no such position: {position}")


def _expressions(node: plan.Aggregated) -> tuple[str, ...]:
    """The columns that the window, its trigger and its aggregates read; an expression is a column named by its own text."""
    texts = [aggregate.column for aggregate in node.aggregates if aggregate.column is not None]
    texts += windows.columns(node.input.window)
    texts += [text for text, _ in triggers.columns(review.trigger_of(node.input))]
    return tuple(dict.fromkeys(texts))


def _prepared(node: plan.Aggregated) -> tuple[RowStep, ...]:
    """A projection that adds what the kernel reads and the rows do not have; empty if they have all."""
    schema = node.input.schema
    checked = {text: expression.check(text, schema, step=plan.label(node)) for text in _expressions(node) if text not in schema}
    if not checked:
        return ()
    fields = schema.fields + tuple(Field(text, made.type or "BOOLEAN") for text, made in checked.items())
    columns = tuple((name, _itself(name)) for name in schema.names) + tuple(checked.items())
    return (Project(columns, Schema(fields)),)


def _renamed(branch: plan.Node, keys: tuple[str, ...]) -> tuple[RowStep, ...]:
    """The second of two connected streams also gets its keys under the names of the first, by which the step knows them."""
    own = plan.keys_of(branch)
    if not own or own == keys or all(name in branch.schema for name in keys):
        return ()
    added = tuple((theirs, mine) for theirs, mine in zip(keys, own, strict=True) if theirs not in branch.schema)
    fields = branch.schema.fields + tuple(Field(theirs, branch.schema.type_of(mine)) for theirs, mine in added)
    columns = tuple((name, _itself(name)) for name in branch.schema.names) + tuple((theirs, _itself(mine)) for theirs, mine in added)
    return (Project(columns, Schema(fields)),)


def _last_schema(steps: Sequence[RowStep], schema: Schema) -> Schema:
    return steps[-1].schema if steps else schema


def _itself(name: str) -> expression.Checked:
    return expression.Checked(name, None, (name,), f"`{name}`", f'"{name}"')


def _restored(side: plan.SideOutput) -> tuple[RowStep, ...]:
    """Late rows as the user knows them: without the columns that were added for the kernel."""
    if not isinstance(side.input, plan.Aggregated) or not _prepared(side.input):
        return ()
    return (Project(tuple((name, _itself(name)) for name in side.schema.names), side.schema),)


def _kernel(node: Stateful, schemas: tuple[Schema, ...], names: tuple[str, ...]) -> Kernel:
    match node:
        case plan.Deduplicate():
            from penstock.kernels.deduplicate import DeduplicateKernel

            keys = plan.keys_of(node.input)
            return DeduplicateKernel(node.columns, node.within_us, keys, node.schema)
        case plan.Processed():
            branches = (node.input.left, node.input.right) if isinstance(node.input, plan.Connect) else (node.input,)
            return ProcessKernel(node.process, plan.keys_of(branches[0]), schemas, names)
        case plan.Aggregated():
            window = node.input
            return WindowKernel(
                schema=schemas[0], keys=plan.keys_of(window), window=window.window, aggregates=node.aggregates, trigger=review.trigger_of(window),
                refinement=window.refinement, allowed_lateness_us=window.allowed_lateness_us, signed=SIGN in schemas[0] and review.retracting(window.input),
            )  # fmt: skip


def _tick_us(node: Stateful) -> int | None:
    """How often a step must be told the time."""
    match node:
        case plan.Aggregated():
            delays = list(triggers.delays_us(review.trigger_of(node.input)))
            window = node.input.window
            if windows.by_processing_time(window):
                delays.append(getattr(window, "every_us", None) or getattr(window, "size_us", None) or TIMER_TICK_US)
            return min((max(TICK_US_MIN, min(delay // 2, TICK_US_MAX)) for delay in delays), default=None)
        case plan.Processed():
            return TIMER_TICK_US if node.process.on_timer is not None else None
        case _:
            return None


def _clock(nodes: Sequence[Stateful], stages: Sequence[Stage]) -> Clock:
    wanted = [
        (tick, f"{stage.name} waits for processing time")
        for node, stage in zip(nodes, stages, strict=True)
        if (tick := _tick_us(node)) is not None
    ]
    idle = [s.idle_us for stage in stages for i in stage.inputs for s in i.senders if s.idle_us is not None]
    wanted += [
        (max(idle_us // 3, TICK_US_MIN), f"a partition that is silent for {spoken(idle_us)} must not hold the watermark back")
        for idle_us in idle
    ]
    return Clock(*min(wanted)) if wanted else Clock()
