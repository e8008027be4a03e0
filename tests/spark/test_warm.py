"""After warming, reading and writing compile nothing: a worker's first batch must not wait for the compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import numpy as np, pyarrow as pa
from penstock.planner.physical import Scan
from penstock.schema import Schema
from penstock.spark import json_loops, loops
from penstock.spark.decode import HEADERS_TYPE, decode, read_batches
from penstock.spark.encode import Outgoing, record_batches
from penstock.spark.scan import ScanTask
from penstock.spark.serde import encode_json
from penstock.spark.warm import warm

warm()
functions = [each for module in (loops, json_loops) for each in vars(module).values() if hasattr(each, "signatures")]
before = {each.__name__: len(each.signatures) for each in functions}
schema = Schema.of("area STRING, n BIGINT, x DOUBLE, at TIMESTAMP, ok BOOLEAN")
table = pa.table({"area": ["a", None], "n": [1, 2], "x": [0.1, 0.12345678901234567], "at": pa.array([0, None], pa.timestamp("us", "UTC")), "ok": [True, None]})
values = pa.concat_arrays([encode_json(table), pa.array([b"bad", None], pa.binary())])
headers = pa.array([[{"key": "h", "value": b"x"}], None, [], None], HEADERS_TYPE)
for codec in range(5):
    for keys in (None, pa.array([b"k", None, b"l", b"m"])):
        for _, batch in record_batches(Outgoing(values, keys, headers, np.arange(4)), partitions=2, spare=1, codec=codec):
            frame = np.empty(len(batch), np.uint8)
            frame[:] = batch
            records = decode(read_batches(frame, start=0, end=len(frame), place="t/0"), start=0, end=9)
            scan = Scan(id=1, name="t", schema=schema, topics=("t",), feeds=(), dead_letters=2)
            list(ScanTask(scan, frozenset(), 0).take(("t", 0), records))
            records.keys(), records.values(), records.headers()
after = {each.__name__: len(each.signatures) for each in functions}
more = {name for name, count in after.items() if count > before[name]}
assert not more, f"compiled again: {more}"
assert sum(before.values()) >= 9
"""


def test_nothing_is_compiled_after_warming():
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=180, check=False, env=environment, cwd=Path(__file__).parent
    )
    assert done.returncode == 0, done.stderr[-2000:]
