"""Compile the loops of scan and sink, or load them from the cache: `python -m penstock.spark.warm`.

Compiling takes seconds, once per machine and version; the cache lies beside the source, or in the user's cache where that cannot be
written. Only numpy is used here, so a process may do this before it forks workers. Invariant: after `warm()`, reading and writing
JSON topics compiles nothing (tests/spark/test_warm.py)."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.spark import json_loops, loops
from penstock.spark.decode import read_only


def warm() -> None:
    """Call every loop once, with no rows but with the kinds of arrays that it will get."""
    data = read_only(np.zeros(64, np.uint8))
    none, one = np.zeros(0, np.int64), np.zeros(1, np.int64)
    batches = np.zeros((1, loops.BATCH_COLUMNS), np.int64)
    loops.walk(data, 0, 0, batches)
    loops.records(data, batches[:0], np.zeros((0, 2), np.int64), 0, 0, np.zeros((loops.RECORD_COLUMNS, 0), np.int64))
    loops.gather(data, none, none, np.zeros(0, np.uint8), np.zeros(1, np.int32), np.zeros(0, np.uint8))
    loops.headers(data, none, none, np.zeros((0, 4), np.int64), np.zeros(1, np.int32))
    _warm_json(data, none)
    flags, ends = read_only(np.zeros(0, np.uint8)), read_only(one)
    spans = (data, ends, flags)
    loops.put_records(read_only(none), *spans, *spans, data, ends, read_only(none), 0, np.zeros(0, np.uint8))
    loops.place_keys(*spans, 1, 0, none)
    json_loops.put_instants(read_only(none), 3, np.zeros(0, np.uint8))


def _warm_json(data: Any, none: Any) -> None:
    cells = np.zeros((1, 0), np.int64)
    sizes, states, rows = np.zeros((1, 0), np.int32), np.zeros((1, 0), np.uint8), np.zeros(0, np.uint8)
    hows = np.zeros(1, np.int64)
    json_loops.json_rows(data, none, none, data, np.zeros(2, np.int64), hows, cells, cells.view(np.float64), sizes, states, rows)
    json_loops.gather_text(data, cells[0], sizes[0], states[0], rows, np.zeros(0, np.uint8), np.zeros(1, np.int32))


if __name__ == "__main__":
    warm()
