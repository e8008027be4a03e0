"""Produce and Fetch, packed and unpacked by hand: the two messages that carry records.

Records are never copied here: unpacking gives memoryviews into the frame, packing gives a list of buffers for a vectored write.
Both sides are here, the broker's and the client's. All other messages go through `codec.py`.

    Produce request   transactional_id | acks i16 | timeout_ms i32 | [topic | [partition i32 | records]]
    Fetch response    throttle_ms i32 | error i16 | session i32 | [topic | [partition … aborted … | records]]

Lengths are int16/int32 in the old versions; from Produce 9 and Fetch 12 they are varints of length + 1, and every
structure ends with tagged fields (skipped when read, empty when written)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from penstock.protocol.codec import Buffer, Malformed, put_uvarint, read_uvarint, skip_tags

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_ACKS_TIMEOUT = struct.Struct(">hi")
_PRODUCED = struct.Struct(">ihqqq")  # partition, error, base offset, append time, log start offset
_PRODUCED_OLD = struct.Struct(">ihqq")  # before version 5 there is no log start offset
_FETCHED = struct.Struct(">ihqqq")  # partition, error, high watermark, last stable offset, log start offset
_FETCHED_OLD = struct.Struct(">ihqq")
_ABORTED = struct.Struct(">qq")
_WANTED = struct.Struct(">iiqiqi")  # partition, leader epoch, offset, last fetched epoch, log start, bytes (version 12 on)

PRODUCE_FLEXIBLE = 9
FETCH_FLEXIBLE = 12
FETCH_TOPIC_IDS = 13


class ProducePart(NamedTuple):
    """The records for one partition."""

    topic: str
    partition: int
    records: memoryview | None


class ProduceRequest(NamedTuple):
    transactional_id: str | None
    acks: int
    timeout_ms: int
    parts: list[ProducePart]


class Produced(NamedTuple):
    """What became of one partition's records. A base offset of -1 goes with an error."""

    topic: str
    partition: int
    error: int
    base_offset: int = -1
    append_time_ms: int = -1
    start_offset: int = -1
    message: str | None = None


class FetchPart(NamedTuple):
    """What a consumer wants of one partition. The topic is a name, or from version 13 an id of 16 bytes."""

    topic: str | bytes
    partition: int
    leader_epoch: int
    offset: int
    bytes_max: int


class FetchRequest(NamedTuple):
    wait_ms_max: int
    bytes_min: int
    bytes_max: int
    isolation_level: int
    session_id: int
    session_epoch: int
    parts: list[FetchPart]


class Fetched(NamedTuple):
    """One partition of a Fetch response. `aborted` holds (producer id, first offset); None means the reader did not ask."""

    topic: str | bytes
    partition: int
    error: int
    high_watermark: int = -1
    last_stable_offset: int = -1
    start_offset: int = -1
    aborted: Sequence[tuple[int, int]] | None = None
    records: Sequence[Buffer] = ()


T = TypeVar("T", Produced, Fetched)


def _string(frame: Buffer, at: int, flexible: bool) -> tuple[str | None, int]:
    if flexible:
        size, at = read_uvarint(frame, at)
        size -= 1
    else:
        (size,) = _I16.unpack_from(frame, at)
        at += 2
    if size < 0:
        return None, at
    if at + size > len(frame):
        raise Malformed("a string is cut short")
    return str(frame[at : at + size], "utf-8"), at + size


def _count(frame: Buffer, at: int, flexible: bool) -> tuple[int, int]:
    if flexible:
        count, at = read_uvarint(frame, at)
        count -= 1
    else:
        (count,) = _I32.unpack_from(frame, at)
        at += 4
    if count > len(frame) - at:
        raise Malformed(f"an array of {count} items in {len(frame) - at} bytes")
    return max(count, 0), at


def _records(frame: memoryview, at: int, flexible: bool) -> tuple[memoryview | None, int]:
    if flexible:
        size, at = read_uvarint(frame, at)
        size -= 1
    else:
        (size,) = _I32.unpack_from(frame, at)
        at += 4
    if size < 0:
        return None, at
    if at + size > len(frame):
        raise Malformed("records are cut short")
    return frame[at : at + size], at + size


def read_produce(frame: memoryview, at: int, version: int) -> ProduceRequest:
    """A Produce request of version 3 to 11; its records are views into the frame."""
    flexible = version >= PRODUCE_FLEXIBLE
    try:
        transactional_id, at = _string(frame, at, flexible)
        acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(frame, at)
        topics, at = _count(frame, at + 6, flexible)
        parts: list[ProducePart] = []
        for _ in range(topics):
            topic, at = _string(frame, at, flexible)
            partitions, at = _count(frame, at, flexible)
            for _ in range(partitions):
                (partition,) = _I32.unpack_from(frame, at)
                records, at = _records(frame, at + 4, flexible)
                parts.append(ProducePart(topic or "", partition, records))
                if flexible:
                    at = skip_tags(frame, at)
            if flexible:
                at = skip_tags(frame, at)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise Malformed(f"produce request of {len(frame)} bytes cannot be read: {error}") from error
    return ProduceRequest(transactional_id, acks, timeout_ms, parts)


def _put_string(out: bytearray, value: str | None, flexible: bool) -> None:
    data = value.encode() if value is not None else b""
    if flexible:
        put_uvarint(out, len(data) + 1 if value is not None else 0)
    else:
        out += _I16.pack(len(data) if value is not None else -1)
    out += data


def _put_count(out: bytearray, count: int, flexible: bool) -> None:
    if flexible:
        put_uvarint(out, count + 1)
    else:
        out += _I32.pack(count)


def _by_topic(parts: Sequence[T]) -> list[list[T]]:
    """Consecutive parts of the same topic together, as the message nests them."""
    topics: list[list[T]] = []
    for part in parts:
        if topics and topics[-1][0].topic == part.topic:
            topics[-1].append(part)
        else:
            topics.append([part])
    return topics


def _start(correlation_id: int, flexible: bool) -> bytearray:
    out = bytearray(4) + _I32.pack(correlation_id)
    if flexible:
        out.append(0)
    return out


def pack_produced(parts: Sequence[Produced], *, version: int, correlation_id: int) -> bytearray:
    """A whole Produce response frame of version 3 to 11."""
    flexible = version >= PRODUCE_FLEXIBLE
    out = _start(correlation_id, flexible)
    topics = _by_topic(parts)
    _put_count(out, len(topics), flexible)
    for topic in topics:
        _put_string(out, topic[0].topic, flexible)
        _put_count(out, len(topic), flexible)
        for part in topic:
            head = (part.partition, part.error, part.base_offset, part.append_time_ms)
            out += _PRODUCED.pack(*head, part.start_offset) if version >= 5 else _PRODUCED_OLD.pack(*head)
            if version >= 8:
                _put_count(out, 0, flexible)
                _put_string(out, part.message, flexible)
            if flexible:
                out.append(0)
        if flexible:
            out.append(0)
    out += bytes(4)
    if flexible:
        out.append(0)
    _I32.pack_into(out, 0, len(out) - 4)
    return out


def read_fetch(frame: memoryview, at: int, version: int) -> FetchRequest:
    """A Fetch request of version 4 to 16. Forgotten topics and the rack are not read: there are no sessions and one rack."""
    flexible = version >= FETCH_FLEXIBLE
    try:
        if version < 15:
            at += 4  # replica id: this broker has no followers
        wait_ms_max, bytes_min, bytes_max, isolation_level = struct.unpack_from(">iiib", frame, at)
        at += 13
        session_id, session_epoch = 0, -1
        if version >= 7:
            session_id, session_epoch = struct.unpack_from(">ii", frame, at)
            at += 8
        topics, at = _count(frame, at, flexible)
        parts: list[FetchPart] = []
        for _ in range(topics):
            topic: str | bytes
            if version >= FETCH_TOPIC_IDS:
                topic = bytes(frame[at : at + 16])
                at += 16
            else:
                name, at = _string(frame, at, flexible)
                topic = name or ""
            partitions, at = _count(frame, at, flexible)
            for _ in range(partitions):
                part, at = _wanted(frame, at, version, topic)
                parts.append(part)
            if flexible:
                at = skip_tags(frame, at)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise Malformed(f"fetch request of {len(frame)} bytes cannot be read: {error}") from error
    return FetchRequest(wait_ms_max, bytes_min, bytes_max, isolation_level, session_id, session_epoch, parts)


def _wanted(frame: memoryview, at: int, version: int, topic: str | bytes) -> tuple[FetchPart, int]:
    leader_epoch = -1
    if version >= FETCH_FLEXIBLE:
        partition, leader_epoch, offset, _, _, bytes_max = _WANTED.unpack_from(frame, at)
        return FetchPart(topic, partition, leader_epoch, offset, bytes_max), skip_tags(frame, at + _WANTED.size)
    if version >= 9:
        partition, leader_epoch, offset = struct.unpack_from(">iiq", frame, at)
        at += 16
    else:
        partition, offset = struct.unpack_from(">iq", frame, at)
        at += 12
    if version >= 5:
        at += 8  # the follower's log start offset
    (bytes_max,) = _I32.unpack_from(frame, at)
    return FetchPart(topic, partition, leader_epoch, offset, bytes_max), at + 4


def pack_fetched(parts: Sequence[Fetched], *, version: int, correlation_id: int, error: int = 0) -> list[Buffer]:
    """A whole Fetch response frame of version 4 to 16 as buffers; the records are passed through uncopied."""
    flexible = version >= FETCH_FLEXIBLE
    out = _start(correlation_id, flexible)
    first = out
    buffers: list[Buffer] = [out]
    size = 0
    out += bytes(4)
    if version >= 7:
        out += struct.pack(">hi", error, 0)
    topics = _by_topic(parts)
    _put_count(out, len(topics), flexible)
    for topic in topics:
        name = topic[0].topic
        if isinstance(name, bytes):
            out += name
        else:
            _put_string(out, name, flexible)
        _put_count(out, len(topic), flexible)
        for part in topic:
            _put_fetched(out, part, version, flexible)
            if part.records:
                buffers.extend(part.records)
                size += sum(map(len, part.records)) + len(out)
                out = bytearray()
                buffers.append(out)
            if flexible:
                out.append(0)
        if flexible:
            out.append(0)
    if flexible:
        out.append(0)
    _I32.pack_into(first, 0, size + len(out) - 4)
    return buffers


def _put_fetched(out: bytearray, part: Fetched, version: int, flexible: bool) -> None:
    head = (part.partition, part.error, part.high_watermark, part.last_stable_offset)
    out += _FETCHED.pack(*head, part.start_offset) if version >= 5 else _FETCHED_OLD.pack(*head)
    _put_count(out, -1 if part.aborted is None else len(part.aborted), flexible)
    for producer_id, first_offset in part.aborted or ():
        out += _ABORTED.pack(producer_id, first_offset)
        if flexible:
            out.append(0)
    if version >= 11:
        out += b"\xff\xff\xff\xff"  # no preferred replica: read here
    _put_count(out, sum(map(len, part.records)), flexible)


def pack_fetch(
    parts: Sequence[FetchPart],
    *,
    version: int,
    correlation_id: int,
    client_id: str,
    wait_ms_max: int,
    bytes_min: int,
    bytes_max: int,
    isolation_level: int,
) -> bytearray:
    """A whole Fetch request frame of version 4 to 16, without a session; parts of one topic must stand together."""
    flexible = version >= FETCH_FLEXIBLE
    client = client_id.encode()
    out = bytearray(4) + struct.pack(">hhih", 1, version, correlation_id, len(client)) + client
    if flexible:
        out.append(0)
    if version < 15:
        out += b"\xff\xff\xff\xff"
    out += struct.pack(">iiib", wait_ms_max, bytes_min, bytes_max, isolation_level)
    if version >= 7:
        out += struct.pack(">ii", 0, -1)
    topics: dict[str | bytes, list[FetchPart]] = {}
    for part in parts:
        topics.setdefault(part.topic, []).append(part)
    _put_count(out, len(topics), flexible)
    for topic, wanted in topics.items():
        if isinstance(topic, bytes):
            out += topic
        else:
            _put_string(out, topic, flexible)
        _put_count(out, len(wanted), flexible)
        for part in wanted:
            out += struct.pack(">i", part.partition)
            if version >= 9:
                out += struct.pack(">i", part.leader_epoch)
            out += struct.pack(">q", part.offset)
            if version >= 12:
                out += struct.pack(">i", -1)
            if version >= 5:
                out += struct.pack(">q", -1)
            out += struct.pack(">i", part.bytes_max)
            if flexible:
                out.append(0)
        if flexible:
            out.append(0)
    if version >= 7:
        _put_count(out, 0, flexible)
    if version >= 11:
        _put_string(out, "", flexible)
    if flexible:
        out.append(0)
    _I32.pack_into(out, 0, len(out) - 4)
    return out


def read_fetched(frame: memoryview, *, version: int) -> tuple[int, list[Fetched]]:
    """Correlation id and partitions of a Fetch response of version 4 to 16; records are views into the frame.

    An error of the whole response is given to every partition, or to one partition -1 when there is none."""
    flexible = version >= FETCH_FLEXIBLE
    try:
        (correlation_id,) = _I32.unpack_from(frame)
        at = skip_tags(frame, 4) if flexible else 4
        at += 4
        error = 0
        if version >= 7:
            (error,) = _I16.unpack_from(frame, at)
            at += 6
        parts: list[Fetched] = []
        topics, at = _count(frame, at, flexible)
        for _ in range(topics):
            topic: str | bytes
            if version >= FETCH_TOPIC_IDS:
                topic = bytes(frame[at : at + 16])
                at += 16
            else:
                name, at = _string(frame, at, flexible)
                topic = name or ""
            partitions, at = _count(frame, at, flexible)
            for _ in range(partitions):
                part, at = _fetched(frame, at, version, topic)
                parts.append(part)
            if flexible:
                at = skip_tags(frame, at)
    except (struct.error, IndexError, UnicodeDecodeError) as problem:
        raise Malformed(f"fetch response of {len(frame)} bytes cannot be read: {problem}") from problem
    if error:
        parts = [part._replace(error=error) for part in parts] or [Fetched("", -1, error)]
    return correlation_id, parts


def _fetched(frame: memoryview, at: int, version: int, topic: str | bytes) -> tuple[Fetched, int]:
    flexible = version >= FETCH_FLEXIBLE
    partition, error, high_watermark, last_stable_offset = _FETCHED_OLD.unpack_from(frame, at)
    at += _FETCHED_OLD.size
    start_offset = -1
    if version >= 5:
        (start_offset,) = struct.unpack_from(">q", frame, at)
        at += 8
    count, at = _count(frame, at, flexible)
    aborted: list[tuple[int, int]] = []
    for _ in range(count):
        aborted.append(_ABORTED.unpack_from(frame, at))
        at += 16
        if flexible:
            at = skip_tags(frame, at)
    if version >= 11:
        at += 4
    records, at = _records(frame, at, flexible)
    if flexible:
        at = skip_tags(frame, at)
    return Fetched(topic, partition, error, high_watermark, last_stable_offset, start_offset, aborted, (records,) if records else ()), at
