"""Kill the embedded broker a thousand times under load: 0 acknowledged records lost, 0 duplicates, 0 reordered, 0 commits rolled back.

    python chaos/kill_broker.py [--cycles 1000] [--seed N] [--durability group|os] [--data DIR]

Rounds of ten kills each on one data directory; every round has a new topic, new clients and its own verdict, so memory stays
bounded. The seed is printed first and decides when the kills come and which tails are torn; the clients' timing is their own."""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from penstock.testing.crash import Load, Report, Victim, run_round, scratch_root, summary

CYCLES_PER_ROUND = 10


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cycles", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--durability", choices=("group", "os"), default="group")
    parser.add_argument("--data", type=Path, default=None, help="kept afterwards; default: a temporary directory, kept only on failure")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    print(f"seed {seed}, level {options.durability}, {options.cycles} kills", flush=True)
    data = options.data or Path(tempfile.mkdtemp(prefix="penstock-kill-", dir=scratch_root()))
    rng, begin, reports = random.Random(seed), time.monotonic(), list[Report]()
    victim = Victim(data, durability=options.durability)
    try:
        victim.start()
        left = options.cycles
        while left > 0:
            report = run_round(victim, Load(cycles=min(left, CYCLES_PER_ROUND)), rng)
            reports.append(report)
            left -= CYCLES_PER_ROUND
            done = sum(len(r.restarts_s) for r in reports)
            print(
                f"\r{done} kills, {sum(r.acknowledged for r in reports):,} acknowledged, {time.monotonic() - begin:.0f} s ",
                end="",
                flush=True,
            )
            if report.anomalies or report.rolled_back:
                break
    finally:
        victim.close()
    print("\n" + summary(reports, seconds=time.monotonic() - begin))
    bad = [str(anomaly) for report in reports for anomaly in report.anomalies] + [text for report in reports for text in report.rolled_back]
    if bad:
        print("\n".join(bad[:50]))
        print(f"data kept in {data}; seed {seed}")
        return 1
    if options.data is None:
        shutil.rmtree(data, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
