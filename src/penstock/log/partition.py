"""One partition: segments in a row, an end that grows, and what it knows of its producers.

    DIR/topics/<name>.<id>/<partition>/
        00000000000000000000.log, .index       segments (see segment.py)
        00000000000000001200.snapshot          producers as of offset 1200
        start                                  the first offset that is served, once records were deleted

Invariant: start_offset <= last_stable_offset <= high_watermark <= next_offset and durable_offset <= next_offset. Offsets rise by exactly
one per record. A batch is stored as it came but for its base offset and leader epoch. Nothing is visible before it has reached the
durability level. Thread-safe by one lock; syncs run outside of it. Not here: topics, who may write, waiting."""

from __future__ import annotations

import posixpath
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import google_crc32c

from penstock.log import batch as rb
from penstock.log import checkpoint
from penstock.log.batch import HEADER_BYTES, BatchHeader, Record
from penstock.log.commit import Callback, Committer, storage_failed
from penstock.log.config import TopicConfig
from penstock.log.errors import BatchTooLarge, CorruptBatch, InvalidRecord, InvalidTimestamp, LogError, OffsetOutOfRange, UnsupportedCodec
from penstock.log.points import RecoveryPoints
from penstock.log.producers import Producers
from penstock.log.recovery import Recovered, load_producers, recover, snapshot_path
from penstock.log.segment import Segment, segment_name
from penstock.log.storage import Buffer, Storage

LEADER_EPOCH = 0
OPEN_SEGMENTS_MAX = 4  # of the full ones; the active one is always open
_CODEC_OF = rb.CODECS | {"producer": -1}


class Appended(NamedTuple):
    """Where a batch went. `log_append_time_ms` is -1 unless the topic stamps records itself."""

    base_offset: int
    next_offset: int
    log_append_time_ms: int
    duplicate: bool


class Partition:
    def __init__(
        self,
        *,
        storage: Storage,
        directory: str,
        topic: str,
        topic_id: bytes,
        index: int,
        config: TopicConfig,
        commits: Committer,
        points: RecoveryPoints,
        recovered: Recovered,
    ) -> None:
        self.topic, self.topic_id, self.index = topic, topic_id, index
        self.directory, self.config = directory, config
        self.leader_epoch = LEADER_EPOCH
        self.waiters: deque[tuple[int, Callback]] = deque()
        self.in_commit = False
        self.recovered = recovered
        self.segments: list[Segment] = recovered.segments
        self.producers: Producers = recovered.producers
        self.start_offset = recovered.start_offset
        self.next_offset = self.segments[-1].next_offset
        self.durable_offset = self.next_offset
        self.failed: LogError | None = recovered.damage
        self.compacted_until = max((s.end_offset or 0 for s in self.segments), default=0)
        self.storage, self._commits, self._points = storage, commits, points
        self._bases = [segment.base_offset for segment in self.segments]
        self._unsynced: list[Segment] = []  # full, and not yet synced as a whole
        self._syncing: list[Segment] = []
        self._doomed: list[Segment] = []  # removed while they were being synced
        self.lock = threading.RLock()
        self._sync_lock = threading.Lock()  # held while files are synced; taken before `lock`, never after it
        self.compaction_lock = threading.Lock()  # one compaction at a time
        self._opened: deque[Segment] = deque()

    @property
    def place(self) -> str:
        return f"{self.topic}-{self.index}"

    @property
    def active(self) -> Segment:
        return self.segments[-1]

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    @property
    def high_watermark(self) -> int:
        """Everything before it has reached the durability level and is visible."""
        return self.next_offset if self._commits.durability == "os" else self.durable_offset

    @property
    def last_stable_offset(self) -> int:
        """Everything before it is visible and of a transaction that has ended for good."""
        with self.lock:
            visible = self.high_watermark
            unstable = self.producers.first_unstable_offset(high_watermark=visible)
            return visible if unstable is None else min(unstable, visible)

    @classmethod
    def create(cls, storage: Storage, directory: str) -> None:
        """The files of a new partition, on disk when it returns; its parent directory is the caller's to sync."""
        storage.mkdir(directory)
        storage.open(posixpath.join(directory, segment_name(0)), create=True).close()
        storage.sync_dir(directory)

    @classmethod
    def open(
        cls,
        *,
        storage: Storage,
        directory: str,
        topic: str,
        topic_id: bytes,
        index: int,
        config: TopicConfig,
        commits: Committer,
        points: RecoveryPoints,
    ) -> Partition:
        place = f"{topic}-{index}"
        point = points.get(topic_id, index)
        recovered = recover(storage, directory, place=place, recovery_point=point, index_interval_bytes=config.index_interval_bytes)
        partition = cls(
            storage=storage,
            directory=directory,
            topic=topic,
            topic_id=topic_id,
            index=index,
            config=config,
            commits=commits,
            points=points,
            recovered=recovered,
        )
        for segment in partition.segments:
            segment.close()  # opened again when somebody reads or writes: an idle partition costs no file descriptor
        if recovered.damage is None:
            points.record(topic_id, index, partition.next_offset)
        return partition

    # --- append ------------------------------------------------------------------------------------------------------

    def append(self, batch: Buffer, *, now_us: int) -> Appended:
        """Store one batch of a producer. Visible and acknowledged when `commits.when_durable` says so."""
        header = self._accepted(batch)
        if header.attributes & rb.CONTROL:
            raise InvalidRecord(f"{self.place}: producers may not write control batches")
        now_ms = now_us // 1_000
        if self.config.log_append_time or self.config.compression != "producer" or self.config.is_compacted:
            batch, header = self._conformed(batch, header, now_ms)
        if not self.config.log_append_time:
            self._check_time(header, now_ms)
        return self._append(batch, header, commits=None, now_ms=now_ms)

    def append_marker(self, *, producer_id: int, producer_epoch: int, commit: bool, coordinator_epoch: int = 0, now_us: int) -> Appended:
        """End the producer's transaction on this partition. A repeat is harmless: it takes an offset and changes nothing."""
        now_ms = now_us // 1_000
        data = rb.encode_marker(
            producer_id=producer_id, producer_epoch=producer_epoch, commit=commit, coordinator_epoch=coordinator_epoch, timestamp_ms=now_ms
        )
        return self._append(data, rb.parse(data), commits=commit, now_ms=now_ms)

    def _append(self, batch: Buffer, header: BatchHeader, *, commits: bool | None, now_ms: int) -> Appended:
        stamped_ms = now_ms if self.config.log_append_time else -1
        size = len(batch)
        with self.lock:
            if self.failed is not None:
                raise self.failed
            if header.producer_id >= 0:
                written = self.producers.check(header, place=self.place)
                if written is not None:
                    return Appended(written.base_offset, written.next_offset, stamped_ms, True)
            base_offset = self.next_offset
            next_offset = base_offset + header.last_offset_delta + 1
            active = self.segments[-1]
            if active.size and self._is_full(active, size, now_ms):
                active = self.roll()
            if active.first_append_ms is None:
                active.first_append_ms = now_ms
            try:
                active.append(
                    rb.placed(batch, base_offset=base_offset, leader_epoch=LEADER_EPOCH),
                    base_offset=base_offset,
                    next_offset=next_offset,
                    max_timestamp=header.max_timestamp,
                    size=size,
                )
            except OSError as error:
                failure = storage_failed(self.place, "append", error)
                if not active.is_whole:  # the half-written batch could not be taken back
                    self.failed = failure
                raise failure from error
            self.next_offset = next_offset
            if header.producer_id >= 0:
                self.producers.apply(header, base_offset=base_offset, commits=commits, now_ms=now_ms)
        if self._commits.durability == "group":
            self._commits.submit(self)
        return Appended(base_offset, next_offset, stamped_ms, False)

    def _accepted(self, batch: Buffer) -> BatchHeader:
        """The header of a batch that is whole and of a shape that may be stored."""
        size = len(batch)
        if size >= 17 and batch[16] in (0, 1):
            raise InvalidRecord(
                f"{self.place}: message format {batch[16]}", remedy="use a client that writes record batches (Kafka 0.11 or later)"
            )
        header = rb.parse(batch)
        if header.magic != 2:
            raise CorruptBatch(f"{self.place}: magic {header.magic} instead of 2")
        if HEADER_BYTES <= header.size < size:
            raise InvalidRecord(f"{self.place}: more than one batch in an append", remedy="send one batch per partition and request")
        if size > self.config.max_message_bytes:
            raise BatchTooLarge(
                f"{self.place}: a batch of {size} bytes is over max.message.bytes={self.config.max_message_bytes}",
                remedy="send smaller batches or raise the topic's max.message.bytes",
            )
        if header.size != size:
            raise CorruptBatch(f"{self.place}: a batch of {header.size} bytes in a buffer of {size}")
        found = google_crc32c.value(bytes(batch[rb.CRC_FROM :]))
        if found != header.crc:
            raise CorruptBatch(f"{self.place}: CRC32C is {found:08x}, the header says {header.crc:08x}")
        if header.record_count < 1 or header.last_offset_delta != header.record_count - 1:
            raise InvalidRecord(f"{self.place}: {header.record_count} records with last offset delta {header.last_offset_delta}")
        if header.codec > rb.ZSTD:
            raise UnsupportedCodec(f"{self.place}: codec {header.codec} is not one of none, gzip, snappy, lz4, zstd")
        if header.producer_id >= 0 and (header.producer_epoch < 0 or header.base_sequence < 0):
            raise InvalidRecord(f"{self.place}: producer {header.producer_id} without an epoch or a sequence")
        return header

    def _conformed(self, batch: Buffer, header: BatchHeader, now_ms: int) -> tuple[Buffer, BatchHeader]:
        """What the topic's configuration asks for beyond storing the bytes; this is the slow way."""
        config = self.config
        if config.is_compacted:
            try:
                keyless = any(record.key is None for record in rb.decode(batch, header))
            except CorruptBatch as error:
                raise InvalidRecord(f"{self.place}: {error.message}") from None
            if keyless:
                raise InvalidRecord(f"{self.place}: a record without a key on a compacted topic", remedy="give every record a key")
        codec = _CODEC_OF[config.compression]
        if codec >= 0 and codec != header.codec:
            batch = rb.recoded(batch, header, codec=codec)
            header = rb.parse(batch)
        if config.log_append_time:
            batch = rb.restamped(batch, header, log_append_time_ms=now_ms)
            header = rb.parse(batch)
        return batch, header

    def _check_time(self, header: BatchHeader, now_ms: int) -> None:
        config = self.config
        if header.max_timestamp - now_ms > config.timestamp_after_ms_max or now_ms - header.base_timestamp > config.timestamp_before_ms_max:
            raise InvalidTimestamp(
                f"{self.place}: record times up to {header.max_timestamp} are too far from now ({now_ms})",
                remedy="correct the producer's clock or the topic's message.timestamp.*.max.ms",
            )

    # --- segments ----------------------------------------------------------------------------------------------------

    def _is_full(self, segment: Segment, size: int, now_ms: int) -> bool:
        if segment.size + size > self.config.segment_bytes:
            return True
        first_ms = segment.first_append_ms
        return first_ms is not None and now_ms - first_ms >= self.config.segment_ms

    def roll(self) -> Segment:
        """Begin a new segment. Its name is on disk before anything is written to it."""
        with self.lock:
            if self.failed is not None:
                raise self.failed
            full, interval = self.active, self.config.index_interval_bytes
            path = posixpath.join(self.directory, segment_name(self.next_offset))
            try:
                self.write_snapshot()
                fresh = Segment.create(self.storage, path, place=self.place, base_offset=self.next_offset, index_interval_bytes=interval)
                self.storage.sync_dir(self.directory)
                full.write_index()
            except OSError as error:
                failure = storage_failed(self.place, "new segment", error)
                self._take_back(path, failure)
                raise failure from error
            self._unsynced.append(full)
            self.segments.append(fresh)
            self._bases.append(fresh.base_offset)
        self._commits.submit(self)  # at level os too: full segments reach the disk, and the recovery point moves on
        return fresh

    def _take_back(self, path: str, failure: LogError) -> None:
        """Remove a segment file that was not to be. If it stays, the log must not grow past its name: then this is the end."""
        try:
            if self.storage.exists(path):
                self.storage.unlink(path)
        except OSError:
            self.failed = failure

    def roll_if_old(self, *, now_ms: int) -> None:
        """Begin a new segment if the active one is as old as the configuration lets it become."""
        with self.lock:
            age_ms = min(self.config.segment_ms, self.config.compaction_lag_ms_max)
            if self.active.size and self.active.first_append_ms is not None and now_ms - self.active.first_append_ms >= age_ms:
                self.roll()

    def end_of(self, segment: Segment) -> int:
        """Where the next segment begins."""
        with self.lock:
            return self.segments[self.segments.index(segment) + 1].base_offset

    def swap(self, group: list[Segment], compacted: Segment, *, cleaned: str) -> None:
        """Let a compacted file, written and synced as `cleaned`, take the place of the segments it was made from."""
        with self.lock:
            if any(segment not in self.segments for segment in group):  # retention was faster
                self.storage.unlink(cleaned)
                return
            if self.storage.exists(compacted.index_path):  # of the same range, compacted before
                self.storage.unlink(compacted.index_path)
                self.storage.sync_dir(self.directory)
            self.storage.rename(cleaned, compacted.path)
            self.storage.sync_dir(self.directory)
            for segment in group:
                segment.is_replaced = segment.path == compacted.path  # its name is the new file's now
            first = self.segments.index(group[0])
            self.segments[first : first + len(group)] = [compacted]
            self._bases = [segment.base_offset for segment in self.segments]
            self.compacted_until = max(self.compacted_until, compacted.end_offset or 0)
            compacted.write_index()
            self._discard(group)

    def forget_transactions_before(self, offset: int) -> None:
        """Aborted transactions whose records compaction has removed need no mention any more. This cannot be taken back by a crash when
        a later pass removes their markers: a mention without its marker would make readers drop what comes after."""
        with self.lock:
            if not any(aborted.next_offset <= offset for aborted in self.producers.aborted):
                return
            self.producers.forget_before(offset)
            self.write_snapshot()
        self.flush()

    def write_snapshot(self) -> None:
        """Save the producers as of now. Older saves go, but not the last one that no crash can take back: what it tells may
        be in no other place any more, once segments before it were compacted."""
        with self.lock:
            checkpoint.write(self.storage, snapshot_path(self.directory, self.next_offset), "producers", self.producers.to_json())
            saved = sorted(name for name in self.storage.listdir(self.directory) if name.endswith(".snapshot"))
            safe = [name for name in saved if int(name.removesuffix(".snapshot")) <= self.durable_offset]
            for name in safe[:-1]:
                self.storage.unlink(posixpath.join(self.directory, name))

    def segment_of(self, offset: int) -> int:
        return max(0, bisect_right(self._bases, offset) - 1)

    def _reading(self, segment: Segment) -> Segment:
        """Keep a bounded number of full segments open."""
        if not segment.is_open and segment is not self.segments[-1]:
            self._admit(segment)
        return segment

    def _admit(self, segment: Segment) -> None:
        while len(self._opened) >= OPEN_SEGMENTS_MAX:
            oldest = self._opened.popleft()
            if oldest not in self._unsynced:
                oldest.close()
        self._opened.append(segment)

    # --- durability --------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Bring everything appended so far to disk. Called by the commit threads, and when closing."""
        with self._sync_lock:
            with self.lock:
                if self.failed is not None:
                    raise self.failed
                target, full = self.next_offset, list(self._unsynced)
                if target == self.durable_offset and not full:
                    return
                self._syncing = [*full, self.active]
            failure: LogError | None = None
            try:
                for segment in self._syncing:
                    segment.file.fdatasync()
            except OSError as error:
                failure = storage_failed(self.place, "fsync failed, the partition is stopped", error)
            with self.lock:
                self._syncing = []
                while self._doomed:
                    self._doomed.pop().close()
                if failure is not None:
                    self.failed = failure
                    raise failure
                for segment in full:
                    if segment in self._unsynced:  # else it was deleted meanwhile
                        self._unsynced.remove(segment)
                        self._admit(segment)
                self.durable_offset = max(self.durable_offset, target)
            self._points.record(self.topic_id, self.index, target)

    # --- read --------------------------------------------------------------------------------------------------------

    def read(self, start: int, *, bytes_max: int, committed: bool = False) -> list[memoryview]:
        """Whole batches from the one that holds `start`; at least one if there is any, however large. Empty at the end.
        With `committed` nothing at or after the last stable offset; aborted records are in there, `aborted` names them."""
        with self.lock:
            if not self.start_offset <= start <= self.next_offset:
                raise OffsetOutOfRange(self.place, start, start=self.start_offset, end=self.next_offset)
            end = self.last_stable_offset if committed else self.high_watermark
            if start >= end:
                if self.failed is not None and start >= self.high_watermark:  # nothing will ever come: do not let the reader wait for it
                    raise self.failed
                return []
            for number in range(self.segment_of(start), len(self.segments)):
                segment = self.segments[number]
                if segment.base_offset >= end:
                    break
                found = self._reading(segment).read(start, bytes_max=bytes_max, end=end)
                if found is not None:
                    return [found]
                if segment.damage is not None:
                    raise segment.damage
            return []

    def aborted(self, start: int, end: int) -> list[tuple[int, int]]:
        """(producer id, first offset) of the aborted transactions with records in [start, end)."""
        with self.lock:
            return [(aborted.producer_id, aborted.first_offset) for aborted in self.producers.aborted_between(start, end)]

    def batches(self, start: int | None = None) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Every batch from the one that holds `start` to the end, checked."""
        with self.lock:
            start = self.start_offset if start is None else start
            segments = self.segments[self.segment_of(start) :]
        for segment in segments:
            for header, _, data in segment.scan():
                if header.next_offset > start:
                    yield header, data

    def records(self, start: int | None = None) -> Iterator[Record]:
        """Every record from `start` to the end, markers left out, aborted ones not."""
        start = self.start_offset if start is None else start
        for header, data in self.batches(start):
            if not header.is_control:
                yield from (record for record in rb.decode(data, header) if record.offset >= start)

    # --- times -------------------------------------------------------------------------------------------------------

    def offset_for_time(self, timestamp_ms: int) -> tuple[int, int] | None:
        """(offset, time) of the first visible record at or after a time, also when times are out of order."""
        with self.lock:
            end = self.high_watermark
            for segment in self.segments:
                if segment.max_timestamp < timestamp_ms or segment.next_offset <= self.start_offset:
                    continue
                for data in self._reading(segment).first_batch_at_or_after(timestamp_ms, start=self.start_offset):
                    for record in rb.decode(data):
                        if record.timestamp_ms >= timestamp_ms and self.start_offset <= record.offset < end:
                            return record.offset, record.timestamp_ms
        return None

    def offset_of_max_timestamp(self) -> tuple[int, int] | None:
        """(offset, time) of the first record with the latest time."""
        with self.lock:
            times = [segment.max_timestamp for segment in self.segments if segment.size and segment.next_offset > self.start_offset]
            return self.offset_for_time(max(times)) if times else None

    # --- deleting ----------------------------------------------------------------------------------------------------

    def delete_before(self, offset: int) -> int:
        """Serve nothing before `offset` any more, for good; whole segments before it are removed. Returns the new start."""
        if offset > self.durable_offset:
            self.flush()  # the start never lies behind an end that a power loss could take back
        with self.lock:
            if not 0 <= offset <= self.high_watermark:
                raise OffsetOutOfRange(self.place, offset, start=self.start_offset, end=self.high_watermark)
            if offset > self.start_offset:
                self._move_start(offset)
            return self.start_offset

    def _move_start(self, offset: int) -> None:
        # The new start is on disk before the first file goes: a power loss may undo any of the removals, in any order.
        try:
            checkpoint.write(self.storage, posixpath.join(self.directory, "start"), "start", {"start_offset": offset})
        except OSError as error:
            raise storage_failed(self.place, "new start offset", error) from error
        self.start_offset = offset
        self.producers.forget_before(offset)
        keep = self.segment_of(offset)
        gone, self.segments, self._bases = self.segments[:keep], self.segments[keep:], self._bases[keep:]
        self._discard(gone)

    def _discard(self, segments: list[Segment]) -> None:
        """Remove segments that the partition no longer has. One that is being synced is closed when that is done."""
        for segment in segments:
            for held in (self._opened, self._unsynced):
                if segment in held:
                    held.remove(segment)
            segment.unlink()
            if segment in self._syncing:
                self._doomed.append(segment)
            else:
                segment.close()

    def enforce_retention(self, *, now_us: int) -> int:
        """Remove the oldest segments as retention.ms and retention.bytes ask. Returns the number of segments removed."""
        config, now_ms = self.config, now_us // 1_000
        if not config.is_deleted or self.failed is not None:
            return 0
        with self.lock:
            if (
                config.retention_ms >= 0
                and self.active.size
                and self._is_expired(self.active, now_ms)
                and self.next_offset <= self.last_stable_offset
            ):
                self.roll()
            count = self._removable(now_ms)
            if not count:
                return 0
            start = self.segments[count].base_offset
        if start > self.durable_offset:
            self.flush()
        with self.lock:
            count = self._removable(now_ms)
            if count:
                self._move_start(max(self.start_offset, self.segments[count].base_offset))
            return count

    def _removable(self, now_ms: int) -> int:
        """How many of the oldest segments retention no longer wants."""
        config, limit, count = self.config, self.last_stable_offset, 0
        excess = self.size_bytes - config.retention_bytes
        for segment, follower in zip(self.segments, self.segments[1:]):
            expired = config.retention_ms >= 0 and self._is_expired(segment, now_ms)
            too_much = config.retention_bytes >= 0 and excess >= segment.size
            if follower.base_offset > limit or not (expired or too_much):
                break
            excess -= segment.size
            count += 1
        return count

    def _is_expired(self, segment: Segment, now_ms: int) -> bool:
        newest_ms = segment.max_timestamp if segment.max_timestamp >= 0 else (segment.first_append_ms or now_ms)
        return now_ms - newest_ms > self.config.retention_ms

    def truncate(self, offset: int) -> None:
        """Drop everything from the batch that holds `offset` on, durably."""
        with self._sync_lock, self.lock:
            if offset >= self.next_offset:
                return
            number = self.segment_of(offset)
            segment, later = self.segments[number], self.segments[number + 1 :]
            if segment.is_compacted or offset < self.start_offset:
                raise OffsetOutOfRange(self.place, offset, start=max(self.start_offset, self.compacted_until), end=self.next_offset)
            # First the promise, then the data: a crash in between must find no recovery point beyond the end.
            self._points.record(self.topic_id, self.index, min(offset, segment.base_offset))
            self._points.sync()
            for gone in reversed(later):
                gone.remove()
            for path in (segment.index_path,):
                if self.storage.exists(path):
                    self.storage.unlink(path)
            self.storage.sync_dir(self.directory)
            segment.truncate(offset)
            segment.file.fdatasync()
            self.segments, self._bases = self.segments[: number + 1], self._bases[: number + 1]
            self._unsynced = [other for other in self._unsynced if other in self.segments]
            self.next_offset = self.durable_offset = segment.next_offset
            self.producers = load_producers(self.storage, self.directory, place=self.place, segments=self.segments)

    # --- upkeep ------------------------------------------------------------------------------------------------------

    def checkpoint_index(self, *, bytes_min: int = 0) -> None:
        """Save the index of the active segment, so that recovery begins where it ends. With `bytes_min` only if so much was
        appended since the last time."""
        with self.lock:
            active = self.active
            if self.failed is None and active.size - active.index_saved_bytes > max(0, bytes_min - 1):
                active.write_index()

    def producers_expire(self, *, now_us: int) -> None:
        with self.lock:
            self.producers.expire(now_ms=now_us // 1_000)

    def close(self) -> None:
        """Sync, save producers and index, close. Recovery will have nothing to do."""
        if self.failed is None:
            self.flush()
            with self.lock:
                self.checkpoint_index()
                self.write_snapshot()
        with self._sync_lock, self.lock:
            for segment in self.segments:
                segment.close()

    def abandon(self, why: LogError) -> None:
        """Close the files without writing: the topic is being deleted. Whoever waits or comes later gets `why`."""
        with self._sync_lock, self.lock:
            self.failed = why
            for segment in self.segments:
                segment.close()
        self._commits.release(self)
