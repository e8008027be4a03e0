"""Which key group a key belongs to: a hash of ours that never changes, over the key's value.

Invariant: equal keys have equal groups, on every machine, in every version, whatever the column's width (INT and BIGINT 7 are
the same key, and so are 0.0 and -0.0). State is stored by group, so a change here would lose every job's state:
tests hold known values. Null is a key like any other. The loop over strings is compiled (numba)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Hashes = npt.NDArray[np.uint64]
_SEED = np.uint64(0x9E3779B97F4A7C15)
_NULL = np.uint64(0x2545F4914F6CDD1D)


def hashes_of(table: pa.Table, *, keys: Sequence[str]) -> Hashes:
    """One 64-bit hash per row of the key columns."""
    combined = np.full(table.num_rows, _SEED, dtype=np.uint64)
    for key in keys:
        combined = _mix(combined * np.uint64(31) + _column(table.column(key)))
    return combined


def groups_of(table: pa.Table, *, keys: Sequence[str], groups: int) -> npt.NDArray[np.uint16]:
    """The group of each row, in range(groups). Without keys all rows are in group 0."""
    if not keys:
        return np.zeros(table.num_rows, dtype=np.uint16)
    return ((hashes_of(table, keys=keys) >> np.uint64(32)) % np.uint64(groups)).astype(np.uint16)


def _column(column: pa.ChunkedArray) -> Hashes:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):  # a chunked array of no chunks combines to itself
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], type=array.type)
    if pa.types.is_dictionary(array.type):
        words = _column(pa.chunked_array([array.dictionary]))
        indices = array.indices.fill_null(0).to_numpy(zero_copy_only=False)
        hashes = words[indices] if len(words) else np.zeros(len(array), dtype=np.uint64)
    else:
        hashes = _plain(array)
    if array.null_count:
        hashes = np.where(array.is_null().to_numpy(zero_copy_only=False), _NULL, hashes)
    return hashes


def _plain(array: pa.Array) -> Hashes:
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return _text(array.cast(pa.large_binary()))
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return _text(array.cast(pa.large_string() if pa.types.is_string_view(kind) else pa.large_binary()).cast(pa.large_binary()))
    if pa.types.is_floating(kind):
        values = array.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False) + 0.0  # -0.0 + 0.0 is 0.0
        values = np.where(np.isnan(values), np.nan, values)  # one NaN
        return _mix(values.view(np.uint64))
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        whole = array.cast(pa.int64())
    elif pa.types.is_date32(kind):
        whole = array.cast(pa.int32()).cast(pa.int64())
    elif pa.types.is_temporal(kind):
        whole = array.cast(pa.int64())
    else:  # arrays and the like: by their text
        return _text(pa.array([None if item is None else repr(item).encode() for item in array.to_pylist()], type=pa.large_binary()))
    return _mix(pc.fill_null(whole, 0).to_numpy(zero_copy_only=False).view(np.uint64))


def _text(array: Any) -> Hashes:
    _, offsets_buffer, data_buffer = array.buffers()
    if len(array) == 0:
        return np.zeros(0, dtype=np.uint64)
    offsets = np.frombuffer(offsets_buffer, dtype=np.int64)[array.offset : array.offset + len(array) + 1]
    data = np.frombuffer(data_buffer, dtype=np.uint8) if data_buffer is not None and data_buffer.size else np.zeros(1, dtype=np.uint8)
    return _mix(_bytes_hashes(offsets, data))


def _mix(values: Hashes) -> Hashes:
    """The finaliser of splitmix64: every bit of the input reaches every bit of the output."""
    with np.errstate(over="ignore"):
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(values ^ (values >> np.uint64(31)), dtype=np.uint64)


@numba.njit("uint64[:](int64[:], uint8[:])", cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _bytes_hashes(offsets, data):  # type: ignore[no-untyped-def]
    """FNV-1a over each value's bytes."""
    hashes = np.empty(offsets.size - 1, dtype=np.uint64)
    for row in range(offsets.size - 1):
        state = np.uint64(0xCBF29CE484222325)
        for position in range(offsets[row], offsets[row + 1]):
            state = (state ^ np.uint64(data[position])) * np.uint64(0x100000001B3)
        hashes[row] = state
    return hashes
