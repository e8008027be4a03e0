"""Record at a time: a user's function per record (`process`) against Bytewax's `stateful_map`, both on one core, in one run.

The task is the greatest value so far of each key, emitted for every record. Both get their input ready in memory in the form they take (ours: Arrow tables of
one key group, as the scan leaves them; Bytewax: lists of `(key, value)` tuples, so it decodes nothing), both keep the garbage collector on, both drop
what they emit, and this process is pinned to one core. They take turns; figures are medians. "with state saved" adds what the Spark host does per batch: a change save.
    python -m benchmarks.process [--keys 1000 200000] [--records 1000000] [--rounds 3] [--quick] [--json]"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import bytewax.operators as op
import numpy as np
import pyarrow as pa
from bytewax.dataflow import Dataflow
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.testing import TestingSource, run_main

from penstock.dataflow.process import process
from penstock.kernels.kernel import NEVER_US, Context
from penstock.kernels.process import ProcessKernel
from penstock.schema import Schema

GROUPS = 16
BATCH_RECORDS = 100_000
BYTEWAX_BATCH = 1_000  # tuples per poll of its source: more is not faster


@process(state="most DOUBLE", output="key STRING, most DOUBLE", order="arrival")
def rolling_max(event: Any, state: Any, out: Any) -> None:
    if state.most is None or event.value > state.most:
        state.most = event.value
    out.emit(key=event.key_name, most=state.most)


def batches_of(names: list[str], values: Any, group_of: Any) -> list[list[pa.Table]]:
    """Per batch, one table per key group."""
    found: list[list[pa.Table]] = []
    for start in range(0, len(names), BATCH_RECORDS):
        rows = slice(start, start + BATCH_RECORDS)
        keys, numbers, groups = pa.array(names[rows]), values[rows], group_of[rows]
        tables = []
        for group in range(GROUPS):
            mine = np.flatnonzero(groups == group)
            tables.append(pa.table({
                "key_name": keys.take(pa.array(mine)), "value": numbers[mine], "_time": mine.astype(np.int64), "_source": np.zeros(mine.size, np.int32),
                "_partition": np.zeros(mine.size, np.int32), "_offset": start + mine,
            }))  # fmt: skip
        found.append(tables)
    return found


def run_kernel(batches: list[list[pa.Table]], *, saving: bool) -> int:
    kernel = ProcessKernel(rolling_max, ("key_name",), (Schema.of("key_name STRING, value DOUBLE"),), ("values",))
    instances = [kernel.start() for _ in range(GROUPS)]
    emitted = 0
    for tables in batches:
        for instance, table in zip(instances, tables):
            output = instance.on_batch([table], Context(NEVER_US, NEVER_US, 0))
            emitted += output.rows.num_rows if output.rows is not None else 0
            if saving:
                instance.save(full=False)
    return emitted


class _Dropped(StatelessSinkPartition[Any]):
    """Counts, keeps nothing."""

    count = 0

    def write_batch(self, items: list[Any]) -> None:
        _Dropped.count += len(items)


class _Drop(DynamicSink[Any]):
    def build(self, step_id: str, worker_index: int, worker_count: int) -> _Dropped:
        return _Dropped()


def _step(most: float | None, value: float) -> tuple[float, float]:
    if most is None or value > most:
        most = value
    return most, most


def run_bytewax(records: list[tuple[str, float]]) -> int:
    _Dropped.count = 0
    flow = Dataflow("rolling_max")
    stream = op.input("in", flow, TestingSource(records, batch_size=BYTEWAX_BATCH))
    op.output("out", op.stateful_map("max", stream, _step), _Drop())
    run_main(flow)  # type: ignore[no-untyped-call]
    return _Dropped.count


def compare(*, keys: int, records: int, rounds: int) -> dict[str, Any]:
    randomness = np.random.default_rng(7)
    key, values = randomness.integers(0, keys, records), randomness.random(records)
    names = [f"sensor-{number}" for number in key.tolist()]
    tables, tuples = batches_of(names, values, key % GROUPS), list(zip(names, values.tolist()))
    runs: dict[str, Callable[[], int]] = {
        "bytewax": lambda: run_bytewax(tuples),
        "process": lambda: run_kernel(tables, saving=False),
        "process with state saved": lambda: run_kernel(tables, saving=True),
    }
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            gc.collect()
            began = time.perf_counter()
            emitted = run()
            seconds[name].append(time.perf_counter() - began)
            assert emitted == records, f"{name} emitted {emitted} of {records}"
    rates = {name: round(records / statistics.median(found)) for name, found in seconds.items()}
    spread = {name: round(max(found) / min(found), 2) for name, found in seconds.items()}
    ratio = {name: round(rate / rates["bytewax"], 2) for name, rate in rates.items() if name != "bytewax"}
    return {"keys": keys, "records": records, "records_per_s": rates, "slowest_to_fastest": spread, "times_faster_than_bytewax": ratio}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, nargs="+", default=[1_000, 200_000])
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="few records, one round: shows that it works, says little")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.records, options.rounds, options.keys = 100_000, 1, [1_000]
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    assert gc.isenabled()
    compare(keys=10, records=1_000, rounds=1)  # imports and first calls
    results = [compare(keys=keys, records=options.records, rounds=options.rounds) for keys in options.keys]
    if options.json:
        print(json.dumps(results))
        return
    for found in results:
        print(f"{found['keys']:,} keys, {found['records']:,} records, one core")
        for name, rate in found["records_per_s"].items():
            print(
                f"  {name:26} {rate:>10,} records/s   {found['times_faster_than_bytewax'].get(name, 1.0):5.2f}x   (slowest/fastest {found['slowest_to_fastest'][name]})"
            )


if __name__ == "__main__":
    main()
