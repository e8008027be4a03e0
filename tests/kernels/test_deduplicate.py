"""Of equal ids less than `within` apart, the first passes; the rest are counted."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from penstock.kernels.deduplicate import DeduplicateKernel
from penstock.kernels.kernel import FOREVER_US, NEVER_US, Context
from penstock.schema import Schema

SCHEMA = Schema.of("id STRING, value BIGINT")
WITHIN_US = 10


def rows(*records: tuple[Any, int | None], first: int = 0) -> pa.Table:
    return pa.table(
        {
            "id": pa.array([record[0] for record in records], pa.string()),
            "value": pa.array(range(first, first + len(records)), pa.int64()),
            "_time": pa.array([record[1] for record in records], pa.int64()),
            "_source": pa.array([0] * len(records), pa.int32()),
            "_partition": pa.array([0] * len(records), pa.int32()),
            "_offset": pa.array(range(first, first + len(records)), pa.int64()),
        }
    )


class Running:
    def __init__(self, within_us: int = WITHIN_US) -> None:
        self.kernel = DeduplicateKernel(("id",), within_us, ("id",), SCHEMA)
        self.instance = self.kernel.start()
        self.watermark_us = NEVER_US
        self.saves: list[bytes] = []

    def feed(self, *records: tuple[Any, int | None], first: int = 0, watermark: int | None = None) -> tuple[list[int], dict[str, int]]:
        """The values that passed, and the counts."""
        before_us = self.watermark_us
        self.watermark_us = before_us if watermark is None else watermark
        out = self.instance.on_batch([rows(*records, first=first)], Context(before_us, self.watermark_us, 0))
        return ([] if out.rows is None else out.rows["value"].to_pylist()), dict(out.counts)

    def restart(self) -> None:
        saved = self.instance.save(full=not self.saves)
        self.saves += [saved] if saved is not None else []
        self.instance = self.kernel.restore(self.saves)


def test_repeats_in_a_batch_and_across_batches_are_dropped_and_counted() -> None:
    running = Running()
    assert running.feed(("a", 1), ("b", 1), ("a", 2), ("a", 3)) == ([0, 1], {"duplicates": 2, "ids": 2})
    running.restart()
    assert running.feed(("b", 5), ("c", 5), first=10) == ([11], {"duplicates": 1, "ids": 3})


def test_the_same_id_passes_again_after_the_time() -> None:
    running = Running()
    assert running.feed(("a", 0), ("a", 9), ("a", 10), ("a", 19), ("a", 20))[0] == [0, 2, 4]


def test_a_record_from_before_is_a_repeat_too() -> None:
    assert Running().feed(("a", 20), ("a", 11), ("a", 10))[0] == [0, 2]


def test_out_of_order_records_are_judged_exactly_until_they_are_too_old() -> None:
    running = Running()
    running.feed(("a", 100), watermark=115)
    assert running.feed(("a", 106), ("b", 106), first=1) == ([2], {"duplicates": 1, "ids": 2})
    passed, counts = running.feed(("c", 105), ("c", 104), ("d", None), first=3)
    assert (passed, counts["late"]) == ([], 3), "the watermark is 115: what is at 105 or before can no longer be judged"


def test_ids_are_forgotten_and_a_restart_forgets_them_too() -> None:
    running = Running()
    running.feed(("a", 1), ("b", 50), watermark=21)
    assert running.feed(watermark=22)[1]["ids"] == 1
    running.restart()
    assert running.feed(watermark=1_000)[1]["ids"] == 0
    running.restart()
    assert running.feed(("a", 995), first=9)[0] == [9]


@pytest.mark.parametrize("strange", [None, "", "é" * 1000])
def test_any_id_is_an_id(strange: str | None) -> None:
    running = Running()
    assert running.feed((strange, 1), (strange, 1))[0] == [0]
    running.restart()
    assert running.feed((strange, 1), first=5)[0] == []


def test_saves_follow_what_is_new() -> None:
    running = Running(within_us=1_000_000)
    running.feed(*((f"id-{n}", n) for n in range(5_000)))
    full = running.instance.save(full=True)
    assert running.instance.save(full=False) is None
    running.feed(("one more", 5_000))
    change = running.instance.save(full=False)
    assert full is not None
    assert change is not None
    assert len(change) < 1_000 < len(full) // 50


@pytest.mark.parametrize("seed", range(30))
def test_it_agrees_with_a_plain_reading_of_the_rule(seed: int) -> None:
    print(f"seed {seed}")
    random_source = random.Random(seed)
    running = Running()
    kept: list[tuple[str, int]] = []  # everything that ever passed
    watermark = 0
    offset = 0
    running.feed(watermark=0)
    for _ in range(25):
        batch = [(random_source.choice("abcdef"), watermark + random_source.randrange(-14, 30)) for _ in range(random_source.randrange(12))]
        expected = []
        for place, (name, time) in enumerate(batch):
            if time <= watermark - WITHIN_US:
                continue
            if not any(other == name and abs(time - each) < WITHIN_US for other, each in kept):
                kept.append((name, time))
                expected.append(offset + place)
        moved = watermark + random_source.randrange(0, 12)
        assert running.feed(*batch, first=offset, watermark=moved)[0] == expected
        watermark, offset = moved, offset + len(batch)
        if random_source.random() < 0.3:
            running.restart()
    assert running.feed(watermark=FOREVER_US)[1]["ids"] == 0
