"""Record batch v2, the unit of storage: header, checksum, records.

    | base_offset i64 | length i32 | leader_epoch i32 | magic i8 = 2 | crc u32 |                 bytes 0..21
    | attributes i16 | last_offset_delta i32 | base_timestamp i64 | max_timestamp i64 |          bytes 21..43
    | producer_id i64 | producer_epoch i16 | base_sequence i32 | count i32 | records ... |       bytes 43..61..

`length` counts the bytes after itself. The CRC32C covers byte 21 to the end, so the log may set base offset and leader epoch
without touching it. Attributes: bits 0-2 codec, 3 log-append time, 4 transactional, 5 control, 6 delete horizon.

A record, inside `records` (compressed as a whole if there is a codec); all lengths zigzag varints, -1 is null:

    | length | attributes i8 = 0 | timestamp_delta | offset_delta | key_length | key | value_length | value |
    | header_count | (name_length | name | value_length | value) ... |

Invariant: `parse` and `check` never trust a byte they have not compared with the length of the buffer. Offsets rise by exactly one
per record when a batch is appended; only compaction leaves gaps. Not here: files."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import cramjam
import google_crc32c

from penstock.log.errors import CorruptBatch, UnsupportedCodec
from penstock.log.storage import Buffer

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size
LENGTH_AT = 8  # where `length` is
PREFIX_BYTES = 12  # base_offset and length, which `length` does not count
CRC_FROM = 21
assert HEADER_BYTES == 61

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CODECS = {"uncompressed": NONE, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}

RECORDS_BYTES_MAX = 1 << 28  # of one batch after decompression: a small batch must not become all of the memory
SEQUENCE_MAX = (1 << 31) - 1

_PREFIX = struct.Struct(">qii")
_LENGTH = struct.Struct(">i")
_U32 = struct.Struct(">I")
_MARKER_KEY = struct.Struct(">hh")  # version, type: 0 abort, 1 commit
_MARKER_VALUE = struct.Struct(">hi")  # version, coordinator epoch


class BatchHeader(NamedTuple):
    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        return self.length + PREFIX_BYTES

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def last_sequence(self) -> int:
        return sequence_after(self.base_sequence, self.last_offset_delta)


class Record(NamedTuple):
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def sequence_after(sequence: int, count: int) -> int:
    """The sequence number `count` later; they wrap from 2**31 - 1 to 0."""
    return (sequence + count) & SEQUENCE_MAX if sequence >= 0 else sequence


def parse(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`. Checks nothing but that there are enough bytes for one."""
    if len(buffer) - position < HEADER_BYTES:
        raise CorruptBatch(f"{len(buffer) - position} bytes are too few for a batch header")
    return BatchHeader._make(HEADER.unpack_from(buffer, position))


def checksum(buffer: Buffer, *, start: int = 0, end: int | None = None) -> int:
    """CRC32C of what the header's field covers, of the batch at `start`."""
    value: int = google_crc32c.value(bytes(buffer[start + CRC_FROM : end]))
    return value


def why_wrong(buffer: Buffer, header: BatchHeader, position: int = 0) -> str | None:
    """What is wrong with the batch whose header was parsed at `position`, or None. One pass, at memory speed."""
    end = position + header.length + PREFIX_BYTES
    if header.magic != 2:
        return f"magic {header.magic} instead of 2"
    if header.length < HEADER_BYTES - PREFIX_BYTES or end > len(buffer):
        return f"length {header.length} does not fit into {len(buffer) - position} bytes"
    if header.base_offset < 0 or header.last_offset_delta < 0 or not 0 <= header.record_count <= header.last_offset_delta + 1:
        return f"counts do not fit: base offset {header.base_offset}, last delta {header.last_offset_delta}, {header.record_count} records"
    found = checksum(buffer, start=position, end=end)
    if found != header.crc:
        return f"CRC32C is {found:08x}, the header says {header.crc:08x}"
    return None


def check(buffer: Buffer) -> BatchHeader:
    """The header of a buffer that must be exactly one good batch."""
    header = parse(buffer)
    if header.size != len(buffer):
        raise CorruptBatch(f"a batch of {header.size} bytes in a buffer of {len(buffer)}")
    if why := why_wrong(buffer, header):
        raise CorruptBatch(why)
    return header


def placed(buffer: Buffer, *, base_offset: int, leader_epoch: int) -> list[Buffer]:
    """The batch with another base offset and leader epoch, as buffers to write; the body is not copied."""
    (length,) = _LENGTH.unpack_from(buffer, LENGTH_AT)
    return [_PREFIX.pack(base_offset, length, leader_epoch), memoryview(buffer)[16:]]


def restamped(buffer: Buffer, header: BatchHeader, *, log_append_time_ms: int) -> bytes:
    """The batch with log-append time: every record has the time of the append."""
    attributes = header.attributes | LOG_APPEND_TIME
    return assembled(header._replace(attributes=attributes, max_timestamp=log_append_time_ms), buffer[HEADER_BYTES : header.size])


def assembled(header: BatchHeader, records: Buffer) -> bytes:
    """A batch of these header fields and records; length and checksum are computed here."""
    fields = header._replace(length=HEADER_BYTES - PREFIX_BYTES + len(records), crc=0, magic=2)
    data = bytearray(HEADER.pack(*fields))
    data += records
    _U32.pack_into(data, 17, google_crc32c.value(bytes(data[CRC_FROM:])))
    return bytes(data)


def next_offset(buffers: Sequence[Buffer]) -> int | None:
    """The offset after the last batch in what `Partition.read` returned; None if there is none."""
    if not buffers:
        return None
    buffer = buffers[-1]
    position, limit, last = 0, len(buffer), 0
    while position < limit:  # only lengths: a fetch may hold thousands of small batches
        last = position
        position += _LENGTH.unpack_from(buffer, position + LENGTH_AT)[0] + PREFIX_BYTES
    return parse(buffer, last).next_offset


def walk(buffer: Buffer) -> Iterator[tuple[BatchHeader, int]]:
    """Headers and positions of whole batches in a buffer; stops before a partial one. Checks no CRC."""
    position, limit = 0, len(buffer)
    while limit - position >= HEADER_BYTES:
        header = BatchHeader._make(HEADER.unpack_from(buffer, position))
        if header.length < HEADER_BYTES - PREFIX_BYTES or position + header.size > limit:
            return
        yield header, position
        position += header.size


# --- records ---------------------------------------------------------------------------------------------------------


def _varint(data: bytes, position: int) -> tuple[int, int]:
    byte = data[position]
    if byte < 0x80:  # most are one byte
        return (byte >> 1) ^ -(byte & 1), position + 1
    value, shift = byte & 0x7F, 7
    while True:
        position += 1
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position + 1
        shift += 7
        if shift > 63:
            raise CorruptBatch("a varint of more than ten bytes")


def _put_varint(out: bytearray, value: int) -> None:
    value = (value << 1) ^ (value >> 63)
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)


def _bytes_at(data: bytes, position: int) -> tuple[bytes | None, int]:
    length, position = _varint(data, position)
    if length < 0:
        return None, position
    if position + length > len(data):
        raise CorruptBatch(f"a field of {length} bytes leaves the batch")
    return data[position : position + length], position + length


def decode(buffer: Buffer, header: BatchHeader | None = None) -> Iterator[Record]:
    """The records of one batch. Raises `CorruptBatch` where they do not parse or are not as many as the header says."""
    header = header or parse(buffer)
    if header.record_count == 0:
        return  # compaction leaves such a batch for its producer's sequence
    data = decompress(buffer[HEADER_BYTES : header.size], header.codec)
    position = 0
    try:
        for _ in range(header.record_count):
            record, position = _record(data, position, header)
            yield record
    except IndexError:
        raise CorruptBatch(f"records end inside a record (base offset {header.base_offset})") from None
    if position != len(data):
        raise CorruptBatch(f"{len(data) - position} bytes after the last record (base offset {header.base_offset})")


def _record(data: bytes, position: int, header: BatchHeader) -> tuple[Record, int]:
    length, position = _varint(data, position)
    end = position + length
    if length < 0 or end > len(data):
        raise CorruptBatch(f"a record of {length} bytes leaves the batch (base offset {header.base_offset})")
    timestamp_delta, position = _varint(data, position + 1)
    offset_delta, position = _varint(data, position)
    key, position = _bytes_at(data, position)
    value, position = _bytes_at(data, position)
    header_count, position = _varint(data, position)
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(header_count):
        name, position = _bytes_at(data, position)
        content, position = _bytes_at(data, position)
        headers.append(((name or b"").decode("utf-8", "surrogateescape"), content))
    if position != end or header_count < 0 or not 0 <= offset_delta <= header.last_offset_delta:
        raise CorruptBatch(f"a record that does not fill its length (base offset {header.base_offset})")
    stamped = header.attributes & LOG_APPEND_TIME
    timestamp_ms = header.max_timestamp if stamped else header.base_timestamp + timestamp_delta
    return Record(header.base_offset + offset_delta, timestamp_ms, key, value, tuple(headers)), end


def encode_records(records: Iterable[Record], *, base_offset: int, base_timestamp: int) -> bytes:
    out = bytearray()
    for record in records:
        body = bytearray(b"\x00")
        _put_varint(body, record.timestamp_ms - base_timestamp)
        _put_varint(body, record.offset - base_offset)
        for field in (record.key, record.value):
            _put_varint(body, -1 if field is None else len(field))
            body += field or b""
        _put_varint(body, len(record.headers))
        for name, content in record.headers:
            encoded = name.encode("utf-8", "surrogateescape")
            _put_varint(body, len(encoded))
            body += encoded
            _put_varint(body, -1 if content is None else len(content))
            body += content or b""
        _put_varint(out, len(body))
        out += body
    return bytes(out)


def encode(
    records: Sequence[Record],
    *,
    codec: int = NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
) -> bytes:
    """A batch of records as a producer would send it: offsets 0, 1, 2 ... whatever the records say.

    >>> [r.value for r in decode(encode([Record(0, 5, b"k", b"v")]))]
    [b'v']
    """
    if not records:
        raise ValueError("a batch has at least one record")
    numbered = [record._replace(offset=delta) for delta, record in enumerate(records)]
    base_timestamp = numbered[0].timestamp_ms
    body = encode_records(numbered, base_offset=0, base_timestamp=base_timestamp)
    header = BatchHeader(
        base_offset=0,
        length=0,
        leader_epoch=-1,
        magic=2,
        crc=0,
        attributes=codec | (TRANSACTIONAL if transactional else 0),
        last_offset_delta=len(records) - 1,
        base_timestamp=base_timestamp,
        max_timestamp=max(record.timestamp_ms for record in records),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=len(records),
    )
    return assembled(header, compress(body, codec))


def recoded(buffer: Buffer, header: BatchHeader, *, codec: int) -> bytes:
    """The same records under another codec."""
    body = compress(decompress(buffer[HEADER_BYTES : header.size], header.codec), codec)
    return assembled(header._replace(attributes=(header.attributes & ~CODEC_MASK) | codec), body)


def encode_marker(*, producer_id: int, producer_epoch: int, commit: bool, coordinator_epoch: int, timestamp_ms: int) -> bytes:
    """The control batch that ends a transaction: one record whose key says how."""
    key = _MARKER_KEY.pack(0, 1 if commit else 0)
    value = _MARKER_VALUE.pack(0, coordinator_epoch)
    data = encode([Record(0, timestamp_ms, key, value)], producer_id=producer_id, producer_epoch=producer_epoch)
    header = parse(data)
    return assembled(header._replace(attributes=TRANSACTIONAL | CONTROL), data[HEADER_BYTES:])


def marker_commits(buffer: Buffer, header: BatchHeader) -> bool:
    """Whether a control batch is a commit marker (else abort)."""
    for record in decode(buffer, header):
        if record.key is not None and len(record.key) >= _MARKER_KEY.size:
            return bool(_MARKER_KEY.unpack_from(record.key)[1] == 1)
    raise CorruptBatch("a control batch without a marker")


# --- compression -----------------------------------------------------------------------------------------------------
# Snappy comes in two forms: the Java clients frame it ("xerial": a magic, two versions, then | length i32 | block | ...),
# others send one bare block. Both are read; the framed form is written, which every client understands.

_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024


def compress(data: bytes, codec: int) -> bytes:
    match codec:
        case 0:
            return data
        case 1:
            return bytes(cramjam.gzip.compress(data))
        case 2:
            parts = [_XERIAL_HEADER]
            for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
                block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
                parts += [_LENGTH.pack(len(block)), block]
            return b"".join(parts)
        case 3:
            return bytes(cramjam.lz4.compress(data))
        case 4:
            return bytes(cramjam.zstd.compress(data))
        case _:
            raise UnsupportedCodec(f"codec {codec} is not one of none, gzip, snappy, lz4, zstd")


def decompress(data: Buffer, codec: int) -> bytes:
    """The plain records. A body that does not decompress, or becomes larger than `RECORDS_BYTES_MAX`, is a `CorruptBatch`."""
    data = bytes(data)
    try:
        match codec:
            case 0:
                return data
            case 1:
                return _bounded(cramjam.gzip.decompress_into, data)
            case 2:
                return _snappy(data)
            case 3:
                return _bounded(cramjam.lz4.decompress_into, data)
            case 4:
                return _bounded(cramjam.zstd.decompress_into, data)
            case _:
                raise UnsupportedCodec(f"codec {codec} is not one of none, gzip, snappy, lz4, zstd")
    except (cramjam.DecompressionError, struct.error, ValueError, EOFError, OSError) as error:
        raise CorruptBatch(f"compressed records cannot be read: {error}") from None


def _bounded(decompress_into: Callable[[bytes, bytearray], int], data: bytes) -> bytes:
    """Decompress into a buffer that grows only as far as the limit."""
    room = max(1 << 16, 8 * len(data))
    while True:
        buffer = bytearray(room)
        try:
            return bytes(memoryview(buffer)[: decompress_into(data, buffer)])
        except cramjam.DecompressionError as error:
            if "whole buffer" not in str(error) or room >= RECORDS_BYTES_MAX:
                raise
            room = min(room * 8, RECORDS_BYTES_MAX)


def _snappy(data: bytes) -> bytes:
    if not data.startswith(_XERIAL):
        return _snappy_block(data)
    parts, position = [], len(_XERIAL_HEADER)
    while position < len(data):
        (length,) = _LENGTH.unpack_from(data, position)
        position += _LENGTH.size
        if length < 0 or position + length > len(data):
            raise CorruptBatch(f"a snappy block of {length} bytes leaves the batch")
        parts.append(_snappy_block(data[position : position + length]))
        position += length
    return b"".join(parts)


def _snappy_block(block: bytes) -> bytes:
    if cramjam.snappy.decompress_raw_len(block) > RECORDS_BYTES_MAX:
        raise CorruptBatch("a snappy block that says it is larger than any batch")
    return bytes(cramjam.snappy.decompress_raw(block))
