"""What a windowed aggregate costs in its kernel, without Spark: CPU seconds per batch, and bytes of state per batch.

    python -m benchmarks.window_kernel [--rows 1000000]
Rows are split into 16 key groups beforehand, as the scan does; each line is the median of the batches after the first."""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.dataflow import trigger, window
from penstock.dataflow.aggregate import Aggregate
from penstock.kernels.kernel import NEVER_US, Context
from penstock.kernels.window import WindowKernel
from penstock.schema import Schema

GROUPS = 16
BATCH_US = 5_000_000
SCHEMA = Schema.of("key STRING, value DOUBLE")
AVERAGE = (Aggregate("mean", "avg", "value", "DOUBLE"),)


def groups_of(rows: int, keys: int, *, batch: int) -> list[pa.Table]:
    source = np.random.default_rng(batch)
    key, values = source.integers(0, keys, rows), source.random(rows)
    times = source.integers(batch * BATCH_US, (batch + 1) * BATCH_US, rows)
    names = np.array([f"sensor-{number}" for number in range(keys)])
    tables = []
    for group in range(GROUPS):
        mine = np.flatnonzero(key % GROUPS == group)
        tables.append(pa.table({
            "key": pa.array(names[key[mine]]), "value": values[mine], "_time": times[mine], "_source": np.zeros(mine.size, np.int32),
            "_partition": np.zeros(mine.size, np.int32), "_offset": np.arange(mine.size),
        }))  # fmt: skip
    return tables


def measure(label: str, kind: window.Window, *, rows: int, keys: int, batches: int = 5, combined: bool = False, **options: Any) -> None:
    kernel = WindowKernel(schema=SCHEMA, keys=("key",), window=kind, aggregates=AVERAGE, **options)
    instances = [kernel.start() for _ in range(GROUPS)]
    figures: list[tuple[float, float, int, int]] = []
    watermark_us = NEVER_US
    for batch in range(batches):
        tables = groups_of(rows, keys, batch=batch)
        next_us = batch * BATCH_US
        begin = time.process_time()
        given = [kernel.combine(table) for table in tables] if combined else tables
        outputs = [instance.on_batch([table], Context(watermark_us, next_us, 0)) for instance, table in zip(instances, given)]
        middle = time.process_time()
        saved = sum(len(instance.save(full=False) or b"") for instance in instances)
        panes = sum(output.rows.num_rows for output in outputs if output.rows is not None)
        figures.append((middle - begin, time.process_time() - middle, panes, saved))
        watermark_us = next_us
    seconds, saving, panes, saved = (statistics.median(column) for column in zip(*figures[1:]))
    print(
        f"{label:<34} {rows / seconds / 1e6:8.2f} M rows/s  {seconds:7.3f} s + {saving:6.3f} s saving  {panes:>9.0f} panes  {saved / 1e6:7.2f} MB state"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    rows = parser.parse_args().rows
    measure("(compiling)", window.sliding(60, every=5), rows=1_000, keys=10)
    few, many = 1_000, max(rows // 5, 1)
    for keys in (few, many):
        measure(f"tumbling, {keys} keys", window.tumbling(5), rows=rows, keys=keys)
        measure(f"tumbling combined, {keys} keys", window.tumbling(5), rows=rows, keys=keys, combined=True)
        measure(f"session, {keys} keys", window.session(3), rows=rows, keys=keys)
    for every in (5, 1):
        for size in (60, 720):
            measure(f"sliding {size} s every {every} s, {few} keys", window.sliding(size, every=every), rows=rows, keys=few)
    measure(
        f"early panes each batch, {many} keys",
        window.tumbling(5),
        rows=rows,
        keys=many,
        trigger=trigger.after_watermark(early=trigger.after_count(1)),
    )
    measure(f"1 % of {many} keys active", window.tumbling(5_000), rows=max(rows // 500, 1), keys=many)


if __name__ == "__main__":
    main()
