"""What runs where, and why: a table of rows. The planner asks it for the reason of each choice; nothing else decides by engine.

`place` is where a thing runs: in the *scan* (the reader's process, on Arrow), as a *kernel* (our operator on key groups) or on *spark* (its own expressions).
`connect` tells whether it would also run on Spark Connect, where no JVM is at hand. The first row that fits wins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from penstock.dataflow import plan, review
from penstock.dataflow import trigger as triggers
from penstock.dataflow import window as windows
from penstock.errors import PlanError

Place = Literal["scan", "spark", "kernel"]


@dataclass(frozen=True, slots=True)
class Capability:
    """One row: which nodes it is about, where they run, and the reason."""

    name: str
    fits: Callable[[plan.Node], bool]
    place: Place
    why: str
    connect: bool = True


def _window(*kinds: type[windows.Window]) -> Callable[[plan.Node], bool]:
    return lambda node: isinstance(node, plan.Aggregated) and isinstance(node.input.window, kinds)


def _is(*kinds: type[plan.Node]) -> Callable[[plan.Node], bool]:
    return lambda node: isinstance(node, kinds)


def _refined(node: plan.Node) -> bool:
    if not isinstance(node, plan.Aggregated):
        return False
    window = node.input
    return window.refinement == "retracting" or triggers.refines(review.trigger_of(window), allowed_lateness_us=window.allowed_lateness_us)


def _processing(node: plan.Node) -> bool:
    return isinstance(node, plan.Aggregated) and (
        bool(triggers.delays_us(review.trigger_of(node.input))) or windows.by_processing_time(node.input.window)
    )


CAPABILITIES: tuple[Capability, ...] = (
    Capability("topic", _is(plan.Read), "scan", "records become typed columns in compiled loops of the reader, and bad ones are told apart one by one"),
    Capability("dataframe", _is(plan.FromDataFrame), "spark", "the user's own DataFrame", connect=False),
    Capability("requirement", _is(plan.Require), "scan", "dead letters need the record as it was read"),
    Capability("python function", _is(plan.Map), "scan", "Python code runs where the rows are decoded, without another process between"),
    Capability("expression", _is(plan.Where, plan.Select, plan.EventTime), "scan", "in the typed subset, which gives Spark's values on Arrow"),
    Capability("deduplicate", _is(plan.Deduplicate), "kernel", "bounded by event time per partition and counted exactly; Spark's own uses one watermark for all partitions and drops silently"),
    Capability("process", _is(plan.Processed), "kernel", "Spark calls Python once per key and state access; a kernel once per key group"),
    Capability("running results", _window(windows.Global), "kernel", "panes by trigger; Spark's own aggregate emits whatever changed, per batch"),
    Capability("policy windows", _window(windows.Count, windows.Delta, windows.Punctuation, windows.Last), "kernel", "Spark has no count, delta or punctuation windows"),
    Capability("custom windows", _window(windows.Custom), "kernel", "Spark has no user-defined windows"),
    Capability("processing time", _processing, "kernel", "ticks are data here: they fire on an idle stream and a replay sees the same"),
    Capability("refined windows", _refined, "kernel", "Spark has neither early and late panes nor retractions"),
    Capability("session windows", _window(windows.Session), "kernel", "Spark's watermark is the maximum over all partitions, so its sessions close too early on slow ones"),
    Capability("sliding windows", _window(windows.Sliding), "kernel", "records are aggregated once per slice and slices are combined; Spark copies each record into every window"),
    Capability("tumbling windows", _window(windows.Tumbling), "kernel", "watermark per partition and late records kept; Spark's watermark is the maximum over all partitions"),
)  # fmt: skip


def of(node: plan.Node) -> Capability:
    """The row about this node."""
    for row in CAPABILITIES:
        if row.fits(node):
            return row
    raise PlanError(plan.label(node), f"no engine runs {type(node).__name__}", remedy="see docs/reference/api.md for what runs where")
