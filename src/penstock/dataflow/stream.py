"""The fluent API: how a person says a plan. Each method checks, makes one node and returns a new object; nothing runs here.

Stream ─ key_by ─▶ Keyed ─ window ─▶ Windowed ─ aggregate ─▶ Aggregate (a Stream)
   └─ connect ─▶ Connected ─ key_by ─▶ KeyedPair ─ process ─▶ Stream"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Literal, Self

from penstock.clock import micros
from penstock.dataflow import aggregate as aggregates
from penstock.dataflow import expression, plan, review
from penstock.dataflow import trigger as triggers
from penstock.dataflow import window as windows
from penstock.dataflow.pipeline import Pipeline, written
from penstock.dataflow.process import Process
from penstock.dataflow.window import Duration
from penstock.errors import ConfigError, PlanError
from penstock.schema import Field, Schema

IDLE = "30s"  # a partition that is silent for this long no longer holds the watermark back
FORMATS = {"json": None, "raw": "key BINARY, value BINARY", "text": "value STRING"}  # format → its schema, if it has one
At = str | datetime | Mapping[str, Mapping[int, int]]
Mode = Literal["append", "update", "complete"]


class Stream:
    """Rows that keep coming (or a range of history that ends), with a schema."""

    def __init__(self, node: plan.Node) -> None:
        self._node = node

    @property
    def node(self) -> plan.Node:
        """The plan up to here."""
        return self._node

    @property
    def schema(self) -> Schema:
        return self._node.schema

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {plan.label(self._node)}: {self.schema}>"

    # Time

    def event_time(self, column: str | None = None, *, lateness: Duration = 0, idle: Duration | None = IDLE) -> Stream:
        """Says which column tells when a record happened (none: the record's own timestamp), how late records may come, and after
        which silence (of processing time) a partition no longer holds the watermark back."""
        step = f"event_time({column or 'timestamp'})"
        if column is not None:
            column = _column(column, self.schema, step=step)
            if self.schema.type_of(column) != "TIMESTAMP":
                raise PlanError(
                    step,
                    f"'{column}' is {self.schema.type_of(column)}, not TIMESTAMP",
                    remedy=f"declare '{column} TIMESTAMP' or convert it in select",
                )
        for node in plan.walk((self._node,)):
            if not isinstance(node, plan.Read | plan.FromDataFrame | plan.Require | plan.Where | plan.Select | plan.Map):
                raise PlanError(
                    step, f"the stream already has its time from {plan.label(node)}", remedy="call event_time once, right after read"
                )
        return Stream(
            plan.EventTime(
                self._node,
                self.schema,
                column,
                _not_negative(lateness, "lateness", step),
                None if idle is None else _not_negative(idle, "idle", step),
            )
        )

    # Rows

    def where(self, condition: str) -> Stream:
        """Keeps the rows for which a Spark SQL condition is true."""
        node = self._used()
        expression.condition(condition, node.schema, step=f"where({condition})")
        return Stream(plan.Where(node, node.schema, condition))

    def require(self, condition: str) -> Stream:
        """Rows for which the condition is false or null are bad: they go to `.dead_letters` with the reason, and are counted."""
        step = f"require({condition})"
        node = self._used()
        if any(not isinstance(below, plan.Read | plan.Require | plan.EventTime) for below in plan.walk((node,))):
            raise PlanError(step, "dead letters hold records as they were read", remedy="say require right after read, or use where")
        checked = expression.condition(condition, node.schema, step=step)
        if checked.arrow is None:
            raise PlanError(step, f"{checked.outside}", remedy="a requirement is judged in the scan: use expressions of the typed subset")
        return Stream(plan.Require(node, node.schema, condition))

    def select(self, *columns: str, **named: str) -> Stream:
        """New rows: columns by name, and named Spark SQL expressions: `select("area", fahrenheit="celsius * 1.8 + 32")`."""
        node = self._used()
        pairs = [(_column(name, node.schema, step=f"select({name})"), name) for name in columns]
        pairs = [(name, name) for name, _ in pairs] + list(named.items())
        if review.retracting(node) and "sign" not in dict(pairs):
            pairs.append(("sign", "sign"))  # a row without its sign would count as new
        step = f"select({', '.join(name for name, _ in pairs)})"
        if not pairs:
            raise PlanError(step, "selects nothing", remedy="name at least one column")
        if len(dict(pairs)) < len(pairs):
            raise PlanError(step, "makes two columns of one name", remedy="give each its own")
        fields = tuple(Field(name, str(expression.value(text, node.schema, step=step).type)) for name, text in pairs)
        return Stream(plan.Select(node, Schema(fields), tuple(pairs)))

    def map(self, function: Callable[[dict[str, Any]], Mapping[str, Any] | None], *, output: str | Schema | None = None) -> Stream:
        """A Python function per record: a dict in, a dict (or None: no row) out."""
        return self._mapped(function, "record", output)

    def flat_map(self, function: Callable[[dict[str, Any]], Sequence[Mapping[str, Any]]], *, output: str | Schema | None = None) -> Stream:
        """A Python function per record that gives any number of rows."""
        return self._mapped(function, "records", output)

    def map_batches(self, function: Callable[[Any], Any], *, output: str | Schema | None = None) -> Stream:
        """A Python function per Arrow table, with one row out for each row in."""
        return self._mapped(function, "batch", output)

    def _mapped(self, function: Callable[..., Any], per: Literal["record", "records", "batch"], output: str | Schema | None) -> Stream:
        node = self._used()
        step = f"map({getattr(function, '__qualname__', 'function')})"
        if not callable(function):
            raise PlanError(step, f"{function!r} is not a function", remedy="use select or where for expressions")
        schema = node.schema if output is None else _schema(output, step)
        if review.retracting(node) and "sign" not in schema:
            if per == "batch":
                raise PlanError(step, "the stream carries retractions, and the output has no sign", remedy="pass the column 'sign' through")
            schema = schema + plan.SIGN
        return Stream(plan.Map(node, schema, function, per))

    def deduplicate(self, *columns: str, within: Duration) -> Stream:
        """Drops records that repeat an earlier one in these columns within a time; exactly counted."""
        node = self._used()
        return Stream(_deduplicate(node, columns, within))

    # Keys, windows, aggregates

    def key_by(self, *columns: str) -> Keyed:
        """What follows is done for each value of these columns apart."""
        node = self._used()
        step = f"key_by({', '.join(columns)})"
        return Keyed(plan.KeyBy(node, node.schema, _key_columns(columns, node.schema, step=step)))

    def window(self, window: windows.Window) -> Windowed:
        """Where in event time: puts the records (of each key, after key_by) into windows."""
        return Windowed(_windowed(self._used(), window))

    def running(self, trigger: triggers.Trigger) -> Windowed:
        """No window: results over all records so far, whenever the trigger says."""
        return self.window(windows.global_window()).trigger(trigger)

    def aggregate(self, **named: str | aggregates.Using) -> Aggregate:
        """What is computed, over all records (of each key); needs a trigger if the stream is unbounded."""
        return self.window(windows.global_window()).aggregate(**named)

    def process(self, process: Process) -> Stream:
        raise PlanError(
            f"process({getattr(process, 'name', process)})",
            "state is kept per key, and the stream has none",
            remedy="say .key_by(…) before .process(…)",
        )

    # Several streams

    def connect(self, other: Stream, *, names: tuple[str, str] | None = None) -> Connected:
        """Two streams into one process step; `key_by` comes next. `event.stream` is one of the names (default: the topics)."""
        return Connected(self._used(), other._used(), names)

    def union(self, *others: Stream) -> Stream:
        """The rows of all, which must have one schema."""
        nodes = tuple(stream._used() for stream in (self, *others))
        for node in nodes[1:]:
            if node.schema != nodes[0].schema:
                raise PlanError(
                    "union", f"the streams differ: ({nodes[0].schema}) and ({node.schema})", remedy="bring them to one schema with select"
                )
            if review.retracting(node) != review.retracting(nodes[0]):
                raise PlanError("union", "only one of the streams carries retractions", remedy="give both the same .accumulate(…)")
        return Stream(plan.Union(nodes, nodes[0].schema))

    # Other outputs

    @property
    def dead_letters(self) -> Stream:
        """Records that could not be decoded or break a requirement: as they were, with the reason."""
        node = self._node
        while isinstance(node, plan.EventTime | plan.Where | plan.Select):
            node = node.input
        if not isinstance(node, plan.Read | plan.Require):
            raise PlanError(
                plan.label(self._node), "dead letters come from reading topics", remedy="ask the stream that ps.read(…) or .require(…) gave"
            )
        return Stream(plan.SideOutput(self._node, plan.DEAD_LETTER, plan.DEAD_LETTERS))

    @property
    def late(self) -> Stream:
        """Records that came too late for their window; of a process step, those (of its first stream) that came after the watermark."""
        node = self._node
        if isinstance(node, plan.Processed):
            if node.process.order == "arrival":
                raise PlanError(plan.label(node), "in order of arrival no record is late", remedy='say order="event_time" in @ps.process')
            return Stream(plan.SideOutput(node, node.input.schema, plan.LATE))
        raise PlanError(
            plan.label(node),
            "only windows and process steps have late records",
            remedy="ask the stream that .aggregate(…) or .process(…) gave",
        )

    def output(self, name: str) -> Stream:
        """A named further output of a process step."""
        node = self._node
        outputs = dict(node.process.outputs) if isinstance(node, plan.Processed) else {}
        if name not in outputs:
            known = f"it has {', '.join(outputs)}" if outputs else "declare it with outputs={…} in @ps.process"
            raise PlanError(plan.label(node), f"no output '{name}'", remedy=known)
        return Stream(plan.SideOutput(node, outputs[name], name))

    # Ends

    def write(self, topic: str, *, key: str | Sequence[str] | None = None, format: str = "json") -> Pipeline:
        """Rows become records of a topic, the value in the format, the key from key columns (default: the columns the stream is keyed by)."""
        node = self._used()
        step = f"write({topic})"
        if format not in FORMATS:
            raise PlanError(step, f"no format '{format}'", remedy=f"use one of {', '.join(FORMATS)}")
        if not topic:
            raise PlanError(step, "the topic has no name", remedy="name it")
        names = (key,) if isinstance(key, str) else _default_key(node) if key is None else tuple(key)
        names = tuple(_column(name, node.schema, step=step) for name in names)
        return written(plan.Write(node, node.schema, topic, format, names))

    def collect(self) -> Pipeline:
        """A pipeline whose rows are handed back instead of written: for tests and `to_dataframe`."""
        node = self._used()
        return Pipeline((plan.Write(node, node.schema, None),))

    def to_dataframe(self, spark: Any) -> Any:
        """The stream as a streaming DataFrame of this Spark session."""
        return self.collect().to_dataframe(spark)

    def _used(self) -> plan.Node:
        """The node, when something is built on it."""
        return self._node


class Keyed(Stream):
    """A stream with keys. Row by row methods (`where`, `select`, `map`) give a stream without."""

    _node: plan.KeyBy | plan.Deduplicate

    def deduplicate(self, *columns: str, within: Duration) -> Keyed:
        """Drops records of a key that repeat an earlier one in these columns within a time."""
        return Keyed(_deduplicate(self._node, columns, within))

    def process(self, process: Process) -> Stream:
        """User code per record, with state per key."""
        return Stream(_processed(self._node, process))


class _Timed:
    """What windows and aggregates share: when a pane comes, and how panes relate."""

    def _with(self, **changes: Any) -> Self:
        raise NotImplementedError

    def _window(self) -> plan.Window:
        raise NotImplementedError

    def trigger(self, trigger: triggers.Trigger) -> Self:
        """When panes come."""
        node = replace(self._window(), trigger=trigger)
        _check_expressions(triggers.columns(trigger), node.schema, step=f"trigger({triggers.text(trigger)})")
        review.check_window(node, step=f"trigger({triggers.text(trigger)})")
        if message := review.warning_of(node):
            warnings.warn(f"step '{plan.label(node)}': {message}", review.PlanWarning, stacklevel=2)
        return self._with(trigger=trigger)

    def accumulate(self, refinement: plan.Refinement) -> Self:
        """How a pane relates to the one before: `discarding`, `accumulating` or `retracting`."""
        if refinement not in plan.REFINEMENTS:
            raise PlanError(plan.label(self._window()), f"no refinement '{refinement}'", remedy=f"use one of {', '.join(plan.REFINEMENTS)}")
        return self._with(refinement=refinement)

    def allowed_lateness(self, lateness: Duration | Literal["forever"]) -> Self:
        """How long after its end a window still takes records."""
        step = plan.label(self._window())
        return self._with(allowed_lateness_us=None if lateness == "forever" else _not_negative(lateness, "allowed lateness", step))

    def output_mode(self, mode: Mode) -> Self:
        """Spark's names: `append` gives each window once, when it is complete; `update` what changed, after each batch; `complete` the
        same and no window is ever closed, so that the topic, compacted by key and window, is the whole result."""
        update = triggers.repeatedly(triggers.after_count(1))
        match mode:
            case "append":
                return self._with(trigger=triggers.after_watermark(), refinement="discarding", allowed_lateness_us=0)
            case "update":
                return self._with(trigger=update, refinement="accumulating")
            case "complete":
                return self._with(trigger=update, refinement="accumulating", allowed_lateness_us=None)
            case _:
                raise PlanError(plan.label(self._window()), f"no output mode '{mode}'", remedy="use append, update or complete")


class Windowed(_Timed):
    """A stream in windows."""

    def __init__(self, node: plan.Window) -> None:
        self._node = node

    def _window(self) -> plan.Window:
        return self._node

    def _with(self, **changes: Any) -> Self:
        return type(self)(replace(self._node, **changes))

    def aggregate(self, **named: str | aggregates.Using) -> Aggregate:
        """What is computed: `aggregate(celsius="avg(celsius)", n="count(*)")`."""
        node = self._node
        step = f"aggregate({', '.join(f'{name}={_said(given)}' for name, given in named.items())})"
        if not named:
            raise PlanError("aggregate()", "computes nothing", remedy='name a result, for example n="count(*)"')
        made = []
        for output, given in named.items():
            if not isinstance(given, str | aggregates.Using):
                raise PlanError(step, f"{output} is {given!r}", remedy='give text such as "avg(celsius)", or ps.using for your own')
            made.append(aggregates.parsed(output, given, node.schema, step=step)[0])
        review.check_aggregate(node, tuple(made), step=step)
        return Aggregate(_aggregated(node, tuple(made), step=step))


class Aggregate(Stream, _Timed):
    """Panes: key columns, aggregates, and which pane of which window each row is."""

    _node: plan.Aggregated

    def __init__(self, node: plan.Aggregated) -> None:
        super().__init__(node)

    def _window(self) -> plan.Window:
        return self._node.input

    def _with(self, **changes: Any) -> Self:
        window = replace(self._node.input, **changes)
        return type(self)(_aggregated(window, self._node.aggregates, step=plan.label(self._node)))

    @property
    def late(self) -> Stream:
        """The records whose windows were gone when they came."""
        node = self._used()
        assert isinstance(node, plan.Aggregated)
        return Stream(plan.SideOutput(node, node.input.schema, plan.LATE))

    def _used(self) -> plan.Node:
        review.check_window(self._node.input, step=plan.label(self._node))
        return self._node


class Connected:
    """Two streams that go into one step."""

    def __init__(self, left: plan.Node, right: plan.Node, names: tuple[str, str] | None) -> None:
        self._left, self._right = left, right
        self._names = names or (_name_of(left), _name_of(right))

    def key_by(self, *columns: str, right: Sequence[str] | None = None) -> KeyedPair:
        """The columns that say which records belong together; `right` if they have other names in the second stream."""
        step = f"key_by({', '.join(columns)})"
        left_keys = _key_columns(columns, self._left.schema, step=step)
        right_keys = _key_columns(tuple(columns if right is None else right), self._right.schema, step=step)
        types = [
            tuple(schema.type_of(key) for key in keys)
            for schema, keys in ((self._left.schema, left_keys), (self._right.schema, right_keys))
        ]
        if types[0] != types[1]:
            raise PlanError(step, f"the keys are {', '.join(types[0])} and {', '.join(types[1])}", remedy="convert one side in select")
        for mine, theirs in zip(left_keys, right_keys, strict=True):
            if mine != theirs and mine in self._right.schema:
                raise PlanError(
                    step, f"'{mine}' is a key of the first stream and another column of the second", remedy="rename one of them in select"
                )
        left, right_node = plan.KeyBy(self._left, self._left.schema, left_keys), plan.KeyBy(self._right, self._right.schema, right_keys)
        return KeyedPair(plan.Connect(left, right_node, self._left.schema, self._names))

    def process(self, process: Process) -> Stream:
        raise PlanError(
            f"process({process.name})", "state is kept per key, and the streams have none", remedy="say .key_by(…) before .process(…)"
        )


class KeyedPair:
    """Two connected streams with keys."""

    def __init__(self, node: plan.Connect) -> None:
        self._node = node

    def process(self, process: Process) -> Stream:
        """User code per record of both, in one order, with one state per key. `event.input` tells them apart."""
        return Stream(_processed(self._node, process))


def read(
    topic: str | Sequence[str], schema: str | Schema | None = None, *, format: str = "json", start: At = "earliest", end: At | None = None
) -> Stream:
    """The records of a topic (or several), decoded. With `end` it is a range of history, and the pipeline ends by itself.

    `start` and `end` are "earliest", "latest", a time, or offsets by topic and partition."""
    topics = (topic,) if isinstance(topic, str) else tuple(topic)
    step = f"read({', '.join(topics)})"
    if not topics or not all(topics):
        raise PlanError(step, "no topic", remedy="name the topic to read")
    if format not in FORMATS:
        raise PlanError(step, f"no format '{format}'", remedy=f"use one of {', '.join(FORMATS)}")
    schema = schema if schema is not None else FORMATS[format]
    if schema is None:
        raise PlanError(step, f"{format} records need a schema", remedy="give the columns, for example 'area STRING, celsius DOUBLE'")
    return Stream(plan.Read(topics, _schema(schema, step), format, _position(start, step), None if end is None else _position(end, step)))


def from_dataframe(dataframe: Any, *, schema: str | Schema | None = None) -> Stream:
    """A Spark DataFrame (streaming or not) as a stream. Say `.event_time(…)` next if windows follow."""
    if schema is None:
        schema = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in dataframe.schema.fields)
    return Stream(plan.FromDataFrame(dataframe, _schema(schema, "from_dataframe")))


def _column(name: str, schema: Schema, *, step: str) -> str:
    for known in schema.names:
        if known.lower() == name.lower():
            return known
    raise expression.unknown_column(name, schema.names, step=step)


def _key_columns(columns: Sequence[str], schema: Schema, *, step: str) -> tuple[str, ...]:
    if not columns:
        raise PlanError(step, "no key", remedy="name the columns to key by")
    names = tuple(_column(name, schema, step=step) for name in columns)
    for name in names:
        if schema.type_of(name).startswith(("ARRAY", "MAP")):
            raise PlanError(step, f"'{name}' is {schema.type_of(name)}, which cannot be a key", remedy="key by simple columns")
    return names


def _schema(schema: str | Schema, step: str) -> Schema:
    try:
        return Schema.of(schema)
    except ConfigError as error:
        raise PlanError(step, error.message, remedy=error.remedy) from None


def _not_negative(duration: Duration, what: str, step: str) -> int:
    value_us = micros(duration)
    if value_us < 0:
        raise PlanError(step, f"{what} is {duration}", remedy="give zero or more")
    return value_us


def _position(at: At, step: str) -> plan.Position:
    if isinstance(at, str):
        if at in ("earliest", "latest"):
            return at
        try:
            at = datetime.fromisoformat(at)
        except ValueError:
            raise PlanError(
                step, f"'{at}' is not a place in a topic", remedy='use "earliest", "latest", a time such as "2026-01-31 12:00", or offsets'
            ) from None
    if isinstance(at, datetime):
        moment = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        return ("timestamp_ms", round(moment.timestamp() * 1_000))
    return ("offsets", tuple((topic, tuple(sorted(offsets.items()))) for topic, offsets in sorted(at.items())))


def _check_expressions(pairs: Sequence[tuple[str, str]], schema: Schema, *, step: str) -> None:
    for text, wanted in pairs:
        if wanted == "condition":
            expression.condition(text, schema, step=step)
        elif expression.value(text, schema, step=step).type not in ("INT", "BIGINT", "FLOAT", "DOUBLE"):
            raise PlanError(step, f"'{text}' is not a number", remedy="choose a column with numbers")


def _windowed(node: plan.Node, window: windows.Window) -> plan.Window:
    if not isinstance(window, windows.Window):
        raise PlanError("window", f"{window!r} is not a window", remedy='use for example ps.tumbling("1m")')
    step = f"window({windows.text(window)})"
    wanted = "condition" if isinstance(window, windows.Punctuation) else "number"
    _check_expressions([(text, wanted) for text in windows.columns(window)], node.schema, step=step)
    made = plan.Window(node, node.schema, window)
    if windows.ends(window):  # the global one still waits for its trigger
        review.check_window(made, step=step)
    return made


def _aggregated(window: plan.Window, made: tuple[aggregates.Aggregate, ...], *, step: str) -> plan.Aggregated:
    keys = window.schema.select(*plan.keys_of(window))
    fields = keys.fields + tuple(Field(aggregate.output, aggregate.type) for aggregate in made) + plan.PANE.fields
    fields += plan.SIGN.fields if window.refinement == "retracting" else ()
    names = [field.name for field in fields]
    for name in names:
        if names.count(name) > 1:
            raise PlanError(step, f"the output has two columns '{name}'", remedy="give the result another name")
    return plan.Aggregated(window, Schema(fields), made)


def _deduplicate(node: plan.Node, columns: Sequence[str], within: Duration) -> plan.Deduplicate:
    step = f"deduplicate({', '.join(columns)})"
    names = _key_columns(columns, node.schema, step=step)
    review.refuse_retractions(node, step=step, why="the row that takes another back would be dropped as its repetition")
    if not review.has_event_time(node):
        raise PlanError(
            step,
            "repetitions are looked for within a time, and the stream has no event time",
            remedy='say .event_time("<column>") after read',
        )
    within_us = _not_negative(within, "within", step)
    if within_us == 0:
        raise PlanError(step, "within is zero", remedy="say how far apart repetitions may be")
    return plan.Deduplicate(node, node.schema, names, within_us)


def _processed(node: plan.KeyBy | plan.Deduplicate | plan.Connect, process: Process) -> plan.Processed:
    if not isinstance(process, Process):
        raise PlanError(
            f"process({getattr(process, '__name__', process)})",
            "the function declares neither state nor output",
            remedy='put @ps.process(state="…", output="…") on it',
        )
    if not process.retractions:
        review.refuse_retractions(node, step=f"process({process.name})", why="the function would take a retraction for a new record")
    return plan.Processed(node, process.output, process)


def _default_key(node: plan.Node) -> tuple[str, ...]:
    """The key columns of the last keyed step, if the rows still have them."""
    match node:
        case plan.Aggregated():
            keys = plan.keys_of(node.input)
        case plan.Processed():
            keys = plan.keys_of(node.input.left if isinstance(node.input, plan.Connect) else node.input)
        case plan.Where() | plan.Select() | plan.Map() | plan.Deduplicate():
            keys = _default_key(node.input)
        case _:
            keys = ()
    return keys if all(key in node.schema for key in keys) else ()


def _name_of(node: plan.Node) -> str:
    """What a stream is called in a connect: the topics it comes from."""
    topics = [topic for source in plan.walk((node,)) if isinstance(source, plan.Read) for topic in source.topics]
    return ", ".join(dict.fromkeys(topics)) or "dataframe"


def _said(given: str | aggregates.Using) -> str:
    return given if isinstance(given, str) else getattr(getattr(given, "aggregate", given), "__name__", str(given))
