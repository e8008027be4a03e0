"""Power losses on the simulated disk, a hundred thousand of them: `python -m chaos.power_loss [--states N] [--seed S]`.

Prints its seed first; a failing run names the seed and the step that show it again."""

from __future__ import annotations

import argparse
import logging
import random
import sys
import time

from penstock.log.commit import Durability
from penstock.testing.power_loss import LawBroken, Stats, run_many

LIVES: tuple[tuple[int, float, Durability], ...] = ((60, 0.15, "group"), (250, 0.05, "group"), (120, 0.1, "os"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--states", type=int, default=100_000, help="crash states to judge")
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}", flush=True)
    logging.getLogger("penstock.log").setLevel(logging.ERROR)  # every cut tail would be a line
    total, started = Stats(), time.monotonic()
    try:
        while total.states < arguments.states:
            # Short lives meet the beginnings of everything, long ones meet second compactions and many segments. Level os promises
            # less, and is judged by that.
            for actions, share, durability in LIVES:
                stats = run_many(
                    seed=seed, states=min(2_000, arguments.states - total.states), actions=actions, share=share, durability=durability
                )
                seed += 10_000
                total.states, total.steps, total.cut = total.states + stats.states, total.steps + stats.steps, total.cut + stats.cut
                for step, count in stats.by_step.items():
                    total.by_step[step] = total.by_step.get(step, 0) + count
                if total.states >= arguments.states:
                    break
            print(f"{total.states} states, {total.cut} with a torn tail, {time.monotonic() - started:.0f} s", flush=True)
    except LawBroken as broken:
        print(f"BROKEN: {broken}", file=sys.stderr)
        return 1
    for step, count in sorted(total.by_step.items(), key=lambda item: -item[1]):
        print(f"{count:8d} at {step}")
    print(f"0 promised records lost in {total.states} crash states")
    return 0


if __name__ == "__main__":
    sys.exit(main())
