"""Hard inputs: many windows, one heavy key, many keys at once, the ends of time, nulls, time going backwards, damaged state."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from penstock.dataflow import trigger as triggers
from penstock.dataflow.aggregate import Aggregate
from penstock.dataflow.window import Custom, session, sliding, tumbling
from penstock.errors import PenstockError, PlanError
from penstock.kernels.kernel import NEVER_US, Context
from tests.kernels.windowed import COUNT, SUM, Step, window_of

AVERAGE = Aggregate("mean", "avg", "value", "DOUBLE")


def _table(keys: np.ndarray, times: np.ndarray, values: np.ndarray) -> pa.Table:  # type: ignore[type-arg]
    count = keys.size
    return pa.table({
        "key": pa.array(keys.astype(str)), "value": pa.array(values, pa.int64()), "_time": pa.array(times, pa.int64()),
        "_source": np.zeros(count, np.int32), "_partition": np.zeros(count, np.int32), "_offset": np.arange(count),
    })  # fmt: skip


@pytest.mark.parametrize("windows_open", [10_000])
def test_ten_thousand_windows_of_a_key_are_open(windows_open: int) -> None:
    step = Step(tumbling(1), aggregates=(SUM, COUNT), lateness=None)
    step.batch([(at, "k", at) for at in range(windows_open)])
    assert step.counts["windows"] == windows_open
    assert len(step.batch([(0, "k", 5)], watermark=windows_open / 2)) == windows_open / 2
    (pane,) = step.batch([(0, "k", 7)])
    assert (pane["total"], pane["pane_timing"]) == (12, "late")
    assert len(step.batch(watermark=windows_open)) == windows_open / 2


@pytest.mark.parametrize("keys", [100_000])
def test_many_keys_arrive_in_one_batch_and_leave_in_one(keys: int) -> None:
    step = Step(tumbling(10), aggregates=(SUM,))
    table = _table(np.arange(keys), np.zeros(keys, np.int64), np.arange(keys))
    step.instance.on_batch([table], Context(NEVER_US, NEVER_US, 0))
    output = step.instance.on_batch([None], Context(NEVER_US, 10_000_000, 0))
    assert output.rows is not None
    assert output.rows.num_rows == keys
    assert output.counts["keys"] == 0
    assert output.rows.column("total").to_pylist() == [int(key) for key in output.rows.column("key").to_pylist()]


def test_one_key_has_half_of_all_records() -> None:
    source = np.random.default_rng(1)
    keys = np.where(source.random(50_000) < 0.5, 0, source.integers(0, 1_000, 50_000))
    times, values = source.integers(0, 30_000_000, 50_000), source.integers(0, 100, 50_000)
    step = Step(sliding(10, every=1), aggregates=(SUM,))
    output = step.instance.on_batch([_table(keys, times, values)], Context(NEVER_US, 1_000_000_000, 0))
    assert output.rows is not None
    for row in output.rows.filter(pa.compute.equal(output.rows.column("key"), "0")).to_pylist():
        start, end = (round(bound * 1e6) for bound in window_of(row))
        assert row["total"] == values[(keys == 0) & (times >= start) & (times < end)].sum()


def test_the_ends_of_time() -> None:
    last = 253_402_300_785  # in the last minute of the year 9999
    step = Step(sliding(10, every=5), restarts=True)
    step.batch([(0, "k", 1), (last, "k", 2), (-1, "k", 3), (-62_135_596_000, "k", 4)])
    panes = step.batch(watermark=(1 << 62) / 1e6)
    assert sorted(value for pane in panes for value in pane["values"]) == [1, 1, 2, 2, 3, 3, 4, 4]
    assert step.instance.held() == []


def test_records_without_time_go_to_the_late_output_with_a_count() -> None:
    for way in ({}, {"combined": True}):
        step = Step(tumbling(10), **way)  # type: ignore[arg-type]
        step.batch([(None, "k", 1), (3, None, 2), (None, None, 3)])
        assert (step.counts["untimed"], step.counts["late"]) == (2, 0)
        assert way or [row["value"] for row in step.late] == [1, 3]
        (pane,) = step.batch(watermark=10)
        assert (pane["key"], pane["values"]) == (None, [2])


def test_late_records_are_counted_exactly_when_combined_early() -> None:
    step = Step(tumbling(10), combined=True)
    step.batch([(1, "k", 1)], watermark=20)
    step.batch([(2, "k", 1), (3, "k", 1), (4, "l", 1), (25, "k", 1)])
    assert step.counts["late"] == 3


def test_windows_by_processing_time_need_no_event_time() -> None:
    step = Step(tumbling(10, time="processing"), restarts=True)
    step.batch([(None, "k", 1), (500, "k", 2)], now=3)
    step.batch([(None, "k", 3)], now=9)
    (pane,) = step.batch(now=10)
    assert (window_of(pane), pane["values"], pane["pane_timing"], pane["is_last"]) == ((0, 10), [1, 2, 3], "on_time", True)


def test_a_gap_per_record() -> None:
    from penstock.schema import Schema

    schema = Schema.of("key STRING, value BIGINT, gap DOUBLE")
    step = Step(session(gap_expression="gap"), schema=schema, restarts=True)
    step.batch([(0, "k", 1, 2.0), (1, "k", 2, 9.0), (9, "k", 3, 1.0), (20, "k", 4, None), (20, "k", 5, -1.0)])
    (pane,) = step.batch(watermark=30)
    assert (window_of(pane), sorted(pane["values"])) == ((0, 10), [1, 2, 3])
    assert sorted(row["value"] for row in step.late) == [4, 5]


def test_windows_of_the_users_own() -> None:
    def by_size(times_us: np.ndarray) -> tuple[object, object, object]:  # type: ignore[type-arg]
        rows = np.arange(times_us.size)
        short, long = times_us // 2_000_000 * 2_000_000, times_us // 10_000_000 * 10_000_000
        return np.concatenate([rows, rows]), np.concatenate([short, long]), np.concatenate([short + 2_000_000, long + 10_000_000])

    step = Step(Custom(by_size), restarts=True)
    step.batch([(0, "k", 1), (1, "k", 2), (5, "k", 3)])
    panes = step.batch(watermark=10)
    assert sorted((window_of(pane), pane["total"]) for pane in panes) == [((0, 2), 3), ((0, 10), 6), ((4, 6), 3)]
    step.batch([(1, "k", 4)])
    assert [row["value"] for row in step.late] == [4]
    with pytest.raises(PlanError, match="start < end"):
        Step(Custom(lambda times: (times * 0, times, times))).batch([(1, "k", 1)])


def test_a_trigger_by_processing_time_fires_without_records() -> None:
    step = Step(tumbling(10), trigger=triggers.after_watermark(early=triggers.every(5)), restarts=True)
    step.batch([(1, "k", 1)], now=1)
    assert step.batch(now=5) == []
    (pane,) = step.batch(now=6)
    assert (pane["values"], pane["pane_timing"]) == ([1], "early")
    assert step.batch(now=60) == []


def test_only_what_has_changed_is_saved() -> None:
    step = Step(tumbling(1_000), aggregates=(AVERAGE,))
    step.batch([(1, f"key {number}", number) for number in range(5_000)])
    full = step.instance.save(full=True)
    assert full is not None
    assert step.instance.save(full=False) is None
    step.batch([(1, "key 7", 1)])
    changed = step.instance.save(full=False)
    assert changed is not None
    assert len(changed) < len(full) / 20
    again = step.kernel.restore([full, changed])
    assert sorted(again.held()) == sorted(step.instance.held())
    assert again.save(full=True) == step.instance.save(full=True)


def test_damaged_or_foreign_state_is_refused() -> None:
    step = Step(tumbling(10))
    step.batch([(1, "k", 1)])
    saved = step.instance.save(full=True)
    assert saved is not None
    with pytest.raises(PenstockError, match="damaged"):
        step.kernel.restore([saved[:-1]])
    with pytest.raises(PenstockError, match="version 7"):
        step.kernel.restore([saved.replace(b'"version": 1', b'"version": 7')])
