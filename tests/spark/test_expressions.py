"""The typed subset gives the same values on Arrow (DuckDB) as on Spark, expression by expression, on awkward data."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest

from penstock.dataflow.evaluation import evaluate
from penstock.dataflow.expression import check
from penstock.schema import Schema

pytestmark = pytest.mark.spark

SCHEMA = Schema.of(
    "i INT, j INT, b BIGINT, f FLOAT, x DOUBLE, y DOUBLE, s STRING, t STRING, ok BOOLEAN, no BOOLEAN, at TIMESTAMP, till TIMESTAMP"
)
NAN, INF = math.nan, math.inf
INT_MIN, INT_MAX, LONG_MIN, LONG_MAX = -(1 << 31), (1 << 31) - 1, -(1 << 63), (1 << 63) - 1
ROWS: list[tuple[Any, ...]] = [
    (1, 2, 3, 1.5, 1.5, 2.5, "abc", "b", True, False, 0, 1_000_000),
    (None, None, None, None, None, None, None, None, None, None, None, None),
    (INT_MAX, 1, LONG_MAX, INF, INF, -INF, "", "", False, True, -1, 0),
    (INT_MIN, -1, LONG_MIN, -INF, NAN, NAN, " 12 ", "%", True, None, 253_402_300_799_999_999, 1),
    (0, 0, 0, 0.0, 0.0, -0.0, "1.5", "ä", None, True, 1_767_225_599_999_999, 1_767_225_600_000_000),
    (-7, 3, -7, -2.5, -2.5, 0.0, "1e3", "É", False, None, -62_135_596_800_000_000, -1),
    (7, -3, 10**12, 0.1, 1e300, 1e10, "NaN", "a_b", True, True, 951_782_400_123_456, 951_782_400_123_457),
    (5, 0, 5, 3.5, 0.1, 3.0, "straße", "ß", False, False, 1_709_164_800_000_000, 0),
    (12, 5, 2, 1e10, 123456.789, 7.0, "+5", "5", True, False, 1_700_000_000_500_000, 1_700_000_000_499_999),
    (3, 4, -1, -0.5, -0.5, 0.5, "true", "rue", None, False, 3_600_000_000, 7_200_000_000),
    (2, 31, 99, 2.0, 1e19, -1e19, "-17", "\\", True, None, 86_400_000_000, 604_800_000_000),
    (9, 9, 9, 9.0, 9.0, 9.0, "a'b\"c`d", "'", False, True, 1, 1),
    (1, 1, 1, 1.0, 2.2250738585072014e-308, 5e-324, "Infinity", "nity", True, True, 0, 0),
    (1, 1, 1, 1.0, -1.0, 0.5, "1_000", "_", True, True, 0, 0),
    (1, 1, 1, 1.0, 2.0, 0.5, "12345678901234567890", "9", True, True, 0, 0),
]  # fmt: skip
EXPRESSIONS = [
    "i", "i + j", "i - j", "i * j", "i / j", "i % j", "i DIV j", "-i", "-b", "-x", "i + b", "b + b", "b - 1", "b * 2", "b * b", "b / 2", "b % 3",
    "i + x", "f + i", "f * x", "f / f", "f + f", "x + y", "x - y", "x * y", "x / y", "x % y", "x + 1", "x * 1.8 + 32", "i * 1.5", "1 / 3", "7 DIV 2", "-7 % 3",
    "i = j", "i <> j", "i < b", "x > y", "x >= y", "x = y", "x <= 0", "x = x", "y = -y", "f < x", "s = t", "s < t", "s >= 'a'", "ok = no", "at < till", "at = till",
    "at >= '2000-02-29 00:00:00.123456'", "at < '1970-01-01T00:00:00Z'", "i <=> j", "x <=> y", "s <=> NULL", "i IN (1, 7, -7)", "i NOT IN (1, 7)", "s IN ('abc', '')",
    "i IN (1, NULL)", "x BETWEEN -50 AND 200", "i BETWEEN j AND b", "s BETWEEN 'a' AND 'b'", "NOT ok", "ok AND no", "ok OR no", "ok AND NULL", "ok OR NULL", "i > 0 AND x > 0 OR s = ''",
    "i IS NULL", "x IS NOT NULL", "isnull(s)", "isnotnull(s)", "isnan(x)", "isnan(f)", "nanvl(x, 0.0)", "coalesce(i, b, 0)", "coalesce(s, t, 'none')", "ifnull(x, 1)", "nvl(s, 'x')",
    "nullif(i, 1)", "nullif(x, y)", "if(ok, i, b)", "if(i > 1, 'big', 'small')", "CASE WHEN x > 1 THEN 'a' WHEN x > 0 THEN 'b' END", "CASE i WHEN 1 THEN 'one' WHEN 7 THEN 'seven' ELSE s END",
    "CAST(i AS BIGINT)", "CAST(b AS INT)", "CAST(x AS INT)", "CAST(x AS BIGINT)", "CAST(f AS INT)", "CAST(i AS DOUBLE)", "CAST(b AS DOUBLE)", "CAST(x AS FLOAT)", "CAST(i AS STRING)", "CAST(b AS STRING)",
    "CAST(s AS INT)", "CAST(s AS BIGINT)", "CAST(s AS DOUBLE)", "CAST(t AS INT)", "CAST(ok AS INT)", "CAST(ok AS STRING)", "CAST(i AS BOOLEAN)", "CAST(NULL AS DOUBLE)", "CAST(ok AS DOUBLE)",
    "upper(s)", "lower(s)", "lower(t)", "length(s)", "trim(s)", "ltrim(s)", "rtrim(s)", "reverse(s)", "concat(s, t)", "s || '-' || t", "concat(s, NULL)", "replace(s, t, '-')", "replace(s, '', '-')",
    "startswith(s, t)", "endswith(s, t)", "contains(s, t)", "instr(s, t)", "left(s, 2)", "right(s, 2)", "left(s, j)", "substring(s, 2, 2)", "substring(s, 0, 2)", "substring(s, -2, 2)", "substring(s, -5, 3)",
    "substring(s, 2)", "substring(s, -2)", "substring(s, 0)", "substring(s, i, j)", "substr(s, 1, 1)", "s LIKE 'a%'", "s LIKE '%b_'", "s NOT LIKE '%1%'", "t LIKE '_'",
    "abs(i)", "abs(b)", "abs(x)", "abs(f)", "sign(x)", "sign(i)", "ceil(x)", "floor(x)", "ceil(f)", "floor(i)", "sqrt(x)", "sqrt(i)", "ln(i)", "log10(i)", "power(i, 2)", "exp(i / 10)",
    "greatest(i, j)", "least(i, j)", "greatest(x, y)", "least(x, y)", "greatest(i, b, x)", "least(i, x)",
    "year(at)", "month(at)", "day(at)", "hour(at)", "minute(at)", "second(at)", "unix_micros(at)", "unix_millis(at)", "unix_seconds(at)", "timestamp_micros(i)", "timestamp_millis(i)",
    "date_trunc('second', at)", "date_trunc('minute', at)", "date_trunc('hour', at)", "date_trunc('day', at)", "date_trunc('week', at)", "date_trunc('month', at)", "date_trunc('year', at)",
    "at + INTERVAL 5 MINUTES", "at - INTERVAL 1 DAY", "at + INTERVAL '2' HOURS", "1", "2147483648", "1.5", "'it'", "TRUE", "i = 1.0", "b > 2.5", "3 > i", "(i + 1) * 2",
]  # fmt: skip


@pytest.fixture(scope="module")
def table() -> pa.Table:
    columns = list(zip(*ROWS, strict=True))
    arrays = []
    for field, values in zip(SCHEMA.to_arrow(), columns, strict=True):
        arrays.append(pa.array(values, pa.int64()).cast(field.type) if pa.types.is_timestamp(field.type) else pa.array(values, field.type))
    return pa.table(arrays, schema=SCHEMA.to_arrow())


@pytest.fixture(scope="module")
def on_spark(spark: Any, table: pa.Table) -> dict[str, list[Any]]:
    """Every expression on every row, in one query. Times travel as µs: Python's datetime ends at 9999."""
    numbered = table.append_column("row", pa.array(range(table.num_rows)))
    frame = spark.createDataFrame(numbered)
    chosen = []
    for number, text in enumerate(EXPRESSIONS):
        checked = check(text, SCHEMA, step="t")
        sql = f"unix_micros({checked.spark})" if checked.type == "TIMESTAMP" else checked.spark
        chosen.append(f"{sql} AS e{number}")
    rows = frame.selectExpr("row", *chosen).orderBy("row").collect()
    return {text: [row[f"e{number}"] for row in rows] for number, text in enumerate(EXPRESSIONS)}


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_arrow_and_spark_agree(text: str, table: pa.Table, on_spark: dict[str, list[Any]]) -> None:
    checked = check(text, SCHEMA, step="t")
    assert checked.arrow is not None, checked.outside
    assert checked.type is not None
    (made,) = evaluate(table, [checked.arrow], types=[checked.type], columns=checked.columns)
    values = (made.cast(pa.int64()) if checked.type == "TIMESTAMP" else made).to_pylist()
    different = [
        (ROWS[row], ours, theirs) for row, (ours, theirs) in enumerate(zip(values, on_spark[text], strict=True)) if not _same(ours, theirs)
    ]
    assert not different, f"{checked.spark} | {checked.arrow}"


def test_types_are_spark_s(spark: Any, table: pa.Table) -> None:
    """The type that the checker infers is the one Spark's analyser gives."""
    frame = spark.createDataFrame(table)
    for text in EXPRESSIONS:
        checked = check(text, SCHEMA, step="t")
        (field,) = frame.selectExpr(f"{checked.spark} AS x").schema.fields
        assert Schema.of(f"x {field.dataType.simpleString()}").fields[0].type == checked.type, text


def _same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, float) and isinstance(theirs, float):
        if math.isnan(ours) or math.isnan(theirs):
            return math.isnan(ours) and math.isnan(theirs)
        return ours == theirs or math.isclose(ours, theirs, rel_tol=1e-15)  # powers and logarithms may differ in the last bit
    return ours == theirs and type(ours) is type(theirs)
