"""Columns of keys, and tables as bytes: what record-at-a-time kernels share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

_NAN = float("nan")


def unique_keys(rows: pa.Table, names: Sequence[str]) -> tuple[list[Any], Any]:
    """The distinct keys in order of appearance (values; tuples unless there is one key column), and for each row which one it has."""
    if not names:
        return [()], np.zeros(rows.num_rows, np.int64)
    values: list[list[Any]] = []
    codes: Any = None
    for name in names:
        column = rows[name].combine_chunks()
        encoded = (column.chunk(0) if isinstance(column, pa.ChunkedArray) else column).dictionary_encode(null_encoding="encode")
        values.append([one_nan(each) for each in encoded.dictionary.to_pylist()])
        own = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        codes = own if codes is None else codes * len(values[-1]) + own
    if len(names) == 1:
        return values[0], codes
    distinct, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    keys = []
    for code in distinct.tolist():
        key: list[Any] = []
        for each in reversed(values):
            code, place = divmod(code, len(each))
            key.append(each[place])
        keys.append(tuple(reversed(key)))
    rank = np.argsort(first, kind="stable")
    back = np.empty_like(rank)
    back[rank] = np.arange(rank.size)
    return [keys[place] for place in rank.tolist()], back[inverse]


def one_nan(value: Any) -> Any:
    # NaN is not equal to itself, but a tuple with the same NaN object is: all NaN keys are one key.
    return _NAN if isinstance(value, float) and value != value else value


def to_ipc(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def from_ipc(packed: bytes) -> pa.Table:
    return pa.ipc.open_stream(pa.BufferReader(packed)).read_all()


def framed(*pieces: bytes) -> bytes:
    return b"".join(part for piece in pieces for part in (len(piece).to_bytes(4, "little"), piece))


def unframed(framed: bytes) -> list[bytes]:
    pieces, place = [], 0
    while place < len(framed):
        size = int.from_bytes(framed[place : place + 4], "little")
        pieces.append(framed[place + 4 : place + 4 + size])
        place += 4 + size
    return pieces
