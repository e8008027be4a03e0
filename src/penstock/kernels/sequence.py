"""Windows by order instead of time: count, delta, punctuation.

Each key has a timeline of its own, and its position is how far it has come:
    count        position = records so far; window k is the records (k+1)·every - size … (k+1)·every
    delta        position = number of the open window; the next one begins when the value is a threshold away
    punctuation  position = number of the open window; a record for which the condition holds ends it
So these are windows on a grid whose clock is the key's position, exact whatever the batches: rows come in order of source,
partition and offset. A window is complete when the position reaches its end, and is dropped then; nothing is ever late. When
the input has ended (the watermark is at the end of time) what is still open is shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.kernels import assign, loops
from penstock.kernels.aggregate import Rows
from penstock.kernels.aligned import Absorbed, Aligned, Sliced, Timeline
from penstock.kernels.assign import Grid
from penstock.kernels.kernel import FOREVER_US, NEVER_US, Context
from penstock.kernels.panes import Moment, Windows
from penstock.kernels.state import Array, Keys

_NO_SLOTS: Array = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class SequenceMoment:
    """Each key's position before and after the batch; when the input has ended, the end of all windows."""

    keys: Keys
    final: bool
    now_us: int
    exact: bool = True

    def ended_before(self, end: Array, key: Array) -> Array:
        return end <= self.keys["before"][key]

    def ended(self, end: Array, key: Array) -> Array:
        return end <= self.reached(key)

    def reached(self, key: Array) -> Array:
        return np.full(key.size, FOREVER_US) if self.final else self.keys["position"][key]

    def dropped(self, end: Array, key: Array) -> Array:
        return self.ended(end, key)


class _Positions:
    """What the three timelines share."""

    def __init__(self, keys: Keys) -> None:
        self.keys = keys
        self._moved: Array = _NO_SLOTS

    def place(self, rows: Rows, key: Array) -> Array:
        self._moved = np.unique(key)
        self.keys["before"][self._moved] = self.keys["position"][self._moved]
        self.keys.table.touch(self._moved)
        return self.number(rows, key)

    def number(self, rows: Rows, key: Array) -> Array:
        raise NotImplementedError

    def loaded(self) -> None:
        self.keys["before"][:] = self.keys["position"]

    def moment(self, at: Context) -> SequenceMoment:
        # The last batch is over: where its keys came to is where they begin now.
        self.keys["before"][self._moved] = self.keys["position"][self._moved]
        self._moved = _NO_SLOTS
        return SequenceMoment(self.keys, at.next_watermark_us >= FOREVER_US, at.now_us)

    def bounds(self, moment: Moment, key: Array) -> tuple[Array, Array]:
        assert isinstance(moment, SequenceMoment)
        return self.keys["before"][key], moment.reached(key)

    def gone_us(self, moment: Moment) -> int:
        return NEVER_US


class CountTimeline(_Positions):
    def __init__(self, keys: Keys, grid: Grid) -> None:
        super().__init__(keys)
        self._grid = grid

    def number(self, rows: Rows, key: Array) -> Array:
        number = loops.number_rows(key, self.keys["position"])
        if self._grid.every > self._grid.size:  # between windows nothing else refers to the key, and its position must stay
            before, after = (self.keys[name][self._moved] % self._grid.every != 0 for name in ("before", "position"))
            self.keys.add_refs(self._moved[after & ~before])
            self.keys.add_refs(self._moved[before & ~after], -1)
        return number


class DeltaTimeline(_Positions):
    def __init__(self, keys: Keys, column: str, threshold: float) -> None:
        super().__init__(keys)
        self._column, self._threshold = column, threshold

    def number(self, rows: Rows, key: Array) -> Array:
        values, weight = rows.numbers(self._column, whole=False)
        keys = self.keys
        return loops.number_deltas(
            key, values, (weight != 0) & (values == values), self._threshold, keys["position"], keys["anchor"], keys["anchored"]
        )


class PunctuationTimeline(_Positions):
    def __init__(self, keys: Keys, condition: str) -> None:
        super().__init__(keys)
        self._condition = condition

    def number(self, rows: Rows, key: Array) -> Array:
        return loops.number_punctuations(key, assign.truth(rows, self._condition), self.keys["position"])


class Sequenced(Aligned):
    """A row per key and window, from the first record on."""

    grid: Grid

    def __init__(self, windows: Windows, keys: Keys, names: Sequence[str], timeline: Timeline, grid: Grid) -> None:
        super().__init__(windows, keys, names, timeline, grid)
        self._moved: Array = _NO_SLOTS

    def loaded(self) -> None:
        self.timeline.loaded()

    def absorb(self, rows: Rows, moment: Moment) -> Absorbed:
        absorbed = super().absorb(rows, moment)
        self._moved = np.unique(self.windows.table["key"][np.concatenate(absorbed.touched)])
        return absorbed

    def due(self, moment: Moment) -> list[Array]:
        """A delta window ends by a record that is not in it, so the windows that were open are looked at as well."""
        assert isinstance(moment, SequenceMoment)
        if moment.final:
            return [self.windows.table.slots()]
        moved, self._moved = self._moved, _NO_SLOTS
        if self.grid.size != 1 or not moved.size:
            return []
        before = self.keys["before"][moved]
        found = self.index.find(moved, before, before + 1)
        return [found[found >= 0]]


class SlicedSequence(Sliced):
    """Overlapping count windows, made of slices when they are complete."""

    _came = False  # whether the batch has records: without, no window is complete

    def absorb(self, rows: Rows, moment: Moment) -> Absorbed:
        self._came = True
        return super().absorb(rows, moment)

    def loaded(self) -> None:
        super().loaded()
        self.timeline.loaded()

    def _ripe(self, moment: Moment) -> Array:
        assert isinstance(moment, SequenceMoment)
        came, self._came = self._came, False
        return super()._ripe(moment) if came or moment.final else _NO_SLOTS
