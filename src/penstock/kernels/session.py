"""Sessions: windows that records open, extend and merge.

A record opens [at, at + gap). Those of a key that overlap become one session; those that only touch do not. A batch's records
and the sessions that their keys hold are sorted together and swept once, so a batch costs its records and their keys' sessions.
A merged session is a new window unless its bounds are those of a part: then records were added to that part, no more.

A session whose trigger has finished takes no records: those that overlap it are late, unless the trigger waits for the
watermark alone and the merged session ends beyond it, which opens it again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.kernels import assign, loops
from penstock.kernels.aggregate import Rows
from penstock.kernels.aligned import Absorbed, Timeline
from penstock.kernels.panes import EventMoment, Moment, Windows
from penstock.kernels.state import Array, Keys, Table
from penstock.kernels.trigger import Merge

_MICROS = 1_000_000
_GAP_SECONDS_MAX = 1e12  # beyond it the end of a session would leave the range of times


class Chains:
    """The sessions of each key, as linked slots. Rebuilt on restore, never saved."""

    def __init__(self, table: Table, keys: Keys) -> None:
        self._table, self._keys = table, keys
        self._head: Array = np.full(64, -1, np.int64)
        self._link: Array = np.full(64, -1, np.int64)

    def add(self, slots: Array) -> None:
        self._reserve()
        loops.chain_add(self._head, self._link, self._table["key"][slots], slots)

    def remove(self, slots: Array) -> None:
        loops.chain_remove(self._head, self._link, self._table["key"][slots], slots)

    def of(self, keys: Array) -> Array:
        self._reserve()
        return loops.chain_gather(self._head, self._link, keys)

    def _reserve(self) -> None:
        keys, slots = self._keys.table.live.size, self._table.live.size
        if keys > self._head.size:
            self._head = np.concatenate([self._head, np.full(keys - self._head.size, -1, np.int64)])
        if slots > self._link.size:
            self._link = np.concatenate([self._link, np.full(slots - self._link.size, -1, np.int64)])


@dataclass(frozen=True, slots=True)
class Swept:
    """Sessions and records by cluster of what overlaps. `item` counts sessions first, then records; sorted by cluster."""

    item: Array
    low: Array  # the items of cluster i are item[low[i]:high[i]]
    high: Array
    start: Array  # bounds of each cluster
    end: Array

    @property
    def number(self) -> Array:
        """The cluster of each entry of `item`."""
        return np.repeat(np.arange(self.low.size), self.high - self.low)


def sweep(key: Array, start: Array, end: Array) -> Swept:
    order = np.lexsort((start, key))
    number = loops.clusters(key[order], start[order], end[order])
    low = np.flatnonzero(np.diff(number, prepend=-1))
    return Swept(order, low, np.append(low[1:], order.size), start[order][low], np.maximum.reduceat(end[order], low))


class Sessions:
    """The assigner of sessions."""

    def __init__(self, windows: Windows, keys: Keys, names: Sequence[str], timeline: Timeline, gap_us: int | None, gap: str | None) -> None:
        self.windows, self.keys, self.names, self.timeline = windows, keys, tuple(names), timeline
        self._gap_us, self._gap = gap_us, gap
        self._chains = Chains(windows.table, keys)
        windows.lookup = self._chains
        windows.keeps_finished = True

    @property
    def tables(self) -> dict[str, Table]:
        return {}

    def loaded(self) -> None:
        pass

    def absorb(self, rows: Rows, moment: Moment) -> Absorbed:
        assert isinstance(moment, EventMoment)
        keyed = assign.keyed(rows, self.names)
        key = self.keys.intern(keyed.keys)[keyed.code]
        start = self.timeline.place(rows, key)
        gap_us, known = self._gaps(rows)
        end = start + gap_us
        late = ~known | (end <= self.timeline.gone_us(moment))
        held = self._chains.of(np.unique(key[~late]))
        late |= self._refused(held, key, start, end, late, moment)
        table = rows.table.filter(pa.array(~late)) if late.any() else rows.table
        touched = self._merge(Rows(table, signed=rows.signed), held, key[~late], start[~late], end[~late], moment)
        return Absorbed((touched,), late, int(late.sum()))

    def _gaps(self, rows: Rows) -> tuple[Array, Array]:
        if self._gap is None:
            assert self._gap_us is not None
            return np.full(rows.count, self._gap_us), np.ones(rows.count, np.bool_)
        seconds, weight = rows.numbers(self._gap, whole=False)
        known = (weight != 0) & (seconds > 0) & (seconds < _GAP_SECONDS_MAX)
        return np.where(known, np.rint(np.where(known, seconds, 1.0) * _MICROS), 1).astype(np.int64), known

    def _refused(self, held: Array, key: Array, start: Array, end: Array, late: Array, moment: EventMoment) -> Array:
        """Records that overlap a session that has finished and stays so."""
        table = self.windows.table
        refused = np.zeros(key.size, np.bool_)
        if not held.size or not table["finished"][held].any():
            return refused
        rows = np.flatnonzero(~late)
        swept = self._sweep(held, key[rows], start[rows], end[rows])
        is_held = swept.item < held.size
        finished = np.zeros(swept.item.size, np.bool_)
        finished[is_held] = table["finished"][held[swept.item[is_held]]] != 0
        any_finished = np.logical_or.reduceat(finished, swept.low)
        stays = any_finished & ~self._rewound(held, swept, moment)
        for cluster in np.flatnonzero(stays).tolist():  # few: a record met a finished session
            items = swept.item[swept.low[cluster] : swept.high[cluster]]
            over = held[items[(items < held.size)]]
            over = over[table["finished"][over] != 0]
            for row in rows[items[items >= held.size] - held.size].tolist():
                refused[row] = bool(((table["start"][over] < end[row]) & (start[row] < table["end"][over])).any())
        return refused

    def _rewound(self, held: Array, swept: Swept, moment: EventMoment) -> Array:
        """Clusters whose merged session is open again."""
        is_held = swept.item < held.size
        sizes = np.bincount(swept.number[is_held], minlength=swept.low.size)
        some = sizes > 0
        high = np.cumsum(sizes[some])
        parts = held[swept.item[is_held]]
        merge = Merge(np.flatnonzero(some), parts, high - sizes[some], high, swept.end[some] <= moment.before_us)
        rewound = np.zeros(swept.low.size, np.bool_)
        rewound[some] = self.windows.root.rewound(merge)
        return rewound

    def _sweep(self, held: Array, key: Array, start: Array, end: Array) -> Swept:
        table = self.windows.table
        return sweep(
            np.concatenate([table["key"][held], key]),
            np.concatenate([table["start"][held], start]),
            np.concatenate([table["end"][held], end]),
        )

    def _merge(self, rows: Rows, held: Array, key: Array, start: Array, end: Array, moment: EventMoment) -> Array:
        if not key.size:
            return key
        swept = self._sweep(held, key, start, end)
        is_row = swept.item >= held.size
        number = swept.number
        rows_in = np.bincount(number[is_row], minlength=swept.low.size)
        parts_in = np.bincount(number[~is_row], minlength=swept.low.size)
        active = np.flatnonzero(rows_in)  # the clusters that got a record
        compact = np.full(swept.low.size, -1, np.int64)
        compact[active] = np.arange(active.size)
        row_cluster = np.empty(key.size, np.int64)
        row_cluster[swept.item[is_row] - held.size] = compact[number[is_row]]
        partials = assign.lift(rows, row_cluster, active.size, self.windows.functions, self.windows.root, moment.now_us)

        cluster_key = np.empty(active.size, np.int64)
        cluster_key[row_cluster] = key
        low, high = swept.start[active], swept.end[active]
        keep = ~is_row & (rows_in[number] > 0)
        parts, part_cluster = held[swept.item[keep]], compact[number[keep]]
        slots = np.full(active.size, -1, np.int64)
        table = self.windows.table
        same = (
            (parts_in[active][part_cluster] == 1)
            & (table["start"][parts] == low[part_cluster])
            & (table["end"][parts] == high[part_cluster])
        )
        slots[part_cluster[same]] = parts[same]
        new = np.flatnonzero(slots < 0)
        slots[new] = self.windows.create(cluster_key[new], low[new], high[new])
        self._swallow(parts[~same], part_cluster[~same], slots, high, moment)
        self.windows.update(slots, partials)
        return slots

    def _swallow(self, parts: Array, cluster: Array, slots: Array, end: Array, moment: EventMoment) -> None:
        """Parts (sorted by cluster) go into the new session of their cluster."""
        if not parts.size:
            return
        low = np.flatnonzero(np.diff(cluster, prepend=-1))
        merged = cluster[low]
        self.windows.merge(Merge(slots[merged], parts, low, np.append(low[1:], parts.size), end[merged] <= moment.before_us))

    def due(self, moment: Moment) -> list[Array]:
        assert isinstance(moment, EventMoment)
        return [self.windows.due(moment)]

    def held(self) -> list[tuple[int, int, int, bool]]:
        return self.windows.held_list()
