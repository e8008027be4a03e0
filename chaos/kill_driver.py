"""Kill the driver of a pipeline many times: the rows in the topics are those of an undisturbed run, and nothing is left running.

    python chaos/kill_driver.py [--kills 30] [--seed N]

Rounds of up to five kills; every round has its own broker, readings, checkpoint and undisturbed run. The seed is printed first and
decides the readings and at which batches the kills come."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from penstock.broker.embedded import broker
from penstock.testing import kill_driver as killing

KILLS_PER_ROUND = 5
BATCHES_PER_KILL = 8
SPARE_BATCHES = 10  # after the last kill, so that none comes when all is done


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    print(f"seed {seed}, {options.kills} kills", flush=True)
    rng, begin, done = random.Random(seed), time.monotonic(), 0
    while done < options.kills:
        count = min(KILLS_PER_ROUND, options.kills - done)
        wrong = play(rng, kills=count)
        done += count
        print(f"{done} kills, {time.monotonic() - begin:.0f} s", flush=True)
        if wrong:
            print("\n".join(wrong[:50]))
            print(f"{len(wrong)} differences; seed {seed}")
            return 1
    print(f"{done} kills: the same rows as without them")
    return 0


def play(rng: random.Random, *, kills: int) -> list[str]:
    """One round; gives what is wrong."""
    count = (kills * BATCHES_PER_KILL + SPARE_BATCHES) * killing.RECORDS_PER_BATCH_MAX
    made = killing.readings(rng.randrange(1 << 32), count=count)
    with tempfile.TemporaryDirectory(prefix="penstock-kill-driver-") as folder, broker(durability="os") as running:
        place, address = Path(folder), running.address
        killing.send(made, address=address)
        batches = killing.finish(place, address=address, run="undisturbed")
        for _ in range(kills):
            print(killing.kill(place, rng, address=address, run="killed", within=BATCHES_PER_KILL), flush=True)
        again = killing.finish(place, address=address, run="killed")
        undisturbed = killing.written("undisturbed", address=address)
        rows = killing.written("killed", address=address)
    repeats = sum(sum(each.values()) - len(each) for each in rows.values())
    print(f"{len(made)} readings, {batches} batches, {sum(len(each) for each in rows.values())} rows, {repeats} of them written again")
    wrong = [] if again == batches else [f"{again} batches instead of {batches}"]
    return wrong + killing.differences(rows, undisturbed) + killing.wrong_totals(rows, made)


if __name__ == "__main__":
    sys.exit(main())
