"""The few things the log asks of a file system, and the real one.

Invariant: the log touches the disk through `Storage` and `File` alone, so a test can put a simulated disk underneath.
The contract is the weakest that POSIX gives: written bytes are on disk after `fdatasync` of their file, and a new, renamed or
removed name is on disk after `sync_dir` of its directory; before that a power loss may keep any part of it, in any order.
Not here: what the bytes mean."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Sequence
from typing import Protocol

Buffer = bytes | bytearray | memoryview

WRITE_BUFFERS_MAX = 512  # Linux takes at most 1024 buffers in one call


class File(Protocol):
    """An open file that grows at its end. A failed `append` leaves the file as it was, or says so by a wrong `size()`."""

    def append(self, buffers: Sequence[Buffer]) -> int: ...  # the position of the first byte written
    def pwrite(self, data: Buffer, position: int) -> None: ...  # inside the file or right behind its end
    def pread(self, length: int, position: int) -> bytes: ...  # fewer bytes only at the end of the file
    def truncate(self, size: int) -> None: ...
    def fdatasync(self) -> None: ...
    def size(self) -> int: ...
    def close(self) -> None: ...


class Lock(Protocol):
    def release(self) -> None: ...


class Storage(Protocol):
    def open(self, path: str, *, create: bool = False) -> File: ...
    def rename(self, source: str, target: str) -> None: ...  # replaces `target` in one step
    def unlink(self, path: str) -> None: ...
    def mkdir(self, path: str) -> None: ...  # parents too; fine if it exists
    def rmdir(self, path: str) -> None: ...
    def listdir(self, path: str) -> list[str]: ...
    def exists(self, path: str) -> bool: ...
    def size(self, path: str) -> int: ...
    def sync_dir(self, path: str) -> None: ...
    def free_bytes(self, path: str) -> int: ...
    def lock(self, path: str) -> Lock: ...  # BlockingIOError if another process has it


class DiskFile:
    """A file of the operating system. Keeps its own end, so an append needs one call."""

    __slots__ = ("_end", "_fd", "path")

    def __init__(self, path: str, *, create: bool) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644)
        self._end = os.fstat(self._fd).st_size

    def append(self, buffers: Sequence[Buffer]) -> int:
        position = self._end
        for first in range(0, len(buffers), WRITE_BUFFERS_MAX):
            self._write(buffers[first : first + WRITE_BUFFERS_MAX])
        return position

    def _write(self, buffers: Sequence[Buffer]) -> None:
        total = sum(map(len, buffers))
        written = os.pwritev(self._fd, buffers, self._end)
        while written < total:  # a nearly full disk or a signal: finish it, or let the error surface
            rest = memoryview(b"".join(buffers))[written:]
            more = os.pwrite(self._fd, rest, self._end + written)
            if more == 0:
                raise OSError(errno.ENOSPC, "no space left on device", self.path)
            written += more
        self._end += total

    def pwrite(self, data: Buffer, position: int) -> None:
        assert position <= self._end, "no holes"
        if os.pwrite(self._fd, data, position) != len(data):
            raise OSError(errno.ENOSPC, "no space left on device", self.path)
        self._end = max(self._end, position + len(data))

    def pread(self, length: int, position: int) -> bytes:
        data = os.pread(self._fd, length, position)
        if len(data) == length or not data:
            return data
        parts = [data]  # Linux returns short only at the end or beyond 2 GB; other systems may not be so kind
        got = len(data)
        while got < length and (data := os.pread(self._fd, length - got, position + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)
        self._end = size

    def fdatasync(self) -> None:
        getattr(os, "fdatasync", os.fsync)(self._fd)

    def size(self) -> int:
        return self._end

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class _FileLock:
    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            raise
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class DiskStorage:
    """The real file system."""

    def open(self, path: str, *, create: bool = False) -> DiskFile:
        return DiskFile(path, create=create)

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def mkdir(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def rmdir(self, path: str) -> None:
        os.rmdir(path)

    def listdir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def sync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def free_bytes(self, path: str) -> int:
        disk = os.statvfs(path)
        return disk.f_bavail * disk.f_frsize

    def lock(self, path: str) -> _FileLock:
        return _FileLock(path)
