"""The building of the fire alarm: ten areas, their sensors, and everything that goes wrong with them.

A history is pure data: the same seed gives the same readings, byte for byte. Sending it is `feed.py`'s work. What the pipeline
makes of it is not known here; a test compares the two.

    area          temperature                      smoke                         alarm?
    fire          hot from `fire_at`, then cools   from 10 s after the fire      yes, the only one
    heat only     hot for a while                  none                          no
    smoke only    normal                           for a while                   no
    smoke first   hot for a while                  ends long before the heat     no
    the others    normal                           none                          no
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from penstock.clock import MICROS
from penstock.errors import ConfigError

TEMPERATURES, SMOKE = "temperatures", "smoke"
START = datetime(2026, 1, 1, tzinfo=UTC)
SECONDS_MIN = 240  # shorter than this, the fire and the false alarms do not fit
AREAS = 10
TEMPERATURE_SENSORS, SMOKE_SENSORS = 4, 2  # per area
TEMPERATURE_EVERY_S, SMOKE_EVERY_S = 1, 2
HEAT_S, RISE_S = 90.0, 20.0  # how long an area stays hot, how long it takes to get there
DELAY_S, SLOW_S, LOST_S = (0.0, 2.0), (4.0, 8.0), (90.0, 140.0)  # how late a reading is sent: usually, sometimes, rarely

Fate = Literal["good", "bad", "duplicate"]
Fault = Literal["text", "nan", "out_of_range", "broken", "stuck"]


@dataclass(frozen=True, slots=True)
class Reading:
    """One record as a sensor sends it. `sent_us` and `at_us` count from the start of the history."""

    topic: str
    sensor: str
    area: str
    value: bytes
    at_us: int
    sent_us: int
    measure: float
    fate: Fate


@dataclass(frozen=True, slots=True)
class Building:
    """Who burns, who only looks like it, and whose sensors are broken: drawn from the seed."""

    seed: int
    seconds: int
    start: datetime
    run: int
    fire: str
    fire_at_s: float
    heat_only: str
    smoke_only: str
    smoke_first: str
    faults: tuple[tuple[str, Fault], ...]  # sensor → fault

    @property
    def fire_at(self) -> datetime:
        return self.start + timedelta(seconds=self.fire_at_s)

    def celsius(self, area: str, at_s: float, base: float) -> float:
        began_s = {self.fire: self.fire_at_s, self.heat_only: self.fire_at_s * 0.6, self.smoke_first: self.fire_at_s + 20}.get(area)
        if began_s is None or at_s < began_s:
            return base
        heat = min((at_s - began_s) / RISE_S, 1.0) if at_s < began_s + HEAT_S else max(0.0, 1 - (at_s - began_s - HEAT_S) / RISE_S)
        return base + 90.0 * heat

    def smokes(self, area: str, at_s: float) -> bool:
        begin_s, end_s = {
            self.fire: (self.fire_at_s + 10, self.fire_at_s + HEAT_S),
            self.smoke_only: (self.fire_at_s * 0.5, self.fire_at_s * 0.5 + 30),
            self.smoke_first: (self.fire_at_s * 0.3, self.fire_at_s * 0.3 + 30),
        }.get(area, (0.0, 0.0))
        return begin_s <= at_s < end_s


def building(*, seed: int, seconds: int, start: datetime = START, run: int = 0) -> Building:
    """Draw a building. `run` tells the ids of one history from those of another."""
    if seconds < SECONDS_MIN:
        raise ConfigError(f"{seconds} simulated seconds are too few for a fire", remedy=f"give --seconds {SECONDS_MIN} or more")
    random_ = random.Random(f"building {seed}")
    areas = [f"area-{number}" for number in range(AREAS)]
    fire, heat_only, smoke_only, smoke_first, *others = random_.sample(areas, AREAS)
    kinds: tuple[Fault, ...] = ("text", "nan", "out_of_range", "broken", "stuck")
    faults: list[tuple[str, Fault]] = [(f"{area}/t0", kind) for area, kind in zip(others, kinds)]
    faults.append((f"{fire}/t{TEMPERATURE_SENSORS - 1}", "stuck"))  # one sensor of the burning area does not see it
    return Building(
        seed=seed, seconds=seconds, start=start, run=run, fire=fire, fire_at_s=round(seconds * random_.uniform(0.3, 0.4), 3),
        heat_only=heat_only, smoke_only=smoke_only, smoke_first=smoke_first, faults=tuple(faults),
    )  # fmt: skip


def history(house: Building) -> list[Reading]:
    """Every record of the building's sensors, in the order of sending. What is still under way at the end is not in it."""
    random_ = random.Random(f"history {house.seed}")
    readings = [reading for made in _readings(house, random_) for reading in made if reading.sent_us < house.seconds * MICROS]
    return sorted(readings, key=lambda reading: reading.sent_us)


def _readings(house: Building, random_: random.Random) -> Iterator[list[Reading]]:
    faults = dict(house.faults)
    number = 0
    for area in (f"area-{number}" for number in range(AREAS)):
        for topic, letter, count, every_s in (
            (TEMPERATURES, "t", TEMPERATURE_SENSORS, TEMPERATURE_EVERY_S),
            (SMOKE, "s", SMOKE_SENSORS, SMOKE_EVERY_S),
        ):
            for index in range(count):
                sensor = f"{area}/{letter}{index}"
                base, phase_s = random_.uniform(18, 24), random_.uniform(0, every_s)
                for tick in range(int((house.seconds - phase_s) / every_s)):
                    number += 1
                    at_us = round((phase_s + tick * every_s) * MICROS / 1000) * 1000
                    yield _send(house, random_, topic, area, sensor, f"{letter}{house.run}-{number:06d}", at_us, base, faults.get(sensor))


def _send(
    house: Building, random_: random.Random, topic: str, area: str, sensor: str, id_: str, at_us: int, base: float, fault: Fault | None
) -> list[Reading]:
    at_s = at_us / MICROS
    noise = random_.gauss(0, 0.4)
    if topic == TEMPERATURES:
        name, measure = "celsius", round(base if fault == "stuck" else house.celsius(area, at_s, base) + noise, 2)
    else:
        name, measure = "density", round(min(1.0, max(0.0, (0.8 if house.smokes(area, at_s) else 0.05) + noise / 20)), 3)
    # A faulty sensor fails now and then; a stuck one always says the same, which no single record shows.
    failing = fault not in (None, "stuck") and random_.random() < 0.2
    at = (house.start + timedelta(microseconds=at_us)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    fields: dict[str, object] = {"id": id_, "area": area, "sensor": sensor, name: measure, "at": at}
    value = _spoil(fields, name, fault) if failing else json.dumps(fields).encode()
    luck = random_.random()
    delay_s = random_.uniform(*(LOST_S if luck < 0.003 and not failing else SLOW_S if luck < 0.02 else DELAY_S))
    sent_us = at_us + round(delay_s * MICROS)
    first = Reading(topic, sensor, area, value, at_us, sent_us, measure, "bad" if failing else "good")
    if failing or delay_s > SLOW_S[1] or random_.random() >= 0.01:
        return [first]
    again_us = sent_us + round(random_.uniform(0, 3) * MICROS)
    return [first, Reading(topic, sensor, area, value, at_us, again_us, measure, "duplicate")]


def _spoil(fields: dict[str, object], name: str, fault: Fault | None) -> bytes:
    match fault:
        case "text":
            return json.dumps(fields | {name: "n/a"}).encode()
        case "nan":
            return json.dumps(fields | {name: float("nan")}).encode()
        case "out_of_range":
            return json.dumps(fields | {name: -9999.0}).encode()
        case _:
            return json.dumps(fields).encode()[:-12]  # the connection broke in the middle
