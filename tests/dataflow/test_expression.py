"""Expressions: columns and types are checked when the plan is built, and mistakes get a sentence with the remedy."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.dataflow.evaluation import evaluate
from penstock.dataflow.expression import check, condition, value
from penstock.errors import PlanError
from penstock.schema import Schema

SCHEMA = Schema.of("area STRING, celsius DOUBLE, n INT, at TIMESTAMP, tags ARRAY<STRING>, `odd name` INT")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("celcius > 40", "step 'where': no column 'celcius' in 'celcius > 40'; did you mean 'celsius'?"),
        (
            "humidity > 40",
            "step 'where': no column 'humidity' in 'humidity > 40'; the columns here are area, celsius, n, at, tags, odd name",
        ),
        ("area > 5", "step 'where': STRING is compared with INT in 'area > 5'; convert one side, for example CAST(… AS STRING)"),
        ("area + 1 > 2", "step 'where': 'area' is STRING, not a number, in 'area + 1 > 2'; convert it with CAST(… AS DOUBLE)"),
        ("celsius", "step 'where': condition 'celsius' is DOUBLE, not BOOLEAN; compare it with something"),
        ("celsius AND n > 1", "step 'where': 'celsius' is DOUBLE, not BOOLEAN, in 'celsius AND n > 1'; compare it with something"),
        ("celsius > ", "step 'where': 'celsius > ' is not a Spark SQL expression near '>'; check brackets, quotes and commas"),
        ("upper(n) = 'A'", "step 'where': upper takes (STRING), not (INT), in 'upper(n) = 'A''; convert the arguments with CAST"),
        ("at > 'yesterday'", "step 'where': 'yesterday' is not a time in 'at > 'yesterday''; write '2026-01-31 12:00:00'"),
        ("at > 5", "step 'where': TIMESTAMP is compared with INT in 'at > 5'; convert one side, for example CAST(… AS TIMESTAMP)"),
        ("foo(celcius) > 1", "step 'where': no column 'celcius' in 'foo(celcius) > 1'; did you mean 'celsius'?"),
    ],
)
def test_a_mistake_names_the_step_the_column_and_the_remedy(text: str, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        condition(text, SCHEMA, step="where")
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "type"),
    [("n + 1", "INT"), ("n / 2", "DOUBLE"), ("CELSIUS", "DOUBLE"), ("`odd name` * 2", "INT"), ("n + 2147483648", "BIGINT"), ("tags", "ARRAY<STRING>"),
     ("celsius > 1 AND area LIKE 'a%'", "BOOLEAN"), ("date_trunc('hour', at)", "TIMESTAMP"), ("n * 1.5", "DOUBLE")],
)  # fmt: skip
def test_types_are_inferred(text: str, type: str) -> None:
    assert check(text, SCHEMA, step="select").type == type


@pytest.mark.parametrize("text", ["sha2(area, 256)", "tags[0]", "from_json(area, 'x INT')", "current_timestamp()", "round(celsius, 1)"])
def test_outside_the_subset_is_said_and_runs_on_spark_only(text: str) -> None:
    checked = check(text, SCHEMA, step="select")
    assert checked.arrow is None
    assert checked.outside
    assert checked.spark == text
    with pytest.raises(PlanError, match="is not known when the plan is built"):
        value(text, SCHEMA, step="select")


def test_a_cast_at_the_top_tells_the_type_of_what_only_spark_can_compute() -> None:
    assert value("CAST(sha2(area, 256) AS STRING)", SCHEMA, step="select").type == "STRING"


def test_what_cannot_be_computed_is_null() -> None:
    table = pa.table({"n": pa.array([2147483647, 0, None], pa.int32())})
    schema = Schema.of("n INT")
    for text, wanted in [("n + 1", [None, 1, None]), ("10 / n", [10 / 2147483647, None, None]), ("CAST(n * 3.0 AS INT)", [None, 0, None])]:
        checked = check(text, schema, step="t")
        assert checked.arrow is not None
        (made,) = evaluate(table, [checked.arrow], types=[str(checked.type)], columns=checked.columns)
        assert made.to_pylist() == wanted, text


def test_no_row_and_constant_expressions() -> None:
    empty = pa.table({"n": pa.array([], pa.int32())})
    (made,) = evaluate(empty, ["n + 1"], types=["INT"], columns=["n"])
    assert made.to_pylist() == []
    two = pa.table({"n": pa.array([1, 2], pa.int32())})
    (made,) = evaluate(two, ["CAST(7 AS INT)"], types=["INT"], columns=[])
    assert made.to_pylist() == [7, 7]


def test_a_literal_in_the_text_cannot_leave_its_quotes() -> None:
    schema = Schema.of("s STRING")
    checked = check("s = 'a\\'b'", schema, step="where")
    assert checked.arrow is not None
    (made,) = evaluate(pa.table({"s": ["a'b", "ab"]}), [checked.arrow], types=["BOOLEAN"], columns=["s"])
    assert made.to_pylist() == [True, False]
