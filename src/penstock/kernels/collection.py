"""Aggregate functions whose partial is a Python object: collect, top_k, quantiles, distinct counts, text extremes, the user's own.

Partials are exact while they are small. Quantiles of more than QUANTILE_EXACT_MAX values become a t-digest (Dunning 2019,
merging variant: deterministic, so a replay gives the same result; rank error below 1 % at the median, smaller at the ends),
distinct counts above DISTINCT_EXACT_MAX a HyperLogLog of 2^13 registers (standard error 1.2 %). An accumulator is owned by
one slot: `combine` may change its first argument and never keeps the second."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from penstock.dataflow.aggregate import Aggregate, UserAggregate
from penstock.errors import PlanError
from penstock.kernels.aggregate import Columns, Rows, from_plain, plain_type
from penstock.kernels.state import Array, Column, key_plain, objects
from penstock.schema import Schema, arrow_type

QUANTILE_EXACT_MAX = 1_000
DISTINCT_EXACT_MAX = 1_000
_DIGEST_K = 400
_HLL_LG_K = 13
_NAN = float("nan")


class Collection(Protocol):
    """What one of these functions does with Python values; None is the accumulator of nothing."""

    type: pa.DataType  # of the result

    def lift(self, values: list[Any]) -> Any: ...
    def combine(self, a: Any, b: Any) -> Any: ...
    def copy(self, a: Any) -> Any: ...
    def lower(self, a: Any) -> Any: ...
    def pack(self, accumulators: Sequence[Any]) -> pa.Array: ...
    def unpack(self, array: pa.Array) -> Sequence[Any]: ...


class OfObjects:
    """A `Function` of the aggregate step over a `Collection`."""

    def __init__(self, names: tuple[str, ...], collection: Collection, *, keep_nulls: bool = False) -> None:
        self._names, self._collection, self._keep_nulls = names, collection, keep_nulls
        self.columns = (Column("object", "O", None, collection.pack, collection.unpack),)

    def lift(self, rows: Rows, group: Array, groups: int) -> Columns:
        values = [key_plain(rows.array(name)).to_pylist() for name in self._names]
        lists: list[list[Any]] = [[] for _ in range(groups)]
        if len(values) > 1:
            for number, value in zip(group.tolist(), zip(*values)):
                lists[number].append(value)
        else:
            for number, value in zip(group.tolist(), values[0]):
                lists[number].append(value)
        if not self._keep_nulls:
            lists = [[value for value in each if value is not None and value != (None, None)] for each in lists]
        return [objects([self._collection.lift(each) if each else None for each in lists])]

    def merge(self, into: Columns, slots: Array, partials: Columns) -> None:
        for slot, partial in zip(slots.tolist(), partials[0]):
            if partial is not None:
                into[0][slot] = self._both(into[0][slot], partial)

    def fold(self, partials: Columns, low: Array, high: Array) -> Columns:
        folded = [functools.reduce(self._both, partials[0][a:b], None) for a, b in zip(low.tolist(), high.tolist())]
        return [objects(folded)]

    def copy(self, partials: Columns) -> Columns:
        return [objects([None if each is None else self._collection.copy(each) for each in partials[0]])]

    def lower(self, partials: Columns) -> pa.Array:
        kind = self._collection.type
        results = [self._collection.lower(each) for each in partials[0]]
        if pa.types.is_list(kind):
            plain = pa.array(results, pa.list_(plain_type(kind.value_type)))
            return plain if plain.type == kind else plain.cast(kind)
        return from_plain(pa.array(results, plain_type(kind)), kind)

    def _both(self, a: Any, b: Any) -> Any:
        if b is None:
            return a
        return self._collection.copy(b) if a is None else self._collection.combine(a, b)


class _Listed:
    """Accumulators that are lists of plain values."""

    def __init__(self, item: pa.DataType) -> None:
        self._stored = pa.list_(plain_type(item))

    def lift(self, values: list[Any]) -> Any:
        return values

    def copy(self, a: list[Any]) -> list[Any]:
        return list(a)

    def pack(self, accumulators: Sequence[Any]) -> pa.Array:
        return pa.array(accumulators, self._stored)

    def unpack(self, array: pa.Array) -> Sequence[Any]:
        return array.to_pylist()  # type: ignore[no-any-return]


class Collect(_Listed):
    """All values that are not null, in order of arrival."""

    def __init__(self, item: pa.DataType) -> None:
        super().__init__(item)
        self.type = pa.list_(item)

    def combine(self, a: list[Any], b: list[Any]) -> list[Any]:
        a.extend(b)
        return a

    def lower(self, a: list[Any] | None) -> list[Any]:
        return a or []


def _rank(value: Any) -> tuple[bool, Any]:
    return (True, 0) if value != value else (False, value)  # NaN is the greatest, and can be compared


class TopK(_Listed):
    """The k greatest values, greatest first; equal ones count each."""

    def __init__(self, item: pa.DataType, k: int) -> None:
        super().__init__(item)
        self.type, self._k = pa.list_(item), k

    def lift(self, values: list[Any]) -> list[Any]:
        return sorted(values, key=_rank, reverse=True)[: self._k]

    def combine(self, a: list[Any], b: list[Any]) -> list[Any]:
        return self.lift(a + b)

    def lower(self, a: list[Any] | None) -> list[Any]:
        return a or []


class TopKBy:
    """The values that stand beside the k greatest of another column."""

    def __init__(self, item: pa.DataType, by: pa.DataType, k: int) -> None:
        self.type, self._k = pa.list_(item), k
        self._stored = pa.list_(pa.struct([("value", plain_type(item)), ("by", plain_type(by))]))

    def lift(self, values: list[Any]) -> list[Any]:
        held = [pair for pair in values if pair[1] is not None]
        return sorted(held, key=lambda pair: _rank(pair[1]), reverse=True)[: self._k]

    def combine(self, a: list[Any], b: list[Any]) -> list[Any]:
        return self.lift(a + b)

    def copy(self, a: list[Any]) -> list[Any]:
        return list(a)

    def lower(self, a: list[Any] | None) -> list[Any]:
        return [value for value, _ in a or []]

    def pack(self, accumulators: Sequence[Any]) -> pa.Array:
        return pa.array([None if a is None else [{"value": v, "by": by} for v, by in a] for a in accumulators], self._stored)

    def unpack(self, array: pa.Array) -> Sequence[Any]:
        return [None if a is None else [(pair["value"], pair["by"]) for pair in a] for a in array.to_pylist()]


class TextExtreme(_Listed):
    """Min or max of texts and bytes, compared byte by byte as Spark does."""

    def __init__(self, item: pa.DataType, *, greatest: bool) -> None:
        super().__init__(item)
        self.type, self._best = item, max if greatest else min

    def lift(self, values: list[Any]) -> Any:
        return [self._best(values, key=_bytes)]

    def combine(self, a: list[Any], b: list[Any]) -> list[Any]:
        return [self._best(a[0], b[0], key=_bytes)]

    def lower(self, a: list[Any] | None) -> Any:
        return a[0] if a else None


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


class _ExactThenSketch:
    """Accumulators that are exact (a list or a set) until they are large, then a sketch."""

    stored: pa.DataType

    def pack(self, accumulators: Sequence[Any]) -> pa.Array:
        small = [sorted(a, key=str) if isinstance(a, set) else a if isinstance(a, list) else None for a in accumulators]
        large = [None if a is None or isinstance(a, list | set) else self.sketch_bytes(a) for a in accumulators]
        return pa.StructArray.from_arrays([pa.array(small, self.stored), pa.array(large, pa.binary())], names=["exact", "sketch"])

    def unpack(self, array: pa.Array) -> Sequence[Any]:
        pairs = zip(array.field(0).to_pylist(), array.field(1).to_pylist())
        return [
            self.sketch_from(large) if large is not None else None if small is None else self.exact_from(small) for small, large in pairs
        ]

    def sketch_bytes(self, sketch: Any) -> bytes:
        raise NotImplementedError

    def sketch_from(self, data: bytes) -> Any:
        raise NotImplementedError

    def exact_from(self, values: list[Any]) -> Any:
        raise NotImplementedError


class Quantile(_ExactThenSketch):
    """The value at a rank between 0 and 1, interpolated between neighbours as Spark's percentile does."""

    type = pa.float64()
    stored = pa.list_(pa.float64())

    def __init__(self, rank: float) -> None:
        self._rank = rank

    def lift(self, values: list[Any]) -> Any:
        return self._shrink([float(value) for value in values])

    def combine(self, a: Any, b: Any) -> Any:
        if isinstance(a, list) and isinstance(b, list):
            a.extend(b)
            return self._shrink(a)
        digest = _digest(a) if isinstance(a, list) else a
        for value in b if isinstance(b, list) else ():
            digest.update(value)
        if not isinstance(b, list):
            digest.merge(b)
        return digest

    def copy(self, a: Any) -> Any:
        return list(a) if isinstance(a, list) else self.sketch_from(self.sketch_bytes(a))

    def lower(self, a: Any) -> float | None:
        if a is None:
            return None
        if isinstance(a, list):
            values = np.sort(np.array(a))  # numpy puts NaN last: the greatest, as in Spark
            at = self._rank * (len(values) - 1)
            low, high = values[int(np.floor(at))], values[int(np.ceil(at))]
            return float(low if low == high else low + (high - low) * (at - np.floor(at)))
        return float(a.get_quantile(self._rank))

    def _shrink(self, values: list[float]) -> Any:
        return values if len(values) <= QUANTILE_EXACT_MAX else _digest(values)

    def sketch_bytes(self, sketch: Any) -> bytes:
        return bytes(sketch.serialize())

    def sketch_from(self, data: bytes) -> Any:
        from datasketches import tdigest_double

        return tdigest_double.deserialize(data)

    def exact_from(self, values: list[Any]) -> Any:
        return values


def _digest(values: list[float]) -> Any:
    from datasketches import tdigest_double

    digest = tdigest_double(_DIGEST_K)
    for value in values:
        if value == value:  # a digest has no place for NaN
            digest.update(value)
    return digest


class DistinctCount(_ExactThenSketch):
    type = pa.int64()

    def __init__(self, item: pa.DataType) -> None:
        self.stored = pa.list_(plain_type(item))

    def lift(self, values: list[Any]) -> Any:
        return self._shrink(self.exact_from(values))

    def combine(self, a: Any, b: Any) -> Any:
        from datasketches import hll_union, tgt_hll_type

        if isinstance(a, set) and isinstance(b, set):
            a |= b
            return self._shrink(a)
        if isinstance(a, set) or isinstance(b, set):
            sketch, small = (self.copy(b), a) if isinstance(a, set) else (a, b)
            for value in small:
                sketch.update(value)
            return sketch
        union = hll_union(_HLL_LG_K)
        union.update(a)
        union.update(b)
        return union.get_result(tgt_hll_type.HLL_8)

    def copy(self, a: Any) -> Any:
        return set(a) if isinstance(a, set) else self.sketch_from(self.sketch_bytes(a))

    def lower(self, a: Any) -> int:
        if a is None:
            return 0
        return len(a) if isinstance(a, set) else round(a.get_estimate())

    def _shrink(self, values: set[Any]) -> Any:
        from datasketches import hll_sketch, tgt_hll_type

        if len(values) <= DISTINCT_EXACT_MAX:
            return values
        sketch = hll_sketch(_HLL_LG_K, tgt_hll_type.HLL_8)
        for value in values:
            sketch.update(value)
        return sketch

    def sketch_bytes(self, sketch: Any) -> bytes:
        return bytes(sketch.serialize_updatable())

    def sketch_from(self, data: bytes) -> Any:
        from datasketches import hll_sketch

        return hll_sketch.deserialize(data)

    def exact_from(self, values: list[Any]) -> Any:
        return {_NAN if value != value else value for value in values}


class Users:
    """A user's class: accumulators are tuples with the columns of its `state`."""

    def __init__(self, user: type[UserAggregate]) -> None:
        self._user = user
        self.type = arrow_type(str(user.output).strip().upper())
        self._schema = Schema.of(user.state)
        self._stored = pa.struct([(field.name, field_type) for field, field_type in zip(self._schema, self._schema.to_arrow().types)])

    def lift(self, values: list[Any]) -> Any:
        return functools.reduce(self._user.combine, map(self._user.lift, values), self._user.zero())

    def combine(self, a: Any, b: Any) -> Any:
        return self._user.combine(a, b)

    def copy(self, a: Any) -> Any:
        return tuple(a)

    def lower(self, a: Any) -> Any:
        return self._user.lower(self._user.zero() if a is None else a)

    def pack(self, accumulators: Sequence[Any]) -> pa.Array:
        names = self._schema.names
        return pa.array([None if a is None else dict(zip(names, a, strict=True)) for a in accumulators], self._stored)

    def unpack(self, array: pa.Array) -> Sequence[Any]:
        return [None if a is None else tuple(a[name] for name in self._schema.names) for a in array.to_pylist()]


def function_of(aggregate: Aggregate, kind: str) -> OfObjects:
    """The function over a column of this Spark type."""
    assert aggregate.column is not None
    item = arrow_type(kind)
    names = (aggregate.column,)
    match aggregate.function:
        case _ if aggregate.user is not None:
            return OfObjects(names, Users(aggregate.user), keep_nulls=True)
        case "collect" | "collect_list":
            return OfObjects(names, Collect(item))
        case "top_k":
            k, *by = aggregate.options
            if by:
                return OfObjects((aggregate.column, str(by[0])), TopKBy(item, pa.float64(), int(k)))
            return OfObjects(names, TopK(item, int(k)))
        case "min" | "max":
            return OfObjects(names, TextExtreme(item, greatest=aggregate.function == "max"))
        case "median":
            return OfObjects(names, Quantile(0.5))
        case "quantile" | "percentile":
            return OfObjects(names, Quantile(float(aggregate.options[0])))
        case "distinct" | "count_distinct" | "approx_count_distinct":
            return OfObjects(names, DistinctCount(item))
        case _:
            raise PlanError(
                "aggregate",
                f"'{aggregate.function}' is not an aggregate function",
                remedy="use count, sum, avg, min, max, variance, stddev, first, last, collect, top_k, median, quantile, distinct or a class of your own",
            )
