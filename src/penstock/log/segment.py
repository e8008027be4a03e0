"""One segment of a partition: a file of record batches and a sparse index by offset and time.

    00000000000000001200.log                        batches, back to back, from offset 1200 until the next segment's name
    00000000000000001200-00000000000000005400.log   the compacted form of [1200, 5400): offsets have gaps
    the same name with .index                       the sparse index of a full segment, below

Index file; rebuilt from the log when it is missing or does not match, so it is never synced:

    | "PSIX" | version u32 | log_bytes u64 | next_offset i64 | max_timestamp i64 | entry_count u64 | crc u32 | 0 u32 |
    | offset i64 ... | position i64 ... | max_timestamp_before i64 ... |

Invariant: base_offset <= every offset < next_offset, batches are in order, and in a segment that was not compacted without gaps.
An entry says: the batch at `position` begins with `offset`, and no batch before it in this segment has a later time than
`max_timestamp_before`. Not thread-safe. Knows nothing of topics, producers or durability."""

from __future__ import annotations

import contextlib
import re
import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

import google_crc32c

from penstock.log import batch as rb
from penstock.log.batch import CRC_FROM, HEADER_BYTES, PREFIX_BYTES, BatchHeader
from penstock.log.errors import Damaged
from penstock.log.storage import Buffer, File, Storage

NO_TIMESTAMP = -1
_BEFORE_ALL = -(1 << 63)
_NAME = re.compile(r"(\d{20})(?:-(\d{20}))?\.log")
_INDEX_HEADER = struct.Struct("<4sIQqqQII")
_HEAD = struct.Struct(">qiibIhi")  # the first 27 bytes of a batch: all that a read needs
_EPOCH_AND_MAGIC = b"\x00\x00\x00\x00\x02"
SEARCH_BYTES_MAX = 64 << 20
SCAN_BYTES = 4 << 20  # one pread of a sequential scan
HINTS_MAX = 64


def segment_name(base_offset: int, end_offset: int | None = None) -> str:
    return f"{base_offset:020d}.log" if end_offset is None else f"{base_offset:020d}-{end_offset:020d}.log"


def parse_name(name: str) -> tuple[int, int | None] | None:
    """(base offset, end of a compacted range) of a file name; None if it is no segment."""
    match = _NAME.fullmatch(name)
    return (int(match[1]), int(match[2]) if match[2] else None) if match else None


class Segment:
    def __init__(
        self, storage: Storage, path: str, *, place: str, base_offset: int, end_offset: int | None = None, index_interval_bytes: int = 4096
    ) -> None:
        self.path = path
        self.place = place  # topic and partition, for error messages
        self.base_offset = base_offset
        self.end_offset = end_offset  # of a compacted range; None while offsets are without gaps
        self.next_offset = base_offset
        self.max_timestamp = NO_TIMESTAMP
        self.first_append_ms: int | None = None
        self.damage: Damaged | None = None  # found when it was opened: what lies behind it cannot be reached
        self.is_replaced = False  # another file has taken its name
        self._storage = storage
        self._file: File | None = None
        self._size = 0
        # A compacted segment has a full index: with gaps, only the index can tell that a base offset (outside of the CRC) is wrong.
        self._interval = 0 if end_offset is not None else index_interval_bytes
        self._offsets = array("q")
        self._positions = array("q")
        self._times_before = array("q")
        self.index_saved_bytes = 0  # how much of the log the index file covers
        self._indexed_until = 0  # bytes from the last entry on are found by walking
        self._hints: dict[int, int] = {}  # next offset after a read -> its position: a consumer that follows needs no search

    @property
    def is_compacted(self) -> bool:
        return self.end_offset is not None

    @property
    def size(self) -> int:
        return self._size

    @property
    def index_path(self) -> str:
        return self.path.removesuffix(".log") + ".index"

    @property
    def file(self) -> File:
        if self._file is None:
            self._file = self._storage.open(self.path)
        return self._file

    @property
    def is_open(self) -> bool:
        return self._file is not None

    @classmethod
    def create(cls, storage: Storage, path: str, *, place: str, base_offset: int, index_interval_bytes: int = 4096) -> Segment:
        """A new, empty segment. The caller syncs the directory."""
        segment = cls(storage, path, place=place, base_offset=base_offset, index_interval_bytes=index_interval_bytes)
        segment._file = storage.open(path, create=True)
        if segment._file.size():
            segment._file.truncate(0)
        return segment

    # --- writing -----------------------------------------------------------------------------------------------------

    def append(self, buffers: list[Buffer], *, base_offset: int, next_offset: int, max_timestamp: int, size: int) -> None:
        """Write one batch, already placed. If the disk refuses, the segment stays as it was."""
        assert base_offset >= self.next_offset, "offsets rise"
        try:
            self.file.append(buffers)
        except OSError:
            self._undo_partial_write()
            raise
        self.note(base_offset, next_offset, max_timestamp, size)

    def _undo_partial_write(self) -> None:
        # A half-written batch must not stay in front of the next good one. If even this fails, the next append sees a wrong size.
        with contextlib.suppress(OSError):
            self.file.truncate(self._size)

    @property
    def is_whole(self) -> bool:
        return self.file.size() == self._size

    def note(self, base_offset: int, next_offset: int, max_timestamp: int, size: int) -> None:
        if not self._offsets or self._size - self._indexed_until >= self._interval:
            self._offsets.append(base_offset)
            self._positions.append(self._size)
            self._times_before.append(self.max_timestamp if self._offsets[0] != base_offset else _BEFORE_ALL)
            self._indexed_until = self._size
        self._size += size
        self.next_offset = next_offset
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp

    def truncate(self, offset: int) -> None:
        """Keep the batches that end at or before `offset`."""
        position, next_offset = self.position_after(offset)
        self.file.truncate(position)
        self.rebuild(until=position, strict=False)
        assert self.next_offset == next_offset or position == 0

    def position_after(self, offset: int) -> tuple[int, int]:
        """Where the batches that end at or before `offset` end, and the offset there."""
        position, expected = self._seek(offset)
        for header, at, _ in self.scan(position, crc=False):
            if header.next_offset > offset:
                return at, expected
            position, expected = at + header.size, header.next_offset
        return position, expected

    # --- reading -----------------------------------------------------------------------------------------------------

    def read(self, start: int, *, bytes_max: int, end: int) -> memoryview | None:
        """Whole batches from the one that holds `start`, below `end`, at most `bytes_max` unless the first is larger. None if there are none."""
        position = self._hints.get(start)
        if position is None:
            position, expected = self._seek(start)
        else:
            expected = start
        want = min(bytes_max + self._interval + HEADER_BYTES, self._size - position)
        if want <= 0:
            return None
        data = self.file.pread(want, position)
        at, first, available = 0, -1, len(data)
        while available - at >= HEADER_BYTES:
            base, length, epoch, magic, crc, _, delta = _HEAD.unpack_from(data, at)
            size = length + PREFIX_BYTES
            following = base + delta + 1
            if base != expected or epoch != 0 or magic != 2 or length < HEADER_BYTES - PREFIX_BYTES or delta < 0:
                if self.is_compacted and base > expected and self._is_indexed(base, position + at):
                    expected = base  # a gap that compaction left; the index vouches for the offset
                    continue
                if first >= 0:
                    break  # serve what is good; the next read meets the damage and raises
                self._damaged(
                    expected,
                    position + at,
                    f"a batch with base offset {base}, length {length}, magic {magic} where offset {expected} should be",
                )
            if base >= end:
                break
            if at + size > available:
                if first >= 0:
                    break
                if position + at + size > self._size:
                    self._damaged(base, position + at, f"a batch of {size} bytes leaves the file")
                data = data[:at] + self.file.pread(size, position + at)  # one batch larger than asked for
                available = len(data)
                if at + size > available:
                    self._damaged(base, position + at, f"the file ends inside a batch of {size} bytes")
            if following > end or following > start:  # `end` is always between batches: one that leaves it has a bad CRC
                if first >= 0 and at + size - first > bytes_max:
                    break
                found = google_crc32c.value(data[at + CRC_FROM : at + size])
                if found != crc:
                    if first >= 0:
                        break
                    self._damaged(base, position + at, f"CRC32C is {found:08x}, the header says {crc:08x}")
                if first < 0:
                    first = at
            at += size
            expected = following
        if first < 0:
            return None
        if len(self._hints) >= HINTS_MAX:
            self._hints.pop(next(iter(self._hints)))
        self._hints[expected] = position + at
        return memoryview(data)[first:at]

    def _is_indexed(self, offset: int, position: int) -> bool:
        entry = bisect_left(self._positions, position)
        return entry < len(self._positions) and self._positions[entry] == position and self._offsets[entry] == offset

    def _damaged(self, offset: int, position: int, why: str) -> None:
        raise Damaged(self.place, offset, file=self.path, position=position, why=why)

    def _seek(self, offset: int) -> tuple[int, int]:
        """A position at or before the batch that holds `offset`, and the offset expected there."""
        entry = bisect_right(self._offsets, offset) - 1
        return (
            (self._positions[entry], self._offsets[entry]) if entry >= 0 else (0, self._offsets[0] if self._offsets else self.base_offset)
        )

    def scan(self, position: int = 0, *, crc: bool = True, until: int | None = None) -> Iterator[tuple[BatchHeader, int, memoryview]]:
        """Every batch from `position` on with its position and bytes; raises `Damaged` at the first that is wrong.
        Without `crc` only headers are checked, at a fraction of the cost."""
        limit = self._size if until is None else until
        expected = self.base_offset if position == 0 else self.next_offset if position == self._size else None
        while position < limit:
            data = memoryview(self.file.pread(min(SCAN_BYTES, limit - position), position))
            at = 0
            while at < len(data):
                if len(data) - at < HEADER_BYTES:
                    break
                header = rb.parse(data, at)
                if at + header.size > len(data) and header.length >= 0 and position + at + header.size <= limit:
                    break  # the rest of it is in the next piece
                why = self._why_wrong(data, header, at, crc=crc)
                if (
                    why is None
                    and expected is not None
                    and (header.base_offset < expected or (header.base_offset > expected and not self.is_compacted))
                ):
                    why = f"base offset {header.base_offset} where {expected} should be"
                if why:
                    self._damaged(header.base_offset if expected is None else expected, position + at, why)
                yield header, position + at, data[at : at + header.size]
                expected = header.next_offset
                at += header.size
            if at == 0:
                if len(data) < HEADER_BYTES or position + len(data) >= limit:
                    self._damaged(self.next_offset if expected is None else expected, position, "the file ends inside a batch")
                header = rb.parse(data)
                whole = memoryview(self.file.pread(header.size, position))
                if why := self._why_wrong(whole, header, 0, crc=crc):
                    self._damaged(header.base_offset if expected is None else expected, position, why)
                yield header, position, whole
                expected, at = header.next_offset, header.size
            position += at

    def has_batch_after(self, position: int) -> bool:
        """Whether a whole batch begins anywhere from `position` on: looks for the bytes that every stored batch has, then for a right CRC."""
        data = self.file.pread(min(SEARCH_BYTES_MAX, max(0, self.file.size() - position)), position)
        found = data.find(_EPOCH_AND_MAGIC, 12)
        while found >= 0:
            start = found - 12
            if len(data) - start < HEADER_BYTES:
                return False
            if rb.why_wrong(data, rb.parse(data, start), start) is None:
                return True
            found = data.find(_EPOCH_AND_MAGIC, found + 1)
        return False

    def _why_wrong(self, data: memoryview, header: BatchHeader, at: int, *, crc: bool) -> str | None:
        if header.leader_epoch != 0:
            return f"leader epoch {header.leader_epoch} instead of 0"
        if crc:
            return rb.why_wrong(data, header, at)
        if header.magic != 2 or header.length < HEADER_BYTES - PREFIX_BYTES or at + header.size > len(data) or header.last_offset_delta < 0:
            return f"no batch header: magic {header.magic}, length {header.length}"
        return None

    # --- times -------------------------------------------------------------------------------------------------------

    def first_batch_at_or_after(self, timestamp_ms: int, *, start: int) -> Iterator[memoryview]:
        """Batches whose time reaches `timestamp_ms`, from the first on."""
        entry = max(0, bisect_left(self._times_before, timestamp_ms) - 1)
        position = self._positions[entry] if self._positions else 0
        for header, _, data in self.scan(position):
            if header.max_timestamp >= timestamp_ms and header.next_offset > start:
                yield data

    # --- index and recovery ------------------------------------------------------------------------------------------

    def rebuild(self, *, until: int | None = None, strict: bool = True, trust_until: int = 0) -> Damaged | None:
        """Read the file and make the index anew. At the first bad batch: raise if `strict`, else stop in front of it and return what
        was found. The file is not changed. What an index file covers is not read again if it ends at or before offset `trust_until`."""
        if not (trust_until and until is None and self.load_index(whole=False) and self.next_offset <= trust_until):
            self._reset()
        limit = self.file.size() if until is None else until
        try:
            for header, _, _ in self.scan(self._size, until=limit):
                if self.first_append_ms is None:
                    self.first_append_ms = header.max_timestamp
                self.note(header.base_offset, header.next_offset, header.max_timestamp, header.size)
        except Damaged as damage:
            if strict:
                raise
            return damage
        return None

    def _reset(self) -> None:
        self._offsets, self._positions, self._times_before = array("q"), array("q"), array("q")
        self._hints.clear()
        self._size = self._indexed_until = self.index_saved_bytes = 0
        self.next_offset, self.max_timestamp, self.first_append_ms = self.base_offset, NO_TIMESTAMP, None

    def write_index(self) -> None:
        entries = self._offsets.tobytes() + self._positions.tobytes() + self._times_before.tobytes()
        fields = (b"PSIX", 1, self._size, self.next_offset, self.max_timestamp, len(self._offsets))
        crc = google_crc32c.value(_INDEX_HEADER.pack(*fields, 0, 0) + entries)
        file = self._storage.open(self.index_path, create=True)
        try:
            file.truncate(0)
            file.append([_INDEX_HEADER.pack(*fields, crc, 0), entries])
        finally:
            file.close()
        self.index_saved_bytes = self._size

    def load_index(self, *, whole: bool = True) -> bool:
        """Take the index file if it is good and fits the log file: all of it, or with `whole=False` the first part of it."""
        if not self._storage.exists(self.index_path):
            return False
        file = self._storage.open(self.index_path)
        try:
            data = file.pread(file.size(), 0)
        finally:
            file.close()
        if len(data) < _INDEX_HEADER.size:
            return False
        magic, version, size, next_offset, max_timestamp, count, crc, _ = _INDEX_HEADER.unpack_from(data)
        fields, entries = (magic, version, size, next_offset, max_timestamp, count), data[_INDEX_HEADER.size :]
        if (
            magic != b"PSIX"
            or version != 1
            or len(entries) != 24 * count
            or google_crc32c.value(_INDEX_HEADER.pack(*fields, 0, 0) + entries) != crc
        ):
            return False
        actual = self._storage.size(self.path)
        if size > actual or (whole and size != actual):
            return False
        self._reset()
        self._size, self.next_offset, self.max_timestamp = size, next_offset, max_timestamp
        self.index_saved_bytes = size
        for number, column in enumerate((self._offsets, self._positions, self._times_before)):
            column.frombytes(entries[8 * count * number : 8 * count * (number + 1)])
        self._indexed_until = self._positions[-1] if count else 0
        return True

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def unlink(self) -> None:
        """Remove the files; an open one can still be used. The caller syncs the directory."""
        for path in () if self.is_replaced else (self.index_path, self.path):
            if self._storage.exists(path):
                self._storage.unlink(path)

    def remove(self) -> None:
        self.close()
        self.unlink()
