"""The main demo, as a newcomer runs it: the alarm is raised for the burning area, at the right time, and for no other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path

import psutil
import pytest

from penstock.clock import MICROS
from penstock.demo.sensors import SMOKE, TEMPERATURES, Building, Reading, building, history

pytestmark = pytest.mark.spark
HOT_CELSIUS, SMOKE_DENSITY = 40.0, 0.5
SECONDS = 300
PROMPT_US = 10 * MICROS  # a reading sent within the pipeline's bounded lateness is never too late


def demo(*arguments: str, data: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "penstock.cli", "demo", "--seconds", str(SECONDS), "--data", str(data), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def alarm_bounds_us(house: Building, readings: list[Reading]) -> tuple[int, int]:
    """When the alarm must come, by the history alone. Readings that were sent too late may or may not have counted."""
    good = [r for r in readings if r.fate == "good" and r.area == house.fire]
    prompt = [r for r in good if r.sent_us - r.at_us < PROMPT_US]
    moments = [_alarm_us(heat, smoke) for heat in (good, prompt) for smoke in (good, prompt)]
    return min(moments), max(moments)


def _alarm_us(heat: list[Reading], smoke: list[Reading]) -> int:
    for end_us in range(5 * MICROS, SECONDS * MICROS, 5 * MICROS):
        inside = [r.measure for r in heat if r.topic == TEMPERATURES and end_us - 60 * MICROS <= r.at_us < end_us]
        if inside and sum(inside) / len(inside) > HOT_CELSIUS:
            return min(r.at_us for r in smoke if r.topic == SMOKE and r.measure > SMOKE_DENSITY and r.at_us >= end_us)
    raise AssertionError("this building does not burn")


@pytest.mark.parametrize("seed", [1, 7, 23])
def test_the_burning_area_and_no_other(seed: int, tmp_path: Path) -> None:
    process = demo("--seed", str(seed), "--speed", "60", "--json", data=tmp_path)
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    summary = json.loads(output.splitlines()[-1])
    house = building(seed=seed, seconds=SECONDS)
    readings = history(house)
    fates = Counter(r.fate for r in readings)
    assert [alarm["area"] for alarm in summary["alarms"]] == [house.fire] == [summary["fire"]["area"]]
    at_us = round((datetime.fromisoformat(summary["alarms"][0]["at"]) - house.start) / timedelta(microseconds=1))
    low_us, high_us = alarm_bounds_us(house, readings)
    assert low_us <= at_us <= high_us
    assert summary["alarms"][0]["celsius"] > HOT_CELSIUS
    assert (summary["records"], summary["bad"], summary["duplicates"]) == (len(readings), fates["bad"], fates["duplicate"])
    delayed = sum(r.sent_us - r.at_us >= PROMPT_US for r in readings)
    assert summary["late"] <= delayed  # how many depends on how the batches fell
    assert summary["first_alarm_s"] > 0


def test_ctrl_c_stops_cleanly_and_the_next_run_goes_on(tmp_path: Path) -> None:
    process = demo("--seed", "1", "--speed", "20", data=tmp_path)
    assert process.stdout is not None
    for line in process.stdout:
        if "pipeline on Spark" in line:
            break
    family = psutil.Process(process.pid).children(recursive=True)
    assert family, "a broker and a JVM run"
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130, errors
    _, alive = psutil.wait_procs(family, timeout=30)
    assert not alive, "no orphans"
    again = demo("--seed", "2", "--speed", "60", "--continue", "--json", data=tmp_path)
    output, errors = again.communicate()
    assert again.returncode == 0, errors
    summary = json.loads(output.splitlines()[-1])
    assert building(seed=2, seconds=SECONDS).fire in [alarm["area"] for alarm in summary["alarms"]]
