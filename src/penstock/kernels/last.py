"""Mixed policies: at each step of one measure, the records in range by another. The last 100 records every 10 s, the last
minute every 50 records, what is within 5 degrees of the newest at each step of 10.

Records are kept one by one (as partials) as long as a later step may need them. A key's records are in order of arrival, or by
time if the steps are times; the range of a step is a suffix of them: so many, so recent, or so near to the newest, and what has
left the range does not come back. Each step that has brought a record makes one pane, on time and last. Range and step by
time alone is a sliding window, by count alone a count window: those are not here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.dataflow.window import Last
from penstock.kernels import assign, loops
from penstock.kernels.aggregate import Rows
from penstock.kernels.aligned import Absorbed
from penstock.kernels.kernel import FOREVER_US, NEVER_US, Context
from penstock.kernels.panes import Moment, Partials, Windows
from penstock.kernels.state import Array, Column, Index, Keys, Table
from penstock.kernels.trigger import Signals

_NO_SLOTS: Array = np.zeros(0, np.int64)
KEY_COLUMNS = (Column("position", "i8"), Column("anchor", "f8"), Column("anchored", "?", False))


@dataclass(frozen=True, slots=True)
class StepMoment:
    """A window exists from the step that makes it to the end of the batch."""

    before_us: int
    after_us: int
    now_us: int
    exact: bool = True

    def ended_before(self, end: Array, key: Array) -> Array:
        return np.zeros(end.size, np.bool_)

    def ended(self, end: Array, key: Array) -> Array:
        return np.ones(end.size, np.bool_)

    def dropped(self, end: Array, key: Array) -> Array:
        return np.ones(end.size, np.bool_)


class LastRecords:
    """The assigner, and the timeline, of `Last` windows."""

    def __init__(self, windows: Windows, keys: Keys, names: Sequence[str], window: Last) -> None:
        self.windows, self.keys, self.names, self._window = windows, keys, tuple(names), window
        windows.lookup = Index(windows.table)
        self._columns = [[f"{number}.{column.name}" for column in function.columns] for number, function in enumerate(windows.functions)]
        columns = [Column(name, "i8") for name in ("key", "time", "source", "partition", "offset", "position")]
        columns += [Column("range_value", "f8"), Column("step_value", "f8"), Column("done", "i1")]
        for names_, function in zip(self._columns, windows.functions):
            columns += [Column(name, c.dtype, c.neutral, c.pack, c.unpack) for name, c in zip(names_, function.columns)]
        self.records = Table(columns)
        self._touched: Array = _NO_SLOTS  # keys with new records
        self._now_us = 0

    @property
    def tables(self) -> dict[str, Table]:
        return {"records": self.records}

    def loaded(self) -> None:
        pass

    def moment(self, at: Context) -> StepMoment:
        self._now_us = at.now_us
        if self._window.time == "event":
            return StepMoment(at.watermark_us, max(at.watermark_us, at.next_watermark_us), at.now_us)
        final = at.next_watermark_us >= FOREVER_US
        return StepMoment(NEVER_US, FOREVER_US if final else at.now_us, at.now_us)

    def absorb(self, rows: Rows, moment: Moment) -> Absorbed:
        assert isinstance(moment, StepMoment)
        keyed = assign.keyed(rows, self.names)
        key = self.keys.intern(keyed.keys)[keyed.code]
        time = assign.times(rows)[0] if self._window.time == "event" else np.full(rows.count, self._now_us)
        late = self._step_end(time) <= moment.before_us if self._window.every_us else np.zeros(rows.count, np.bool_)
        taken = np.flatnonzero(~late)
        partials = assign.lift(rows, np.arange(rows.count), rows.count, self.windows.functions, self.windows.root, moment.now_us)
        table = self.records
        slots = table.allocate(taken.size)
        position = loops.number_rows(key[taken], self.keys["position"])
        for name, values in (("key", key), ("time", time), *zip(("source", "partition", "offset"), rows.order[1:])):
            table[name][slots] = values[taken]
        table["position"][slots] = position
        for name, by in (("range_value", self._window.range_delta), ("step_value", self._window.every_delta)):
            if by is not None:
                values, weight = rows.numbers(by[0], whole=False)
                table[name][slots] = np.where(weight != 0, values, np.nan)[taken]
        for names, columns in zip(self._columns, partials.columns):
            for name, column in zip(names, columns):
                table[name][slots] = column[taken]
        self.keys.add_refs(key[taken])
        self._touched = np.unique(key[taken])
        return Absorbed((), late, int(late.sum()))

    def _step_end(self, time: Array) -> Array:
        every_us = self._window.every_us
        assert every_us is not None
        return (time // every_us + 1) * every_us

    def due(self, moment: Moment) -> list[Array]:
        assert isinstance(moment, StepMoment)
        touched, self._touched = self._touched, _NO_SLOTS
        slots = self._in_order(touched, moment)
        if not slots.size:
            return []
        table = self.records
        key, done = table["key"][slots], table["done"][slots] != 0
        start = self._starts(slots, key)
        reached = self._step_end(table["time"][slots]) <= moment.after_us if self._window.every_us else np.ones(slots.size, np.bool_)
        last = np.flatnonzero(self._step_ends(slots, key, done, moment) & reached & ~done)
        made = self._make(slots, key[last], start[last], last + 1, moment)
        table["done"][slots[reached]] = 1
        table.touch(slots[reached & ~done])
        self._evict(slots, key, start, reached)
        return [made]

    def _in_order(self, touched: Array, moment: StepMoment) -> Array:
        """The records to look at, by key and order: of keys with new ones, or of all keys if steps are times."""
        table = self.records
        slots = table.slots()
        by: tuple[str, ...]
        if self._window.every_us:
            step = self._window.every_us
            if not slots.size or moment.before_us // step == moment.after_us // step:
                return _NO_SLOTS
            by = ("offset", "partition", "source", "time", "key")
        else:
            wanted = np.zeros(self.keys.table.live.size, np.bool_)
            wanted[touched] = True
            slots = slots[wanted[table["key"][slots]]]
            by = ("position", "key")
        return slots[np.lexsort([table[name][slots] for name in by])]

    def _starts(self, slots: Array, key: Array) -> Array:
        window, table = self._window, self.records
        if window.range_us is not None:
            time = table["time"][slots]
            return loops.suffix_starts_by_time(key, time, loops.greatest_so_far(key, time), window.range_us)
        reach = np.nan if window.range_delta is None else window.range_delta[1]
        return loops.suffix_starts(key, table["range_value"][slots], reach, window.range_count or 0)

    def _step_ends(self, slots: Array, key: Array, done: Array, moment: StepMoment) -> Array:
        """Which records are the last of a step."""
        window, table = self._window, self.records
        if window.every_us is not None:
            step = self._step_end(table["time"][slots])
            return np.append((key[1:] != key[:-1]) | (step[1:] != step[:-1]), True)
        if window.every_count is not None:
            ends = (table["position"][slots] + 1) % window.every_count == 0
        else:
            assert window.every_delta is not None
            ends = loops.steps_by_delta(
                key, table["step_value"][slots], done, window.every_delta[1], self.keys["anchor"], self.keys["anchored"]
            )
            self.keys.table.touch(np.unique(key))
        return ends

    def _make(self, slots: Array, key: Array, low: Array, high: Array, moment: StepMoment) -> Array:
        if not key.size:
            return _NO_SLOTS
        table = self.records
        made = self.windows.create(key, slots[high - 1], slots[high - 1])  # any bounds: they are not looked up, and not shown
        columns = [
            function.fold([table[name][slots] for name in names], low, high)
            for names, function in zip(self._columns, self.windows.functions)
        ]
        count = high - low
        self.windows.update(made, Partials(count, columns, Signals(count, moment.now_us)))
        return made

    def _evict(self, slots: Array, key: Array, start: Array, reached: Array) -> None:
        """Let go of the records before the range of the last one that was looked at. Its key keeps at least that one."""
        newest = np.flatnonzero(reached & np.append((key[1:] != key[:-1]) | ~reached[1:], True))
        front = np.zeros(self.keys.table.live.size, np.int64)
        front[key[newest]] = start[newest]
        over = slots[np.arange(slots.size) < front[key]]
        if over.size:
            self.keys.add_refs(self.records["key"][over], -1)
            self.records.release(over)

    def held(self) -> list[tuple[int, int, int, bool]]:
        return [(key, 0, 0, False) for key in np.unique(self.records["key"][self.records.slots()]).tolist()]
