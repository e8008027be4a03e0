"""The compiled loops of scan and sink: record batches, read where they lie in the fetched bytes, and written.

Every function takes numpy arrays and fills numpy arrays that the caller made; none makes an object per record. Positions are
indexes into one byte buffer. Invariant: no read or write outside the arrays, whatever the bytes say (numba checks no bounds).
Not here: meaning (`decode.py`, `encode.py`), JSON (`json_loops.py`), decompression, network.

    batch  | base_offset i64 | length i32 | epoch i32 | magic i8 | crc u32 | attributes i16 | last_delta i32 | first_time i64
           | max_time i64 | producer i64 | producer_epoch i16 | sequence i32 | count i32 | records ...            (61 bytes, then records)
    record | length v | attributes i8 | time_delta v | offset_delta v | key_length v | key | value_length v | value | headers v | ...
             v = zigzag varint, a length of -1 means null"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

BATCH_HEADER_BYTES = 61
# Columns of the batch table that `walk` fills.
POSITION, SIZE, BASE, LAST_DELTA, ATTRIBUTES, FIRST_TIME, MAX_TIME, PRODUCER, COUNT, MAGIC, CRC = range(11)
BATCH_COLUMNS = 11
# Columns of the record table that `records` fills.
OFFSET, TIME, KEY, KEY_SIZE, VALUE, VALUE_SIZE, HEADERS, HEADER_COUNT = range(8)
RECORD_COLUMNS = 8
RECORD_BYTES_MAX = 40  # of a record beside its key, value and headers: five varints and the attributes


@njit(cache=True, nogil=True)
def _big_endian(data: Any, at: int, size: int) -> Any:
    value = np.int64(0)
    for index in range(size):
        value = (value << 8) | np.int64(data[at + index])
    bits = 64 - 8 * size
    return (value << bits) >> bits


@njit(cache=True, nogil=True)
def walk(data: Any, start: int, end: int, table: Any) -> tuple[int, int]:
    """Fill the batch table from data[start:end]; returns (whole batches, position after the last one).

    A batch cut off by the end is left alone: a fetch may stop in the middle of one. Stops when the table is full."""
    at = start
    found = 0
    while found < table.shape[0] and end - at >= 12:
        size = _big_endian(data, at + 8, 4) + 12
        if size < 17 or at + size > end:
            break
        row = table[found]
        row[MAGIC] = data[at + 16]
        row[POSITION] = at
        row[SIZE] = size
        row[BASE] = _big_endian(data, at, 8)
        if row[MAGIC] != 2 or size < 61:
            row[MAGIC] = min(row[MAGIC], 1)
            row[COUNT] = 0
            return found + 1, at + size
        row[CRC] = _big_endian(data, at + 17, 4) & 0xFFFFFFFF
        row[ATTRIBUTES] = _big_endian(data, at + 21, 2)
        row[LAST_DELTA] = _big_endian(data, at + 23, 4)
        row[FIRST_TIME] = _big_endian(data, at + 27, 8)
        row[MAX_TIME] = _big_endian(data, at + 35, 8)
        row[PRODUCER] = _big_endian(data, at + 43, 8)
        row[COUNT] = _big_endian(data, at + 57, 4)
        found += 1
        at += size
    return found, at


@njit(cache=True, nogil=True)
def _varint(data: Any, at: int, end: int) -> Any:
    """(value, position after it); the position is beyond `end` if the number is cut off."""
    value = np.uint64(0)
    shift = np.uint64(0)
    while at < end and shift < np.uint64(70):
        byte = np.uint64(data[at])
        at += 1
        value |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), at
        shift += np.uint64(7)
    return np.int64(0), end + 1


@njit(cache=True, nogil=True)
def records(data: Any, batches: Any, bodies: Any, start: int, end: int, table: Any) -> tuple[int, int]:
    """Fill the record table with the records of all batches whose offset is in range(start, end).

    `bodies[i]` is (position, end) of batch i's records in `data`, after decompression. Returns (records, -1), or
    (records, i) when batch i does not hold what its header says."""
    found = 0
    for index in range(batches.shape[0]):
        batch = batches[index]
        at, stop = bodies[index, 0], bodies[index, 1]
        log_append = (batch[ATTRIBUTES] & 8) != 0
        base, first_time = batch[BASE], batch[FIRST_TIME]
        for _ in range(batch[COUNT]):
            size, at = _varint(data, at, stop)
            record_end = at + size
            if size < 0 or record_end > stop:
                return found, index
            at += 1
            time_delta, at = _varint(data, at, record_end)
            offset_delta, at = _varint(data, at, record_end)
            key_size, at = _varint(data, at, record_end)
            key = at
            at += max(key_size, 0)
            if key_size > record_end - key or at > record_end:
                return found, index
            value_size, at = _varint(data, at, record_end)
            value = at
            at += max(value_size, 0)
            if value_size > record_end - value or at > record_end:
                return found, index
            header_count, at = _varint(data, at, record_end)
            if header_count < 0 or header_count > (record_end - at) // 2:
                return found, index
            offset = base + offset_delta
            if start <= offset < end:
                if found == table.shape[1]:
                    return found, index
                table[OFFSET, found] = offset
                table[TIME, found] = batch[MAX_TIME] if log_append else first_time + time_delta
                table[KEY, found] = key
                table[KEY_SIZE, found] = key_size
                table[VALUE, found] = value
                table[VALUE_SIZE, found] = value_size
                table[HEADERS, found] = at
                table[HEADER_COUNT, found] = header_count
                found += 1
            at = record_end
    return found, -1


@njit(cache=True, nogil=True)
def gather(data: Any, positions: Any, sizes: Any, out: Any, ends: Any, valid: Any) -> int:
    """Copy the spans into `out`, one after the other; ends[i + 1] is the end of span i. Returns how many are null.

    The caller has checked that `out` holds the sum of the sizes."""
    at = 0
    nulls = 0
    ends[0] = 0
    for index in range(positions.shape[0]):
        size = sizes[index]
        if size < 0:
            valid[index] = 0
            nulls += 1
        else:
            valid[index] = 1
            position = positions[index]
            if size < 64:
                for byte in range(size):
                    out[at + byte] = data[position + byte]
            else:
                out[at : at + size] = data[position : position + size]
            at += size
        ends[index + 1] = at
    return nulls


@njit(cache=True, nogil=True)
def headers(data: Any, positions: Any, counts: Any, spans: Any, ends: Any) -> int:
    """Fill `spans` with (key position, key size, value position, value size) of every header, ends[i + 1] with the count so far.

    Positions come from `records`, which checked only the record's bounds; a header that runs over the buffer gives -1."""
    found = 0
    ends[0] = 0
    limit = data.shape[0]
    for index in range(positions.shape[0]):
        at = positions[index]
        for _ in range(counts[index]):
            for part in range(2):
                size, at = _varint(data, at, limit)
                if at > limit or size > limit - at or found == spans.shape[0]:
                    return -1
                spans[found, 2 * part] = at
                spans[found, 2 * part + 1] = size
                at += max(size, 0)
            found += 1
        ends[index + 1] = found
    return found


@njit(cache=True, nogil=True)
def _put_varint(out: Any, at: int, value: int) -> int:
    bits = np.uint64((value << 1) ^ (value >> 63))
    while bits >= np.uint64(0x80):
        out[at] = np.uint8((bits & np.uint64(0x7F)) | np.uint64(0x80))
        bits >>= np.uint64(7)
        at += 1
    out[at] = np.uint8(bits)
    return at + 1


@njit(cache=True, nogil=True)
def _put_bytes(out: Any, at: int, data: Any, start: int, end: int, valid: int) -> int:
    if not valid:
        return _put_varint(out, at, -1)
    at = _put_varint(out, at, end - start)
    for index in range(start, end):
        out[at] = data[index]
        at += 1
    return at


@njit(cache=True, nogil=True)
def _varint_bytes(value: int) -> int:
    bits = np.uint64((value << 1) ^ (value >> 63))
    size = 1
    while bits >= np.uint64(0x80):
        bits >>= np.uint64(7)
        size += 1
    return size


@njit(cache=True, nogil=True)
def put_records(
    rows: Any,
    keys: Any,
    key_ends: Any,
    key_valid: Any,
    values: Any,
    value_ends: Any,
    value_valid: Any,
    heads: Any,
    head_ends: Any,
    times: Any,
    first_time: int,
    out: Any,
) -> int:
    """Encode the rows as records into `out`; returns the bytes written. `heads` holds each row's headers, encoded with their count.

    The caller has made `out` large enough: RECORD_BYTES_MAX for each row beside its key, value and headers."""
    at = 0
    for delta in range(rows.shape[0]):
        row = rows[delta]
        key_size = key_ends[row + 1] - key_ends[row] if key_valid[row] else 0
        value_size = value_ends[row + 1] - value_ends[row] if value_valid[row] else 0
        size = (
            1 + _varint_bytes(times[row] - first_time) + _varint_bytes(delta) + key_size + value_size + head_ends[row + 1] - head_ends[row]
        )
        size += _varint_bytes(key_size if key_valid[row] else -1) + _varint_bytes(value_size if value_valid[row] else -1)
        at = _put_varint(out, at, size)
        out[at] = 0
        at = _put_varint(out, at + 1, times[row] - first_time)
        at = _put_varint(out, at, delta)
        at = _put_bytes(out, at, keys, key_ends[row], key_ends[row + 1], key_valid[row])
        at = _put_bytes(out, at, values, value_ends[row], value_ends[row + 1], value_valid[row])
        for index in range(head_ends[row], head_ends[row + 1]):
            out[at] = heads[index]
            at += 1
    return at


@njit(cache=True, nogil=True)
def place_keys(data: Any, ends: Any, valid: Any, partitions: int, spare: int, out: Any) -> None:
    """The partition of each key, by the hash that Kafka's own clients use (murmur2); `spare` for records without a key."""
    for row in range(out.shape[0]):
        if not valid[row]:
            out[row] = spare
            continue
        at, end = ends[row], ends[row + 1]
        size = end - at
        code = np.uint32(0x9747B28C) ^ np.uint32(size)
        while end - at >= 4:
            word = (
                np.uint32(data[at])
                | np.uint32(data[at + 1]) << np.uint32(8)
                | np.uint32(data[at + 2]) << np.uint32(16)
                | np.uint32(data[at + 3]) << np.uint32(24)
            )
            word = np.uint32(word * np.uint32(0x5BD1E995))
            word ^= word >> np.uint32(24)
            word = np.uint32(word * np.uint32(0x5BD1E995))
            code = np.uint32(code * np.uint32(0x5BD1E995)) ^ word
            at += 4
        left = end - at
        if left == 3:
            code ^= np.uint32(data[at + 2]) << np.uint32(16)
        if left >= 2:
            code ^= np.uint32(data[at + 1]) << np.uint32(8)
        if left >= 1:
            code ^= np.uint32(data[at])
            code = np.uint32(code * np.uint32(0x5BD1E995))
        code ^= code >> np.uint32(13)
        code = np.uint32(code * np.uint32(0x5BD1E995))
        code ^= code >> np.uint32(15)
        out[row] = np.int64(code & np.uint32(0x7FFFFFFF)) % partitions
