"""Recovery points: up to which offset each partition is known to be on disk.

One file of slots for the whole data directory, rewritten in place; a slot never crosses a sector, so a power loss leaves the old or the new one:

    | topic_id 16 bytes | partition u32 | offset i64 | crc u32 |       32 bytes; all zero: free

Invariant: a slot is written after the sync it speaks of, so what it says is true whenever it can be read, even if it is old. That makes it the line between
the two kinds of bad bytes: behind it lies what a crash may have torn (cut it), before it lies what was on disk (damage: say so).
It is written without a sync after every group commit, which survives a killed process, and synced every few seconds."""

from __future__ import annotations

import struct
import threading

import google_crc32c

from penstock.log.storage import Storage

_SLOT = struct.Struct(">16sIqI")
SLOT_BYTES = _SLOT.size
assert SLOT_BYTES == 32
_FREE = bytes(SLOT_BYTES)


def _pack(topic_id: bytes, partition: int, offset: int) -> bytes:
    crc = google_crc32c.value(_SLOT.pack(topic_id, partition, offset, 0))
    return _SLOT.pack(topic_id, partition, offset, crc)


class RecoveryPoints:
    """Thread-safe: the commit threads write it."""

    def __init__(self, storage: Storage, path: str) -> None:
        self._lock = threading.Lock()
        self.is_new = not storage.exists(path)  # or lost
        self._file = storage.open(path, create=True)
        self._offsets: dict[tuple[bytes, int], int] = {}
        self._slots: dict[tuple[bytes, int], int] = {}
        self._free: list[int] = []
        self._dirty = False
        self.damaged_slots = 0
        data = self._file.pread(self._file.size(), 0)
        self._count = len(data) // SLOT_BYTES
        if len(data) % SLOT_BYTES:  # a slot that was being added; its remains must not look like a damaged one later
            self._file.truncate(self._count * SLOT_BYTES)
            self._file.fdatasync()
        for slot in range(self._count):
            raw = data[slot * SLOT_BYTES : (slot + 1) * SLOT_BYTES]
            topic_id, partition, offset, _ = _SLOT.unpack(raw)
            if raw == _FREE:
                self._free.append(slot)
            elif raw == _pack(topic_id, partition, offset):
                self._slots[topic_id, partition] = slot
                self._offsets[topic_id, partition] = offset
            else:
                self.damaged_slots += 1
                self._free.append(slot)

    def topic_ids(self) -> set[bytes]:
        return {topic_id for topic_id, _ in self._slots}

    def get(self, topic_id: bytes, partition: int) -> int | None:
        """The recovery point of a partition: 0 for one that never synced anything, None if it cannot be known."""
        return self._offsets.get((topic_id, partition), None if self.damaged_slots or self.is_new else 0)

    def record(self, topic_id: bytes, partition: int, offset: int) -> None:
        key = (topic_id, partition)
        with self._lock:
            if self._offsets.get(key) == offset:
                return
            slot = self._slots.get(key)
            if slot is None:
                slot = self._free.pop() if self._free else self._count
                self._count = max(self._count, slot + 1)
                self._slots[key] = slot
            self._file.pwrite(_pack(topic_id, partition, offset), slot * SLOT_BYTES)
            self._offsets[key] = offset
            self._dirty = True

    def forget(self, topic_id: bytes) -> None:
        """Free the slots of a deleted topic."""
        with self._lock:
            for key in [key for key in self._slots if key[0] == topic_id]:
                slot = self._slots.pop(key)
                self._offsets.pop(key, None)
                self._file.pwrite(_FREE, slot * SLOT_BYTES)
                self._free.append(slot)
                self._dirty = True

    def sync(self) -> None:
        with self._lock:
            if not self._dirty:
                return
            self._dirty = False
        self._file.fdatasync()

    def close(self) -> None:
        self.sync()
        self._file.close()


def read_points(storage: Storage, path: str) -> dict[tuple[bytes, int], int]:
    """The good slots of the file, for those who only look."""
    if not storage.exists(path):
        return {}
    file = storage.open(path)
    try:
        data = file.pread(file.size(), 0)
    finally:
        file.close()
    found = {}
    for start in range(0, len(data) - SLOT_BYTES + 1, SLOT_BYTES):
        topic_id, partition, offset, _ = _SLOT.unpack_from(data, start)
        if data[start : start + SLOT_BYTES] == _pack(topic_id, partition, offset):
            found[topic_id, partition] = offset
    return found
