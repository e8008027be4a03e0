"""kill -9 of the driver at random batches, on the real path: the topics then hold what an undisturbed run writes, and no process is left."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.embedded import broker
from penstock.testing import kill_driver as killing

pytestmark = pytest.mark.spark
KILLS = 2
READINGS = 210  # 14 batches
WITHIN = 5  # batches until a kill, at most


def test_a_killed_driver_is_followed_by_the_same_result(tmp_path: Path, spark: Any) -> None:
    seed = int(os.environ.get("PENSTOCK_SEED", time.time_ns() % 1_000_000))
    print("seed", seed)
    rng = random.Random(seed)
    made = killing.readings(seed, count=READINGS)
    with broker(durability="os") as running:
        killing.send(made, address=running.address)
        batches = killing.drive(tmp_path, address=running.address, run="undisturbed")
        assert batches >= READINGS // killing.RECORDS_PER_BATCH_MAX
        kills = [killing.kill(tmp_path, rng, address=running.address, run="killed", within=WITHIN) for _ in range(KILLS)]
        print(kills)
        assert all(kill.begun > 0 and kill.committed < batches for kill in kills), "killed in the middle"
        assert killing.drive(tmp_path, address=running.address, run="killed") == batches
        undisturbed = killing.written("undisturbed", address=running.address)
        rows = killing.written("killed", address=running.address)
    assert all(rows[topic] for topic in killing.OUTPUTS)
    assert killing.differences(rows, undisturbed) == []
    assert killing.wrong_totals(rows, made) == []


def test_a_lost_row_and_a_wrong_one_are_noticed() -> None:
    """The comparison itself, on rows made by hand."""
    made = [{"id": "r", "area": "a", "n": 3, "at": "2026-01-01T00:00:01+00:00"}]
    row = '{"area": "a", "sign": 1, "total": 3, "window_start": "2026-01-01T00:00:00.000Z"}'
    empty = {topic: killing.Counter[str]() for topic in killing.OUTPUTS}
    right, repeated = empty | {"panes": killing.Counter([row])}, empty | {"panes": killing.Counter([row, row])}
    assert killing.differences(repeated, right) == []
    assert killing.wrong_totals(repeated, made) == []
    assert len(killing.differences(empty, right)) == 1
    assert killing.wrong_totals(empty, made) != []
