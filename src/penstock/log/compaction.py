"""Compaction: keep, of each key, the last record, so that a topic's size follows its keys and not its history.

Invariants: the last committed record of every key stays, at its offset, with its bytes; order and offsets never change. Nothing at or after the last stable offset
is touched, nor the active segment. A tombstone (a record without a value) and a transaction's marker stay for delete.retention.ms after
the first pass that saw them, so that a reader who is that far behind still learns of them; the time is kept in the batch itself (attribute bit 6,
base timestamp). Records of aborted transactions go at once, a marker not before its transaction is forgotten.

A pass reads full segments, which nobody changes, and writes `<base>.cleaned` beside them without a lock. Then the file is synced and renamed: that one step
replaces the old segments (recovery.py reads the names the same way). A crash before it leaves a leftover, after it superseded files."""

from __future__ import annotations

import hashlib
import posixpath
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.log import batch as rb
from penstock.log.batch import BatchHeader, Record
from penstock.log.producers import Aborted
from penstock.log.segment import Segment, segment_name
from penstock.log.storage import Buffer

if TYPE_CHECKING:
    from penstock.log.partition import Partition

KEYS_MAX = 5_000_000  # in one pass; about 100 bytes each. A larger dirty part is compacted in several passes
KEY_BYTES_MAX = 32  # longer keys are remembered by their hash


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a pass did."""

    end_offset: int
    bytes_before: int
    bytes_after: int

    def __str__(self) -> str:
        return f"compacted up to offset {self.end_offset}: {self.bytes_before} bytes became {self.bytes_after}"


@dataclass(frozen=True, slots=True)
class Pass:
    """What a pass needs to know; fixed when it begins."""

    latest: dict[bytes, int]  # key -> offset of its last committed record in the dirty part
    aborted: tuple[Aborted, ...]
    last_offsets: frozenset[int]  # last batch of each producer: kept, empty if need be, for its sequence
    now_ms: int
    horizon_ms: int


def compact(partition: Partition, *, now_us: int, force: bool = False) -> Compacted | None:
    """Compact what is due; None if nothing is. `force` skips the question whether it is worth it."""
    if not partition.compaction_lock.acquire(blocking=False):
        return None
    try:
        now_ms = now_us // 1_000
        segments = _due(partition, now_ms=now_ms, force=force)
        if not segments:
            return None
        this, segments = _plan(partition, segments, now_ms)
        end = segments[-1].end_offset or partition.end_of(segments[-1])
        before = sum(segment.size for segment in segments)
        after = _rewrite(partition, segments, this)
        partition.forget_transactions_before(end)
        return Compacted(end, before, after)
    finally:
        partition.compaction_lock.release()


def _due(partition: Partition, *, now_ms: int, force: bool) -> list[Segment]:
    """The full segments that a pass would read, or none."""
    config = partition.config
    partition.roll_if_old(now_ms=now_ms)
    stable = partition.last_stable_offset
    partition.flush()  # also at level os: an old record must not go for a newer one, or a marker, that a power loss can still take
    with partition.lock:
        chosen: list[Segment] = []
        for segment, follower in zip(partition.segments, partition.segments[1:]):
            too_young = not segment.is_compacted and now_ms - segment.max_timestamp < config.compaction_lag_ms_min
            if follower.base_offset > stable or too_young or segment.damage is not None:
                break
            chosen.append(segment)
        dirty = [segment for segment in chosen if not segment.is_compacted]
        if not dirty:
            return []
        dirty_bytes, all_bytes = sum(s.size for s in dirty), sum(s.size for s in chosen)
        overdue = any(now_ms - (s.first_append_ms or s.max_timestamp) >= config.compaction_lag_ms_max for s in dirty)
        return chosen if force or overdue or dirty_bytes >= config.dirty_ratio_min * all_bytes else []


def _plan(partition: Partition, segments: list[Segment], now_ms: int) -> tuple[Pass, list[Segment]]:
    """Find the last offset of each key in the dirty part; leave out the segments after the one that fills the map."""
    with partition.lock:
        aborted = tuple(partition.producers.aborted)
        last_offsets = frozenset(producer.last_offset for producer in partition.producers.by_id.values())
    latest: dict[bytes, int] = {}
    read = 0
    for number, segment in enumerate(segments):
        read = number + 1
        if segment.is_compacted:
            continue
        for header, _, data in segment.scan():
            if header.is_control or is_aborted(header, aborted):
                continue
            for record in rb.decode(data, header):
                if record.key is not None:
                    latest[_short(record.key)] = record.offset
        if len(latest) >= KEYS_MAX:
            break
    return Pass(latest, aborted, last_offsets, now_ms, now_ms + partition.config.delete_retention_ms), segments[:read]


def _short(key: bytes) -> bytes:
    return key if len(key) < KEY_BYTES_MAX else hashlib.blake2b(key, digest_size=KEY_BYTES_MAX).digest()


class _Output:
    """A file in the making: what is left of some consecutive segments."""

    def __init__(self, partition: Partition, first: Segment, this: Pass) -> None:
        self._partition, self._this = partition, this
        self._cleaned = posixpath.join(partition.directory, f"{first.base_offset:020d}.cleaned")
        if partition.storage.exists(self._cleaned):
            partition.storage.unlink(self._cleaned)
        self._file = partition.storage.open(self._cleaned, create=True)
        self._sources: list[Segment] = []
        self._target = Segment(
            partition.storage, self._cleaned, place=partition.place, base_offset=first.base_offset, end_offset=first.next_offset
        )

    @property
    def size(self) -> int:
        return self._target.size

    def add(self, source: Segment) -> None:
        self._sources.append(source)
        for header, _, data in source.scan():
            kept = cleaned_batch(header, data, self._this)
            if kept is not None:
                self._file.append([kept])
                new = rb.parse(kept)
                self._target.note(new.base_offset, new.next_offset, new.max_timestamp, new.size)

    def finish(self) -> int:
        """Sync the file and let it take the place of its sources."""
        self._file.fdatasync()
        self._file.close()
        last = self._sources[-1]
        target = self._target
        target.end_offset = last.end_offset or self._partition.end_of(last)
        target.path = posixpath.join(self._partition.directory, segment_name(target.base_offset, target.end_offset))
        self._partition.swap(self._sources, target, cleaned=self._cleaned)
        return target.size

    def abandon(self) -> None:
        self._file.close()


def _rewrite(partition: Partition, segments: list[Segment], this: Pass) -> int:
    """Write the segments anew, as many into one file as a segment may be large. Returns the bytes written."""
    written = 0
    output = _Output(partition, segments[0], this)
    try:
        for number, segment in enumerate(segments):
            if number and output.size + segment.size > partition.config.segment_bytes:
                written += output.finish()
                output = _Output(partition, segment, this)
            output.add(segment)
        return written + output.finish()
    except BaseException:
        output.abandon()  # the file is a leftover that the next pass or opening removes
        raise


def is_aborted(header: BatchHeader, aborted: tuple[Aborted, ...]) -> bool:
    if not header.is_transactional:
        return False
    return any(one.producer_id == header.producer_id and one.first_offset <= header.base_offset < one.next_offset for one in aborted)


def cleaned_batch(header: BatchHeader, data: Buffer, this: Pass) -> Buffer | None:
    """What is left of a batch: itself, a shorter one, or None."""
    has_horizon = bool(header.attributes & rb.DELETE_HORIZON)
    expired = has_horizon and header.base_timestamp <= this.now_ms
    if header.is_control:
        if expired and not any(one.next_offset == header.next_offset for one in this.aborted):
            return None
        return data if has_horizon else _with_records(header, list(rb.decode(data, header)), horizon_ms=this.horizon_ms)
    if is_aborted(header, this.aborted):
        records, kept = None, []
    else:
        records = list(rb.decode(data, header))
        kept = [record for record in records if _is_kept(record, this, expired=expired)]
    tombstones = any(record.value is None for record in kept)
    if not kept:
        return _with_records(header, [], horizon_ms=None) if header.next_offset - 1 in this.last_offsets else None
    if records is not None and len(kept) == len(records) and (has_horizon or not tombstones):
        return data
    return _with_records(header, kept, horizon_ms=this.horizon_ms if tombstones and not has_horizon else None)


def _is_kept(record: Record, this: Pass, *, expired: bool) -> bool:
    if record.key is None or (record.value is None and expired):
        return False
    return this.latest.get(_short(record.key), -1) <= record.offset


def _with_records(header: BatchHeader, records: list[Record], *, horizon_ms: int | None) -> bytes:
    """The batch with these records; the offsets it covers, its producer and its codec stay. The horizon takes the place of the base
    timestamp, and the records' times are told relative to it, so they stay what they were."""
    attributes, base_timestamp = header.attributes, header.base_timestamp
    if horizon_ms is not None:
        attributes, base_timestamp = attributes | rb.DELETE_HORIZON, horizon_ms
    body = rb.encode_records(records, base_offset=header.base_offset, base_timestamp=base_timestamp) if records else b""
    times = [record.timestamp_ms for record in records]
    fields = header._replace(
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=header.max_timestamp if header.attributes & rb.LOG_APPEND_TIME or not times else max(times),
        record_count=len(records),
    )
    return rb.assembled(fields, rb.compress(body, header.codec) if records else b"")
