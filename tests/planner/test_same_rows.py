"""How a pipeline runs never changes what comes out: rules off, other group counts, other batches, restarts.

Each case makes records from a seed, runs the pipeline in several ways on the test host, and compares the rows of every topic. The
reference is one batch, one group, no rules. For the tumbling window it is also computed in plain Python."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import penstock as ps
from penstock.planner.rules import NAMES
from penstock.testing.simulation import Simulation, Value, simulate
from tests.planner.pipelines import PIPELINES

START = datetime(2026, 1, 1, tzinfo=UTC)
RUNNABLE = [name for name in PIPELINES if name not in ("outside", "running")]  # these need Spark, or depend on ticks
Record = tuple[str, int, Value]


def records(seed: int, *, count: int = 150) -> list[Record]:
    """Two minutes of readings, out of order by less than the lateness, on two partitions each."""
    chance = random.Random(seed)
    made: list[tuple[float, Record]] = []
    for number in range(count):
        second = chance.uniform(0, 120)
        at = (START + timedelta(seconds=second)).isoformat()
        area = chance.choice(["a", "b", "c", None])
        reading = {
            "id": f"t{number}",
            "area": area,
            "celsius": chance.choice([1.5, -20.0, 40.25, 300.0, math.nan]),
            "n": chance.randint(-2, 4),
            "at": at,
        }
        copies = chance.choice([1, 1, 1, 2])  # some are sent twice; which of two is first is not promised, so they are equal
        made += [(second, ("temperatures", chance.randint(0, 1), reading))] * copies
        if number % 3 == 0:
            made.append((second, ("smoke", chance.randint(0, 1), {"area": area, "density": chance.random(), "at": at})))
            made.append((second, ("others", 0, {"area": area, "celsius": 7.0, "at": at})))
    made.sort(key=lambda pair: pair[0] + chance.uniform(0, 0.9))
    return [record for _, record in made]


def run(
    pipeline: ps.Pipeline, sent: list[Record], *, batches: int, groups: int, without: Collection[str] = (), restarts: bool = False
) -> Simulation:
    simulation = simulate(pipeline, groups=groups, without=without)
    topics = {topic for scan in simulation.plan.scans for topic in scan.topics}
    mine = [record for record in sent if record[0] in topics]
    size = -(-len(mine) // batches)
    for start in range(0, len(mine), size):
        simulation.batch(mine[start : start + size])
        if restarts:
            simulation.restart()
    simulation.end()
    return simulation


def result(simulation: Simulation) -> dict[str, list[str]]:
    """The rows of every topic, without regard to their order."""
    return {str(sink.topic): sorted(map(_spelled, simulation.rows(sink.topic))) for sink in simulation.plan.sinks}


def _spelled(row: dict[str, Any]) -> str:
    return str({name: f"{value:.9g}" if isinstance(value, float) else value for name, value in sorted(row.items())})


@pytest.mark.parametrize("name", RUNNABLE)
@pytest.mark.parametrize("seed", [1, 2])
def test_the_rows_do_not_depend_on_how_it_runs(name: str, seed: int) -> None:
    print(f"seed {seed}")
    pipeline, sent = PIPELINES[name](), records(seed)
    reference = result(run(pipeline, sent, batches=1, groups=1, without=NAMES))
    assert reference["out"], "a comparison of nothing shows nothing"
    assert result(run(pipeline, sent, batches=7, groups=4)) == reference
    assert result(run(pipeline, sent, batches=4, groups=3, restarts=True)) == reference


@pytest.mark.parametrize("rule", NAMES)
@pytest.mark.parametrize("name", RUNNABLE)
def test_no_rule_changes_the_rows(name: str, rule: str) -> None:
    pipeline, sent = PIPELINES[name](), records(3, count=60)
    with_all = run(pipeline, sent, batches=3, groups=2)
    assert result(with_all) == result(run(pipeline, sent, batches=3, groups=2, without={rule}))


def test_a_tumbling_window_is_what_plain_python_computes() -> None:
    sent = records(4)
    simulation = run(PIPELINES["tumbling"](), sent, batches=5, groups=4)
    windows: dict[tuple[Any, int], list[dict[str, Any]]] = defaultdict(list)
    for topic, _, row in sent:
        assert isinstance(row, dict)
        if topic == "temperatures" and row["celsius"] is not None and (math.isnan(row["celsius"]) or row["celsius"] > -10):
            second = (datetime.fromisoformat(row["at"]) - START).total_seconds()
            windows[(row["area"], int(second // 10))].append(row)
    wanted = {
        key: (
            sum(row["celsius"] + 273.15 for row in rows) / len(rows),
            max(row["n"] for row in rows),
            sum(row["n"] for row in rows),
            len(rows),
        )
        for key, rows in windows.items()
    }
    made = {(row["area"], int((row["window_start"] - START).total_seconds() // 10)): row for row in simulation.rows("out")}
    assert set(made) == set(wanted)
    for key, (kelvin, most, total, readings) in wanted.items():
        row = made[key]
        assert (row["most"], row["total"], row["readings"]) == (most, total, readings), key
        assert row["kelvin"] == pytest.approx(kelvin, nan_ok=True), key
        assert (row["pane_timing"], row["is_last"]) == ("on_time", True)


def test_retractions_add_up_to_what_was_not_retracted() -> None:
    """The sum over all areas by sign is the sum of the readings, whatever panes came between."""
    sent = records(5)
    areas = PIPELINES["two_keys"]
    simulation = run(areas(), sent, batches=30, groups=2)
    total = sum(row["n"] for topic, _, row in sent if topic == "temperatures" and isinstance(row, dict))
    last: dict[Any, int] = {row["window_start"]: row["total"] for row in simulation.rows("out")}
    assert sum(last.values()) == total
