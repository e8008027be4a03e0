"""What is computed: every aggregate function against plain Python, with nulls and NaN, whole, in batches, combined early, restarted."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from penstock.dataflow.aggregate import Aggregate
from penstock.dataflow.window import global_window, sliding, tumbling
from penstock.errors import PlanError
from penstock.kernels.kernel import NEVER_US, Context
from penstock.kernels.window import WindowKernel
from penstock.schema import Schema
from tests.kernels.windowed import COUNT, SUM, Step, rows

SCHEMA = Schema.of("key STRING, x DOUBLE, n BIGINT, text STRING, at TIMESTAMP")
NAN = float("nan")


def _least(values: list[float]) -> float | None:
    numbers = [value for value in values if value == value]
    return min(numbers) if numbers else (NAN if values else None)


def _greatest(values: list[float]) -> float | None:
    return None if not values else NAN if any(value != value for value in values) else max(values)


class Product:
    """A user's aggregate: the product, with a count beside it."""

    state = "n BIGINT, product DOUBLE"
    output = "DOUBLE"

    @staticmethod
    def zero() -> tuple[Any, ...]:
        return 0, 1.0

    @staticmethod
    def lift(value: Any) -> tuple[Any, ...]:
        return (0, 1.0) if value is None else (1, float(value))

    @staticmethod
    def combine(a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
        return a[0] + b[0], a[1] * b[1]

    @staticmethod
    def lower(state: tuple[Any, ...]) -> Any:
        return state[1] if state[0] else None


CASES: list[tuple[Aggregate, Callable[[list[Any]], Any]]] = [
    (Aggregate("r", "count", "x", "BIGINT"), len),
    (Aggregate("r", "sum", "n", "BIGINT"), lambda v: sum(v) if v else None),
    (Aggregate("r", "sum", "x", "DOUBLE"), lambda v: math.fsum(v) if v else None),
    (Aggregate("r", "avg", "x", "DOUBLE"), lambda v: math.fsum(v) / len(v) if v else None),
    (Aggregate("r", "min", "x", "DOUBLE"), _least),
    (Aggregate("r", "max", "x", "DOUBLE"), _greatest),
    (Aggregate("r", "min", "n", "BIGINT"), lambda v: min(v, default=None)),
    (Aggregate("r", "max", "text", "STRING"), lambda v: max(v, default=None)),
    (Aggregate("r", "var_samp", "n", "DOUBLE"), lambda v: statistics.variance(v) if len(v) > 1 else None),
    (Aggregate("r", "stddev_pop", "n", "DOUBLE"), lambda v: statistics.pstdev(v) if v else None),
    (Aggregate("r", "collect", "n", "ARRAY<BIGINT>"), sorted),
    (Aggregate("r", "top_k", "n", "ARRAY<BIGINT>", (2,)), lambda v: sorted(v, reverse=True)[:2]),
    (Aggregate("r", "median", "n", "DOUBLE"), lambda v: statistics.median(v) if v else None),
    (Aggregate("r", "distinct", "text", "BIGINT"), lambda v: len(set(v))),
    (Aggregate("r", "product", "n", "DOUBLE", (), Product), lambda v: math.prod(v) if v else None),
]


def _records(source: random.Random, count: int, *, nan: bool) -> list[tuple[Any, ...]]:
    records = []
    for i in range(count):
        x = source.choice([None, NAN if nan else 1.5, source.uniform(-5, 5), source.uniform(-5, 5)])
        number = source.choice([None, source.randrange(-4, 9), source.randrange(-4, 9)])
        text = source.choice([None, "a", "b", "ü", "ab"])
        records.append((source.randrange(20), source.choice(["k", "l", None]), x, number, text, i))
    return records


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float | int):
        return (a != a and b != b) or math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9)
    return bool(a == b)


@pytest.mark.parametrize(
    ("aggregate", "truth"), CASES, ids=lambda case: f"{case.function}({case.column})" if isinstance(case, Aggregate) else ""
)
@pytest.mark.parametrize("way", ["whole", "batches", "combined", "restarts"])
@pytest.mark.parametrize("window", [tumbling(5), sliding(10, every=5)], ids=["tumbling", "sliding"])
def test_a_function_gives_what_plain_python_gives(aggregate: Aggregate, truth: Callable[[list[Any]], Any], way: str, window: Any) -> None:
    for seed in range(2):
        print("seed", seed)
        records = _records(random.Random(seed), 60, nan=seed % 2 == 1)
        step = Step(window, aggregates=(aggregate,), schema=SCHEMA, combined=way == "combined", restarts=way == "restarts")
        size = 60 if way == "whole" else 7
        for start in range(0, 60, size):
            step.batch(records[start : start + size])
        step.batch(watermark=1000)
        column = 1 + SCHEMA.names.index(aggregate.column or "n")
        assert step.panes
        for pane in step.panes:
            start, end = pane["window_start"].timestamp(), pane["window_end"].timestamp()
            inside = [r[column] for r in records if r[1] == pane["key"] and start <= r[0] < end and r[column] is not None]
            got = sorted(pane["r"]) if aggregate.function == "collect" else pane["r"]
            assert _same(got, truth(inside)), (pane, inside)


def test_first_and_last_go_by_event_time_whatever_the_batches() -> None:
    first, last = Aggregate("f", "first", "text", "STRING"), Aggregate("l", "last", "text", "STRING")
    for batches in (
        [[(5, "k", 0.0, 0, "mid", 0)], [(9, "k", 0.0, 0, "late", 0), (1, "k", 0.0, 0, None, 0)]],
        [[(1, "k", 0.0, 0, None, 0), (9, "k", 0.0, 0, "late", 0), (5, "k", 0.0, 0, "mid", 0)]],
    ):
        step = Step(tumbling(10), aggregates=(first, last), schema=SCHEMA, restarts=True)
        for batch in batches:
            step.batch(batch)
        (pane,) = step.batch(watermark=10)
        assert (pane["f"], pane["l"]) == (None, "late")


def test_variance_of_large_numbers_is_exact_enough() -> None:
    step = Step(tumbling(10), aggregates=(Aggregate("r", "variance", "value", "DOUBLE"),))
    for value in (4, 7, 13, 16):
        step.batch([(1, "k", 1_000_000_000 + value)])
    (pane,) = step.batch(watermark=10)
    assert pane["r"] == pytest.approx(30.0)


def test_sketches_keep_their_bounds() -> None:
    source = random.Random(3)
    values = [source.randrange(100_000) for _ in range(30_000)]
    aggregates = (Aggregate("q", "quantile", "value", "DOUBLE", (0.9,)), Aggregate("d", "distinct", "value", "BIGINT"))
    step = Step(tumbling(10), aggregates=aggregates, restarts=True)
    for start in range(0, 30_000, 5_000):
        step.batch([(1, "k", value) for value in values[start : start + 5_000]])
    (pane,) = step.batch(watermark=10)
    rank = sum(value <= pane["q"] for value in values) / len(values)
    assert abs(rank - 0.9) < 0.01
    assert abs(pane["d"] / len(set(values)) - 1) < 0.04


def test_a_sum_that_leaves_64_bits_is_refused_with_a_remedy() -> None:
    step = Step(tumbling(10), aggregates=(SUM,))
    with pytest.raises(PlanError, match="sum of value does not fit into BIGINT; sum it as DOUBLE"):
        step.batch([(1, "k", 2**62), (1, "k", 2**62)])


def test_signed_records_are_taken_back() -> None:
    schema = Schema.of("key STRING, value BIGINT, sign INT")
    aggregates = (COUNT, SUM, Aggregate("mean", "avg", "value", "DOUBLE"))
    kernel = WindowKernel(schema=schema, keys=("key",), window=tumbling(10), aggregates=aggregates, signed=True)
    instance = kernel.start()
    table = rows([(1, "k", 5, 1), (2, "k", 5, -1), (3, "k", 7, 1)], schema)
    output = instance.on_batch([table], Context(NEVER_US, 10_000_000, 0))
    assert output.rows is not None
    (pane,) = output.rows.to_pylist()
    assert (pane["n"], pane["total"], pane["mean"]) == (1, 7, 7.0)
    with pytest.raises(PlanError, match="max cannot take back"):
        WindowKernel(
            schema=schema, keys=("key",), window=tumbling(10), aggregates=(Aggregate("m", "max", "value", "BIGINT"),), signed=True
        ).start()


def test_keys_of_every_type_and_none_at_all() -> None:
    schema = Schema.of("a STRING, b DOUBLE, c TIMESTAMP, d BOOLEAN, e BINARY, f DATE, value BIGINT")
    record = (1, None, NAN, 10**15, True, b"\0", 3, 1)
    same = (2, None, -NAN, 10**15, True, b"\0", 3, 2)
    zeros = [(1, "z", 0.0, None, None, None, None, 1), (1, "z", -0.0, None, None, None, None, 1)]
    step = Step(tumbling(10), aggregates=(SUM,), keys=("a", "b", "c", "d", "e", "f"), schema=schema, restarts=True)
    step.batch([record, *zeros])
    step.batch([same])
    panes = step.batch(watermark=10)
    assert sorted(pane["total"] for pane in panes) == [2, 3]
    nobody = Step(global_window(), aggregates=(SUM,), keys=(), restarts=True)
    nobody.batch([(None, "k", 1), (1, "l", 2)])
    (pane,) = nobody.batch(watermark=(1 << 62) / 1e6)
    assert pane["total"] == 3
    assert pane["window_start"] is None


def test_output_has_the_declared_columns() -> None:
    step = Step(tumbling(10), refinement="retracting")
    step.batch([(1, "k", 1)])
    output = step.instance.on_batch([None], Context(NEVER_US, 10_000_000, 0))
    assert output.rows is not None
    assert output.rows.schema == step.kernel.output.to_arrow().append(pa.field("_time", pa.int64()))
    assert output.rows.column("_time").to_pylist() == [9_999_999]
