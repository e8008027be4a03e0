"""The kernel host against Spark's native aggregate and PySpark's `transformWithState` per key, on the same Parquet stream.

A 10 s tumbling count and average per key; with `--slices` the same over sliding windows of so many 5 s slices, with `--process` a user's function per record. Every path reads the same
files, one per batch, in one session with the same settings, emits final windows (append; per key: a row per changed window) and drops the rows in Spark's
`noop` sink. Figures are medians of whole micro-batches (`triggerExecution`) after a warm-up:
    full            all keys active             one_percent     1 % of the keys, 1 % of the rows
    empty           ten rows                    *_state_bytes   changelog written by such a batch, per key active in it
Memory is the greatest proportional set size of the JVM and of its Python workers. The per-key operator may get a share of keys and rows
(`--per-key-share`): its time above an almost empty batch is then scaled up by what was left out, which favours it (less state, fewer keys).
    python benchmarks/host.py [--keys 1000 200000] [--slices 12 60 720 | --process] [--only native per_key] [--quick] [--json]"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
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
SLIDE_S = 5
FILE_S = 10  # event time that a file covers: each file closes the windows of the one before
FEW, EMPTY = 5, 4  # files with 1 % of the keys, and with ten rows; the first two (one) still clean up after the larger ones


def write_files(folder: Path, *, keys: int, rows: int, batches: int, only_full: bool = False) -> Path:
    """`batches` full files, then those in which 1 % of the keys are active, then those of ten rows."""
    folder.mkdir(parents=True)
    randomness = np.random.default_rng(7)
    shapes = [(rows, keys)] * batches
    if not only_full:
        shapes += [(max(10, rows // 100), max(1, keys // 100))] * FEW + [(10, keys)] * EMPTY
    for number, (count, active) in enumerate(shapes):
        names = np.char.add("key-", randomness.integers(0, active, count).astype(str))
        at = number * FILE_S * 1_000_000 + randomness.integers(0, FILE_S * 1_000_000, count)
        table = pa.table({"k": names, "v": randomness.random(count), "at": pa.array(at, type=pa.timestamp("us", tz="UTC"))})
        pq.write_table(table, folder / f"{number:04d}.parquet", row_group_size=max(1_000, count // 8))  # so that all cores can read
    return folder


# ── The paths ────────────────────────────────────────────────────────────────────────────────────────────────────────


def native(frame: Any, _: Any, *, slices: int | None) -> Any:
    from pyspark.sql import functions as f

    window = f.window("at", f"{FILE_S} seconds") if slices is None else f.window("at", f"{slices * SLIDE_S} seconds", f"{SLIDE_S} seconds")
    return frame.withWatermark("at", "1 second").groupBy(window, "k").agg(f.count("*").alias("n"), f.avg("v").alias("a"))


def kernel(frame: Any, spark: Any, *, slices: int | None) -> Any:
    kind = ps.tumbling(f"{FILE_S}s") if slices is None else ps.sliding(f"{slices * SLIDE_S}s", every=f"{SLIDE_S}s")
    stream = ps.from_dataframe(frame, schema=SCHEMA).event_time("at", lateness="1s")
    return stream.key_by("k").window(kind).aggregate(n="count(*)", a="avg(v)").to_dataframe(spark)


def per_key(frame: Any, _: Any) -> Any:
    """The same tumbling window as careful PySpark: rows of a call are combined first, then one read and one write per window."""
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor
    from pyspark.sql.types import Row

    width_s = FILE_S

    class Windows(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.open = handle.getMapState("open", "start BIGINT", "n BIGINT, total DOUBLE")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            found: dict[int, tuple[int, float]] = {}
            for row in rows:
                start = int(row.at.timestamp()) // width_s * width_s
                n, total = found.get(start, (0, 0.0))
                found[start] = (n + 1, total + row.v)
            for start, (n, total) in found.items():
                if self.open.containsKey((start,)):
                    before = self.open.getValue((start,))
                    n, total = n + before[0], total + before[1]
                self.open.updateValue((start,), (n, total))
                yield Row(k=key[0], start=start, n=n, a=total / n)

    return frame.groupBy("k").transformWithState(
        Windows(), "k STRING, start BIGINT, n BIGINT, a DOUBLE", outputMode="Update", timeMode="None"
    )


@ps.process(state="most DOUBLE", output="k STRING, most DOUBLE", order="arrival")
def rolling_max(event: Any, state: Any, out: Any) -> None:
    if state.most is None or event.v > state.most:
        state.most = event.v
    out.emit(k=event.k, most=state.most)


def kernel_process(frame: Any, spark: Any) -> Any:
    """The user's function per record: the greatest value so far of its key."""
    stream = ps.from_dataframe(frame, schema=SCHEMA).event_time("at", lateness="1s")
    return stream.key_by("k").process(rolling_max).to_dataframe(spark)


def per_key_process(frame: Any, _: Any) -> Any:
    """The same with PySpark's operator: the state is read and written once per call, not per record."""
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor
    from pyspark.sql.types import Row

    class Most(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.most = handle.getValueState("most", "most DOUBLE")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            most = self.most.get()[0] if self.most.exists() else None
            for row in rows:
                if most is None or row.v > most:
                    most = row.v
                yield Row(k=key[0], most=most)
            self.most.update((most,))

    return frame.groupBy("k").transformWithState(Most(), "k STRING, most DOUBLE", outputMode="Append", timeMode="None")


# ── Measuring ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Peak:
    """The greatest memory of this process' children while it is watched: the JVM, and everything else (Python workers)."""

    def __enter__(self) -> Peak:
        self.jvm_bytes, self.python_bytes, self._done = 0, 0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(1.0):
            sizes = {True: 0, False: 0}
            for each in psutil.Process().children(recursive=True):
                try:
                    sizes[each.name() == "java"] += int(each.memory_full_info().pss)
                except (psutil.Error, AttributeError):
                    continue
            self.jvm_bytes, self.python_bytes = max(self.jvm_bytes, sizes[True]), max(self.python_bytes, sizes[False])


def changelog_bytes(checkpoint: Path) -> dict[int, int]:
    """Bytes of changelog per batch, over all operators, partitions and stores."""
    sizes: dict[int, int] = {}
    for file in checkpoint.rglob("*.changelog"):
        batch = int(file.name.split("_")[0].split(".")[0]) - 1
        sizes[batch] = sizes.get(batch, 0) + file.stat().st_size
    return sizes


def by_file(query: Any) -> dict[int, dict[str, Any]]:
    """The batch that read each file: the other batches of a query are ticks of the clock, or only close windows."""
    found = {}
    for batch in query.recentProgress:
        for source in batch["sources"]:
            if source["description"].startswith("FileStreamSource") and source["numInputRows"]:
                offset = source["endOffset"]
                found[int((json.loads(offset) if isinstance(offset, str) else offset)["logOffset"])] = batch
    return found


def measure(spark: Any, files: Path, query_of: Callable[[Any, Any], Any], *, mode: str, batches: int, seconds_max: float) -> dict[str, Any]:
    checkpoint = Path(tempfile.mkdtemp(prefix="checkpoint-"))
    frame = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(files))
    last = len(list(files.glob("*.parquet"))) - 1
    began = time.perf_counter()
    with Peak() as peak:
        writer = query_of(frame, spark).writeStream.format("noop").outputMode(mode).option("checkpointLocation", str(checkpoint))
        query = writer.start()
        while not (ended := last in by_file(query)) and time.perf_counter() - began < seconds_max and query.isActive:
            time.sleep(0.25)
        read = by_file(query)
        query.stop()
        if (failure := query.exception()) is not None:
            raise RuntimeError(str(failure)[:2000])
    walls = {file: batch["durationMs"]["triggerExecution"] for file, batch in read.items()}
    by_batch = changelog_bytes(checkpoint)
    bytes_of = {file: by_batch.get(batch["batchId"], 0) for file, batch in read.items()}
    shutil.rmtree(checkpoint, ignore_errors=True)
    warm = 2 if batches > 3 else 1
    parts = {
        "full": range(warm, batches),
        "one_percent": range(batches + 2, batches + FEW),
        "empty": range(batches + FEW + 1, batches + FEW + EMPTY),
    }
    found: dict[str, Any] = {"finished": ended, "seconds": round(time.perf_counter() - began, 1), "batches": len(walls)}
    for part, numbers in parts.items():
        times = [walls[number] for number in numbers if number in walls]
        found[f"{part}_ms"] = round(statistics.median(times)) if times else None
        found[f"{part}_state"] = round(statistics.median(bytes_of.get(number, 0) for number in numbers)) if times else None
    return found | {"jvm_mb": peak.jvm_bytes >> 20, "python_mb": peak.python_bytes >> 20}


def compare(spark: Any, root: Path, options: argparse.Namespace, *, keys: int, slices: int | None) -> dict[str, Any]:
    rows, batches, label = options.rows, options.batches, f"{keys:>9} keys" + (f", {slices} slices" if slices else "")
    files = write_files(root / f"files-{keys}-{slices}", keys=keys, rows=rows, batches=batches, only_full=slices is not None)
    found: dict[str, Any] = {"task": "process" if options.process else "window", "keys": keys, "rows": rows, "slices": slices}

    def run(name: str, query_of: Callable[[Any, Any], Any], *, given: Path = files, mode: str = "append", count: int = batches) -> None:
        found[name] = measure(spark, given, query_of, mode=mode, batches=count, seconds_max=options.seconds_max)
        if not options.json:
            print(f"{label}  {name:8} {found[name]}", flush=True)

    if "native" in options.only and not options.process:
        run("native", partial(native, slices=slices))
    run("kernel", kernel_process if options.process else partial(kernel, slices=slices))
    if "per_key" in options.only and slices is None:
        share = options.per_key_share
        fewer = write_files(root / f"files-per-key-{keys}", keys=int(keys * share), rows=int(rows * share), batches=3)
        if options.process:
            run("per_key", per_key_process, given=fewer, count=3)
        else:
            run("per_key", per_key, given=fewer, mode="update", count=3)
        slow = found["per_key"] | {"share": share}
        if slow["full_ms"] is not None and slow["empty_ms"] is not None:
            slow["scaled_ms"] = round(slow["empty_ms"] + (slow["full_ms"] - slow["empty_ms"]) / share)
        found["per_key"] = slow
    for name in ("native", "per_key"):
        found[f"ratios_{name}"] = ratios(found["kernel"], found.get(name), keys)
        if not options.json and found[f"ratios_{name}"]:
            print(f"{label}: kernel against {name}: {found[f'ratios_{name}']}", flush=True)
    return found


def ratios(ours: dict[str, Any], peer: dict[str, Any] | None, keys: int) -> dict[str, float]:
    """How many times less time, or fewer bytes of state per changed key, than the peer: above 1 is in our favour."""
    if peer is None:
        return {}
    pairs = {"full": (peer.get("scaled_ms", peer["full_ms"]), ours["full_ms"]), "almost empty": (peer["empty_ms"], ours["empty_ms"])}
    if "share" not in peer:  # with fewer keys, 1 % of them is something else
        pairs["1 % active"] = (peer["one_percent_ms"], ours["one_percent_ms"])
        if keys >= 100_000:  # below, what a batch writes at least hides what a key costs
            pairs["state per changed key"] = (peer["one_percent_state"], ours["one_percent_state"])
    return {what: round(theirs / mine, 2) for what, (theirs, mine) in pairs.items() if theirs and mine}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, nargs="+", default=[1_000, 200_000])
    parser.add_argument("--slices", type=int, nargs="*", default=[], help="sliding windows of so many slices instead of a tumbling one")
    parser.add_argument(
        "--process", action="store_true", help="a user's function per record (greatest value so far) instead of a window; no native peer"
    )
    parser.add_argument("--only", nargs="+", choices=["native", "per_key"], default=["native", "per_key"], help="which peers")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of a full batch")
    parser.add_argument("--batches", type=int, default=6, help="full ones, of which the first two (of up to three: one) warm up")
    parser.add_argument("--per-key-share", type=float, default=0.1, help="part of the keys and rows that the per-key operator gets")
    parser.add_argument("--seconds-max", type=float, default=200, help="give a path up after so long")
    parser.add_argument("--quick", action="store_true", help="few rows and batches: shows that it works, says little")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.rows, options.batches, options.keys = 50_000, 3, [1_000]
    root = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    results: list[dict[str, Any]] = []
    try:
        spark = session(Profile(data=root / "data", spark="local[2]"), memory_mb=3072)
        results += [
            compare(spark, root, options, keys=keys, slices=slices) for keys in options.keys for slices in (options.slices or [None])
        ]
    finally:
        stop_session()
        shutil.rmtree(root, ignore_errors=True)
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
