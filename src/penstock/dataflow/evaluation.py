"""Runs checked expressions on Arrow tables, in this process, with DuckDB.

Invariant: one output row per input row, in order. Times cross without their zone (they are UTC on both sides), so no time-zone library is asked."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock.schema import arrow_type

if TYPE_CHECKING:
    import pyarrow as pa

_local = threading.local()  # a connection per process and thread: workers are forked


def evaluate(table: pa.Table, expressions: Sequence[str], *, types: Sequence[str], columns: Sequence[str]) -> list[Any]:
    """The value of each DuckDB expression on each row, as Arrow arrays of the given types."""
    import pyarrow as pa

    if table.num_rows == 0:
        return [pa.chunked_array([], arrow_type(type)) for type in types]
    names = [name for name in dict.fromkeys(columns) if name in table.column_names]
    given = {name: _without_zone(table[name]) for name in names} or {"_row": pa.nulls(table.num_rows, pa.int8())}
    wanted = ", ".join(f"{text} AS c{index}" for index, text in enumerate(expressions))
    made = _connection().from_arrow(pa.table(given)).project(wanted).to_arrow_table()
    return [_with_type(made.column(index), type) for index, type in enumerate(types)]


def _connection() -> Any:
    if getattr(_local, "pid", None) != os.getpid():
        import duckdb

        # One thread: Spark runs as many workers as there are cores, and order must hold.
        _local.connection = duckdb.connect(":memory:", config={"threads": 1})
        _local.pid = os.getpid()
    return _local.connection


def _without_zone(column: pa.ChunkedArray) -> pa.ChunkedArray:
    import pyarrow as pa

    return column.cast(pa.timestamp("us")) if pa.types.is_timestamp(column.type) else column


def _with_type(column: pa.ChunkedArray, type: str) -> pa.ChunkedArray:
    wanted = arrow_type(type)
    return column if column.type == wanted else column.cast(wanted)
