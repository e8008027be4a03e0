"""Aggregate functions as lift, combine, lower over arrays: count, sum, avg, min, max, variance, first, last.

A function owns a few state columns. `lift` turns rows that are numbered by group into partials, one entry per group;
`merge` combines partials into slots; `fold` combines ranges of partials (slices into windows, sessions into one);
`lower` gives the result column. Combining is associative, and nulls and NaN count as they do in Spark: nulls are left
out, NaN is greater than every number, an aggregate of nothing is null (a count is 0). Functions whose partial is a Python
object (collect, sketches, the user's own) are in `collection.py`."""

from __future__ import annotations

from functools import cached_property
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.dataflow.aggregate import Aggregate
from penstock.errors import PlanError
from penstock.kernels import loops
from penstock.kernels.kernel import OFFSET, PARTITION, SOURCE, TIME
from penstock.kernels.state import Array, Column, key_plain, objects
from penstock.schema import Schema, arrow_type

Columns = list[Array]  # the arrays of one function's state columns, aligned
SIGN = "sign"
_LEAST_INT, _GREATEST_INT = np.iinfo(np.int64).min, np.iinfo(np.int64).max


class Rows:
    """The rows of a batch as numpy arrays, converted once."""

    def __init__(self, table: pa.Table, *, signed: bool = False) -> None:
        self.table = table
        self.count = table.num_rows
        self.signed = signed
        self._arrays: dict[str, pa.Array] = {}
        self._numbers: dict[tuple[str, bool], tuple[Array, Array]] = {}

    def array(self, name: str) -> pa.Array:
        if name not in self._arrays:
            column = self.table.column(name)
            self._arrays[name] = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        return self._arrays[name]

    @cached_property
    def weight(self) -> Array:
        """What each row counts: 1, or its sign."""
        if not self.signed:
            return np.ones(self.count, np.int64)
        signs: Array = pc.fill_null(self.array(SIGN), 1).to_numpy(zero_copy_only=False)
        return signs.astype(np.int64)

    def valid_weight(self, name: str) -> Array:
        """The weight of each row, 0 where the column is null."""
        array = self.array(name)
        if not array.null_count:
            return self.weight
        return np.where(array.is_valid().to_numpy(zero_copy_only=False), self.weight, 0)

    def numbers(self, name: str, *, whole: bool) -> tuple[Array, Array]:
        """A numeric column as int64 or float64 (0 for null), and its weights."""
        known = self._numbers.get((name, whole))
        if known is None:
            array = key_plain(self.array(name)) if whole else self.array(name)
            if array.null_count:
                array = pc.fill_null(array, False if pa.types.is_boolean(array.type) else 0)
            values = array.to_numpy(zero_copy_only=False)
            known = values.astype(np.int64 if whole else np.float64, copy=False), self.valid_weight(name)
            self._numbers[(name, whole)] = known
        return known

    @cached_property
    def order(self) -> Array:
        """(_time, _source, _partition, _offset) as four rows of integers."""
        columns = []
        for name in (TIME, SOURCE, PARTITION, OFFSET):
            if name in self.table.column_names:
                columns.append(pc.fill_null(self.array(name), 0).to_numpy(zero_copy_only=False).astype(np.int64))
            else:
                columns.append(np.zeros(self.count, np.int64))
        return np.stack(columns)


class Function(Protocol):
    """One aggregate of a step."""

    @property
    def columns(self) -> tuple[Column, ...]: ...
    def lift(self, rows: Rows, group: Array, groups: int) -> Columns: ...
    def merge(self, into: Columns, slots: Array, partials: Columns) -> None:
        """into[slots] combined with partials; slots are different. Never keeps a partial's object for itself."""
        ...

    def fold(self, partials: Columns, low: Array, high: Array) -> Columns:
        """One partial per range [low, high); ranges are not empty and only move forward."""
        ...

    def copy(self, partials: Columns) -> Columns:
        """Partials that do not change when the originals are merged into."""
        ...

    def lower(self, partials: Columns) -> pa.Array: ...


class _Plain:
    """A function whose columns are plain numbers."""

    def copy(self, partials: Columns) -> Columns:
        return [column.copy() for column in partials]


class CountOf(_Plain):
    def __init__(self, column: str | None) -> None:
        self._column = column
        self.columns = (Column("n", "i8"),)

    def lift(self, rows: Rows, group: Array, groups: int) -> Columns:
        count = np.zeros(groups, np.int64)
        loops.scatter_count(group, rows.weight if self._column is None else rows.valid_weight(self._column), count)
        return [count]

    def merge(self, into: Columns, slots: Array, partials: Columns) -> None:
        into[0][slots] += partials[0]

    def fold(self, partials: Columns, low: Array, high: Array) -> Columns:
        return [loops.fold(loops.ADD, partials[0], low, high)]

    def lower(self, partials: Columns) -> pa.Array:
        return pa.array(partials[0], pa.int64())


class SumOf(_Plain):
    """Sum, or the average of it. Sums of whole numbers are exact and refuse to leave 64 bits."""

    def __init__(self, column: str, *, whole: bool, average: bool, output: str) -> None:
        self._column, self._whole, self._average, self._output = column, whole, average, output
        self.columns = (Column("total", "i8" if whole else "f8"), Column("n", "i8"))

    def lift(self, rows: Rows, group: Array, groups: int) -> Columns:
        values, weight = rows.numbers(self._column, whole=self._whole)
        total, count = np.zeros(groups, values.dtype), np.zeros(groups, np.int64)
        if not self._whole:
            loops.scatter_sum_float(group, values, weight, total, count)
        elif loops.scatter_sum_int(group, values, weight, total, count):
            raise self._overflow()
        return [total, count]

    def merge(self, into: Columns, slots: Array, partials: Columns) -> None:
        before, change = into[0][slots], partials[0]
        after = before + change
        if self._whole and bool((((before ^ after) & (change ^ after)) < 0).any()):
            raise self._overflow()
        into[0][slots] = after
        into[1][slots] += partials[1]

    def fold(self, partials: Columns, low: Array, high: Array) -> Columns:
        if self._whole and low.size:
            bound = float(np.abs(partials[0].astype(np.float64)).max()) * int((high - low).max())
            if bound >= 2.0**63 and float(np.abs(loops.fold(loops.ADD, partials[0].astype(np.float64), low, high)).max()) >= 2.0**63:
                raise self._overflow()
        return [loops.fold(loops.ADD, column, low, high) for column in partials]

    def lower(self, partials: Columns) -> pa.Array:
        total, count = partials
        if self._average:
            with np.errstate(divide="ignore", invalid="ignore"):
                return pa.array(total / count, pa.float64(), mask=count == 0)
        return pa.array(total, mask=count == 0)

    def _overflow(self) -> PlanError:
        return PlanError("aggregate", f"{self._output}: the sum of {self._column} does not fit into BIGINT", remedy="sum it as DOUBLE")


class Extreme(_Plain):
    """Min or max of numbers, times and booleans."""

    def __init__(self, column: str, *, whole: bool, greatest: bool, type: str) -> None:
        self._column, self._whole, self._greatest = column, whole, greatest
        self._type = arrow_type(type)
        neutral: float = (_LEAST_INT if greatest else _GREATEST_INT) if whole else (-np.inf if greatest else np.nan)
        self.columns = (Column("best", "i8" if whole else "f8", neutral), Column("n", "i8"))

    def lift(self, rows: Rows, group: Array, groups: int) -> Columns:
        values, weight = rows.numbers(self._column, whole=self._whole)
        best, count = np.full(groups, self.columns[0].neutral, values.dtype), np.zeros(groups, np.int64)
        (loops.scatter_greatest if self._greatest else loops.scatter_least)(group, values, weight, best, count)
        return [best, count]

    def merge(self, into: Columns, slots: Array, partials: Columns) -> None:
        # fmin leaves NaN out unless there is nothing else, maximum lets it win: NaN is the greatest.
        better = np.maximum if self._greatest else np.fmin
        into[0][slots] = better(into[0][slots], partials[0])
        into[1][slots] += partials[1]

    def fold(self, partials: Columns, low: Array, high: Array) -> Columns:
        verb = loops.GREATEST if self._greatest else loops.LEAST
        return [loops.fold(verb, partials[0], low, high), loops.fold(loops.ADD, partials[1], low, high)]

    def lower(self, partials: Columns) -> pa.Array:
        return from_plain(pa.array(partials[0], mask=partials[1] == 0), self._type)


class Moments(_Plain):
    """Variance and standard deviation, of a sample or a population (Welford 1962, merged as Chan 1979)."""

    def __init__(self, column: str, *, sample: bool, root: bool) -> None:
        self._column, self._sample, self._root = column, sample, root
        self.columns = (Column("n", "f8"), Column("mean", "f8"), Column("squares", "f8"))

    def lift(self, rows: Rows, group: Array, groups: int) -> Columns:
        values, weight = rows.numbers(self._column, whole=False)
        partials = [np.zeros(groups) for _ in range(3)]
        loops.scatter_moments(group, values, weight, partials[0], partials[1], partials[2])
        return partials

    def merge(self, into: Columns, slots: Array, partials: Columns) -> None:
        a, b = [column[slots] for column in into], partials
        both = a[0] + b[0]
        share = np.divide(b[0], both, out=np.zeros_like(both), where=both > 0)
        step = b[1] - a[1]
        into[0][slots] = both
        into[1][slots] = np.where(b[0] > 0, a[1] + step * share, a[1])
        into[2][slots] = a[2] + b[2] + np.where((a[0] > 0) & (b[0] > 0), step * step * a[0] * share, 0.0)

    def fold(self, partials: Columns, low: Array, high: Array) -> Columns:
        return list(loops.fold_moments(partials[0], partials[1], partials[2], low, high))

    def lower(self, partials: Columns) -> pa.Array:
        count, _, squares = partials
        divisor = count - 1 if self._sample else count
        result = np.divide(squares, divisor, out=np.zeros_like(squares), where=divisor > 0)
        return pa.array(np.sqrt(result) if self._root else result, mask=divisor <= 0)


class Pick:
    """The value of the first or the last record, by (_time, _source, _partition, _offset). A null is a value here."""

    def __init__(self, column: str, *, last: bool, type: str) -> None:
        self._column, self._sign, self._type = column, -1 if last else 1, arrow_type(type)
        stored = plain_type(self._type)
        order = (Column(name, "i8") for name in ("time", "source", "partition", "offset"))
        value = Column("value", "O", None, lambda values: pa.array(values, stored), lambda array: array.to_pylist())
        self.columns = (Column("seen", "i8"), *order, value)

    def lift(self, rows: Rows, group: Array, groups: int) -> Columns:
        chosen = np.full(groups, -1, np.int64)
        loops.scatter_pick(group, rows.order, self._sign, chosen)
        values = objects(key_plain(rows.array(self._column).take(pa.array(chosen))).to_pylist())
        return [np.ones(groups, np.int64), *rows.order[:, chosen], values]

    def merge(self, into: Columns, slots: Array, partials: Columns) -> None:
        seen = into[0][slots] > 0
        before = np.zeros(slots.size, np.bool_)
        equal = np.ones(slots.size, np.bool_)
        for mine, theirs in zip(into[1:5], partials[1:5]):
            held = mine[slots]
            before |= equal & ((theirs < held) if self._sign > 0 else (theirs > held))
            equal &= theirs == held
        take = (partials[0] > 0) & (~seen | before)
        for column, partial in zip(into, partials):
            column[slots[take]] = partial[take]

    def fold(self, partials: Columns, low: Array, high: Array) -> Columns:
        # Slots without a record never win: they go to the far end of the order.
        far = _GREATEST_INT if self._sign > 0 else _LEAST_INT
        order = np.stack([np.where(partials[0] > 0, partials[1], far), *partials[2:5]])
        chosen = loops.fold_pick(order, self._sign, low, high)
        return [column[chosen] for column in partials]

    def copy(self, partials: Columns) -> Columns:
        return [column.copy() for column in partials]

    def lower(self, partials: Columns) -> pa.Array:
        return from_plain(pa.array(partials[-1].tolist(), plain_type(self._type)), self._type)


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The Arrow type in which values of this type are kept: times and dates as integers."""
    if pa.types.is_timestamp(kind):
        return pa.int64()
    return pa.int32() if pa.types.is_date32(kind) else kind


def from_plain(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_date32(kind):
        return array.cast(pa.int32()).cast(kind)
    if pa.types.is_boolean(kind) or pa.types.is_floating(kind) or pa.types.is_integer(kind):
        return array.cast(kind)
    return array.cast(pa.int64()).cast(kind) if pa.types.is_timestamp(kind) else array


_WHOLE = ("INT", "BIGINT")
_NUMERIC = (*_WHOLE, "FLOAT", "DOUBLE")
_VARIANCES = {
    "variance": (True, False), "var_samp": (True, False), "var_pop": (False, False),
    "stddev": (True, True), "stddev_samp": (True, True), "stddev_pop": (False, True),
}  # fmt: skip
SIGNED_FUNCTIONS = ("count", "sum", "avg")


def function_of(aggregate: Aggregate, schema: Schema, *, signed: bool) -> Function:
    """The function that computes this aggregate over input of this schema."""
    from penstock.kernels import collection

    name = {"mean": "avg", "std": "stddev"}.get(aggregate.function, aggregate.function)
    if signed and name not in SIGNED_FUNCTIONS:
        raise PlanError(
            "aggregate",
            f"{name} cannot take back a record that is retracted",
            remedy=f"use {', '.join(SIGNED_FUNCTIONS)}, or do not retract",
        )
    if name == "count":
        return CountOf(aggregate.column)
    assert aggregate.column is not None, f"{name} needs a column"
    kind = schema.type_of(aggregate.column)
    whole = kind in _WHOLE
    if name in ("sum", "avg", *_VARIANCES) and kind not in _NUMERIC:
        raise PlanError("aggregate", f"{name}({aggregate.column}) is over {kind}", remedy="cast the column to a number")
    match name:
        case "sum" | "avg":
            return SumOf(aggregate.column, whole=whole and name == "sum", average=name == "avg", output=aggregate.output)
        case "min" | "max" if kind in (*_NUMERIC, "TIMESTAMP", "DATE", "BOOLEAN"):
            return Extreme(aggregate.column, whole=kind not in ("FLOAT", "DOUBLE"), greatest=name == "max", type=kind)
        case "first" | "last":
            return Pick(aggregate.column, last=name == "last", type=kind)
        case _ if name in _VARIANCES:
            sample, root = _VARIANCES[name]
            return Moments(aggregate.column, sample=sample, root=root)
        case _:
            return collection.function_of(aggregate, kind)
