"""A kernel small enough to be checked by eye: counts rows per key, and tells all counts when the watermark moves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.kernels.envelope import Envelope, Times, rows_to_stage, tick_to_stage, times_to_stage
from penstock.kernels.kernel import FOREVER_US, NEVER_US, Context, Output
from penstock.planner.physical import Clock, Feed, Input, PhysicalPlan, Sender, Sink, Stage
from penstock.schema import Schema

SCHEMA = Schema.of("k STRING, n BIGINT")


@dataclass(frozen=True)
class CountKernel:
    state_version: int = 1
    on_tick: bool = False  # tell the counts when the clock moves, too

    def start(self) -> Counting:
        return Counting(self, {}, 0)

    def restore(self, saved: Sequence[bytes]) -> Counting:
        counts: dict[str, int] = {}
        for part in saved:
            counts |= json.loads(part)
        now_us = counts.pop("_now", 0)
        return Counting(self, counts, now_us)


class Counting:
    def __init__(self, kernel: CountKernel, counts: dict[str, int], now_us: int) -> None:
        self.kernel, self.counts, self.now_us = kernel, counts, now_us
        self.changed: dict[str, int] = {}

    def on_batch(self, inputs: Sequence[pa.Table | None], at: Context) -> Output:
        late = 0
        for table in inputs:
            for row in table.to_pylist() if table is not None else ():
                if row["_time"] is not None and row["_time"] < at.watermark_us:
                    late += 1
                    continue
                self.counts[row["k"]] = self.changed[row["k"]] = self.counts.get(row["k"], 0) + row["n"]
        due = at.next_watermark_us > at.watermark_us or (self.kernel.on_tick and at.now_us > self.now_us)
        self.now_us = self.changed["_now"] = at.now_us
        rows = None
        if due and self.counts:
            keys = sorted(self.counts)
            time_us = min(at.next_watermark_us, FOREVER_US) if at.next_watermark_us > NEVER_US else None
            rows = pa.table({"k": keys, "n": [self.counts[key] for key in keys], "_time": pa.array([time_us] * len(keys), type=pa.int64())})
        return Output(rows=rows, counts={"late": late})

    def save(self, *, full: bool) -> bytes | None:
        changed, self.changed = self.changed, {}
        if full:
            return json.dumps(self.counts | {"_now": self.now_us}, sort_keys=True).encode()
        return json.dumps(changed, sort_keys=True).encode() if changed else None


def chain(*, groups: int = 4, on_tick: bool = False) -> PhysicalPlan:
    """script (0) → count per key (1) → count of those counts per key (2) → sink (3); stage 1's rows go to the sink as well."""
    first = Stage(
        1, "first", CountKernel(on_tick=on_tick), ("k",), groups, (Input("in", SCHEMA, (Sender(0, "scan", lateness_us=2),)),), SCHEMA, (),
        (Feed(2, SCHEMA, keys=("k",), groups=groups), Feed(3, SCHEMA)),
    )  # fmt: skip
    second = Stage(
        2,
        "second",
        CountKernel(),
        ("k",),
        groups,
        (Input("in", SCHEMA, (Sender(1, "stage", groups=groups),)),),
        SCHEMA,
        (),
        (Feed(3, SCHEMA),),
    )
    return PhysicalPlan((), (first, second), (Sink(3, "out", SCHEMA),), Clock())


def step(
    rows: Sequence[tuple[str, int]] = (), *, first_offset: int = 0, tick_us: int | None = None, ended: bool = False, groups: int = 4
) -> list[Envelope]:
    """One batch of the script: rows (key, time) with n = 1, and the controls that a scan would send."""
    envelopes: list[Envelope] = []
    if rows:
        table = pa.table(
            {
                "k": [key for key, _ in rows],
                "n": pa.array([1] * len(rows), type=pa.int64()),
                "_time": pa.array([time for _, time in rows], type=pa.int64()),
                "_source": pa.array([0] * len(rows), type=pa.int32()),
                "_partition": pa.array([0] * len(rows), type=pa.int32()),
                "_offset": pa.array(range(first_offset, first_offset + len(rows)), type=pa.int64()),
            }
        )
        envelopes += rows_to_stage(table, to=1, source=0, keys=["k"], groups=groups)
    greatest_us = max((time for _, time in rows), default=NEVER_US)
    envelopes += times_to_stage([Times(0, greatest_us, state=2 if ended else 0)], to=1, source=0, groups=groups)
    if tick_us is not None:
        envelopes += tick_to_stage(tick_us, to=1, groups=groups)
    return envelopes
