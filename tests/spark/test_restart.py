"""kill -9 of the driver at a random batch: the next run gives what an undisturbed one gives, and nothing of the first is left running."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from penstock.kernels.envelope import Envelope, open_table
from penstock.spark.collected import collected
from penstock.spark.scripted import write_script

from .test_host import Chain
from .toy import step

pytestmark = pytest.mark.spark
STEPS = 10
KILLS = int(os.environ.get("PENSTOCK_KILLS", "1"))
WAIT_S_MAX = 120
SCRIPT = [
    step([(f"k{(index * 7 + row) % 5}", 10 * index + row % 3) for row in range(6)], first_offset=6 * index, tick_us=1_000 * index)
    for index in range(STEPS)
] + [step(ended=True)]


def rows(envelopes: list[Envelope]) -> list[tuple[int, str, int]]:
    return sorted(
        (each.source, row["k"], row["n"])
        for each in envelopes
        if each.to == 3 and each.payload
        for row in open_table(each.payload).to_pylist()
    )


def start(folder: Path) -> subprocess.Popen[bytes]:
    root = Path(__file__).parents[2]
    with (folder / "driver.log").open("ab") as log:
        return subprocess.Popen([sys.executable, "-m", "tests.spark.driver", str(folder)], cwd=root, stdout=log, stderr=log)


def test_a_killed_driver_is_followed_by_the_same_result(tmp_path: Path) -> None:
    seed = int(os.environ.get("PENSTOCK_SEED", time.time_ns() % 1_000_000))
    print("seed", seed)
    randomness = random.Random(seed)
    write_script(tmp_path / "script.arrow", SCRIPT)
    undisturbed = Chain(on_tick=True)
    expected = [undisturbed.play(batch) for batch in SCRIPT]
    for _ in range(KILLS):
        driver = start(tmp_path)
        until = randomness.randrange(1, STEPS)
        deadline = time.monotonic() + WAIT_S_MAX
        while driver.poll() is None and len(list((tmp_path / "out").glob("*.arrow"))) < until and time.monotonic() < deadline:
            time.sleep(0.01)
        family = psutil.Process(driver.pid).children(recursive=True) if driver.poll() is None else []
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        _, alive = psutil.wait_procs(family, timeout=WAIT_S_MAX)
        assert alive == [], "the JVM and its workers end with the driver"
    driver = start(tmp_path)
    assert driver.wait(WAIT_S_MAX) == 0, (tmp_path / "driver.log").read_text()[-2_000:]
    assert [rows(envelopes) for envelopes in collected(tmp_path / "out").values()] == expected
