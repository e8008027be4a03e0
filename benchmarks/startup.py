"""How long until Spark works: session, first query, first streaming batch; ours against plain PySpark, in one run.

Each figure is the median over fresh processes, taken in turns so that a busy machine slows both alike.
    python benchmarks/startup.py [--rounds 3] [--json]"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

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


def measure(program: str, *, archive: bool) -> dict[str, float]:
    from penstock.spark.java import find_java

    environment = os.environ | {
        "PENSTOCK_ARCHIVE": "on" if archive else "off",
        "JAVA_HOME": str(find_java().home),
        "PYSPARK_PYTHON": sys.executable,
    }
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", program, folder], capture_output=True, text=True, env=environment, timeout=300, check=True
        )
    times: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    measure(_OURS, archive=True)  # writes the archive, if there is none yet
    variants = {"plain PySpark": (_PLAIN, False), "penstock without archive": (_OURS, False), "penstock": (_OURS, True)}
    seen: dict[str, list[dict[str, float]]] = {name: [] for name in variants}
    for _ in range(options.rounds):
        for name, (program, archive) in variants.items():
            seen[name].append(measure(program, archive=archive))
    medians = {name: {what: round(statistics.median(each[what] for each in runs), 2) for what in runs[0]} for name, runs in seen.items()}
    plain = medians["plain PySpark"]
    ratios = {what: round(plain[what] / medians["penstock"][what], 2) for what in plain}
    if options.json:
        print(json.dumps({"seconds": medians, "times_faster": ratios}))
        return
    for name, figures in medians.items():
        print(f"{name:26}" + "   ".join(f"{what} {value:5.2f} s" for what, value in figures.items()))
    print(f"{'times faster than plain':26}" + "   ".join(f"{what} {value:5.2f}  " for what, value in ratios.items()))


if __name__ == "__main__":
    assert Path(__file__).is_file()
    main()
