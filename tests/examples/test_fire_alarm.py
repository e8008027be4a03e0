"""The fire alarm's pipeline on the test host: state machine by hand, and whole histories of the building's sensors."""

from __future__ import annotations

import zlib
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.clock import MICROS
from penstock.demo.sensors import building, history
from penstock.testing.simulation import Simulation, Value, simulate

FILE = Path(__file__).parents[2] / "examples" / "fire_alarm.py"
START = datetime(2026, 1, 1, tzinfo=UTC)
SECONDS = 300
PARTITIONS = 4


def pipeline() -> ps.Pipeline:
    return ps.load_pipeline(FILE)


def at(second: float) -> str:
    return (START + timedelta(seconds=second)).isoformat()


class House:
    """One area whose temperature and smoke a test sets by the second."""

    def __init__(self) -> None:
        self.simulation = simulate(pipeline(), groups=1)
        self._ids = 0

    def live(self, seconds: range, *, celsius: float, density: float = 0.0) -> None:
        for second in seconds[::5]:
            self._ids += 1
            common = {"id": str(self._ids), "area": "kitchen", "at": at(second)}
            self.simulation.batch([("temperatures", 0, {**common, "celsius": celsius}), ("smoke", 0, {**common, "density": density})])

    def alarms(self) -> list[tuple[str, float]]:
        self.simulation.end()
        return [(row["area"], (row["at"] - START).total_seconds()) for row in self.simulation.rows("alarms")]


def test_heat_and_then_smoke_is_a_fire() -> None:
    house = House()
    house.live(range(60), celsius=20)
    house.live(range(60, 150), celsius=80)
    house.live(range(150, 200), celsius=80, density=0.9)
    assert house.alarms() == [("kitchen", 150)]


def test_heat_alone_and_smoke_alone_are_none() -> None:
    hot, smoky = House(), House()
    hot.live(range(200), celsius=80)
    smoky.live(range(200), celsius=20, density=0.9)
    assert hot.alarms() == []
    assert smoky.alarms() == []


def test_smoke_before_the_heat_does_not_count() -> None:
    house = House()
    house.live(range(60), celsius=20, density=0.9)
    house.live(range(60, 200), celsius=80)
    assert house.alarms() == []


def test_one_alarm_per_fire_and_a_second_one_after_it_has_cooled() -> None:
    house = House()
    house.live(range(100), celsius=80, density=0.9)
    house.live(range(100, 300), celsius=20)
    house.live(range(300, 400), celsius=80)
    house.live(range(400, 420), celsius=80, density=0.9)
    first, second = house.alarms()
    assert first[1] < 100
    assert second == ("kitchen", 400)


def run(seed: int) -> tuple[Any, list[Any], Simulation]:
    house = building(seed=seed, seconds=SECONDS)
    readings = history(house)
    simulation = simulate(pipeline(), groups=2)
    batch: list[tuple[str, int, Value]] = []
    next_us = 5 * MICROS
    for reading in readings:
        if reading.sent_us >= next_us:
            simulation.batch(batch)
            batch, next_us = [], next_us + 5 * MICROS
        batch.append((reading.topic, zlib.crc32(reading.sensor.encode()) % PARTITIONS, reading.value))
    simulation.batch(batch)
    simulation.end()
    return house, readings, simulation


@pytest.mark.parametrize("seed", [1, 7])
def test_the_burning_area_is_found_and_no_other(seed: int) -> None:
    print(f"seed {seed}")
    house, readings, simulation = run(seed)
    (alarm,) = simulation.rows("alarms")
    assert alarm["area"] == house.fire
    assert house.fire_at < alarm["at"] < house.fire_at + timedelta(seconds=90)
    assert alarm["celsius"] > 40
    fates = Counter(reading.fate for reading in readings)
    assert simulation.counts["records"] == len(readings)
    assert simulation.counts["bad"] == fates["bad"] == len(simulation.rows("dead-letters"))
    assert simulation.counts["duplicates"] == fates["duplicate"]
    lost = sum(reading.sent_us - reading.at_us > 80 * MICROS for reading in readings)
    assert 0 < len(simulation.rows("late")) <= simulation.counts["late"] <= lost
    reasons = {row["reason"].split(":")[0] for row in simulation.rows("dead-letters")}
    assert "require(celsius BETWEEN -50 AND 200)" in reasons


def test_averages_are_those_of_the_readings() -> None:
    """Every pane against the readings themselves; those that were too late for it are found in `late`."""
    _, readings, simulation = run(3)
    late = {row["id"] for row in simulation.rows("late")}
    good = [reading for reading in readings if reading.fate == "good" and reading.topic == "temperatures"]
    unlost = [reading for reading in good if reading.sent_us - reading.at_us < 10 * MICROS]
    panes = simulation.rows("averages")
    assert len(late) > 0
    assert len({(row["area"], row["window_start"]) for row in panes}) == len(panes)
    for row in panes[:: len(panes) // 50]:
        start_us, end_us = ((row[name] - START) // timedelta(microseconds=1) for name in ("window_start", "window_end"))
        mine = [reading.measure for reading in unlost if reading.area == row["area"] and start_us <= reading.at_us < end_us]
        assert row["readings"] == len(mine)
        assert row["celsius"] == pytest.approx(sum(mine) / len(mine))
