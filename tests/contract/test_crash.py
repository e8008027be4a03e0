"""The broker is killed under load: nothing acknowledged is lost, doubled or reordered. A thousand times in `chaos/kill_broker.py`."""

import random
import time
from pathlib import Path

import pytest

from penstock.testing.crash import Load, Victim, run_round, summary


@pytest.mark.parametrize("durability", ["group", "os"])
def test_kills_under_load_break_no_law(tmp_path: Path, durability: str) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    victim, begin = Victim(tmp_path, durability=durability), time.monotonic()
    victim.start()
    try:
        report = run_round(victim, Load(cycles=4), random.Random(seed))
    finally:
        victim.close()
    print(summary([report], seconds=time.monotonic() - begin))
    assert report.acknowledged > 100, "there was hardly any load, so nothing was shown"
    assert not report.anomalies, "\n".join(map(str, report.anomalies[:20]))
    assert not report.rolled_back, report.rolled_back
