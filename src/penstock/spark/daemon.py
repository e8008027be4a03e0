"""The process from which Spark forks its Python workers, with our libraries already imported.

Spark collects garbage after every task; with these libraries loaded that costs 100 ms a task. `gc.freeze` moves what was imported
out of the collector's sight, here and at the end of a worker's first tasks. Invariant: libraries are imported before the fork
and never used before it (polars hangs in a child whose parent has used it). Spark starts one daemon for each kind of worker; those that
only plan a query import nothing."""

from __future__ import annotations

import contextlib
import gc
import importlib
import socket
import sys

LIBRARIES = (
    "numpy",
    "pyarrow",
    "pyarrow.compute",
    "pandas",
    "numba",
    "duckdb",
    "pyspark.worker",
    "penstock.spark.host",
    "penstock.kernels.placement",
    "penstock.kernels.window",
    "penstock.spark.reader",
    "penstock.spark.writer",
)
# pandas is there because pyarrow imports it at the first conversion of a list.
FREEZES_MAX = 3  # a worker's first tasks import what is left


def main() -> None:
    from pyspark import daemon

    runs_tasks = sys.argv[1:2] == ["pyspark.worker"]
    for name in LIBRARIES if runs_tasks else ():
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    if runs_tasks:
        with contextlib.suppress(ImportError):
            importlib.import_module("penstock.spark.warm").warm()  # compiled loops are loaded once, not in every worker
    gc.collect()
    gc.freeze()
    work = daemon.worker
    freezes = 0

    def worker(sock: socket.socket, authenticated: bool) -> int:
        nonlocal freezes
        code = work(sock, authenticated)
        if freezes < FREEZES_MAX:
            freezes += 1
            gc.collect()
            gc.freeze()
        return code

    daemon.worker = worker
    daemon.manager()


if __name__ == "__main__":
    main()
