"""The building's history is repeatable, and holds what the fire alarm must tell apart."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from penstock.clock import MICROS
from penstock.demo.sensors import SMOKE, TEMPERATURES, Building, Reading, building, history
from penstock.errors import ConfigError

SEEDS = range(8)


def mean(house: Building, area: str, *, start_s: float, end_s: float, readings: list[Reading]) -> float:
    inside = [
        r.measure
        for r in readings
        if r.topic == TEMPERATURES and r.area == area and r.fate == "good" and start_s * MICROS <= r.at_us < end_s * MICROS
    ]
    return sum(inside) / len(inside)


def smoke_times_s(area: str, readings: list[Reading]) -> list[float]:
    return [r.at_us / MICROS for r in readings if r.topic == SMOKE and r.area == area and r.measure > 0.5]


def test_the_same_seed_gives_the_same_bytes() -> None:
    assert history(building(seed=3, seconds=300)) == history(building(seed=3, seconds=300))
    assert history(building(seed=3, seconds=300)) != history(building(seed=4, seconds=300))


@pytest.mark.parametrize("seed", SEEDS)
def test_one_area_burns_and_three_only_look_like_it(seed: int) -> None:
    house = building(seed=seed, seconds=400)
    readings = history(house)
    fire_s = house.fire_at_s
    assert mean(house, house.fire, start_s=fire_s + 20, end_s=fire_s + 80, readings=readings) > 60
    assert any(time_s > fire_s + 40 for time_s in smoke_times_s(house.fire, readings)), "smoke follows the heat"
    assert mean(house, house.heat_only, start_s=fire_s * 0.6 + 20, end_s=fire_s * 0.6 + 80, readings=readings) > 60
    assert not smoke_times_s(house.heat_only, readings)
    assert smoke_times_s(house.smoke_only, readings)
    assert mean(house, house.smoke_only, start_s=0, end_s=400, readings=readings) < 30
    assert max(smoke_times_s(house.smoke_first, readings)) < fire_s, "the smoke is over before that area gets hot"
    assert mean(house, house.smoke_first, start_s=fire_s + 40, end_s=fire_s + 100, readings=readings) > 60


@pytest.mark.parametrize("seed", SEEDS)
def test_every_kind_of_trouble_is_in_it(seed: int) -> None:
    readings = history(building(seed=seed, seconds=400))
    assert {"good", "bad", "duplicate"} == set(Counter(r.fate for r in readings))
    bad = [r.value for r in readings if r.fate == "bad"]
    assert any(b'"n/a"' in value for value in bad)
    assert any(b"NaN" in value for value in bad)
    assert any(b"-9999" in value for value in bad)
    assert any(not value.endswith(b"}") for value in bad)
    order = [r.at_us for r in readings]
    assert order != sorted(order), "some overtake others"
    assert any(r.sent_us - r.at_us > 80 * MICROS for r in readings), "some are too late"
    ids = Counter(json.loads(r.value)["id"] for r in readings if r.fate != "bad")
    assert sum(count - 1 for count in ids.values()) == sum(r.fate == "duplicate" for r in readings)


def test_too_few_seconds_are_refused() -> None:
    with pytest.raises(ConfigError, match="give --seconds 240 or more"):
        building(seed=1, seconds=60)
