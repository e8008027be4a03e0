"""Columns to record batches: the other direction of `decode.py`.

Rows go to partitions as Kafka's own clients place them, so records written here and elsewhere with the same key meet. Invariant: within a
partition, records keep the order of their rows; the same rows give the same batches."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import cramjam
import google_crc32c
import numpy as np
import pyarrow as pa

from penstock.errors import ConfigError
from penstock.spark import loops
from penstock.spark.decode import HEADERS_TYPE, read_only

Array = Any  # numpy.ndarray

BATCH_BYTES_MAX = 900_000  # before compression; brokers refuse more than 1 MiB by default
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
_HEADER = struct.Struct(">qiibIhiqqqhii")  # see the drawing in loops.py


@dataclass(frozen=True, slots=True)
class Outgoing:
    """Rows that are to become records of one topic."""

    values: pa.Array  # binary
    keys: pa.Array | None  # binary
    headers: pa.Array | None  # HEADERS_TYPE
    times_ms: Array  # int64

    def __len__(self) -> int:
        return len(self.values)


def record_batches(rows: Outgoing, *, partitions: int, spare: int, codec: int = 0) -> Iterator[tuple[int, Array]]:
    """(partition, record batch) for all rows; the batches of a partition come in order. `spare` takes records without a key."""
    count = len(rows)
    keys = spans(rows.keys if rows.keys is not None else pa.nulls(count, pa.binary()))
    values = spans(rows.values)
    heads, head_ends = _heads(rows.headers, count)
    times = read_only(np.ascontiguousarray(rows.times_ms))
    heads, head_ends = read_only(heads), read_only(head_ends)
    placed = np.empty(count, np.int64)
    loops.place_keys(*keys, partitions, spare % partitions, placed)
    sizes = np.diff(keys[1]) + np.diff(values[1]) + np.diff(head_ends) + loops.RECORD_BYTES_MAX
    order = np.argsort(placed, kind="stable")
    bounds = np.searchsorted(placed[order], np.arange(partitions + 1))
    for partition in range(partitions):
        chosen = order[bounds[partition] : bounds[partition + 1]]
        for part in _cut(chosen, sizes):
            out = np.empty(61 + int(sizes[part].sum()), np.uint8)
            first = int(times[part[0]])
            size = loops.put_records(read_only(part), *keys, *values, heads, head_ends, times, first, out[61:])
            yield partition, _sealed(out[: 61 + size], len(part), first, int(times[part].max()), codec)


def _cut(rows: Array, sizes: Array) -> Iterator[Array]:
    """Rows in runs of at most BATCH_BYTES_MAX; a larger row is a run of its own."""
    start = 0
    total = np.concatenate([[0], np.cumsum(sizes[rows])])
    while start < len(rows):
        end = max(int(np.searchsorted(total, total[start] + BATCH_BYTES_MAX, side="right")) - 1, start + 1)
        yield rows[start:end]
        start = end


def _sealed(batch: Array, count: int, first_ms: int, last_ms: int, codec: int) -> Array:
    """Put the header before the records, compress them if asked, and set the checksum."""
    if codec:
        body = np.frombuffer(_compressed(batch[61:], codec), np.uint8)
        packed = np.empty(61 + len(body), np.uint8)
        packed[61:] = body
        batch = packed
    header = bytearray(_HEADER.pack(0, len(batch) - 12, -1, 2, 0, codec, count - 1, first_ms, last_ms, -1, -1, -1, count))
    batch[:61] = np.frombuffer(header, np.uint8)
    batch[17:21] = np.frombuffer(struct.pack(">I", google_crc32c.value(batch[21:])), np.uint8)
    return batch


def _compressed(data: Array, codec: int) -> Any:
    match codec:
        case 1:
            return bytes(cramjam.gzip.compress(data))
        case 2:
            return bytes(cramjam.snappy.compress_raw(data))
        case 3:
            return bytes(cramjam.lz4.compress(data))
        case 4:
            return bytes(cramjam.zstd.compress(data))
    raise ConfigError(f"codec {codec} is not known", remedy=f"use one of {', '.join(CODECS)}")


def spans(column: pa.Array) -> tuple[Array, Array, Array]:
    """A BINARY column as (bytes, ends, valid)."""
    column = column.cast(pa.binary())
    _, ends, data = column.buffers()
    valid = np.array(column.is_valid().to_numpy(zero_copy_only=False), np.uint8)
    if ends is None:
        offsets = np.zeros(len(column) + 1, np.int64)
    else:
        offsets = np.frombuffer(ends, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    out = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8)
    return read_only(out), read_only(offsets), read_only(valid)


def _heads(headers: pa.Array | None, count: int) -> tuple[Array, Array]:
    """Each row's headers as they stand in a record: a count, then names and values. Most streams have none, so this is plain Python."""
    if headers is None or headers.null_count == count:
        return np.zeros(count, np.uint8), np.arange(count + 1, dtype=np.int64)  # a single zero: no headers
    out = bytearray()
    ends = np.zeros(count + 1, np.int64)
    for row, items in enumerate(headers.cast(HEADERS_TYPE).to_pylist()):
        out += _varint(len(items or ())) + _head(items)
        ends[row + 1] = len(out)
    return np.frombuffer(bytes(out), np.uint8), ends


def header_spans(headers: pa.Array, count: int) -> tuple[Array, Array, Array]:
    """Each row's headers without their count, as `decode.Records` points to them: (bytes, ends, counts)."""
    out = bytearray()
    ends = np.zeros(count + 1, np.int64)
    counts = np.zeros(count, np.int64)
    if headers.null_count < count:
        for row, items in enumerate(headers.cast(HEADERS_TYPE).to_pylist()):
            out += _head(items)
            counts[row] = len(items or ())
            ends[row + 1] = len(out)
    return np.frombuffer(bytes(out), np.uint8), ends, counts


def _head(items: list[dict[str, Any]] | None) -> bytes:
    out = bytearray()
    for item in items or ():
        name = (item["key"] or "").encode()
        out += _varint(len(name)) + name
        out += _varint(-1) if item["value"] is None else _varint(len(item["value"])) + item["value"]
    return bytes(out)


def _varint(value: int) -> bytes:
    bits = (value << 1) ^ (value >> 63)
    out = bytearray()
    while bits >= 0x80:
        out.append(bits & 0x7F | 0x80)
        bits >>= 7
    out.append(bits)
    return bytes(out)
