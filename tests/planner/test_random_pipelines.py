"""Random pipelines on random records: what remains in the end is what plain Python computes, whatever the batches, groups, panes and restarts.

For event-time windows with triggers that never finish and nothing late: the last accumulating pane, the sum of discarding panes and the sum
by sign of retracting panes are one and the same. Every case prints its seed; PENSTOCK_SEEDS=n runs n of them."""

from __future__ import annotations

import os
import random
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import penstock as ps
from penstock.planner.rules import NAMES
from penstock.testing.simulation import Value, simulate

START = datetime(2026, 1, 1, tzinfo=UTC)
SEEDS = range(int(os.environ.get("PENSTOCK_SEEDS", "8")))
LATENESS_S = 30
Totals = dict[tuple[Any, int, int], tuple[int, int]]  # (key, start, end) → (sum, count)


def random_window(chance: random.Random) -> ps.Window:
    size = chance.choice([1, 7, 10, 60])
    return chance.choice(
        [
            ps.tumbling(size),
            ps.tumbling(size, offset=size / 2),
            ps.sliding(size * 2, every=size),
            ps.sliding(size * 3, every=size * 2),
            ps.session(size),
        ]
    )


def random_trigger(chance: random.Random) -> ps.Trigger | None:
    count = chance.choice([1, 2, 5])
    return chance.choice(
        [
            None,
            ps.after_watermark(early=ps.after_count(count), late=ps.after_count(1)),
            ps.repeatedly(ps.after_count(count)),
            ps.repeatedly(ps.after_any(ps.after_count(count), ps.after_watermark())),
            ps.after_each(ps.after_count(count), ps.repeatedly(ps.after_count(2))),
        ]
    )


def random_readings(chance: random.Random) -> list[tuple[str, int, int]]:
    """(key, second, n), out of order by less than the lateness."""
    readings = [(chance.choice("abcdefgh"), chance.randint(0, 200), chance.randint(-5, 5)) for _ in range(chance.choice([1, 20, 120]))]
    return sorted(readings, key=lambda reading: reading[1] + chance.uniform(0, LATENESS_S - 1))


def expected(window: ps.Window, readings: list[tuple[str, int, int]]) -> Totals:
    """The windows and their sums, by the definition."""
    from penstock.dataflow.window import Session, Sliding, Tumbling

    totals: dict[tuple[Any, int, int], list[int]] = defaultdict(list)
    if isinstance(window, Session):
        for key in {key for key, _, _ in readings}:
            mine = sorted((second * 1_000_000, n) for k, second, n in readings if k == key)
            groups: list[list[tuple[int, int]]] = []
            for at, n in mine:
                if groups and at < groups[-1][-1][0] + (window.gap_us or 0):
                    groups[-1].append((at, n))
                else:
                    groups.append([(at, n)])
            for group in groups:
                totals[(key, group[0][0], group[-1][0] + (window.gap_us or 0))] = [n for _, n in group]
    else:
        assert isinstance(window, Tumbling | Sliding)
        every = window.every_us if isinstance(window, Sliding) else window.size_us
        zero = int(START.timestamp()) * 1_000_000  # windows are aligned to 1970, not to our start
        for key, second, n in readings:
            at = zero + second * 1_000_000
            last = (at - window.offset_us) // every * every + window.offset_us
            for start in range(last, at - window.size_us, -every):
                totals[(key, start - zero, start - zero + window.size_us)].append(n)
    return {window: (sum(values), len(values)) for window, values in totals.items()}


def remaining(rows: list[dict[str, Any]], refinement: str) -> Totals:
    """What a reader has in the end, who reads as the refinement says."""
    made: Totals = {}
    for row in rows:
        start, end = ((row[name] - START) // timedelta(microseconds=1) for name in ("window_start", "window_end"))
        before = made.get((row["key"], start, end), (0, 0))
        total, count = row["total"] or 0, row["n"]
        sign = row.get("sign", 1)
        made[(row["key"], start, end)] = (
            (total, count) if refinement == "accumulating" else (before[0] + sign * total, before[1] + sign * count)
        )
    return {window: value for window, value in made.items() if value != (0, 0)}


@pytest.mark.parametrize("seed", SEEDS)
def test_what_remains_does_not_depend_on_panes_batches_groups_or_restarts(seed: int) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)
    window, trigger, readings = random_window(chance), random_trigger(chance), random_readings(chance)
    # A session that swallows others only takes their panes back if it retracts.
    refinements = (
        ["retracting"] if isinstance(window, type(ps.session(1))) and trigger is not None else ["discarding", "accumulating", "retracting"]
    )
    for refinement in refinements:
        stream = ps.read("numbers", "key STRING, n INT, at TIMESTAMP").event_time("at", lateness=LATENESS_S).key_by("key").window(window)
        stream = (stream.trigger(trigger) if trigger is not None else stream).accumulate(refinement)  # type: ignore[arg-type]
        pipeline = stream.aggregate(total="sum(n)", n="count(*)").write("out")
        simulation = simulate(pipeline, groups=chance.choice([1, 3, 8]), without=chance.choice([(), NAMES]))
        rest = list(readings)
        while rest:
            size = chance.choice([1, 3, 10, 50])
            batch: list[tuple[str, int, Value]] = []
            for key, second, n in rest[:size]:
                batch.append(("numbers", chance.randint(0, 1), {"key": key, "n": n, "at": START + timedelta(seconds=second)}))
            simulation.batch(batch)
            rest = rest[size:]
            if chance.random() < 0.2:
                simulation.restart()
        simulation.end()
        wanted = {key: value for key, value in expected(window, readings).items() if value != (0, 0)}
        assert remaining(simulation.rows("out"), refinement) == wanted, f"{window} {trigger} {refinement}"
        assert simulation.counts["late"] == 0
