"""Whole pipelines on the test host: every step of the API runs, and gives what it says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import penstock as ps
from penstock.testing.simulation import Simulation, simulate
from tests.dataflow.functions_of_a_module import Spread, halves

START = datetime(1970, 1, 1, tzinfo=UTC)


def numbers(lateness: int = 0) -> ps.Stream:
    return ps.read("numbers", "key STRING, n INT, at TIMESTAMP").event_time("at", lateness=lateness)


def send(simulation: Simulation, *pairs: tuple[int, int], key: str = "k", topic: str = "numbers", partition: int = 0) -> None:
    """(second, n) pairs as one batch."""
    simulation.send(topic, *({"key": key, "n": n, "at": START + timedelta(seconds=second)} for second, n in pairs), partition=partition)


def seconds(moment: datetime | None) -> float | None:
    return None if moment is None else (moment - START).total_seconds()


def panes(simulation: Simulation, *columns: str) -> list[tuple[Any, ...]]:
    return [(seconds(row["window_start"]), seconds(row["window_end"]), *(row[name] for name in columns)) for row in simulation.take("out")]


def test_windows_close_when_the_watermark_of_all_partitions_has_passed() -> None:
    simulation = simulate(numbers().key_by("key").window(ps.tumbling(10)).aggregate(total="sum(n)").write("out"))
    send(simulation, (1, 1), (2, 2))
    send(simulation, (3, 4), partition=1)
    send(simulation, (12, 8))
    assert panes(simulation, "total") == []  # partition 1 is still at 3 s
    send(simulation, (11, 16), partition=1)
    assert panes(simulation, "total", "pane_timing") == [(0, 10, 7, "on_time")]
    simulation.end()
    assert panes(simulation, "total") == [(10, 20, 24)]


def test_an_idle_partition_stops_to_count() -> None:
    stream = ps.read("numbers", "key STRING, n INT, at TIMESTAMP").event_time("at", idle="5s")
    simulation = simulate(stream.key_by("key").window(ps.tumbling(10)).aggregate(total="sum(n)").write("out"))
    simulation.clock(0)
    send(simulation, (1, 1))
    send(simulation, (2, 1), partition=1)
    simulation.clock(4)
    send(simulation, (15, 1))
    assert panes(simulation, "total") == []
    simulation.clock(6)
    assert panes(simulation, "total") == [(0, 10, 2)]


def test_early_on_time_and_late_panes_retract() -> None:
    trigger = ps.after_watermark(early=ps.every("1s"), late=ps.after_count(1))
    stream = numbers().key_by("key").window(ps.tumbling(10)).trigger(trigger).accumulate("retracting").allowed_lateness("1m")
    simulation = simulate(stream.aggregate(total="sum(n)").write("out"))
    simulation.clock(0)
    send(simulation, (1, 1))
    simulation.clock(2)
    assert panes(simulation, "total", "pane_timing", "sign") == [(0, 10, 1, "early", 1)]
    send(simulation, (2, 2), (11, 100))
    assert panes(simulation, "total", "pane_timing", "sign") == [(0, 10, 1, "early", -1), (0, 10, 3, "on_time", 1)]
    simulation.restart()
    send(simulation, (3, 4))
    assert panes(simulation, "total", "pane_timing", "sign") == [(0, 10, 3, "on_time", -1), (0, 10, 7, "late", 1)]


def test_running_results_come_by_the_clock_on_an_idle_stream() -> None:
    simulation = simulate(numbers().key_by("key").running(ps.every("1s")).aggregate(n="count(*)", most="max(n)").write("out"))
    simulation.clock(0)
    send(simulation, (1, 5), (2, 3))
    assert simulation.take("out") == []
    simulation.clock(1)
    assert [(row["key"], row["n"], row["most"]) for row in simulation.take("out")] == [("k", 2, 5)]


@pytest.mark.parametrize(
    ("window", "sent", "wanted"),
    [
        (ps.sliding(10, every=5), [(1, 1), (7, 2)], [(-5, 5, 1), (0, 10, 3), (5, 15, 2)]),
        (ps.session(5), [(1, 1), (4, 2), (20, 4)], [(1, 9, 3), (20, 25, 4)]),
        (ps.session(gap_expression="n"), [(1, 10), (4, 2), (20, 4)], [(1, 11, 12), (20, 24, 4)]),
        (ps.count(2), [(1, 1), (2, 2), (3, 4)], [(1, 2.000001, 3), (3, 3.000001, 4)]),
        (ps.delta("n", 3), [(1, 1), (2, 2), (3, 9)], [(1, 2.000001, 3), (3, 3.000001, 9)]),
        (ps.punctuation("n % 5 = 0"), [(1, 1), (2, 5), (3, 9)], [(1, 2.000001, 6), (3, 3.000001, 9)]),
        (ps.last(records=2, every=10), [(1, 1), (4, 2), (7, 4), (12, 8)], [(4, 7.000001, 6), (7, 12.000001, 12)]),
        (ps.last(time=10, every_records=2), [(1, 1), (4, 2), (9, 4), (12, 8)], [(1, 4.000001, 3), (4, 12.000001, 14)]),
        (ps.custom(halves), [(1, 1), (4, 2)], [(1, 1.5, 1), (4, 4.5, 2)]),
        (ps.tumbling(10, offset=3), [(1, 1), (4, 2)], [(-7, 3, 1), (3, 13, 2)]),
    ],
)
def test_every_window(window: ps.Window, sent: list[tuple[int, int]], wanted: list[tuple[float, float, int]]) -> None:
    simulation = simulate(numbers().key_by("key").window(window).aggregate(total="sum(n)").write("out"))
    send(simulation, *sent)
    simulation.end()
    assert sorted(panes(simulation, "total")) == wanted


def test_every_aggregate() -> None:
    aggregate = {
        "count(*)": 4, "count(n)": 4, "sum(n)": 10, "avg(n)": 2.5, "min(n)": 1, "max(n)": 4, "first(n)": 4, "last(n)": 3, "collect(n)": [4, 1, 2, 3],
        "top_k(n, 2)": [4, 3], "median(n)": 2.5, "quantile(n, 0.0)": 1.0, "count(DISTINCT n % 2)": 2, "stddev(n)": pytest.approx(1.2909944487358056),
        "variance(n)": pytest.approx(5 / 3), "sum(n * 2 + 1)": 24, "max(key)": "k",
    }  # fmt: skip
    named: dict[str, Any] = {f"a{index}": text for index, text in enumerate(aggregate)}
    simulation = simulate(
        numbers().key_by("key").window(ps.tumbling(10)).aggregate(**named, own=ps.using(Spread, "CAST(n AS DOUBLE)")).write("out")
    )
    send(simulation, (1, 4), (2, 1), (3, 2), (4, 3))
    simulation.end()
    (row,) = simulation.rows("out")
    assert {text: row[name] for name, text in named.items()} == aggregate
    assert row["own"] == 3.0


def test_late_records_reach_the_late_output_whole_and_are_counted() -> None:
    counted = numbers().key_by("key").window(ps.tumbling(10)).aggregate(total="sum(n * 2)")
    simulation = simulate(ps.pipeline(counted.write("out"), counted.late.write("late")))
    send(simulation, (1, 1), (25, 2))
    send(simulation, (2, 7))
    assert [(row["key"], row["n"], seconds(row["at"])) for row in simulation.rows("late")] == [("k", 7, 2)]
    assert simulation.counts["late"] == 1


def tripled(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": row["key"], "n": row["n"]}] * 3


def test_stateless_steps() -> None:
    plus = numbers().where("n > 1").select("key", n="n + 10")
    each = plus.map(lambda row: {"key": row["key"], "n": row["n"] + 100} if row["n"] < 15 else None)
    several = plus.flat_map(tripled)
    batches = plus.map_batches(lambda table: table.set_column(1, "n", pc.add(table["n"], pa.scalar(1000, pa.int32()))))
    simulation = simulate(ps.pipeline(each.write("each"), several.write("several"), batches.write("batches")))
    send(simulation, (1, 1), (2, 2), (3, 9))
    assert [row["n"] for row in simulation.rows("each")] == [112]
    assert [row["n"] for row in simulation.rows("several")] == [12, 12, 12, 19, 19, 19]
    assert [row["n"] for row in simulation.rows("batches")] == [1012, 1019]


def ring(timer: ps.Timer, state: ps.State, out: ps.Out) -> None:
    out.emit(key=timer.key[0], what=f"{timer.kind} {timer.name}")


@ps.process(state="n BIGINT, seen ARRAY<BIGINT>", output="key STRING, what STRING", outputs={"odd": "key STRING, n INT"}, on_timer=ring)
def watched(event: ps.Event, state: ps.State, out: ps.Out) -> None:
    state.n = (state.n or 0) + event.n
    state.seen = [*(state.seen or []), event.n]
    out.emit(key=event.key[0], what=f"{event.stream} {state.n} {state.seen}")
    if event.n % 2:
        out.emit_to("odd", key=event.key[0], n=event.n)
    if event.n == 1:
        out.timer(event.time + timedelta(seconds=10), name="by event")  # type: ignore[operator]
        out.timer_after("5s", name="by clock")


def test_process_has_state_timers_and_outputs_over_connected_streams() -> None:
    others = ps.read("others", "key STRING, n INT, at TIMESTAMP").event_time("at")
    stream = numbers().connect(others).key_by("key").process(watched)
    simulation = simulate(ps.pipeline(stream.write("out"), stream.output("odd").write("odd")))
    simulation.clock(0)
    send(simulation, (1, 1), (3, 3))
    send(simulation, (2, 2), topic="others")
    simulation.restart()
    send(simulation, (20, 4))
    send(simulation, (21, 4), topic="others")
    assert [row["what"] for row in simulation.take("out")] == ["numbers 1 [1]", "others 3 [1, 2]", "numbers 6 [1, 2, 3]", "event by event"]
    simulation.clock(6)
    assert [row["what"] for row in simulation.take("out")] == ["processing by clock"]
    assert [row["n"] for row in simulation.rows("odd")] == [1, 3]


def test_late_records_of_a_process_step() -> None:
    stream = numbers().key_by("key").process(watched)
    simulation = simulate(ps.pipeline(stream.write("out"), stream.late.write("late")))
    send(simulation, (10, 2), (30, 4))
    send(simulation, (11, 7), (40, 4))
    assert [row["n"] for row in simulation.rows("late")] == [7]
    assert simulation.counts["late"] == 1


def test_duplicates_are_dropped_within_their_time() -> None:
    simulation = simulate(numbers().deduplicate("n", within="10s").select("n").write("out"))
    send(simulation, (1, 1), (2, 1), (3, 2))
    send(simulation, (4, 1), (30, 1))
    assert [row["n"] for row in simulation.rows("out")] == [1, 2, 1]
    assert simulation.counts["duplicates"] == 2


def test_two_windows_in_a_row_with_another_key() -> None:
    per_key = numbers(lateness=60).key_by("key").window(ps.tumbling(10)).aggregate(total="sum(n)")
    everything = per_key.window(ps.tumbling(30)).aggregate(keys="count(*)", total="sum(total)")
    simulation = simulate(everything.write("out"))
    for key in ("a", "b", "c"):
        send(simulation, (1, 1), (12, 2), (31, 4), key=key)
    simulation.end()
    assert panes(simulation, "keys", "total") == [(0, 30, 6, 9), (30, 60, 3, 12)]


def test_text_and_raw_records() -> None:
    lines = ps.read("lines", format="text").flat_map(lambda row: [{"word": word} for word in row["value"].split()], output="word STRING")
    raw = ps.read("raws", format="raw").select("value")
    simulation = simulate(ps.pipeline(lines.write("words"), raw.write("copies")))
    simulation.send("lines", "to be or", "not to be")
    simulation.send("raws", b"\x00\xff")
    assert [row["word"] for row in simulation.rows("words")] == ["to", "be", "or", "not", "to", "be"]
    assert simulation.rows("copies") == [{"value": b"\x00\xff"}]


def test_what_the_test_host_cannot_do_is_said() -> None:
    with pytest.raises(ps.ConfigError, match=r"the test host cannot run this pipeline: .*sha2"):
        simulate(numbers().where("sha2(key, 256) > ''").write("out"))
    simulation = simulate(numbers().write("out"))
    with pytest.raises(ps.ConfigError, match="the pipeline does not read 'number'; it reads numbers"):
        simulation.send("number", {})
    with pytest.raises(ps.ConfigError, match="the pipeline does not write 'output'; it writes out"):
        simulation.rows("output")
