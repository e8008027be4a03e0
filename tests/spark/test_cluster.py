"""The same chain on a real standalone cluster: master and worker are processes of their own, and our code reaches them by itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.spark.collected import collected
from penstock.spark.scripted import write_script
from penstock.testing.spark_cluster import SparkCluster

from .test_host import Chain
from .test_restart import SCRIPT, rows

pytestmark = pytest.mark.spark
WAIT_S_MAX = 200


def test_a_standalone_cluster_gives_the_same_rows(tmp_path: Path) -> None:
    write_script(tmp_path / "script.arrow", SCRIPT[:3])
    undisturbed = Chain(on_tick=True)
    expected = [undisturbed.play(batch) for batch in SCRIPT[:3]]
    with SparkCluster(cores=2) as cluster:
        command = [sys.executable, "-m", "tests.spark.driver", str(tmp_path), cluster.address]
        done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=WAIT_S_MAX, check=False)
    assert done.returncode == 0, done.stderr[-2_000:]
    assert [rows(envelopes) for envelopes in collected(tmp_path / "out").values()] == expected
