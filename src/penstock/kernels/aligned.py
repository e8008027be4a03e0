"""Windows whose bounds do not depend on the data: tumbling, sliding, global and the user's own, on any timeline.

`Aligned` keeps a row per key and window from the first record on, as early triggers need. `Sliced` keeps only slices until
the watermark reaches a window's end, and makes the window then: a record costs the same however many windows it is in. From
then on (late records, panes, dropping) both are the same. A timeline says where a record lies and what time it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from penstock.kernels import assign, loops
from penstock.kernels.aggregate import Rows
from penstock.kernels.assign import Grid, Groups
from penstock.kernels.kernel import FOREVER_US, NEVER_US, Context
from penstock.kernels.panes import EventMoment, Moment, Partials, Windows
from penstock.kernels.state import Array, Column, Index, Keys, Table
from penstock.kernels.trigger import Signals

_NO_SLOTS: Array = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Absorbed:
    """What became of a batch of rows."""

    touched: Sequence[Array] = ()  # slots of windows that have changed
    late: Array | None = None  # which rows no window takes (a mask)
    late_count: int = 0


class Timeline(Protocol):
    """Where records lie, and how far time has come."""

    def place(self, rows: Rows, key: Array) -> Array: ...
    def moment(self, at: Context) -> Moment: ...
    def bounds(self, moment: Moment, key: Array) -> tuple[Array, Array]:
        """Time before and after the batch, for each of some keys."""
        ...

    def gone_us(self, moment: Moment) -> int:
        """Windows that end here or before were gone when the batch began."""
        ...

    def loaded(self) -> None:
        """The state has been restored."""


@dataclass(frozen=True, slots=True)
class EventTimeline:
    lateness_us: int | None

    def loaded(self) -> None:
        pass

    def place(self, rows: Rows, key: Array) -> Array:
        return assign.times(rows)[0]

    def moment(self, at: Context) -> EventMoment:
        return EventMoment(at.watermark_us, max(at.watermark_us, at.next_watermark_us), self.lateness_us, at.now_us)

    def bounds(self, moment: Moment, key: Array) -> tuple[Array, Array]:
        assert isinstance(moment, EventMoment)
        return np.full(key.size, moment.before_us), np.full(key.size, moment.after_us)

    def gone_us(self, moment: Moment) -> int:
        assert isinstance(moment, EventMoment)
        return moment.gone_us(moment.before_us)


@dataclass(slots=True)
class ProcessingTimeline:
    """Records lie at the processing time of their batch. Nothing is late, so a window is dropped when it ends."""

    _now_us: int = field(default=0)

    def loaded(self) -> None:
        pass

    def place(self, rows: Rows, key: Array) -> Array:
        return np.full(rows.count, self._now_us)

    def moment(self, at: Context) -> EventMoment:
        self._now_us = at.now_us
        final = at.next_watermark_us >= FOREVER_US
        return EventMoment(NEVER_US, FOREVER_US if final else at.now_us, 0, at.now_us)

    def bounds(self, moment: Moment, key: Array) -> tuple[Array, Array]:
        assert isinstance(moment, EventMoment)
        return np.full(key.size, NEVER_US), np.full(key.size, moment.after_us)

    def gone_us(self, moment: Moment) -> int:
        return NEVER_US


class Aligned:
    """Every key and window with a record has a row."""

    def __init__(self, windows: Windows, keys: Keys, names: Sequence[str], timeline: Timeline, grid: Grid | None) -> None:
        self.windows, self.keys, self.names, self.timeline, self.grid = windows, keys, tuple(names), timeline, grid
        self.index = Index(windows.table)
        windows.lookup = self.index

    @property
    def tables(self) -> dict[str, Table]:
        return {}

    def loaded(self) -> None:
        """The tables have been restored."""

    def absorb(self, rows: Rows, moment: Moment) -> Absorbed:
        keyed = assign.keyed(rows, self.names)
        key = self.keys.intern(keyed.keys)[keyed.code]
        times = self.timeline.place(rows, key)
        start = np.full(rows.count, NEVER_US) if self.grid is None else self.grid.slice_of(times)
        groups = assign.group(rows, key, start, self.windows.functions, self.windows.root, moment.now_us)
        return self._absorb(groups, moment)

    def absorb_partials(self, table: pa.Table, moment: Moment) -> Absorbed:
        groups, keyed = assign.from_table(table, self.names, self.windows.functions, moment.now_us)
        return self._absorb(Groups(self.keys.intern(keyed.keys)[groups.key], groups.start, groups.partials, None), moment)

    def _absorb(self, groups: Groups, moment: Moment) -> Absorbed:
        if self.grid is None:
            which, start, end = np.arange(groups.key.size), groups.start, np.full(groups.key.size, FOREVER_US)
        elif self.grid.tumbling:
            which, start, end = np.arange(groups.key.size), groups.start, groups.start + self.grid.size
        else:
            which, start = self.grid.spread(groups.start)
            end = start + self.grid.size
        touched, takers = self._into_windows(groups, which, start, end, moment)
        return _result(groups, touched, (takers == 0) & self._may_be_late(groups.start))

    def _may_be_late(self, slices: Array) -> Array:
        """Records between windows (if these leave gaps) are in none by intention; others are late if no window takes them."""
        return np.ones(slices.size, np.bool_) if self.grid is None else self.grid.last_end(slices) > slices

    def _into_windows(self, groups: Groups, which: Array, start: Array, end: Array, moment: Moment) -> tuple[Array, Array]:
        """Partials go to windows that are still there and have not finished: (their slots, how many took each partial)."""
        there = end > self.timeline.gone_us(moment)
        which, start, end = which[there], start[there], end[there]
        slots = self._slots(groups.key[which], start, end)
        taken = self.windows.table["finished"][slots] == 0
        slots, partials = assign.join(groups.partials, which[taken], slots[taken], self.windows.functions)
        self.windows.update(slots, partials)
        return slots, np.bincount(which[taken], minlength=groups.key.size)

    def _slots(self, key: Array, start: Array, end: Array) -> Array:
        """The slot of each window; windows that are new are created. The same window may be asked for several times."""
        slots = self.index.find(key, start, end)
        missing = np.flatnonzero(slots < 0)
        if missing.size:
            number, first = loops.group_pairs(key[missing], start[missing])
            new = missing[first]
            slots[missing] = self.windows.create(key[new], start[new], end[new])[number]
        return slots

    def due(self, moment: Moment) -> list[Array]:
        assert isinstance(moment, EventMoment)
        return [self.windows.due(moment)]

    def held(self) -> list[tuple[int, int, int, bool]]:
        return self.windows.held_list()


class Custom(Aligned):
    """Windows from the user's function of event time."""

    def __init__(self, windows: Windows, keys: Keys, names: Sequence[str], timeline: Timeline, function: Callable[..., Any]) -> None:
        super().__init__(windows, keys, names, timeline, None)
        self._function = function

    def absorb(self, rows: Rows, moment: Moment) -> Absorbed:
        keyed = assign.keyed(rows, self.names)
        key = self.keys.intern(keyed.keys)[keyed.code]
        row, start, end = assign.custom(self._function, self.timeline.place(rows, key))
        pairs = Rows(rows.table.take(pa.array(row)), signed=rows.signed)
        bounds, _ = loops.group_pairs(start, end)
        number, leader = loops.group_pairs(key[row], bounds)
        partials = assign.lift(pairs, number, leader.size, self.windows.functions, self.windows.root, moment.now_us)
        groups = Groups(key[row][leader], start[leader], partials, number)
        touched, takers = self._into_windows(groups, np.arange(leader.size), start[leader], end[leader], moment)
        taken = np.zeros(rows.count, np.bool_)
        taken[row[takers[number] > 0]] = True
        assigned = np.zeros(rows.count, np.bool_)
        assigned[row] = True
        late = assigned & ~taken
        return Absorbed((touched,), late, int(late.sum()))

    def _slots(self, key: Array, start: Array, end: Array) -> Array:
        slots = self.index.find(key, start, end)
        missing = slots < 0  # each window comes once here
        slots[missing] = self.windows.create(key[missing], start[missing], end[missing])
        return slots


class Sliced(Aligned):
    """Windows are made of slices when they end. For triggers that do nothing before."""

    grid: Grid

    def __init__(self, windows: Windows, keys: Keys, names: Sequence[str], timeline: Timeline, grid: Grid) -> None:
        super().__init__(windows, keys, names, timeline, grid)
        self._columns = [[f"{number}.{column.name}" for column in function.columns] for number, function in enumerate(windows.functions)]
        columns = [Column("key", "i8"), Column("start", "i8"), Column("end", "i8"), Column("count", "i8")]
        for names_, function in zip(self._columns, windows.functions):
            columns += [Column(name, c.dtype, c.neutral, c.pack, c.unpack) for name, c in zip(names_, function.columns)]
        self.slices = Table(columns)
        self._slice_index = Index(self.slices)
        self.reached_us = NEVER_US

    @property
    def tables(self) -> dict[str, Table]:
        return {"slices": self.slices}

    def loaded(self) -> None:
        self._slice_index.add(self.slices.slots())

    def _absorb(self, groups: Groups, moment: Moment) -> Absorbed:
        before, _ = self.timeline.bounds(moment, groups.key)
        held = (self.grid.last_end(groups.start) > before) & (self.grid.last_end(groups.start) > groups.start)
        self._into_slices(groups, np.flatnonzero(held))
        old = np.flatnonzero(self.grid.first_end(groups.start) <= before)
        touched, takers = _NO_SLOTS, np.zeros(groups.key.size, np.int64)
        if old.size:
            which, start = self.grid.spread(groups.start[old])
            over = start + self.grid.size <= before[old][which]
            which, start = old[which][over], start[over]
            touched, takers = self._into_windows(groups, which, start, start + self.grid.size, moment)
        return _result(groups, touched, ~held & (takers == 0) & self._may_be_late(groups.start))

    def _into_slices(self, groups: Groups, which: Array) -> None:
        table = self.slices
        key, start = groups.key[which], groups.start[which]
        slots = self._slice_index.find(key, start, start)
        missing = slots < 0
        if missing.any():
            new = table.allocate(int(missing.sum()))
            table["key"][new], table["start"][new], table["end"][new] = key[missing], start[missing], start[missing]
            self._slice_index.add(new)
            self.keys.add_refs(key[missing])
            slots[missing] = new
        for names, function, columns in zip(self._columns, self.windows.functions, groups.partials.columns):
            function.merge([table[name] for name in names], slots, [column[which] for column in columns])
        table["count"][slots] += groups.partials.count[which]
        table.touch(slots)

    def due(self, moment: Moment) -> list[Array]:
        made = self._make(self._ripe(moment), moment)
        if isinstance(moment, EventMoment):
            self.reached_us = moment.after_us
        return [made, *([self.windows.due(moment)] if isinstance(moment, EventMoment) else [])]

    def _ripe(self, moment: Moment) -> Array:
        """Slices of windows that end in this batch."""
        if isinstance(moment, EventMoment):
            step, offset = self.grid.every, self.grid.offset + self.grid.size
            if (moment.before_us - offset) // step == (moment.after_us - offset) // step:
                return _NO_SLOTS
        slots = self.slices.slots()
        _, after = self.timeline.bounds(moment, self.slices["key"][slots])
        return slots[self.grid.first_end(self.slices["start"][slots]) <= after]

    def _make(self, slots: Array, moment: Moment) -> Array:
        """Make the windows that end in this batch, and let go of the slices that no later window needs."""
        if not slots.size:
            return _NO_SLOTS
        table, grid = self.slices, self.grid
        slots = slots[_sorted_by(table["key"][slots], table["start"][slots])]
        key, start = table["key"][slots], table["start"][slots]
        before, after = self.timeline.bounds(moment, key)
        window_key, window_start, low, high = loops.windows_of_slices(key, start, grid.size, grid.every, grid.offset, before, after)
        made = self.windows.create(window_key, window_start, window_start + grid.size)
        if made.size:
            count = loops.fold(loops.ADD, table["count"][slots], low, high)
            columns = [
                function.fold([table[name][slots] for name in names], low, high)
                for names, function in zip(self._columns, self.windows.functions)
            ]
            self.windows.update(made, Partials(count, columns, Signals(count, moment.now_us)))
        over = slots[grid.last_end(start) <= after]
        if over.size:
            self._slice_index.remove(over)
            self.keys.add_refs(table["key"][over], -1)
            table.release(over)
        return made

    def held(self) -> list[tuple[int, int, int, bool]]:
        slots = self.slices.slots()
        which, start = self.grid.spread(self.slices["start"][slots])
        key = self.slices["key"][slots][which]
        open_ = start + self.grid.size > self._reached(key)
        pairs = sorted(set(zip(key[open_].tolist(), start[open_].tolist())))
        return super().held() + [(key, start, start + self.grid.size, False) for key, start in pairs]

    def _reached(self, key: Array) -> Array:
        """How far time has come for each key, as last seen."""
        return np.full(key.size, self.reached_us) if "position" not in self.keys.table.data else self.keys["position"][key]


def _sorted_by(key: Array, start: Array) -> Array:
    return np.lexsort((start, key))


def _result(groups: Groups, touched: Array, late: Array) -> Absorbed:
    count = int(groups.partials.count[late].sum())
    return Absorbed((touched,), late[groups.number] if count and groups.number is not None else None, count)
