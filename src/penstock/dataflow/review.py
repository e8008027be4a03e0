"""What is wrong with a plan, or worth knowing, before anything runs: each with a sentence and the remedy.

`check_window` raises for what can never be right. `notes` tells what is legal but can lose data. Refinement is a type here: a stream carries
plain rows, *refined* rows (accumulating panes: a later one replaces an earlier one) or *retractions* (rows with a sign)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.clock import spoken
from penstock.dataflow import plan
from penstock.dataflow import trigger as triggers
from penstock.dataflow import window as windows
from penstock.dataflow.aggregate import ADDITIVE, Aggregate
from penstock.errors import PlanError


class PlanWarning(UserWarning):
    """A pipeline that is legal but may not mean what its author wants."""


@dataclass(frozen=True, slots=True)
class Note:
    """Something its author should know about a step."""

    step: str
    message: str

    def __str__(self) -> str:
        return f"step '{self.step}': {self.message}"


def has_event_time(node: plan.Node) -> bool:
    """Whether every source below says when its records happened."""
    match node:
        case plan.EventTime() | plan.Aggregated():
            return True
        case plan.Read() | plan.FromDataFrame():
            return False
        case _:
            return all(has_event_time(source) for source in plan.inputs(node))


def retracting(node: plan.Node) -> bool:
    """Whether rows carry a sign, and -1 takes an earlier row back."""
    match node:
        case plan.Aggregated():
            return node.input.refinement == "retracting"
        case plan.Processed() | plan.Read() | plan.FromDataFrame():
            return False
        case plan.SideOutput(name=plan.LATE):
            return any(retracting(source) for source in plan.inputs(node.input))
        case plan.SideOutput():
            return False
        case _:
            return any(retracting(source) for source in plan.inputs(node))


def refining(node: plan.Node) -> bool:
    """Whether a row may repeat what an earlier pane of the same window said, without taking it back."""
    match node:
        case plan.Aggregated():
            window = node.input
            return window.refinement == "accumulating" and triggers.refines(
                trigger_of(window), allowed_lateness_us=window.allowed_lateness_us
            )
        case plan.Processed() | plan.Read() | plan.FromDataFrame() | plan.SideOutput():
            return False
        case _:
            return any(refining(source) for source in plan.inputs(node))


def trigger_of(window: plan.Window) -> triggers.Trigger:
    return window.trigger or triggers.DEFAULT


def check_window(node: plan.Window, *, step: str) -> None:
    """Raises if the window can never give a right pane."""
    window, trigger = node.window, trigger_of(node)
    if windows.by_event_time(window) and not has_event_time(node.input):
        raise PlanError(
            step,
            f"a {windows.text(window)} window needs event time, and the stream has none",
            remedy='say .event_time("<column>", lateness="10s") after read',
        )
    window_ends = windows.ends(window) or not plan.unbounded(node)
    if node.trigger is None and not window_ends:
        raise PlanError(
            step, "an aggregate of a whole unbounded stream would never be complete",
            remedy='add .window(…) for results per window, or .trigger(ps.every("1s")) after it for running results',
        )  # fmt: skip
    if not triggers.fires(trigger, window_ends=window_ends):
        raise PlanError(
            step, f"{triggers.text(trigger)} never fires on a {windows.text(window)} window of an unbounded stream",
            remedy='trigger by count or processing time, for example ps.every("1s")',
        )  # fmt: skip
    if (never := triggers.unreached(trigger, window_ends=window_ends)) is not None:
        raise PlanError(
            step,
            f"{triggers.text(never)} never gets its turn: what stands before it in after_each never finishes",
            remedy="use after_any, or or_finally for the part before it",
        )


def check_aggregate(node: plan.Window, aggregates: tuple[Aggregate, ...], *, step: str) -> None:
    """Raises if the aggregates would be wrong on what the input carries."""
    if retracting(node.input):
        for aggregate in aggregates:
            if aggregate.function not in ADDITIVE:
                raise PlanError(
                    step, f"{aggregate.function} cannot take a record back, and the stream carries retractions",
                    remedy=f'use {", ".join(sorted(ADDITIVE))}, or .accumulate("discarding") in the step before',
                )  # fmt: skip
    elif refining(node.input):
        for aggregate in aggregates:
            if aggregate.function in ADDITIVE:
                raise PlanError(
                    step, f"{aggregate.function} would count a window again each time it is refined",
                    remedy='use .accumulate("retracting") or .accumulate("discarding") in the step before',
                )  # fmt: skip


def refuse_retractions(node: plan.Node, *, step: str, why: str) -> None:
    if retracting(node):
        raise PlanError(
            step,
            f"the stream carries retractions, and {why}",
            remedy='use .accumulate("accumulating") or .accumulate("discarding") in the step before',
        )


def check_retention(sinks: tuple[plan.Write, ...], retention_us: Mapping[str, int | None]) -> None:
    """Raises if a topic forgets records before a window over them is complete: a restart could not read them again."""
    for node in plan.walk(sinks):
        span_us = windows.span_us(node.window) if isinstance(node, plan.Window) else None
        if span_us is None:
            continue
        for source in plan.walk((node,)):
            for topic in source.topics if isinstance(source, plan.Read) else ():
                kept_us = retention_us.get(topic)
                if kept_us is not None and kept_us < span_us:
                    raise PlanError(
                        plan.label(node), f"the window covers {spoken(span_us)}, but topic '{topic}' keeps records for {spoken(kept_us)}",
                        remedy=f"raise retention.ms of '{topic}' or choose a shorter window",
                    )  # fmt: skip


def notes(sinks: tuple[plan.Write, ...]) -> tuple[Note, ...]:
    """What can be lost, and where it is counted."""
    nodes = tuple(plan.walk(sinks))
    kept = {(node.input, node.name) for node in nodes if isinstance(node, plan.SideOutput)}
    found = []
    for node in nodes:
        match node:
            case plan.Aggregated():
                found += _lost_by_trigger(node, late_kept=(node, plan.LATE) in kept)
            case plan.Require() if not any(name == plan.DEAD_LETTERS for _, name in kept):
                found.append(Note(plan.label(node), "records that break it are counted and dropped; .dead_letters.write(topic) keeps them"))
            case _:
                pass
    return tuple(found)


def _lost_by_trigger(node: plan.Aggregated, *, late_kept: bool) -> list[Note]:
    trigger = trigger_of(node.input)
    where = "go to .late" if late_kept else "are counted and dropped; .late.write(topic) keeps them"
    if triggers.finishes_early(trigger):
        return [
            Note(
                plan.label(node),
                f"{triggers.text(trigger)} finishes with its first pane: later records of the window make no pane and {where}",
            )
        ]
    if not late_kept and windows.by_event_time(node.input.window):
        return [Note(plan.label(node), f"records that are too late {where}")]
    return []


def warning_of(node: plan.Window) -> str | None:
    """What to say at once when a trigger is given that drops records that are on time."""
    trigger = trigger_of(node)
    if windows.ends(node.window) and triggers.finishes_early(trigger):
        return f"{triggers.text(trigger)} finishes and drops later data; wrap it in repeatedly() unless one pane per window is wanted"
    return None
