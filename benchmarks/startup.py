"""How long until Spark works: session, first query, first streaming batch; ours against plain PySpark, in one run. And the demo: time to the first alarm.

Each figure is the median over fresh processes, taken in turns so that a busy machine slows both alike. Plain PySpark is `SparkSession.builder` with nothing
set but two shuffle partitions (its default of 200 would be unfair), the query an aggregate that needs no Python worker. The demo starts a broker, Spark with Python workers and
the fire-alarm pipeline; the fire breaks out some simulated seconds after the start, which is part of its figure.
    python benchmarks/startup.py [--rounds 3] [--only plain bare ours demo] [--quick] [--json]"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime

_COMMON = """
import json, sys, time
from pathlib import Path
began = time.perf_counter()
times = {}
folder = Path(sys.argv[1])
def mark(name): times[name] = round(time.perf_counter() - began, 3)
def first_batch(spark):
    frame = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100).load().groupBy("value").count()
    query = frame.writeStream.format("noop").outputMode("update").option("checkpointLocation", str(folder / "checkpoint")).start()
    while not query.recentProgress:
        time.sleep(0.01)
    mark("first streaming batch")
    query.stop()
"""
_PLAIN = (
    _COMMON
    + """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "true").config("spark.sql.shuffle.partitions", "2").config("spark.log.level", "ERROR").getOrCreate()
mark("session")
spark.range(10).selectExpr("sum(id)").collect(); mark("first query")
first_batch(spark)
print(json.dumps(times)); spark.stop()
"""
)
_OURS = (
    _COMMON
    + """
from penstock.profile import Profile
from penstock.spark.session import session, stop_session
spark = session(Profile(data=folder, spark="local[2]"))
mark("session")
spark.range(10).selectExpr("sum(id)").collect(); mark("first query")
first_batch(spark)
print(json.dumps(times)); stop_session()
"""
)


VARIANTS = {"plain": "plain PySpark", "bare": "penstock without archive", "ours": "penstock", "demo": "penstock demo"}


def measure(variant: str) -> dict[str, float]:
    """Seconds since the program's first line (the demo: since the command), in a fresh process."""
    from penstock.spark.java import find_java

    environment = os.environ | {
        "PENSTOCK_ARCHIVE": "off" if variant == "bare" else "on",
        "JAVA_HOME": str(find_java().home),
        "PYSPARK_PYTHON": sys.executable,
    }
    with tempfile.TemporaryDirectory() as folder:
        if variant == "demo":
            command = [sys.executable, "-m", "penstock.cli", "demo", "--json", "--seconds", "300", "--speed", "60", "--data", folder]
        else:
            command = [sys.executable, "-c", _PLAIN if variant == "plain" else _OURS, folder]
        began = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=200)
        seconds = time.perf_counter() - began
    if done.returncode:
        raise RuntimeError(f"{VARIANTS[variant]} ended with {done.returncode}: {done.stderr[-2000:]}")
    if variant == "demo":
        summary = json.loads(done.stdout)
        fire = datetime.fromisoformat(summary["fire"]["at"])
        found = {"first_alarm": summary["first_alarm_s"], "whole_run": round(seconds, 2)}
        started = fire.replace(hour=0, minute=0, second=0)
        return found | {"of_it_simulated_until_fire": round((fire - started).total_seconds() / 60, 2)}
    times: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--quick", action="store_true", help="one round")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if "ours" in options.only or "demo" in options.only:
        measure("ours")  # writes the archive, if there is none yet
    seen: dict[str, list[dict[str, float]]] = {name: [] for name in VARIANTS if name in options.only}
    for _ in range(1 if options.quick else options.rounds):
        for name, runs in seen.items():
            runs.append(measure(name))
    medians = {name: {what: round(statistics.median(each[what] for each in runs), 2) for what in runs[0]} for name, runs in seen.items()}
    ratios: dict[str, float] = {}
    if plain := medians.get("plain"):
        if ours := medians.get("ours"):
            ratios |= {f"{what}, plain PySpark to penstock": round(plain[what] / ours[what], 2) for what in plain}
        if demo := medians.get("demo"):
            what = "first streaming batch"
            ratios["first alarm of the demo to plain PySpark's first streaming batch"] = round(demo["first_alarm"] / plain[what], 2)
    if options.json:
        print(json.dumps({"seconds": medians, "each": seen, "ratios": ratios}))
        return
    for name, figures in medians.items():
        print(f"{VARIANTS[name]:26}" + "   ".join(f"{what} {value:5.2f} s" for what, value in figures.items()))
    for what, ratio in ratios.items():
        print(f"{what}: {ratio:.2f}")


if __name__ == "__main__":
    main()
