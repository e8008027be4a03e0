"""Record at a time: order, state per key, timers, outputs, saves."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from penstock.dataflow.process import Process, process
from penstock.errors import PlanError
from penstock.kernels.columns import unique_keys
from penstock.kernels.kernel import FOREVER_US, NEVER_US, Context, Output
from penstock.kernels.process import ProcessKernel
from penstock.schema import Schema

SECOND = 1_000_000
TEMPERATURES = Schema.of("area STRING, celsius DOUBLE")
SMOKE = Schema.of("area STRING, density DOUBLE, at TIMESTAMP")


def rows(schema: Schema, *records: tuple[Any, ...], source: int = 0, partition: int = 0, first: int = 0) -> pa.Table:
    """Each record: its columns, then its event time in seconds (None: it has none)."""
    names = schema.names
    columns: dict[str, Any] = {
        name: pa.array([record[place] for record in records], schema.to_arrow().field(name).type) for place, name in enumerate(names)
    }
    columns["_time"] = pa.array([None if record[-1] is None else int(record[-1] * SECOND) for record in records], pa.int64())
    columns["_source"] = pa.array([source] * len(records), pa.int32())
    columns["_partition"] = pa.array([partition] * len(records), pa.int32())
    columns["_offset"] = pa.array(range(first, first + len(records)), pa.int64())
    return pa.table(columns)


class Running:
    """A kernel with time that moves on by itself: `feed` tells the watermark after the batch, and the clock."""

    def __init__(self, spec: Process, *inputs: Schema, keys: tuple[str, ...] = ("area",), names: tuple[str, ...] = ()) -> None:
        self.kernel = ProcessKernel(spec, keys, inputs or (TEMPERATURES,), names)
        self.instance = self.kernel.start()
        self.watermark_us, self.now_us = NEVER_US, 0
        self.saves: list[bytes] = []

    def feed(self, *tables: pa.Table | None, watermark: float | None = None, clock: float | None = None) -> Output:
        before_us = self.watermark_us
        if watermark is not None:
            self.watermark_us = int(watermark * SECOND)
        if clock is not None:
            self.now_us = int(clock * SECOND)
        given: Sequence[pa.Table | None] = tables or (None,) * len(self.kernel.inputs)
        return self.instance.on_batch(given, Context(before_us, self.watermark_us, self.now_us))

    def restart(self) -> None:
        """Base and changes, as a host keeps them."""
        saved = self.instance.save(full=not self.saves)
        if saved is not None:
            self.saves.append(saved)
        self.instance = self.kernel.restore(self.saves)


def listed(table: pa.Table | None) -> list[dict[str, Any]]:
    return [] if table is None else table.drop_columns(["_time"]).to_pylist()


@process(state="n BIGINT, total DOUBLE", output="area STRING, n BIGINT, total DOUBLE", order="arrival")
def running_total(event: Any, state: Any, out: Any) -> None:
    state.n = (state.n or 0) + 1
    state.total = (state.total or 0.0) + event.celsius
    out.emit(area=event.area, n=state.n, total=state.total)


def test_each_key_has_its_own_state() -> None:
    out = Running(running_total).feed(rows(TEMPERATURES, ("a", 1.0, 1), ("b", 10.0, 2), ("a", 2.0, 3)))
    assert listed(out.rows) == [
        {"area": "a", "n": 1, "total": 1.0},
        {"area": "b", "n": 1, "total": 10.0},
        {"area": "a", "n": 2, "total": 3.0},
    ]
    assert out.rows.column("_time").to_pylist() == [1 * SECOND, 2 * SECOND, 3 * SECOND]


def test_state_survives_batches_and_restarts() -> None:
    running = Running(running_total)
    running.feed(rows(TEMPERATURES, ("a", 1.0, 1), ("b", 5.0, 1)))
    running.restart()
    running.feed(rows(TEMPERATURES, ("a", 2.0, 2)))
    running.restart()
    assert listed(running.feed(rows(TEMPERATURES, ("a", 3.0, 3), ("b", 5.0, 3))).rows) == [
        {"area": "a", "n": 3, "total": 6.0},
        {"area": "b", "n": 2, "total": 10.0},
    ]


@process(output="celsius DOUBLE")
def in_order(event: Any, state: Any, out: Any) -> None:
    out.emit(celsius=event.celsius)


def test_records_wait_for_the_watermark_and_come_in_event_time_order() -> None:
    running = Running(in_order)
    assert running.feed(rows(TEMPERATURES, ("a", 3.0, 3), ("a", 1.0, 1))).rows is None
    assert running.feed(rows(TEMPERATURES, ("a", 2.0, 2), first=2)).counts["buffered"] == 3
    assert [row["celsius"] for row in listed(running.feed(watermark=3).rows)] == [1.0, 2.0], "a record at 3 may still come"
    assert [row["celsius"] for row in listed(running.feed(watermark=3.5).rows)] == [3.0]


def test_buffered_records_survive_a_restart() -> None:
    running = Running(in_order)
    running.feed(rows(TEMPERATURES, ("a", 5.0, 5), ("a", 1.0, 1)))
    running.restart()
    running.feed(rows(TEMPERATURES, ("a", 4.0, 4), first=2), watermark=2)
    running.restart()
    assert [row["celsius"] for row in listed(running.feed(watermark=9).rows)] == [4.0, 5.0]


def test_a_record_behind_the_watermark_is_late_and_counted() -> None:
    running = Running(in_order)
    running.feed(watermark=10)
    out = running.feed(rows(TEMPERATURES, ("a", 9.0, 9), ("a", 10.0, 10), ("a", 0.0, None)), watermark=20)
    assert [row["celsius"] for row in listed(out.rows)] == [10.0]
    assert out.late is not None
    assert out.late.column("celsius").to_pylist() == [9.0, 0.0]
    assert out.counts["late"] == 2


@process(state="hot BOOLEAN", output="area STRING, at TIMESTAMP, density DOUBLE")
def alarm(event: Any, state: Any, out: Any) -> None:
    if event.stream == "temperatures":
        state.hot = event.celsius > 40
    elif state.hot and event.density > 0.5:
        out.emit(area=event.area, at=event.at, density=event["density"])


def test_two_connected_streams_are_seen_in_event_time_order() -> None:
    running = Running(alarm, TEMPERATURES, SMOKE, names=("temperatures", "smoke"))
    at = datetime(2026, 1, 1, tzinfo=UTC)
    # The smoke arrives first but happened later; in b it happened before the heat.
    running.feed(None, rows(SMOKE, ("a", 0.9, at, 7), ("b", 0.9, at, 2), source=1))
    out = running.feed(rows(TEMPERATURES, ("a", 50.0, 5), ("b", 50.0, 5)), None, watermark=10)
    assert listed(out.rows) == [{"area": "a", "at": at, "density": 0.9}]


def test_late_rows_of_a_second_input_have_their_own_output() -> None:
    running = Running(alarm, TEMPERATURES, SMOKE, names=("temperatures", "smoke"))
    running.feed(watermark=10)
    out = running.feed(rows(TEMPERATURES, ("a", 1.0, 1)), rows(SMOKE, ("a", 0.9, None, 1), ("a", 0.9, None, 2), source=1))
    assert out.late is not None
    assert (out.late.num_rows, out.side["late_1"].num_rows, out.counts["late"]) == (1, 2, 3)


def silence(timer: Any, state: Any, out: Any) -> None:
    out.emit(area=timer.key[0], what=f"{timer.kind} {timer.name} {timer.time_us // SECOND}", n=state.n)
    state.clear()


@process(state="n BIGINT", output="area STRING, what STRING, n BIGINT", on_timer=silence)
def watched(event: Any, state: Any, out: Any) -> None:
    state.n = (state.n or 0) + 1
    out.timer(event.time_us + 10 * SECOND, name="quiet")
    if event.celsius > 100:
        out.cancel("quiet")


def test_an_event_time_timer_fires_on_an_idle_stream() -> None:
    running = Running(watched)
    running.feed(rows(TEMPERATURES, ("a", 1.0, 1), ("a", 1.0, 5), ("b", 1.0, 2)), watermark=6)
    assert listed(running.feed(watermark=11).rows) == [], "a's timer was replaced: it is at 15, b's at 12"
    running.restart()
    assert listed(running.feed(watermark=15).rows) == [
        {"area": "b", "what": "event quiet 12", "n": 1},
        {"area": "a", "what": "event quiet 15", "n": 2},
    ]
    assert running.instance.states == {}, "cleared keys without timers are forgotten"


def test_a_timer_comes_between_the_records_before_and_after_it() -> None:
    running = Running(watched)
    running.feed(rows(TEMPERATURES, ("a", 1.0, 1)), watermark=2)
    out = running.feed(rows(TEMPERATURES, ("a", 1.0, 20), first=1), watermark=21)
    assert listed(out.rows) == [{"area": "a", "what": "event quiet 11", "n": 1}]
    assert running.instance.states["a"].n == 1, "counted anew after the timer"
    assert out.rows.column("_time").to_pylist() == [11 * SECOND]


def test_a_cancelled_timer_does_not_fire() -> None:
    running = Running(watched)
    running.feed(rows(TEMPERATURES, ("a", 101.0, 1)), watermark=2)
    assert listed(running.feed(watermark=100).rows) == []


def tick(timer: Any, state: Any, out: Any) -> None:
    out.emit(area=timer.key[0], kind=timer.kind)
    if (state.left or 0) > 0:
        state.left -= 1
        out.timer_after("5s")


@process(state="left INT", output="area STRING, kind STRING", on_timer=tick, order="arrival")
def ticking(event: Any, state: Any, out: Any) -> None:
    state.left = int(event.celsius)
    out.timer_after("5s")


def test_processing_time_timers_fire_by_the_clock_and_may_set_others() -> None:
    running = Running(ticking)
    running.feed(rows(TEMPERATURES, ("a", 1.0, 1)), clock=100)
    assert listed(running.feed(clock=104.9).rows) == []
    running.restart()
    assert len(listed(running.feed(clock=105).rows)) == 1
    assert listed(running.feed(clock=110).rows) == [{"area": "a", "kind": "processing"}]
    assert listed(running.feed(clock=1000).rows) == []


@process(
    state="recent ARRAY<DOUBLE>, seen MAP<STRING,BIGINT>",
    output="area STRING",
    outputs={"warnings": "area STRING, n BIGINT"},
    order="arrival",
)
def collecting(event: Any, state: Any, out: Any) -> None:
    state.recent = (state.recent + [event.celsius])[-2:]
    state.seen[str(event.celsius)] = state.seen.get(str(event.celsius), 0) + 1
    if sum(state.recent) > 100:
        out.emit_to("warnings", area=event.area, n=len(state.seen))


def test_lists_and_maps_are_kept_and_side_outputs_filled() -> None:
    running = Running(collecting)
    running.feed(rows(TEMPERATURES, ("a", 60.0, 1)))
    running.restart()
    out = running.feed(rows(TEMPERATURES, ("a", 61.0, 1), ("a", 1.0, 1), ("a", 1.0, 1)))
    assert out.rows is None
    assert listed(out.side["warnings"]) == [{"area": "a", "n": 2}]
    running.restart()
    state = running.instance.states["a"]
    assert (state.recent, state.seen) == ([1.0, 1.0], {"60.0": 1, "61.0": 1, "1.0": 2})


@process(state="total DOUBLE", output="area STRING, total DOUBLE", per="batch")
def totals(batch: pa.Table, state: Any, out: Any) -> None:
    sums = batch.group_by("area").aggregate([("celsius", "sum")])
    for area, celsius in zip(sums["area"].to_pylist(), sums["celsius_sum"].to_pylist()):
        state[area].total = (state[area].total or 0.0) + celsius
    out.emit_table(pa.table({"area": sums["area"], "total": [state[area].total for area in sums["area"].to_pylist()]}))


def test_a_function_per_batch_gets_the_rows_of_the_group() -> None:
    running = Running(totals)
    running.feed(rows(TEMPERATURES, ("a", 1.0, 1), ("b", 2.0, 1), ("a", 3.0, 2)), watermark=5)
    running.restart()
    out = running.feed(rows(TEMPERATURES, ("a", 4.0, 6)), watermark=10)
    assert listed(out.rows) == [{"area": "a", "total": 8.0}]


def test_saves_follow_the_keys_that_changed() -> None:
    running = Running(running_total)
    running.feed(rows(TEMPERATURES, *((f"area-{n}", 1.0, 1) for n in range(10_000))))
    full = running.instance.save(full=True)
    assert running.instance.save(full=False) is None
    running.feed(rows(TEMPERATURES, ("area-7", 1.0, 1)))
    change = running.instance.save(full=False)
    assert full is not None
    assert change is not None
    assert len(change) < 2_500 < len(full) // 50
    restored = running.kernel.restore([full, change])
    assert restored.states["area-7"].n == 2
    assert restored.states["area-8"].n == 1


def test_keys_that_were_forgotten_stay_so_after_a_restart() -> None:
    running = Running(watched)
    running.feed(rows(TEMPERATURES, ("a", 1.0, 1), ("b", 1.0, 20)), watermark=2)
    running.restart()
    running.feed(watermark=12)
    running.restart()
    assert list(running.instance.states) == [], "b's record is still in the buffer"
    assert [row["what"] for row in listed(running.feed(watermark=40).rows)] == ["event quiet 30"]


@pytest.mark.parametrize("key", [None, float("nan"), "", -1, 9e300])
def test_strange_keys_are_keys(key: object) -> None:
    schema = Schema.of("area STRING, celsius DOUBLE") if isinstance(key, str) else Schema.of("area DOUBLE, celsius DOUBLE")
    running = Running(running_total_of(schema), schema)
    for _ in range(3):
        out = running.feed(rows(schema, (key, 1.0, 1), (key, 1.0, 1)))
        running.restart()
    assert [row["n"] for row in listed(out.rows)] == [5, 6]


def running_total_of(schema: Schema) -> Process:
    return process(state="n BIGINT, total DOUBLE", output="n BIGINT", order="arrival")(_count_up)


def _count_up(event: Any, state: Any, out: Any) -> None:
    state.n = (state.n or 0) + 1
    out.emit(n=state.n)


def _wrong_state(event: Any, state: Any, out: Any) -> None:
    state.hott = True


def _wrong_read(event: Any, state: Any, out: Any) -> None:
    out.emit(n=state.hott)


def _wrong_output(event: Any, state: Any, out: Any) -> None:
    out.emit(m=1)


def _wrong_type(event: Any, state: Any, out: Any) -> None:
    out.emit(n="many")


def _wrong_side(event: Any, state: Any, out: Any) -> None:
    out.emit_to("elsewhere", n=1)


def _timer_without_handler(event: Any, state: Any, out: Any) -> None:
    out.timer(1)


def _failing(event: Any, state: Any, out: Any) -> None:
    raise RuntimeError("no luck")


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (_wrong_state, "hott"),
        (_wrong_read, "hott"),
        (_wrong_output, "'m'"),
        (_wrong_type, "column 'n' of the output is BIGINT"),
        (_wrong_side, "there is no output 'elsewhere'"),
        (_timer_without_handler, "nothing handles it"),
        (_failing, "failed on Event(area='a', celsius=1.0"),
    ],
)
def test_mistakes_get_a_sentence_that_names_the_step(function: Callable[..., None], says: str) -> None:
    spec = process(state="hot BOOLEAN", output="n BIGINT", order="arrival")(function)
    with pytest.raises(PlanError) as caught:
        Running(spec).feed(rows(TEMPERATURES, ("a", 1.0, 1)))
    assert says in str(caught.value)
    assert function.__name__ in str(caught.value)


def test_a_timer_that_sets_itself_for_the_past_is_stopped() -> None:
    def again(timer: Any, state: Any, out: Any) -> None:
        out.timer(timer.time_us)

    def once(event: Any, state: Any, out: Any) -> None:
        out.timer(event.time_us)

    spec = process(output="n BIGINT", on_timer=again)(once)
    with pytest.raises(PlanError, match="timers fired in one batch"):
        Running(spec).feed(rows(TEMPERATURES, ("a", 1.0, 1)), watermark=5)


def test_state_of_another_version_is_refused() -> None:
    running = Running(running_total)
    running.feed(rows(TEMPERATURES, ("a", 1.0, 1)))
    saved = running.instance.save(full=True)
    assert saved is not None
    changed = process(state="n BIGINT, total DOUBLE", output="n BIGINT", order="arrival", version=2)(_count_up)
    with pytest.raises(PlanError, match="version 1"):
        ProcessKernel(changed, ("area",), (TEMPERATURES,)).restore([saved])


def test_our_names_win_as_attributes_and_the_users_as_items() -> None:
    schema = Schema.of("area STRING, key STRING, time BIGINT, count BIGINT")
    seen: list[Any] = []

    def look(event: Any, state: Any, out: Any) -> None:
        seen.append((event.key, event["key"], event.time, event["time"], event.count))

    running = Running(process(output="n BIGINT", order="arrival")(look), schema)
    running.feed(rows(schema, ("a", "mine", 7, 3, 1)))
    assert seen == [(("a",), "mine", datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), 7, 3)]


def test_keys_of_several_columns_are_told_apart() -> None:
    table = pa.table({"a": ["x", "x", None, "y", "x"], "b": [1, 2, 1, 1, 1]})
    keys, codes = unique_keys(table, ["a", "b"])
    assert [keys[code] for code in codes] == [("x", 1), ("x", 2), (None, 1), ("y", 1), ("x", 1)]


@pytest.mark.parametrize("seed", range(20))
def test_event_time_order_does_not_depend_on_batches_or_restarts(seed: int) -> None:
    """Records and timers of a key come in the same order however the same input is cut."""
    print(f"seed {seed}")
    random_source = random.Random(seed)
    records = [(random_source.choice("abc"), float(random_source.randrange(150)), random_source.randrange(60)) for _ in range(80)]

    def run(cuts: list[int], restarts: bool) -> list[tuple[str, list[Any]]]:
        running = Running(watched)
        came: dict[str, list[Any]] = {}
        for start, end in zip([0, *cuts], [*cuts, len(records)]):
            out = running.feed(rows(TEMPERATURES, *records[start:end], first=start)) if end > start else Output()
            for row in listed(out.rows):
                came.setdefault(row["area"], []).append(row)
            if restarts:
                running.restart()
        for watermark in (*sorted(random_source.sample(range(60), 3)), FOREVER_US // SECOND):
            for row in listed(running.feed(watermark=watermark).rows):
                came.setdefault(row["area"], []).append(row)
            if restarts:
                running.restart()
        return sorted(came.items())

    whole = run([], restarts=False)
    assert sum(len(each) for _, each in whole) > 0
    for _ in range(3):
        assert run(sorted(random_source.sample(range(1, 80), 5)), restarts=True) == whole
