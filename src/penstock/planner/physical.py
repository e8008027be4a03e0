"""The physical plan: one chain of operators, as frozen data that can be printed, pickled and compared.

    scans ──▶ stage ──▶ stage ──▶ … ──▶ sinks        (stages in topological order, one Spark query)
      └── feed ──┴── feed ──────────────────┘

A *feed* is an edge: which output of the sender, the stateless steps on the way, the keys that place a row into a group of
the receiver, and the receiver. Union has no operator of its own (two feeds with one receiver), and connected streams are two
inputs of one stage. Ids are unique over scans, stages and sinks, and rise along the chain.

Every part carries the reason for its choice. Addresses and credentials are not here: they come with the profile when the plan runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from penstock.schema import Schema

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.kernels.kernel import Kernel
    from penstock.kernels.window import WindowKernel
    from penstock.planner.stateless import RowStep

GROUPS = 16  # key groups of a stage unless the profile says otherwise
ROWS, LATE = "rows", "late"  # the outputs that every stage has; others are named by the user

Position = str | dict[str, Any]
"""Where a scan starts or ends: "earliest", "latest", {"timestamp_ms": n} or {topic: {"0": offset}}."""

Guarantee = Literal["at-least-once", "exactly-once", "in order of arrival, not stored"]


@dataclass(frozen=True, slots=True)
class Combine:
    """Partial aggregates of a scan's own rows, made before they are sent."""

    kernel: WindowKernel

    def __call__(self, rows: pa.Table) -> pa.Table:
        return self.kernel.combine(rows)


@dataclass(frozen=True, slots=True)
class Feed:
    """An edge of the plan. Rows have the user's columns and `_time, _source, _partition, _offset`; steps keep those four.

    `combine` turns the rows into partial aggregates before they are packed; the receiving kernel takes both."""

    to: int  # id of the stage or sink
    schema: Schema  # the user's columns on arrival (before combining)
    input: int = 0  # which input of the stage: 1 for the second of a connect
    output: str = ROWS  # which output of the sender
    keys: tuple[str, ...] = ()  # empty: all rows go to group 0
    groups: int = 1
    steps: tuple[RowStep, ...] = ()
    combine: Combine | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Requirement:
    """Rows for which the condition is false, null or NaN are bad: dead letters with this reason, counted."""

    condition: str
    step: RowStep  # a Where on the condition; what it drops is bad
    reason: str


@dataclass(frozen=True, slots=True)
class Scan:
    """Reads topics (or a DataFrame), decodes, sets the event time, and feeds stages and sinks."""

    id: int  # also `_source` of its rows
    name: str
    schema: Schema  # of the decoded value, before any step
    feeds: tuple[Feed, ...]
    topics: tuple[str, ...] = ()
    format: str = "json"  # json, csv, text, raw
    columns: tuple[str, ...] | None = None  # decode only these; None: all, so that a record is bad by all that was declared
    requirements: tuple[Requirement, ...] = ()
    before_time: tuple[RowStep, ...] = ()  # steps between the read and its event time, common to all feeds
    event_time: str | None = None  # a TIMESTAMP column after `before_time`; None: the record's own timestamp
    lateness_us: int = 0
    idle_us: int | None = None  # a partition without records for this long no longer holds the watermark back
    start: Position = "earliest"
    end: Position | None = None  # None: unbounded
    dead_letters: int | None = None  # id of the sink for bad records; None: counted and dropped
    dataframe: Any = None  # a Spark DataFrame of the user's, instead of topics
    place: Literal["scan", "spark"] = "scan"  # where its steps run: in the reader, or as Spark expressions after it
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Sender:
    """One whose watermark an input waits for: a scan (per partition: maximum event time - lateness) or a stage (per group)."""

    id: int
    kind: Literal["scan", "stage"]
    lateness_us: int = 0
    idle_us: int | None = None
    groups: int = 1


@dataclass(frozen=True, slots=True)
class Input:
    name: str
    schema: Schema
    senders: tuple[Sender, ...]


@dataclass(frozen=True, slots=True)
class Stage:
    """One stateful operator: a kernel on key groups."""

    id: int  # also `_source` of the rows it emits
    name: str
    kernel: Kernel
    keys: tuple[str, ...]
    groups: int
    inputs: tuple[Input, ...]
    output: Schema  # the user's columns of ROWS
    side: tuple[tuple[str, Schema], ...]  # of further outputs, LATE first if it is used
    feeds: tuple[Feed, ...]
    needs_clock: bool = False
    operator: int | None = None  # stages with one number run in one Spark operator, in the order of their ids; None: alone
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Sink:
    """The end of the chain. Rows become records: value by `format`, key from the key columns."""

    id: int
    name: str
    schema: Schema
    topic: str | None = None  # None: the rows stay a DataFrame (`to_dataframe`) or are collected by a test
    format: str = "json"
    key: tuple[str, ...] = ()
    dead_letters: bool = False  # original key, value and headers, with the reason in headers
    guarantee: Guarantee = "at-least-once"
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Clock:
    """Ticks of processing time. None: nothing in the plan needs them, and an idle job costs nothing."""

    interval_us: int | None = None
    reason: str = "nothing in the plan asks for processing time"


@dataclass(frozen=True, slots=True)
class PhysicalPlan:
    scans: tuple[Scan, ...]
    stages: tuple[Stage, ...]
    sinks: tuple[Sink, ...]
    clock: Clock
    notes: tuple[str, ...] = ()  # what its author should know: data that can be lost, steps that need Spark
    rules: tuple[str, ...] = ()  # names of the rules that changed something

    def __post_init__(self) -> None:
        receivers: list[Stage | Sink] = [*self.stages, *self.sinks]
        known = {part.id for part in receivers}
        assert len(known | {scan.id for scan in self.scans}) == len(receivers) + len(self.scans), (
            "ids are unique over scans, stages and sinks"
        )
        for sender in self.senders:
            assert all(feed.to in known and feed.to > sender.id for feed in sender.feeds), "feeds go forward to a stage or sink"

    @property
    def senders(self) -> list[Scan | Stage]:
        return [*self.scans, *self.stages]

    def stage(self, id: int) -> Stage:
        return next(stage for stage in self.stages if stage.id == id)

    def sink(self, id: int) -> Sink:
        return next(sink for sink in self.sinks if sink.id == id)

    def feeds_to(self, id: int) -> Iterator[tuple[Scan | Stage, Feed]]:
        """The edges that end at a stage or sink, with their senders."""
        for sender in self.senders:
            for feed in sender.feeds:
                if feed.to == id:
                    yield sender, feed

    @property
    def operators(self) -> tuple[tuple[Stage, ...], ...]:
        """The stages by the Spark operator that hosts them, in the order of the chain."""
        hosted: dict[int, list[Stage]] = {}
        for stage in self.stages:
            hosted.setdefault(stage.id if stage.operator is None else stage.operator, []).append(stage)
        return tuple(tuple(hosted[number]) for number in sorted(hosted))

    @property
    def shuffles(self) -> int:
        """One per operator: rows are brought to their key group."""
        return len(self.operators)

    @property
    def needs_spark(self) -> bool:
        """Whether some step cannot run on Arrow, or rows come from a DataFrame: then the test host cannot run the plan."""
        steps = (step for scan in self.scans for part in (scan.before_time, *(feed.steps for feed in scan.feeds)) for step in part)
        return any(step.outside for step in steps) or any(scan.dataframe is not None for scan in self.scans)
