"""Record batches as a broker sends them, to columns.

`read_batches` finds the whole batches of one fetched partition, without touching their records; `decode` gives the records that
a reader may see, as positions in a byte buffer; `Records` makes Arrow columns of them. Uncompressed batches are
read where they lie in the fetched frame, compressed ones are unpacked into one arena. Control batches and batches of
aborted transactions are skipped. Invariant: no Python object per record, one step per batch at most, and that
only for checksums and compressed batches. Not here: fetching, and what is in the values (`serde.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cramjam
import google_crc32c
import numpy as np
import pyarrow as pa

from penstock.errors import PenstockError
from penstock.spark import loops
from penstock.spark.loops import ATTRIBUTES, BASE, BATCH_HEADER_BYTES, COUNT, CRC, LAST_DELTA, MAGIC, POSITION, PRODUCER, SIZE

Array = Any  # numpy.ndarray; numpy's types say nothing useful here

HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_CODEC, _TRANSACTIONAL, _CONTROL = 7, 16, 32
_XERIAL = b"\x82SNAPPY\x00"
_TABLE_ROWS = 1024


class CorruptBatch(PenstockError):
    """A record batch that is not what its header says."""

    def __init__(self, place: str, offset: int, what: str) -> None:
        super().__init__(
            f"{place}: the record batch at offset {offset} {what}",
            remedy="check the broker's log (penstock log verify); skip it with a start offset after it",
        )


@dataclass(frozen=True, slots=True)
class Batches:
    """The whole batches of one partition in a fetched frame."""

    frame: Array  # uint8
    table: Array  # int64, a row per batch, the columns of loops.POSITION …
    place: str  # topic/partition, for errors

    @property
    def next_offset(self) -> int | None:
        """The offset after the last whole batch; None if there is none."""
        return int(self.table[-1, BASE] + self.table[-1, LAST_DELTA]) + 1 if len(self.table) else None

    @property
    def count(self) -> int:
        return int(self.table[:, COUNT].sum())


@dataclass(frozen=True, slots=True)
class Records:
    """Records as positions in one byte buffer. Columns are made when asked for."""

    data: Array  # uint8
    table: Array  # int64 (column, record), the columns of loops.OFFSET …

    def __len__(self) -> int:
        return int(self.table.shape[1])

    @property
    def offsets(self) -> Array:
        return self.table[loops.OFFSET]

    @property
    def times_ms(self) -> Array:
        return self.table[loops.TIME]

    def keys(self) -> pa.Array:
        return binary(self.data, self.table[loops.KEY], self.table[loops.KEY_SIZE])

    def values(self) -> pa.Array:
        return binary(self.data, self.table[loops.VALUE], self.table[loops.VALUE_SIZE])

    def timestamps(self) -> pa.Array:
        """Record time as TIMESTAMP; the protocol's -1 (none) is null."""
        times_us = self.times_ms * 1_000
        return pa.array(times_us, mask=self.times_ms < 0).view(pa.timestamp("us", tz="UTC"))

    def headers(self) -> pa.Array:
        """ARRAY<STRUCT<key STRING, value BINARY>>, empty for a record without headers."""
        counts = self.table[loops.HEADER_COUNT]
        ends = np.zeros(len(self) + 1, np.int32)
        spans = np.zeros((int(np.maximum(counts, 0).sum()), 4), np.int64)
        if len(spans) and loops.headers(self.data, self.table[loops.HEADERS], counts, spans, ends) != len(spans):
            raise PenstockError("a record's headers run over its end", remedy="check the producer that wrote them")
        keys = _text(binary(self.data, spans[:, 0], spans[:, 1]))
        values = binary(self.data, spans[:, 2], spans[:, 3])
        items = pa.StructArray.from_arrays([keys, values], fields=list(HEADERS_TYPE.value_type))
        return pa.ListArray.from_arrays(pa.array(ends), items, type=HEADERS_TYPE)

    def take(self, rows: Array) -> Records:
        return Records(self.data, np.take(self.table, rows, axis=1))


def read_batches(frame: Array, *, start: int, end: int, place: str) -> Batches:
    """The batches that lie whole in frame[start:end]."""
    frame = read_only(frame)
    tables = []
    while True:
        table = np.zeros((_TABLE_ROWS, loops.BATCH_COLUMNS), np.int64)
        found, start = loops.walk(frame, start, end, table)
        tables.append(table[:found])
        if found and table[found - 1, MAGIC] != 2:
            raise CorruptBatch(place, int(table[found - 1, BASE]), "has an old format (before Kafka 0.11) that Penstock does not read")
        if found < _TABLE_ROWS:
            return Batches(frame, tables[0] if len(tables) == 1 else np.concatenate(tables), place)


def decode(batches: Batches, *, start: int, end: int, aborted: Sequence[tuple[int, int]] = (), check: bool = True) -> Records:
    """The records in range(start, end) that a reader of committed data may see."""
    table = batches.table
    if check:
        _check(batches)
    visible = (table[:, ATTRIBUTES] & _CONTROL) == 0
    if aborted:
        visible &= ~_aborted(batches, aborted)
    visible &= (table[:, BASE] < end) & (table[:, BASE] + table[:, LAST_DELTA] >= start)
    table = np.ascontiguousarray(table[visible])
    data, bodies = _bodies(batches.frame, table, batches.place)
    data = read_only(data)
    if bool((table[:, COUNT] < 0).any()) or bool((table[:, COUNT] > bodies[:, 1] - bodies[:, 0]).any()):
        # A record takes at least seven bytes: a greater count is a lie, and would cost memory before it is found out.
        raise CorruptBatch(batches.place, int(table[0, BASE]), "claims more records than it has bytes")
    columns = np.empty((loops.RECORD_COLUMNS, int(table[:, COUNT].sum())), np.int64)
    found, wrong = loops.records(data, table, bodies, start, end, columns)
    if wrong >= 0:
        raise CorruptBatch(batches.place, int(table[wrong, BASE]), "holds a record that runs over its end")
    return Records(data, columns[:, :found])


def _check(batches: Batches) -> None:
    frame = batches.frame
    for row in batches.table[:, [POSITION, SIZE, CRC, BASE]].tolist():
        position, size, crc, base = row
        if google_crc32c.value(frame[position + 21 : position + size]) != crc:
            raise CorruptBatch(batches.place, base, "has a wrong checksum")


def _aborted(batches: Batches, aborted: Sequence[tuple[int, int]]) -> Array:
    """Which batches belong to aborted transactions.

    A transaction is aborted from its first offset to its producer's next abort marker, as the fetch answer lists them."""
    waiting = sorted(((first, producer) for producer, first in aborted), reverse=True)
    inside: set[int] = set()
    result = np.zeros(len(batches.table), bool)
    for index, (base, last_delta, attributes, producer, position, size) in enumerate(
        batches.table[:, [BASE, LAST_DELTA, ATTRIBUTES, PRODUCER, POSITION, SIZE]].tolist()
    ):
        while waiting and waiting[-1][0] <= base + last_delta:
            inside.add(waiting.pop()[1])
        if attributes & _CONTROL:
            if producer in inside and _is_abort_marker(batches.frame, position, size):
                inside.discard(producer)
        elif attributes & _TRANSACTIONAL and producer in inside:
            result[index] = True
    return result


def _is_abort_marker(frame: Array, position: int, size: int) -> bool:
    """A marker's key is | version i16 | type i16 |, type 0 = abort, 1 = commit."""
    row = np.zeros((1, loops.BATCH_COLUMNS), np.int64)
    loops.walk(frame, position, position + size, row)
    out = np.empty((loops.RECORD_COLUMNS, max(int(row[0, COUNT]), 0) or 1), np.int64)
    bodies = np.array([[position + BATCH_HEADER_BYTES, position + size]], np.int64)
    found, wrong = loops.records(frame, row, bodies, -(1 << 62), 1 << 62, out)
    if wrong >= 0 or found != 1 or out[loops.KEY_SIZE, 0] < 4:
        return False
    key = int(out[loops.KEY, 0])
    return bool(frame[key + 2] == 0 and frame[key + 3] == 0)


def _bodies(frame: Array, table: Array, place: str) -> tuple[Array, Array]:
    """The bytes in which the batches' records lie uncompressed, and from where to where in them."""
    bodies = np.empty((len(table), 2), np.int64)
    bodies[:, 0] = table[:, POSITION] + BATCH_HEADER_BYTES
    bodies[:, 1] = table[:, POSITION] + table[:, SIZE]
    codecs = table[:, ATTRIBUTES] & _CODEC
    if not codecs.any():
        return frame, bodies
    parts = []
    end = 0
    for index, (codec, start, stop) in enumerate(np.column_stack([codecs, bodies]).tolist()):
        part = frame[start:stop]
        if codec:
            part = _decompressed(part, codec, f"{place}: the record batch at offset {int(table[index, BASE])}")
        parts.append(part)
        bodies[index] = end, end + len(part)
        end += len(part)
    return (np.concatenate(parts) if len(parts) > 1 else parts[0]), bodies


def _decompressed(data: Array, codec: int, what: str) -> Array:
    unpacked: Any
    try:
        match codec:
            case 1:
                unpacked = cramjam.gzip.decompress(data)
            case 2:
                unpacked = _snappy(data)
            case 3:
                unpacked = cramjam.lz4.decompress(data)
            case 4:
                unpacked = cramjam.zstd.decompress(data)
            case _:
                raise PenstockError(f"{what} uses codec {codec}", remedy="use none, gzip, snappy, lz4 or zstd")
    except cramjam.DecompressionError as error:
        raise PenstockError(f"{what} cannot be decompressed: {error}", remedy="check the producer that wrote it") from error
    return np.frombuffer(unpacked, np.uint8)


def _snappy(data: Array) -> Any:
    """Snappy as Java's library frames it (| magic, versions: 16 bytes | then | size i32 | block | …), or one raw block."""
    if len(data) < 16 or data[:8].tobytes() != _XERIAL:
        return cramjam.snappy.decompress_raw(data)
    parts = []
    at = 16
    while at + 4 <= len(data):
        size = int.from_bytes(data[at : at + 4].tobytes(), "big")
        block: Any = cramjam.snappy.decompress_raw(data[at + 4 : at + 4 + size])
        parts.append(np.frombuffer(block, np.uint8))
        at += 4 + size
    return np.concatenate(parts) if parts else b""


def binary(data: Array, positions: Array, sizes: Array) -> pa.Array:
    """The spans as a BINARY column; a negative size is null."""
    data, positions, sizes = read_only(data), np.ascontiguousarray(positions), np.ascontiguousarray(sizes)
    count = len(positions)
    total = int(np.maximum(sizes, 0).sum())
    if total > 0x7FFF_FFFF:
        raise PenstockError(f"{total} bytes of values in one chunk", remedy="read with a smaller bytes_per_batch_max")
    out = np.empty(total, np.uint8)
    ends = np.empty(count + 1, np.int32)
    valid = np.empty(count, np.uint8)
    nulls = loops.gather(data, positions, sizes, out, ends, valid) if count else 0
    if not count:
        ends[0] = 0
    return pa.Array.from_buffers(
        pa.binary(), count, [bitmap(valid) if nulls else None, pa.py_buffer(ends), pa.py_buffer(out)], null_count=nulls
    )


def _text(column: pa.Array) -> pa.Array:
    """BINARY as STRING; bytes that are no UTF-8 are replaced, since one odd header must not stop a pipeline."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([None if value is None else value.decode(errors="replace") for value in column.to_pylist()], pa.string())


def bitmap(valid: Array) -> pa.Buffer:
    """Arrow's validity bits from bytes of 0 and 1."""
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def read_only(array: Array) -> Array:
    """The array, not to be written to. A compiled loop is compiled once per kind of array, so callers always give it this kind."""
    if array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    return array
