"""The trigger algebra, evaluated as vectors over all windows of a key group.

A trigger is a tree; each node owns a few columns of the window table, and works on arrays of slots. At the end of a batch:
    on_rows   the records of the batch are counted by the parts that are current
    ready     which windows are due
    fire      a pane was made for these; says which triggers have finished
    merge     sessions become one: counts are added, delays are the earliest, after_each goes on at its furthest part
Invariant: a node that has finished is begun again by its parent or never asked again. A trigger does not know whether there is
anything to show: `panes.py` decides which due windows make a pane, and only those fire."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from penstock.dataflow import trigger as spec
from penstock.kernels.kernel import FOREVER_US
from penstock.kernels.state import Array, Column, Table

_NEVER = FOREVER_US  # a delay that has not begun


class DeltaSeen(NamedTuple):
    """The values of a column in the records of a batch, per window: the first in order, the least and the greatest."""

    first: Array
    least: Array
    greatest: Array
    any: Array


@dataclass(frozen=True, slots=True)
class Signals:
    """What a batch brought to each of some windows, as far as triggers look."""

    count: Array
    now_us: int
    deltas: Mapping[str, DeltaSeen] = field(default_factory=dict)
    punctuations: Mapping[str, Array] = field(default_factory=dict)

    def take(self, which: Array) -> Signals:
        deltas = {name: DeltaSeen(*(column[which] for column in seen)) for name, seen in self.deltas.items()}
        return Signals(self.count[which], self.now_us, deltas, {name: seen[which] for name, seen in self.punctuations.items()})


@dataclass(frozen=True, slots=True)
class Merge:
    """Windows that become one: `into[i]` takes over the windows `parts[low[i]:high[i]]`. `past` says whether the watermark has
    reached the merged end."""

    into: Array
    parts: Array
    low: Array
    high: Array
    past: Array

    def only(self, groups: Array, parts: Array) -> Merge:
        """Some of the merges (a mask), with some of their parts (a mask; at least one each)."""
        number = np.repeat(np.arange(self.into.size), self.high - self.low)
        keep = parts & groups[number]
        sizes = np.bincount(number[keep], minlength=self.into.size)[groups]
        high = np.cumsum(sizes)
        return Merge(self.into[groups], self.parts[keep], high - sizes, high, self.past[groups])

    def reduce(self, verb: np.ufunc, values: Array) -> Array:
        return verb.reduceat(values[self.parts], self.low) if self.into.size else values[self.into]


class Node:
    """A part of a trigger."""

    def __init__(self, path: str, *parts: Node) -> None:
        self.path, self.parts = path, parts
        self.table: Table

    def own_columns(self) -> tuple[Column, ...]:
        return ()

    def walk(self) -> Iterator[Node]:
        yield self
        for part in self.parts:
            yield from part.walk()

    def bind(self, table: Table) -> None:
        for node in self.walk():
            node.table = table

    def begin(self, slots: Array) -> None:
        for node in self.walk():
            for column in node.own_columns():
                self.table[column.name][slots] = column.neutral

    def on_rows(self, slots: Array, seen: Signals) -> None:
        for part in self.parts:
            part.on_rows(slots, seen)

    def ready(self, slots: Array, ended: Array, now_us: int) -> Array:
        raise NotImplementedError

    def waits_for_end(self, slots: Array) -> Array:
        """Whether an after_watermark that has not fired is among the current parts."""
        waits = np.zeros(slots.size, np.bool_)
        for part in self.parts:
            waits |= part.waits_for_end(slots)
        return waits

    def fire(self, slots: Array, ended: Array, now_us: int) -> Array:
        """A pane was made; which have finished? A leaf has, and keeps its state until it is begun again."""
        return np.ones(slots.size, np.bool_)

    def merge(self, merge: Merge) -> None:
        for part in self.parts:
            part.merge(merge)

    def rewound(self, merge: Merge) -> Array:
        """Whether merging takes an after_watermark that has fired back to before the window's end: it is then open again."""
        return np.zeros(merge.into.size, np.bool_)


class CountNode(Node):
    def __init__(self, path: str, count: int) -> None:
        super().__init__(path)
        self._count = count

    def own_columns(self) -> tuple[Column, ...]:
        return (Column(self.path, "i8"),)

    def on_rows(self, slots: Array, seen: Signals) -> None:
        self.table[self.path][slots] += seen.count

    def ready(self, slots: Array, ended: Array, now_us: int) -> Array:
        return self.table[self.path][slots] >= self._count

    def merge(self, merge: Merge) -> None:
        self.table[self.path][merge.into] = merge.reduce(np.add, self.table[self.path])


class DelayNode(Node):
    """Ready from the moment processing time is at the first record plus the delay."""

    def __init__(self, path: str, delay_us: int) -> None:
        super().__init__(path)
        self.delay_us = delay_us

    def own_columns(self) -> tuple[Column, ...]:
        return (Column(self.path, "i8", _NEVER),)

    def on_rows(self, slots: Array, seen: Signals) -> None:
        self.table[self.path][slots] = np.minimum(self.table[self.path][slots], seen.now_us)

    def due_us(self) -> Array:
        """When each slot of the table is due; far away where no delay runs."""
        first = self.table[self.path]
        return np.where(first == _NEVER, _NEVER, first + self.delay_us)

    def ready(self, slots: Array, ended: Array, now_us: int) -> Array:
        first = self.table[self.path][slots]
        return (first != _NEVER) & (first <= now_us - self.delay_us)

    def merge(self, merge: Merge) -> None:
        self.table[self.path][merge.into] = merge.reduce(np.minimum, self.table[self.path])


class DeltaNode(Node):
    """Ready when a record was `threshold` or more away from the first one."""

    def __init__(self, path: str, column: str, threshold: float) -> None:
        super().__init__(path)
        self.column, self._threshold = column, threshold
        self._first, self._least, self._greatest = path, path + ".least", path + ".greatest"

    def own_columns(self) -> tuple[Column, ...]:
        return tuple(Column(name, "f8", np.nan) for name in (self._first, self._least, self._greatest))

    def on_rows(self, slots: Array, seen: Signals) -> None:
        values, table = seen.deltas[self.column], self.table
        held = table[self._first][slots]
        table[self._first][slots] = np.where(np.isnan(held), values.first, held)
        table[self._least][slots] = np.fmin(table[self._least][slots], values.least)
        table[self._greatest][slots] = np.fmax(table[self._greatest][slots], values.greatest)

    def ready(self, slots: Array, ended: Array, now_us: int) -> Array:
        first, least, greatest = (self.table[name][slots] for name in (self._first, self._least, self._greatest))
        return np.maximum(first - least, greatest - first) >= self._threshold  # NaN, before the first record, is not

    def merge(self, merge: Merge) -> None:
        firsts = self.table[self._first][merge.parts]
        number = np.repeat(np.arange(merge.into.size), merge.high - merge.low)
        first = np.full(merge.into.size, np.nan)
        known = ~np.isnan(firsts)
        first[number[known][::-1]] = firsts[known][::-1]  # the earliest session that has one, written last
        for name, verb in ((self._least, np.fmin), (self._greatest, np.fmax)):
            self.table[name][merge.into] = merge.reduce(verb, self.table[name])
        self.table[self._first][merge.into] = first


class PunctuationNode(Node):
    def __init__(self, path: str, condition: str) -> None:
        super().__init__(path)
        self.condition = condition

    def own_columns(self) -> tuple[Column, ...]:
        return (Column(self.path, "i1"),)

    def on_rows(self, slots: Array, seen: Signals) -> None:
        self.table[self.path][slots] |= seen.punctuations[self.condition].astype(np.int8)

    def ready(self, slots: Array, ended: Array, now_us: int) -> Array:
        return self.table[self.path][slots] != 0

    def merge(self, merge: Merge) -> None:
        self.table[self.path][merge.into] = merge.reduce(np.maximum, self.table[self.path])


class WatermarkNode(Node):
    """Before the end the early part (again and again), at the end the on-time pane, then the late part (again and again)."""

    def __init__(self, path: str, early: Node | None, late: Node | None) -> None:
        super().__init__(path, *(part for part in (early, late) if part))
        self._early, self._late = early, late

    def own_columns(self) -> tuple[Column, ...]:
        return (Column(self.path, "i1"),)  # 1 after the pane at the end

    def on_rows(self, slots: Array, seen: Signals) -> None:
        after = self.table[self.path][slots] != 0
        if self._early and not after.all():
            self._early.on_rows(slots[~after], seen.take(~after))
        if self._late and after.any():
            self._late.on_rows(slots[after], seen.take(after))

    def ready(self, slots: Array, ended: Array, now_us: int) -> Array:
        after = self.table[self.path][slots] != 0
        early = self._early.ready(slots, ended, now_us) if self._early else np.zeros(slots.size, np.bool_)
        late = self._late.ready(slots, ended, now_us) if self._late else np.zeros(slots.size, np.bool_)
        return np.where(after, late, ended | early)

    def waits_for_end(self, slots: Array) -> Array:
        return self.table[self.path][slots] == 0

    def fire(self, slots: Array, ended: Array, now_us: int) -> Array:
        after = self.table[self.path][slots] != 0
        at_end = ended & ~after
        if self._early:
            _fire_again(self._early, ~after & ~ended, slots, ended, now_us)
            self._early.begin(slots[at_end])
        if self._late:
            _fire_again(self._late, after, slots, ended, now_us)
            self._late.begin(slots[at_end])
        self.table[self.path][slots[at_end]] = 1
        return at_end if self._late is None else np.zeros(slots.size, np.bool_)

    def merge(self, merge: Merge) -> None:
        after = (merge.reduce(np.maximum, self.table[self.path]) != 0) & merge.past
        part_after = self.table[self.path][merge.parts] != 0
        number = np.repeat(np.arange(merge.into.size), merge.high - merge.low)
        for part, groups, parts in ((self._early, ~after, ~part_after), (self._late, after, part_after)):
            if part:  # only parts in the same phase hold a state worth merging
                has = np.bincount(number[parts], minlength=merge.into.size) > 0
                part.begin(merge.into)
                part.merge(merge.only(groups & has, parts))
        self.table[self.path][merge.into] = after

    def rewound(self, merge: Merge) -> Array:
        return (merge.reduce(np.maximum, self.table[self.path]) != 0) & ~merge.past


class RepeatedlyNode(Node):
    def ready(self, slots: Array, ended: Array, now_us: int) -> Array:
        return self.parts[0].ready(slots, ended, now_us)

    def fire(self, slots: Array, ended: Array, now_us: int) -> Array:
        _fire_again(self.parts[0], np.ones(slots.size, np.bool_), slots, ended, now_us)
        return np.zeros(slots.size, np.bool_)


class _PartsNode(Node):
    """Several parts at once. Those that are ready fire with it, which matters if a merged session begins them again."""

    def fire(self, slots: Array, ended: Array, now_us: int) -> Array:
        for part in self.parts:
            ready = part.ready(slots, ended, now_us)
            part.fire(slots[ready], ended[ready], now_us)
        return np.ones(slots.size, np.bool_)

    def rewound(self, merge: Merge) -> Array:
        return np.logical_or.reduce([part.rewound(merge) for part in self.parts])


class AnyNode(_PartsNode):
    def ready(self, slots: Array, ended: Array, now_us: int) -> Array:
        return np.logical_or.reduce([part.ready(slots, ended, now_us) for part in self.parts])


class AllNode(_PartsNode):
    def ready(self, slots: Array, ended: Array, now_us: int) -> Array:
        return np.logical_and.reduce([part.ready(slots, ended, now_us) for part in self.parts])


class EachNode(Node):
    """Its parts one after the other; `step` is the current one."""

    def own_columns(self) -> tuple[Column, ...]:
        return (Column(self.path, "i4"),)

    def on_rows(self, slots: Array, seen: Signals) -> None:
        for part, current in self._current(slots):
            part.on_rows(slots[current], seen.take(current))

    def ready(self, slots: Array, ended: Array, now_us: int) -> Array:
        ready = np.zeros(slots.size, np.bool_)
        for part, current in self._current(slots):
            ready[current] = part.ready(slots[current], ended[current], now_us)
        return ready

    def waits_for_end(self, slots: Array) -> Array:
        waits = np.zeros(slots.size, np.bool_)
        for part, current in self._current(slots):
            waits[current] = part.waits_for_end(slots[current])
        return waits

    def fire(self, slots: Array, ended: Array, now_us: int) -> Array:
        for part, current in list(self._current(slots)):
            finished = part.fire(slots[current], ended[current], now_us)
            self.table[self.path][slots[current][finished]] += 1
        return self.table[self.path][slots] >= len(self.parts)

    def merge(self, merge: Merge) -> None:
        furthest = merge.reduce(np.maximum, self.table[self.path])
        steps = self.table[self.path][merge.parts]
        for number, part in enumerate(self.parts):
            part.begin(merge.into)
            part.merge(merge.only(furthest == number, steps == number))
        self.table[self.path][merge.into] = furthest

    def _current(self, slots: Array) -> Iterator[tuple[Node, Array]]:
        steps = self.table[self.path][slots]
        for number, part in enumerate(self.parts):
            current = steps == number
            if current.any():
                yield part, current


class FinallyNode(_PartsNode):
    """The first part's panes, until the second is ready: that pane is the last."""

    def ready(self, slots: Array, ended: Array, now_us: int) -> Array:
        return self.parts[0].ready(slots, ended, now_us) | self.parts[1].ready(slots, ended, now_us)

    def fire(self, slots: Array, ended: Array, now_us: int) -> Array:
        goes, until = (part.ready(slots, ended, now_us) for part in self.parts)
        finished = np.zeros(slots.size, np.bool_)
        for part, ready in zip(self.parts, (goes, until)):
            finished[ready] |= part.fire(slots[ready], ended[ready], now_us)
        return finished | until


def _fire_again(part: Node, which: Array, slots: Array, ended: Array, now_us: int) -> None:
    """Fire a part that begins again when it has finished."""
    fired = slots[which]
    if fired.size:
        finished = part.fire(fired, ended[which], now_us)
        part.begin(fired[finished])


def build(trigger: spec.Trigger, path: str = "t") -> Node:
    """The nodes of a trigger, with columns named by their place in the tree."""

    def parts(*triggers: spec.Trigger) -> list[Node]:
        return [build(each, f"{path}.{number}") for number, each in enumerate(triggers)]

    match trigger:
        case spec.AfterCount(count):
            return CountNode(path, count)
        case spec.AfterProcessingTime(delay_us):
            return DelayNode(path, delay_us)
        case spec.AfterDelta(column, threshold):
            return DeltaNode(path, column, threshold)
        case spec.AfterPunctuation(condition):
            return PunctuationNode(path, condition)
        case spec.AfterWatermark(early, late):
            return WatermarkNode(path, build(early, f"{path}.e") if early else None, build(late, f"{path}.l") if late else None)
        case spec.Repeatedly(inner):
            return RepeatedlyNode(path, *parts(inner))
        case spec.AfterAny(inners):
            return AnyNode(path, *parts(*inners))
        case spec.AfterAll(inners):
            return AllNode(path, *parts(*inners))
        case spec.AfterEach(inners):
            return EachNode(path, *parts(*inners))
        case spec.OrFinally(inner, until):
            return FinallyNode(path, *parts(inner, until))
        case _:
            raise NotImplementedError(f"no evaluation of trigger {trigger!r}")
