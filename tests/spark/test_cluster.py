"""The fire alarm on a real standalone cluster: master and worker are processes of their own, and our code reaches them by itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from penstock.demo.sensors import building, history
from penstock.testing.spark_cluster import SparkCluster

pytestmark = pytest.mark.spark
SECONDS, SEED = 300, 1
WAIT_S_MAX = 200


def test_the_fire_alarm_on_a_standalone_cluster(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock.cli", "demo", "--json", "--seconds", str(SECONDS), "--speed", "60", "--seed", str(SEED)]
    with SparkCluster(cores=2) as cluster:
        settings = {"PENSTOCK_SPARK": cluster.address, "PENSTOCK_CHECKPOINT": str(tmp_path / "shared"), "PENSTOCK_DATA": str(tmp_path)}
        done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, timeout=WAIT_S_MAX, check=False)
        executors = list((cluster.directory / "work").glob("app-*/*/stderr"))
    assert done.returncode == 0, done.stderr[-2_000:]
    assert executors, "the work was done by executors of the cluster"
    summary = json.loads(done.stdout.splitlines()[-1])
    readings = history(building(seed=SEED, seconds=SECONDS))
    fates = Counter(reading.fate for reading in readings)
    assert [alarm["area"] for alarm in summary["alarms"]] == [summary["fire"]["area"]]
    assert (summary["records"], summary["bad"], summary["duplicates"]) == (len(readings), fates["bad"], fates["duplicate"])
