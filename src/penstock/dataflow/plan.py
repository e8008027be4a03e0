"""The plan: what a pipeline means, as a graph of frozen nodes. Python, SQL and pipeline files all end here.

Every node knows its inputs and the schema of its rows; nothing else is stored, so a plan compares, prints and saves by value. Nodes are made by
the fluent API (`stream.py`), which checks; how they run is the planner's business."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from penstock.clock import spoken
from penstock.dataflow import trigger as triggers
from penstock.dataflow import window as windows
from penstock.dataflow.aggregate import Aggregate
from penstock.dataflow.process import Process
from penstock.schema import Schema

Refinement = Literal["discarding", "accumulating", "retracting"]
REFINEMENTS: tuple[Refinement, ...] = ("discarding", "accumulating", "retracting")
Position = str | tuple[Any, ...]
"""Where reading starts or ends: "earliest", "latest", ("timestamp_ms", n) or ("offsets", ((topic, ((partition, offset), …)), …))."""

PANE = Schema.of(
    "window_start TIMESTAMP, window_end TIMESTAMP, pane_index INT, on_time_index INT, pane_timing STRING, is_first BOOLEAN, is_last BOOLEAN"
)
SIGN = Schema.of("sign INT")  # +1, or -1 for a row that is taken back
DEAD_LETTER = Schema.of("topic STRING, partition INT, offset BIGINT, reason STRING, key BINARY, value BINARY")
LATE, DEAD_LETTERS = "late", "dead_letters"


class Node:
    """A step of the plan."""

    __slots__ = ()
    schema: Schema


@dataclass(frozen=True, slots=True)
class Read(Node):
    """Records of topics, decoded."""

    topics: tuple[str, ...]
    schema: Schema
    format: str = "json"
    start: Position = "earliest"
    end: Position | None = None  # None: unbounded


@dataclass(frozen=True, slots=True)
class FromDataFrame(Node):
    """Rows of a Spark DataFrame of the user's."""

    dataframe: Any
    schema: Schema


@dataclass(frozen=True, slots=True)
class EventTime(Node):
    """Says when records happened, how late they may come, and when a silent partition stops to count."""

    input: Node
    schema: Schema
    column: str | None  # None: the record's own timestamp
    lateness_us: int
    idle_us: int | None


@dataclass(frozen=True, slots=True)
class Require(Node):
    """Records for which the condition does not hold are bad: they go to dead letters."""

    input: Node
    schema: Schema
    condition: str


@dataclass(frozen=True, slots=True)
class Where(Node):
    input: Node
    schema: Schema
    condition: str


@dataclass(frozen=True, slots=True)
class Select(Node):
    input: Node
    schema: Schema
    columns: tuple[tuple[str, str], ...]  # (name, expression)


@dataclass(frozen=True, slots=True)
class Map(Node):
    """A Python function: one record to one (or none), to several, or a table to a table."""

    input: Node
    schema: Schema
    function: Callable[..., Any]
    per: Literal["record", "records", "batch"]


@dataclass(frozen=True, slots=True)
class KeyBy(Node):
    input: Node
    schema: Schema
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Deduplicate(Node):
    """Keeps the first record with the same values in `columns` (and the same key, on a keyed stream) within a time."""

    input: Node
    schema: Schema
    columns: tuple[str, ...]
    within_us: int


@dataclass(frozen=True, slots=True)
class Window(Node):
    """Where, when and how: windows, the trigger, refinement and allowed lateness (None: for ever)."""

    input: Node
    schema: Schema
    window: windows.Window
    trigger: triggers.Trigger | None = None  # None: the default, which an unbounded global window refuses
    refinement: Refinement = "accumulating"
    allowed_lateness_us: int | None = 0


@dataclass(frozen=True, slots=True)
class Aggregated(Node):
    """What: aggregates of each window. The input is a Window."""

    input: Window
    schema: Schema
    aggregates: tuple[Aggregate, ...]


@dataclass(frozen=True, slots=True)
class Connect(Node):
    """Two streams with their own schemas and keys of one type, for one process step."""

    left: Node
    right: Node
    schema: Schema  # of the left one
    names: tuple[str, str]


@dataclass(frozen=True, slots=True)
class Processed(Node):
    """User code on a keyed stream, or on two connected ones."""

    input: Node
    schema: Schema
    process: Process


@dataclass(frozen=True, slots=True)
class Union(Node):
    inputs: tuple[Node, ...]
    schema: Schema


@dataclass(frozen=True, slots=True)
class SideOutput(Node):
    """What a step puts aside: late records, bad records, or a named output of a process step."""

    input: Node
    schema: Schema
    name: str


@dataclass(frozen=True, slots=True)
class Write(Node):
    """The rows become records of a topic; None: they are handed back (`to_dataframe`, tests)."""

    input: Node
    schema: Schema
    topic: str | None
    format: str = "json"
    key: tuple[str, ...] = ()


def inputs(node: Node) -> tuple[Node, ...]:
    match node:
        case Read() | FromDataFrame():
            return ()
        case Connect():
            return (node.left, node.right)
        case Union():
            return node.inputs
        case _:
            return (node.input,)  # type: ignore[attr-defined]  # every other node has one


def walk(sinks: tuple[Node, ...]) -> Iterator[Node]:
    """Every node once, inputs before the nodes that use them. Equal nodes are one."""
    seen: set[Node] = set()

    def visit(node: Node) -> Iterator[Node]:
        if node not in seen:
            for source in inputs(node):
                yield from visit(source)
            if node not in seen:
                seen.add(node)
                yield node

    for sink in sinks:
        yield from visit(sink)


def keys_of(node: Node) -> tuple[str, ...]:
    """The columns by which a stream is keyed; empty if it is not."""
    match node:
        case KeyBy():
            return node.keys
        case Deduplicate() | Window():
            return keys_of(node.input)
        case _:
            return ()


def unbounded(node: Node) -> bool:
    match node:
        case Read():
            return node.end is None
        case FromDataFrame():
            return bool(getattr(node.dataframe, "isStreaming", True))
        case _:
            return any(unbounded(source) for source in inputs(node))


def label(node: Node) -> str:
    """What a user would call the step: the verb and what it says."""
    match node:
        case Read():
            return f"read({', '.join(node.topics)})"
        case FromDataFrame():
            return "from_dataframe"
        case EventTime():
            return f"event_time({node.column or 'timestamp'})"
        case Require() | Where():
            return f"{type(node).__name__.lower()}({node.condition})"
        case Select():
            return f"select({', '.join(name if name == text else f'{name}={text}' for name, text in node.columns)})"
        case Map():
            verb = {"record": "map", "records": "flat_map", "batch": "map_batches"}[node.per]
            return f"{verb}({getattr(node.function, '__qualname__', 'function')})"
        case KeyBy():
            return f"key_by({', '.join(node.keys)})"
        case Deduplicate():
            return f"deduplicate({', '.join(node.columns)} within {spoken(node.within_us)})"
        case Window():
            return f"window({windows.text(node.window)})"
        case Aggregated():
            return f"aggregate({', '.join(_spelled(aggregate) for aggregate in node.aggregates)})"
        case Connect():
            return f"connect({node.names[0]}, {node.names[1]})"
        case Processed():
            return f"process({node.process.name})"
        case Union():
            return "union"
        case SideOutput():
            return node.name
        case Write():
            return f"write({node.topic})" if node.topic else "collect"
        case _:
            raise AssertionError(f"no label for {type(node).__name__}")


def _spelled(aggregate: Aggregate) -> str:
    function = aggregate.user.__name__ if aggregate.user else aggregate.function
    arguments = ", ".join(map(str, (aggregate.column or "*", *aggregate.options)))
    return f"{aggregate.output}={function}({arguments})"
