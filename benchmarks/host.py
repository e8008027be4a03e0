"""The kernel host against Spark's native aggregate and PySpark's `transformWithState` per key, on the same Parquet stream.

A 10 s tumbling count and average per key. Every path reads the same files, one per batch, into a sink that drops the rows;
the figure is the median batch after the first two. Also: a batch in which 1 % of the keys are active, an almost empty batch, the bytes of state written per
changed key, and the peak memory of the JVM and its workers.
    python benchmarks/host.py [--keys 1000 200000] [--rows 1000000] [--batches 5] [--per-key-s-max 200] [--json]"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

import penstock as ps
from penstock.profile import Profile
from penstock.spark.session import session, stop_session

SCHEMA = "k STRING, v DOUBLE, at TIMESTAMP"


def write_files(folder: Path, *, keys: int, rows: int, batches: int) -> None:
    """`batches` full files, then three in which 1 % of the keys are active, then three of ten rows."""
    folder.mkdir(parents=True)
    randomness = np.random.default_rng(7)
    shapes = [(rows, keys)] * batches + [(max(10, rows // 100), max(1, keys // 100))] * 3 + [(10, keys)] * 3
    for number, (count, active) in enumerate(shapes):
        names = np.char.add("key-", randomness.integers(0, active, count).astype(str))
        # Ten seconds of event time per file, in microseconds: each file closes the windows of the one before.
        at = number * 10_000_000 + randomness.integers(0, 10_000_000, count)
        table = pa.table({"k": names, "v": randomness.random(count), "at": pa.array(at, type=pa.timestamp("us", tz="UTC"))})
        pq.write_table(table, folder / f"{number:04d}.parquet")


class Peak:
    """The greatest memory (proportional set size where the system tells it) of this process' children while it is watched."""

    def __enter__(self) -> Peak:
        self.bytes_max, self._done = 0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.5):
            self.bytes_max = max(self.bytes_max, sum(_memory(each) for each in psutil.Process().children(recursive=True)))


def _memory(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except (psutil.Error, AttributeError):
        return 0


def native(frame: Any, _: Any) -> Any:
    from pyspark.sql import functions as f

    return (
        frame.withWatermark("at", "1 second").groupBy(f.window("at", "10 seconds"), "k").agg(f.count("*").alias("n"), f.avg("v").alias("a"))
    )


def kernel(frame: Any, spark: Any) -> Any:
    stream = ps.from_dataframe(frame, schema=SCHEMA).event_time("at", lateness="1s")
    return stream.key_by("k").window(ps.tumbling("10s")).aggregate(n="count(*)", a="avg(v)").to_dataframe(spark)


def per_key(frame: Any, _: Any) -> Any:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor
    from pyspark.sql.types import Row

    class Windows(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.open = handle.getMapState("open", "start BIGINT", "n BIGINT, total DOUBLE")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            for row in rows:
                start = int(row.at.timestamp()) // 10 * 10
                n, total = self.open.getValue((start,)) if self.open.containsKey((start,)) else (0, 0.0)
                self.open.updateValue((start,), (n + 1, total + row.v))
                yield Row(k=key[0], start=start, n=n + 1, a=(total + row.v) / (n + 1))

    return frame.groupBy("k").transformWithState(
        Windows(), "k STRING, start BIGINT, n BIGINT, a DOUBLE", outputMode="Update", timeMode="None"
    )


def measure(spark: Any, files: Path, query_of: Callable[[Any, Any], Any], *, mode: str, batches: int, seconds_max: float) -> dict[str, Any]:
    checkpoint = Path(tempfile.mkdtemp(prefix="checkpoint-"))
    frame = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(files))
    with Peak() as peak:
        writer = query_of(frame, spark).writeStream.format("noop").outputMode(mode).option("checkpointLocation", str(checkpoint))
        query = writer.trigger(availableNow=True).start()
        ended = query.awaitTermination(int(seconds_max))
        progress = [each for each in query.recentProgress if each["numInputRows"]]
        query.stop()
    walls = [each["durationMs"]["triggerExecution"] for each in progress]
    state = sum(file.stat().st_size for file in checkpoint.rglob("state/**/*") if file.is_file())
    shutil.rmtree(checkpoint, ignore_errors=True)
    if not ended:
        return {"finished": False, "batches_done": len(walls), "seconds": seconds_max}
    full, few, empty = walls[2:batches], walls[batches : batches + 3], walls[batches + 3 :]
    median = lambda values: round(statistics.median(values)) if values else None  # noqa: E731
    return {"finished": True, "full_ms": median(full), "one_percent_ms": median(few), "empty_ms": median(empty),
            "state_bytes": state, "memory_mb": peak.bytes_max >> 20}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, nargs="+", default=[1_000, 200_000])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--per-key-s-max", type=float, default=200, help="give the per-key operator up after so long")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    results: dict[int, dict[str, dict[str, Any]]] = {}
    try:
        spark = session(Profile(data=root / "data", spark="local[2]"), memory_mb=3072)
        for keys in options.keys:
            files = root / f"files-{keys}"
            write_files(files, keys=keys, rows=options.rows, batches=options.batches)
            paths = {
                "native": (native, "update", 900.0),
                "kernel": (kernel, "append", 900.0),
                "per key": (per_key, "update", options.per_key_s_max),
            }
            results[keys] = {}
            for name, (query_of, mode, seconds_max) in paths.items():
                began = time.perf_counter()
                results[keys][name] = measure(spark, files, query_of, mode=mode, batches=options.batches, seconds_max=seconds_max)
                if not options.json:
                    print(f"{keys:>9} keys  {name:8} {results[keys][name]}  ({time.perf_counter() - began:.0f} s)", flush=True)
            if not options.json:
                print(_ratios(keys, results[keys]), flush=True)
    finally:
        stop_session()
        shutil.rmtree(root, ignore_errors=True)
    if options.json:
        print(json.dumps(results))


def _ratios(keys: int, found: dict[str, dict[str, Any]]) -> str:
    ours, spark, slow = found["kernel"], found["native"], found["per key"]
    if not (ours["finished"] and spark["finished"]):
        return f"{keys:>9} keys  not finished"
    against = (
        f"{slow['full_ms'] / ours['full_ms']:.1f}x"
        if slow["finished"]
        else f"more than {slow['seconds'] * 1000 / ours['full_ms'] / max(1, slow['batches_done'] + 1):.0f}x"
    )
    return f"{keys:>9} keys  kernel against native {spark['full_ms'] / ours['full_ms']:.2f}x, against per key {against}, almost empty batch {ours['empty_ms']} ms (native {spark['empty_ms']} ms)"


if __name__ == "__main__":
    main()
