"""The windows of a key group and the panes they make.

A window is a row of one table: its key and bounds, the partials of its aggregates, what it has shown so far and its trigger's
columns. A batch updates some rows; then `evaluate` looks at those and at the windows whose time has come, makes panes, and
drops what is over. How records find their windows is not here (`assign.py`, `slices.py`, `session.py`).

Invariant: `fresh` counts the records of a window that no pane has shown. A pane needs one, except the pane at the window's
end. In a discarding step the partials hold the fresh records only; in a retracting one the last pane is kept beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from penstock.dataflow import trigger as trigger_spec
from penstock.kernels.aggregate import Columns, Function
from penstock.kernels.kernel import FOREVER_US, NEVER_US
from penstock.kernels.state import Array, Column, Keys, Table
from penstock.kernels.trigger import DelayNode, Merge, Signals, build

Refinement = Literal["discarding", "accumulating", "retracting"]
TIMINGS = ("early", "on_time", "late")
EARLY, ON_TIME, LATE = range(3)
_NO_SLOTS: Array = np.zeros(0, np.int64)
_FAR_PAST = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True)
class Partials:
    """What a batch brings to each of some windows: how many records, their partials, and what triggers look at."""

    count: Array
    columns: list[Columns]  # one per function
    signals: Signals


@dataclass(frozen=True, slots=True)
class Panes:
    """Panes in the order in which they are sent."""

    key: Array
    start: Array
    end: Array
    columns: list[Columns]
    timing: Array
    index: Array
    late_index: Array
    last: Array
    sign: Array


class Moment(Protocol):
    """What time it is, as far as windows are concerned: the watermark before and after the batch, by window."""

    @property
    def now_us(self) -> int: ...
    @property
    def exact(self) -> bool:
        """A window ends by its records, not by a watermark: its last pane is on time whatever made it."""
        ...

    def ended_before(self, end: Array, key: Array) -> Array: ...
    def ended(self, end: Array, key: Array) -> Array: ...
    def dropped(self, end: Array, key: Array) -> Array: ...


@dataclass(frozen=True, slots=True)
class EventMoment:
    """One watermark for all keys."""

    before_us: int
    after_us: int
    lateness_us: int | None  # None: for ever
    now_us: int
    exact: bool = False

    def ended_before(self, end: Array, key: Array) -> Array:
        return end <= self.before_us

    def ended(self, end: Array, key: Array) -> Array:
        return end <= self.after_us

    def dropped(self, end: Array, key: Array) -> Array:
        return end <= self.gone_us(self.after_us)

    def gone_us(self, watermark_us: int) -> int:
        """Windows that end here or before are gone."""
        if watermark_us >= FOREVER_US:  # the input has ended: nothing can come for any window
            return FOREVER_US
        return _FAR_PAST if self.lateness_us is None else max(watermark_us - self.lateness_us, _FAR_PAST)


class Lookup(Protocol):
    """What finds windows again: it is told of every slot that comes and goes."""

    def add(self, slots: Array) -> None: ...
    def remove(self, slots: Array) -> None: ...


class Windows:
    """The window table of a group."""

    def __init__(self, functions: Sequence[Function], trigger: trigger_spec.Trigger, refinement: Refinement, keys: Keys) -> None:
        self.functions, self.refinement, self._keys = tuple(functions), refinement, keys
        self.root = build(trigger)
        self._accumulators = [[f"{number}.{column.name}" for column in function.columns] for number, function in enumerate(functions)]
        self._shown = [[f"shown.{name}" for name in names] for names in self._accumulators]
        self.table = Table(self._columns())
        self.root.bind(self.table)
        self._delays = [node for node in self.root.walk() if isinstance(node, DelayNode)]
        self._next_event_us = NEVER_US  # before this watermark nothing ends and nothing is dropped
        self._next_due_us = NEVER_US  # before this processing time no delay is over
        self.lookup: Lookup
        self.keeps_finished = refinement == "retracting"  # a finished window may be opened again or taken back
        self.swallowed: dict[int, list[int]] = {}  # merged session → sessions whose panes it takes back with its first one

    def _columns(self) -> list[Column]:
        columns = [Column("key", "i8"), Column("start", "i8"), Column("end", "i8"), Column("fresh", "i8"), Column("index", "i4"),
                   Column("late_index", "i4"), Column("finished", "i1"), Column("timing", "i1")]  # fmt: skip
        for node in self.root.walk():
            columns += node.own_columns()
        groups = [self._accumulators]
        if self.refinement == "retracting":
            groups.append(self._shown)
            columns += [Column("last", "i1"), Column("owner", "i8", -1)]
        for group in groups:
            for names, function in zip(group, self.functions):
                columns += [Column(name, c.dtype, c.neutral, c.pack, c.unpack) for name, c in zip(names, function.columns)]
        return columns

    # ── rows come ──

    def create(self, key: Array, start: Array, end: Array) -> Array:
        table = self.table
        slots = table.allocate(key.size)
        table["key"][slots] = key
        table["start"][slots] = start
        table["end"][slots] = end
        self._keys.add_refs(key)
        self.lookup.add(slots)
        if slots.size:
            self._next_event_us = min(self._next_event_us, int(end.min()))
        return slots

    def update(self, slots: Array, partials: Partials) -> None:
        """Records have come for these windows (each once)."""
        if not slots.size:
            return
        table = self.table
        for names, function, columns in zip(self._accumulators, self.functions, partials.columns):
            function.merge([table[name] for name in names], slots, columns)
        table["fresh"][slots] += partials.count
        self.root.on_rows(slots, partials.signals)
        for node in self._delays:
            self._next_due_us = min(self._next_due_us, partials.signals.now_us + node.delay_us)
        table.touch(slots)

    def merge(self, merge: Merge) -> None:
        """Sessions become one. A part that has shown panes is kept until they are taken back (when retracting)."""
        table = self.table
        for names, function in zip(self._accumulators, self.functions):
            folded = function.fold([table[name][merge.parts] for name in names], merge.low, merge.high)
            function.merge([table[name] for name in names], merge.into, folded)
        self.root.merge(merge)
        if self.refinement == "discarding":
            table["fresh"][merge.into] += merge.reduce(np.add, table["fresh"])
        table.touch(merge.into)
        self.lookup.remove(merge.parts)
        if self.refinement == "retracting":
            self._swallow(merge)
        else:
            self._forget(merge.parts)

    def _swallow(self, merge: Merge) -> None:
        table = self.table
        for into, low, high in zip(merge.into.tolist(), merge.low.tolist(), merge.high.tolist()):
            owed: list[int] = []
            for part in merge.parts[low:high].tolist():
                owed += self.swallowed.pop(part, [])
                if table["index"][part]:
                    owed.append(part)
            if owed:
                self.swallowed[into] = owed
                table["owner"][owed] = into
                table.touch(np.array(owed, np.int64))
        silent = merge.parts[table["index"][merge.parts] == 0]
        self._forget(silent)

    # ── time passes ──

    def due(self, moment: EventMoment) -> Array:
        """Windows for which the watermark's move matters: they end or are dropped."""
        if moment.after_us < self._next_event_us:
            return _NO_SLOTS
        end = self.table["end"]
        gone = end <= moment.gone_us(moment.after_us)
        live = self._unswallowed()
        due = self.table.where(live & (gone | ((end > moment.before_us) & (end <= moment.after_us))))
        rest = end[self.table.where(live & ~gone)]
        ended = rest <= moment.after_us
        upcoming = rest[~ended].min(initial=FOREVER_US)
        if moment.lateness_us is not None and ended.any():
            upcoming = min(upcoming, int(rest[ended].min()) + moment.lateness_us)
        self._next_event_us = int(upcoming)
        return due

    def due_now(self, now_us: int) -> Array:
        """Windows of which a delay is over."""
        if not self._delays or now_us < self._next_due_us:
            return _NO_SLOTS
        live = self._unswallowed() & (self.table["finished"] == 0)
        due_us = np.minimum.reduce([node.due_us() for node in self._delays])
        upcoming = FOREVER_US
        for node in self._delays:
            later = node.due_us()[self.table.where(live)]
            upcoming = min(upcoming, int(later[later > now_us].min(initial=FOREVER_US)))
        self._next_due_us = upcoming
        return self.table.where(live & (due_us <= now_us))

    def _unswallowed(self) -> Array:
        return self.table["owner"] < 0 if self.refinement == "retracting" else np.ones(self.table.live.size, np.bool_)

    def evaluate(self, candidates: Sequence[Array], moment: Moment) -> Panes | None:
        """Look at these windows: make the panes that are due, and drop the windows that are over."""
        slots = np.unique(np.concatenate(candidates)) if len(candidates) > 1 else np.sort(candidates[0])
        if not slots.size:
            return None
        table, root = self.table, self.root
        end, key = table["end"][slots], table["key"][slots]
        ended, dropped = moment.ended(end, key), moment.dropped(end, key)
        ends_now = ended & ~moment.ended_before(end, key)
        alive, fresh = table["finished"][slots] == 0, table["fresh"][slots] > 0
        ready = alive & root.ready(slots, ended, moment.now_us)
        on_time = ready & ends_now & root.waits_for_end(slots)
        fires = ready & (fresh | on_time)
        closes = alive & ~fires & dropped & fresh
        finished = np.zeros(slots.size, np.bool_)
        finished[fires] = root.fire(slots[fires], ended[fires], moment.now_us)
        shows = fires | closes
        timing = np.where(on_time | (ends_now & (closes | moment.exact)), ON_TIME, np.where(ended, LATE, EARLY))
        panes = self._show(slots[shows], timing[shows], (finished | dropped)[shows]) if shows.any() else None
        table["finished"][slots[finished]] = 1
        if not self.keeps_finished:
            self._empty(slots[finished & ~dropped])
        self.release(slots[dropped])
        return panes

    def _show(self, slots: Array, timing: Array, last: Array) -> Panes:
        table = self.table
        old = self._taken_back(slots) if self.refinement == "retracting" else None
        late = timing != EARLY
        columns = [[table[name][slots] for name in names] for names in self._accumulators]
        late_index = np.where(late, table["late_index"][slots], -1)
        new = Panes(table["key"][slots], table["start"][slots], table["end"][slots], columns, timing, table["index"][slots],
                    late_index, last, np.ones(slots.size, np.int32))  # fmt: skip
        if self.refinement == "retracting":
            for names, function, shown in zip(self._shown, self.functions, columns):
                for name, column in zip(names, function.copy(shown)):
                    table[name][slots] = column
            table["last"][slots] = last
        elif self.refinement == "discarding":
            self._empty(slots)
        table["fresh"][slots] = 0
        table["timing"][slots] = timing
        table["index"][slots] += 1
        table["late_index"][slots] += late
        table.touch(slots)
        if old is None:
            return new
        panes, order = old
        return _interleaved(panes, order, new)

    def _taken_back(self, slots: Array) -> tuple[Panes, Array] | None:
        """The earlier panes that new panes of these windows replace, and the number of the new pane each goes before."""
        table = self.table
        own = np.flatnonzero(table["index"][slots] > 0)
        victims, order = [slots[own]], [own * 2 + 1]
        merged = np.flatnonzero(np.isin(slots, np.fromiter(self.swallowed, np.int64, len(self.swallowed)))) if self.swallowed else _NO_SLOTS
        for number in merged.tolist():
            owed = np.array(self.swallowed.pop(int(slots[number])), np.int64)
            victims.append(owed[np.argsort(table["start"][owed], kind="stable")])
            order.append(np.full(owed.size, number * 2))
        old = np.concatenate(victims)
        if not old.size:
            return None
        timing = table["timing"][old].astype(np.int64)
        panes = Panes(
            table["key"][old], table["start"][old], table["end"][old], [[table[name][old] for name in names] for names in self._shown], timing,
            table["index"][old] - 1, np.where(timing != EARLY, table["late_index"][old] - 1, -1), table["last"][old] != 0, np.full(old.size, -1, np.int32),
        )  # fmt: skip
        self._forget(np.concatenate(victims[1:]) if len(victims) > 1 else _NO_SLOTS)
        return panes, np.concatenate(order)

    def _empty(self, slots: Array) -> None:
        for names, function in zip(self._accumulators, self.functions):
            for name, column in zip(names, function.columns):
                self.table[name][slots] = column.neutral

    # ── windows go ──

    def release(self, slots: Array) -> None:
        """Drop windows, and with them what they owe."""
        if not slots.size:
            return
        self.lookup.remove(slots)
        if self.swallowed:
            owed = [self.swallowed.pop(slot, []) for slot in slots.tolist()]
            self._forget(np.array([slot for each in owed for slot in each], np.int64))
        self._forget(slots)

    def _forget(self, slots: Array) -> None:
        if slots.size:
            self._keys.add_refs(self.table["key"][slots], -1)
            self.table.release(slots)

    def load(self, saved: Sequence[bytes]) -> None:
        self.table.load(saved)
        slots = self.table.slots()
        if self.refinement == "retracting":
            owner = self.table["owner"][slots]
            for slot, into in sorted(zip(slots[owner >= 0].tolist(), owner[owner >= 0].tolist())):
                self.swallowed.setdefault(into, []).append(slot)
            slots = slots[owner < 0]
        self.lookup.add(slots)

    def held(self) -> Array:
        """The windows that can still get records or be asked for, and those that have finished and are remembered."""
        return self.table.where(self._unswallowed())

    def held_list(self) -> list[tuple[int, int, int, bool]]:
        """(key's slot, start, end, whether its trigger has finished) of each."""
        slots = self.held()
        columns = (self.table[name][slots].tolist() for name in ("key", "start", "end", "finished"))
        return [(key, start, end, bool(finished)) for key, start, end, finished in zip(*columns)]


def _interleaved(old: Panes, order: Array, new: Panes) -> Panes:
    """Retractions right before the pane that replaces them."""
    place = np.argsort(np.concatenate([order, np.arange(new.key.size) * 2 + 1]), kind="stable")

    def both(a: Array, b: Array) -> Array:
        return np.concatenate([a, b])[place]

    columns = [[both(a, b) for a, b in zip(mine, theirs)] for mine, theirs in zip(old.columns, new.columns)]
    return Panes(
        both(old.key, new.key), both(old.start, new.start), both(old.end, new.end), columns, both(old.timing, new.timing), both(old.index, new.index),
        both(old.late_index, new.late_index), both(old.last, new.last), both(old.sign, new.sign),
    )  # fmt: skip
