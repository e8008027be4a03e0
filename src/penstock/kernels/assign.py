"""From rows to groups: key and slice of each row, one partial per group, and the windows that a slice belongs to.

    rows ──group──▶ (key, slice) partials ──spread──▶ (key, window) partials
Rows are combined once per slice, whatever the number of windows above it, so the cost of a sliding window does not
follow the number of windows a row is in. A table of partials can be made early (in the scan, by `combine`) and sent
instead of the rows. Times before 1970 and offsets are fine: all divisions round down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import PlanError
from penstock.kernels import loops
from penstock.kernels.aggregate import Columns, Function, Rows
from penstock.kernels.kernel import TIME
from penstock.kernels.panes import Partials
from penstock.kernels.state import Array, Column, key_plain, key_values, objects
from penstock.kernels.trigger import DeltaNode, DeltaSeen, Node, PunctuationNode, Signals

COUNT, START = "_count", "_start"  # of a table of partials: records in the group, start of its slice


@dataclass(frozen=True, slots=True)
class Keyed:
    """The keys of some rows: `code` says which of `keys` each row has."""

    code: Array
    keys: list[Any]


@dataclass(frozen=True, slots=True)
class Groups:
    """Rows combined by key (a number whose meaning the caller knows) and slice."""

    key: Array
    start: Array
    partials: Partials
    number: Array | None  # the group of each row; unknown if the rows were combined elsewhere


@dataclass(frozen=True, slots=True)
class Grid:
    """Windows of a size that begin at every multiple of a step, and the slices they are made of."""

    size: int
    every: int
    offset: int = 0

    @property
    def slice(self) -> int:
        return self.size if self.size == self.every else gcd(self.size, self.every)

    @property
    def tumbling(self) -> bool:
        return self.size == self.every

    def slice_of(self, times: Array) -> Array:
        """The start of the slice that holds each time."""
        return (times - self.offset) // self.slice * self.slice + self.offset

    def spread(self, slices: Array) -> tuple[Array, Array]:
        """Every window that holds each slice: (which slice, start of the window)."""
        first = (slices - self.offset - self.size) // self.every + 1
        last = (slices - self.offset) // self.every
        sizes = np.maximum(last - first + 1, 0)
        which = np.repeat(np.arange(slices.size), sizes)
        number = np.arange(which.size) - np.repeat(np.cumsum(sizes) - sizes, sizes) + first[which]
        return which, number * self.every + self.offset

    def last_end(self, slices: Array) -> Array:
        """The end of the last window that holds each slice."""
        return (slices - self.offset) // self.every * self.every + self.offset + self.size

    def first_end(self, slices: Array) -> Array:
        """The end of the first window that holds each slice."""
        return ((slices - self.offset - self.size) // self.every + 1) * self.every + self.offset + self.size


def keyed(rows: Rows, names: Sequence[str]) -> Keyed:
    """Find the different keys of some rows."""
    if not names:
        return Keyed(np.zeros(rows.count, np.int64), [()])
    columns = [key_plain(rows.array(name)) for name in names]
    encoded = [column.dictionary_encode(null_encoding="encode") for column in columns]
    codes = [each.indices.to_numpy().astype(np.int64) for each in encoded]
    if len(codes) == 1:
        return Keyed(codes[0], key_values([encoded[0].dictionary], len(encoded[0].dictionary)))
    code, first = codes[0], codes[0]
    for other in codes[1:]:
        code, first = loops.group_pairs(code, other)
    return Keyed(code, key_values([column.take(pa.array(first)) for column in columns], first.size))


def lift(rows: Rows, number: Array, groups: int, functions: Sequence[Function], root: Node, now_us: int) -> Partials:
    """Combine rows by their group's number."""
    count = np.bincount(number, minlength=groups).astype(np.int64, copy=False)
    columns = [function.lift(rows, number, groups) for function in functions]
    return Partials(count, columns, _signals(rows, number, groups, count, root, now_us))


def _signals(rows: Rows, number: Array, groups: int, count: Array, root: Node, now_us: int) -> Signals:
    deltas: dict[str, DeltaSeen] = {}
    punctuations: dict[str, Array] = {}
    for node in root.walk():
        if isinstance(node, DeltaNode) and node.column not in deltas:
            values, weight = rows.numbers(node.column, whole=False)
            valid = (weight != 0) & (values == values)
            first, least, greatest = np.full(groups, np.nan), np.full(groups, np.nan), np.full(groups, np.nan)
            first[number[valid][::-1]] = values[valid][::-1]  # the first row of a group is written last
            seen, again = np.zeros(groups, np.int64), np.zeros(groups, np.int64)
            loops.scatter_least(number, values, valid.astype(np.int64), least, seen)
            loops.scatter_greatest(number, values, valid.astype(np.int64), greatest, again)
            deltas[node.column] = DeltaSeen(first, least, greatest, seen > 0)
        if isinstance(node, PunctuationNode) and node.condition not in punctuations:
            holds = np.zeros(groups, np.bool_)
            holds[number[truth(rows, node.condition)]] = True
            punctuations[node.condition] = holds
    return Signals(count, now_us, deltas, punctuations)


def truth(rows: Rows, condition: str) -> Array:
    """Where a boolean column holds; null is false."""
    return rows.array(condition).fill_null(False).to_numpy(zero_copy_only=False).astype(np.bool_)


def times(rows: Rows) -> tuple[Array, Array | None]:
    """Event times, and which rows have none (None if all have one)."""
    array = rows.array(TIME)
    if not array.null_count:
        return array.to_numpy(), None
    return array.fill_null(0).to_numpy(), array.is_null().to_numpy(zero_copy_only=False)


def group(rows: Rows, key: Array, start: Array, functions: Sequence[Function], root: Node, now_us: int) -> Groups:
    number, first = loops.group_pairs(key, start)
    return Groups(key[first], start[first], lift(rows, number, first.size, functions, root, now_us), number)


def join(partials: Partials, which: Array, slots: Array, functions: Sequence[Function]) -> tuple[Array, Partials]:
    """Partials `which` go to `slots`, of which some may be equal: one partial per different slot."""
    order = np.argsort(slots, kind="stable")
    slots, which = slots[order], which[order]
    signals = partials.signals.take(which)
    columns = [[column[which] for column in each] for each in partials.columns]
    changes = np.flatnonzero(np.diff(slots, prepend=-1))
    if changes.size == slots.size:
        return slots, Partials(partials.count[which], columns, signals)
    low, high = changes, np.append(changes[1:], slots.size)
    deltas = {
        name: DeltaSeen(
            _first_known(seen, low, high),
            np.fmin.reduceat(seen.least, low),
            np.fmax.reduceat(seen.greatest, low),
            np.logical_or.reduceat(seen.any, low),
        )
        for name, seen in signals.deltas.items()
    }
    punctuations = {name: np.logical_or.reduceat(seen, low) for name, seen in signals.punctuations.items()}
    count = np.add.reduceat(signals.count, low)
    folded = [function.fold(each, low, high) for function, each in zip(functions, columns)]
    return slots[low], Partials(count, folded, Signals(count, signals.now_us, deltas, punctuations))


def _first_known(seen: DeltaSeen, low: Array, high: Array) -> Array:
    first = np.full(low.size, np.nan)
    number = np.repeat(np.arange(low.size), high - low)
    first[number[seen.any][::-1]] = seen.first[seen.any][::-1]
    return first


def to_table(groups: Groups, keys: Keyed, names: Sequence[str], types: Sequence[pa.DataType], functions: Sequence[Function]) -> pa.Table:
    """Partials as a table that can be sent instead of the rows they come from."""
    columns: dict[str, pa.Array] = {}
    values = [keys.keys[code] for code in groups.key.tolist()]
    for i, (name, kind) in enumerate(zip(names, types)):
        plain = values if len(names) == 1 else [value[i] for value in values]
        columns[name] = _typed(plain, kind)
    columns[START] = pa.array(groups.start, pa.int64())
    columns[COUNT] = pa.array(groups.partials.count, pa.int64())
    for number, (function, partials) in enumerate(zip(functions, groups.partials.columns)):
        for column, values_ in zip(function.columns, partials):
            columns[f"_{number}.{column.name}"] = pa.array(values_) if column.pack is None else column.pack(values_.tolist())
    return pa.table(columns)


def from_table(table: pa.Table, names: Sequence[str], functions: Sequence[Function], now_us: int) -> tuple[Groups, Keyed]:
    """The way back. Partials of one group may come from several senders, so they are joined here."""
    rows = Rows(table)
    keys = keyed(rows, names)
    start = rows.array(START).to_numpy()
    count = rows.array(COUNT).to_numpy()
    columns: list[Columns] = [
        [_read(rows.array(f"_{number}.{c.name}"), c) for c in function.columns] for number, function in enumerate(functions)
    ]
    number, first = loops.group_pairs(keys.code, start)
    _, partials = join(Partials(count, columns, Signals(count, now_us)), np.arange(count.size), number, functions)
    return Groups(keys.code[first], start[first], partials, None), keys


def is_partials(table: pa.Table) -> bool:
    return COUNT in table.column_names and START in table.column_names


def _read(array: pa.Array, column: Column) -> Array:
    if column.unpack is not None:
        return objects(column.unpack(array))
    return array.to_numpy(zero_copy_only=False).astype(column.dtype)


def _typed(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        return pa.array(values, pa.int64() if pa.types.is_timestamp(kind) else pa.int32()).cast(kind)
    return pa.array(values, kind)


def custom(assign: Any, event_times: Array) -> tuple[Array, Array, Array]:
    """Ask the user's window function; (row, start, end) as integers."""
    try:
        row, start, end = (np.asarray(part, np.int64) for part in assign(event_times))
    except (TypeError, ValueError) as error:
        raise PlanError(
            "window", f"the window function gave no three arrays of integers ({error})", remedy="return (row, start_us, end_us)"
        ) from error
    if not (row.shape == start.shape == end.shape) or bool((start >= end).any()) or bool(((row < 0) | (row >= event_times.size)).any()):
        raise PlanError(
            "window",
            "the window function gave windows that are empty or rows that are not there",
            remedy="return (row, start_us, end_us) with start < end",
        )
    return row, start, end
