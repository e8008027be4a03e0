"""What a windowed aggregate costs in its kernel, without Spark: CPU seconds per batch, and bytes of state per batch.

Rows are split into 16 key groups beforehand, as the scan does; each line is the median of the batches after the first. The peer is polars: one stateless
`group_by(key, window).agg(mean)` over the same tables, rows repeated for each window they belong to (sliding). It keeps no state, sees no watermark and writes no panes,
so it is what the arithmetic alone costs: a ratio of 1 means that state, time and panes come free. Sessions have no such peer, and a batch with few rows tells nothing.
    python -m benchmarks.window_kernel [--rows 1000000] [--quick] [--json]"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import numpy as np
import polars
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


def polars_seconds(tables: list[pa.Table], kind: window.Window) -> float:
    """CPU seconds (all threads) of the stateless aggregate by polars."""
    assert isinstance(kind, window.Tumbling | window.Sliding)
    size_us, every_us = kind.size_us, kind.every_us if isinstance(kind, window.Sliding) else kind.size_us
    begin = time.process_time()
    for table in tables:
        frame = polars.DataFrame(table.select(["key", "value", "_time"]))
        start = (polars.col("_time") // every_us) * every_us
        if size_us != every_us:
            back = polars.Series([number * every_us for number in range(size_us // every_us)])
            frame = frame.with_columns(start=start).join(polars.DataFrame({"back": back}), how="cross")
            frame = frame.with_columns(start=polars.col("start") - polars.col("back"))
        else:
            frame = frame.with_columns(start=start)
        frame.group_by("key", "start").agg(polars.col("value").mean())
    return time.process_time() - begin


def measure(
    label: str, kind: window.Window, *, rows: int, keys: int, batches: int = 5, peer: bool = True, combined: bool = False, **options: Any
) -> dict[str, Any]:
    kernel = WindowKernel(schema=SCHEMA, keys=("key",), window=kind, aggregates=AVERAGE, **options)
    instances = [kernel.start() for _ in range(GROUPS)]
    figures: list[tuple[float, float, int, int, float]] = []
    watermark_us = NEVER_US
    for batch in range(batches):
        tables = groups_of(rows, keys, batch=batch)
        next_us = batch * BATCH_US
        begin = time.process_time()
        given = [kernel.combine(table) for table in tables] if combined else tables
        outputs = [instance.on_batch([table], Context(watermark_us, next_us, 0)) for instance, table in zip(instances, given)]
        middle = time.process_time()
        saved = sum(len(instance.save(full=False) or b"") for instance in instances)
        end = time.process_time()
        panes = sum(output.rows.num_rows for output in outputs if output.rows is not None)
        figures.append((middle - begin, end - middle, panes, saved, polars_seconds(tables, kind) if peer and batch > 1 else float("nan")))
        watermark_us = next_us
    seconds, saving, panes, saved = (statistics.median(column) for column in list(zip(*figures[1:]))[:4])
    found = {"what": label, "rows": rows, "keys": keys, "cpu_s": seconds, "saving_cpu_s": saving, "panes": panes, "state_bytes": saved}
    if peer:
        polars_s = statistics.median(figure[4] for figure in figures[2:])
        found |= {"polars_cpu_s": polars_s, "ratio_to_polars": round(polars_s / (seconds + saving), 2)}
    return found


def shown(found: dict[str, Any]) -> str:
    against = f"{found['ratio_to_polars']:6.2f}x polars" if "ratio_to_polars" in found else ""
    return (
        f"{found['what']:<40} {found['rows'] / found['cpu_s'] / 1e6:7.2f} M rows/s  {found['cpu_s']:7.3f} s + {found['saving_cpu_s']:6.3f} s saving"
        f"  {found['panes']:>9.0f} panes  {found['state_bytes'] / 1e6:7.2f} MB state  {against}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--quick", action="store_true", help="few rows: shows that it works, says little")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = 50_000 if options.quick else options.rows
    measure("(compiling)", window.sliding(60, every=5), rows=1_000, keys=10)
    few, many = 1_000, max(rows // 5, 1)
    results: list[dict[str, Any]] = []

    def add(label: str, kind: window.Window, **given: Any) -> None:
        results.append(measure(label, kind, **given))
        if not options.json:
            print(shown(results[-1]), flush=True)

    for keys in (few, many):
        add(f"tumbling, {keys} keys", window.tumbling(5), rows=rows, keys=keys)
        add(f"tumbling combined, {keys} keys", window.tumbling(5), rows=rows, keys=keys, combined=True)
        add(f"session, {keys} keys", window.session(3), rows=rows, keys=keys, peer=False)
    for every in (5, 1):
        for size in (60, 720):
            # Repeating a million rows 720 times is not for this memory: polars gets those of up to 60 slices.
            add(
                f"sliding {size} s every {every} s, {few} keys",
                window.sliding(size, every=every),
                rows=rows,
                keys=few,
                peer=size // every <= 60,
            )
    early = trigger.after_watermark(early=trigger.after_count(1))
    add(f"early panes each batch, {many} keys", window.tumbling(5), rows=rows, keys=many, trigger=early)
    add(f"1 % of {many} keys active", window.tumbling(5_000), rows=max(rows // 500, 1), keys=many, peer=False)
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
