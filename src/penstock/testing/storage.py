"""A disk in memory that loses what it may lose.

A file is what was synced, plus a list of writes since; a directory is the names that were synced, plus a list of changes since. `after_power_loss` makes
one of the many disks that a power loss could leave behind: of the writes since the last `fdatasync` any part survives, sector by sector and in any
order, of the names since the last `sync_dir` any part survives, and a file's length is any that it has had. `after_kill` is what a killed process
leaves: everything, but for the last write, which may be cut short.

Invariant: what was synced is never lost. Also here: a disk that is full (`capacity_bytes`), one whose fsync fails (`fail_fsync`; the pages are then lost, as
on Linux), and one that turns bits (`flip`). `on_change` is called at every step, which is where a test takes its crashes.

    >>> disk = SimulatedStorage(); disk.mkdir("/d"); file = disk.open("/d/a", create=True)
    >>> _ = file.append([b"lost"]); disk.after_power_loss(random.Random(1)).exists("/d/a")
    False
"""

from __future__ import annotations

import errno
import posixpath
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from penstock.log.storage import Buffer

SECTOR_BYTES = (32, 512, 4096)  # the real ones, and a small one that tears small files too


@dataclass(slots=True)
class _Write:
    position: int
    data: bytes  # None of it for a truncation
    size: int  # of the file afterwards


@dataclass(slots=True, eq=False)
class _Inode:
    content: bytearray = field(default_factory=bytearray)
    synced: bytes = b""
    pending: list[_Write] = field(default_factory=list)

    def after_power_loss(self, rng: random.Random) -> _Inode:
        kept = self._survivors(rng) if self.pending else self.synced
        return _Inode(bytearray(kept), bytes(kept))

    def _survivors(self, rng: random.Random) -> bytes:
        writes = self.pending
        match rng.randrange(4):
            case 0:
                return self.synced
            case 1:
                return bytes(self.content)
            case 2:  # in order, the last one torn
                count = rng.randrange(len(writes)) + 1
                whole = _applied(self.synced, writes[: count - 1])
                last = writes[count - 1]
                torn = rng.randint(0, len(last.data))
                if last.position < len(whole):  # what lies inside the file is replaced by whole sectors
                    torn -= (last.position + torn) % SECTOR_BYTES[0]
                torn = max(0, torn)
                return bytes(_applied(whole, [_Write(last.position, last.data[:torn], min(last.size, last.position + torn))]))
            case _:
                return self._sector_by_sector(rng)

    def _sector_by_sector(self, rng: random.Random) -> bytes:
        """Each sector has seen its own first few of the writes; the length is of another moment again."""
        sector = rng.choice(SECTOR_BYTES)
        writes = self.pending
        sizes = [len(self.synced)] + [write.size for write in writes]
        longest = max(sizes)
        base = bytearray(self.synced.ljust(longest, b"\0"))
        for start in range(0, longest, sector):
            end = min(start + sector, longest)
            for write in writes[: rng.randint(0, len(writes))]:
                low, high = max(start, write.position), min(end, write.position + len(write.data))
                if low < high:
                    base[low:high] = write.data[low - write.position : high - write.position]
                if write.size < end:  # a truncation reads as zeros from there
                    gone = max(start, write.size)
                    base[gone:end] = bytes(end - gone)
        return bytes(base[: rng.choice(sizes)])


def _applied(content: bytes | bytearray, writes: Sequence[_Write]) -> bytearray:
    result = bytearray(content)
    for write in writes:
        if len(result) < write.position:
            result.extend(bytes(write.position - len(result)))
        result[write.position : write.position + len(write.data)] = write.data
        del result[write.size :]
    return result


_Change = dict[str, "_Inode | _Directory | None"]  # one step: names that appear and names that go


@dataclass(slots=True, eq=False)
class _Directory:
    names: dict[str, _Inode | _Directory] = field(default_factory=dict)
    synced: dict[str, _Inode | _Directory] = field(default_factory=dict)
    pending: list[_Change] = field(default_factory=list)

    def change(self, change: _Change) -> None:
        self.pending.append(change)
        _change(self.names, change)

    def after_power_loss(self, rng: random.Random) -> _Directory:
        kept = dict(self.synced)
        match rng.randrange(4):
            case 0:
                survivors = []
            case 1:
                survivors = self.pending
            case 2:
                survivors = self.pending[: rng.randint(0, len(self.pending))]
            case _:
                survivors = [change for change in self.pending if rng.random() < 0.5]
        for change in survivors:
            _change(kept, change)
        names = {name: node.after_power_loss(rng) for name, node in kept.items()}
        return _Directory(dict(names), dict(names))

    def copy(self) -> _Directory:
        names: dict[str, _Inode | _Directory] = {}
        for name, node in self.names.items():
            names[name] = node.copy() if isinstance(node, _Directory) else _Inode(bytearray(node.content), bytes(node.content))
        return _Directory(dict(names), dict(names))


def _change(names: dict[str, _Inode | _Directory], change: _Change) -> None:
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


class SimulatedFile:
    def __init__(self, disk: SimulatedStorage, path: str, inode: _Inode) -> None:
        self._disk, self._path, self._inode = disk, path, inode
        self._closed = False

    def _use(self) -> _Inode:
        if self._closed:
            raise OSError(errno.EBADF, "the file is closed", self._path)
        return self._inode

    def append(self, buffers: Sequence[Buffer]) -> int:
        position = len(self._use().content)
        self._write(b"".join(buffers), position)
        return position

    def pwrite(self, data: Buffer, position: int) -> None:
        assert position <= len(self._use().content), "no holes"
        self._write(bytes(data), position)

    def _write(self, data: bytes, position: int) -> None:
        inode = self._use()
        room = self._disk.free_bytes("/") + len(inode.content) - position
        fits = data[: max(0, room)]
        inode.content[position : position + len(fits)] = fits
        inode.pending.append(_Write(position, fits, len(inode.content)))
        self._disk.changed("write", self._path)
        if len(fits) < len(data):
            raise OSError(errno.ENOSPC, "no space left on device", self._path)

    def pread(self, length: int, position: int) -> bytes:
        return bytes(self._use().content[position : position + length])

    def truncate(self, size: int) -> None:
        inode = self._use()
        assert size <= len(inode.content), "files are only shortened"
        del inode.content[size:]
        inode.pending.append(_Write(size, b"", size))
        self._disk.changed("truncate", self._path)

    def fdatasync(self) -> None:
        inode = self._use()
        self._disk.changed("fdatasync", self._path)
        if self._disk.fail_fsync is not None and self._disk.fail_fsync(self._path):
            inode.pending.clear()  # the kernel marks the pages clean: a second fsync would say that all is well
            raise OSError(errno.EIO, "simulated fsync failure", self._path)
        inode.synced = bytes(inode.content)
        inode.pending.clear()
        self._disk.changed("fdatasync done", self._path)

    def size(self) -> int:
        return len(self._use().content)

    def close(self) -> None:
        self._closed = True


class _SimulatedLock:
    def __init__(self, held: set[str], path: str) -> None:
        self._held, self._path = held, path

    def release(self) -> None:
        self._held.discard(self._path)


class SimulatedStorage:
    def __init__(self, *, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.on_change: Callable[[str, str], None] | None = None
        self.fail_fsync: Callable[[str], bool] | None = None
        self.steps = 0
        self._root = _Directory()
        self._locks: set[str] = set()

    def changed(self, what: str, path: str) -> None:
        self.steps += 1
        if self.on_change is not None:
            self.on_change(what, path)

    # --- crashes -----------------------------------------------------------------------------------------------------

    def after_power_loss(self, rng: random.Random) -> SimulatedStorage:
        """One of the disks that a power loss now could leave behind."""
        disk = SimulatedStorage(capacity_bytes=self.capacity_bytes)
        disk._root = self._root.after_power_loss(rng)
        return disk

    def after_kill(self) -> SimulatedStorage:
        """The disk as a killed process leaves it: nothing is lost. What is on it then counts as synced."""
        disk = SimulatedStorage(capacity_bytes=self.capacity_bytes)
        disk._root = self._root.copy()
        return disk

    def flip(self, path: str, bit: int) -> None:
        """Turn one bit of a file, as a bad disk would."""
        inode = self._file(path)
        inode.content[bit // 8] ^= 1 << (bit % 8)
        inode.synced = bytes(inode.content)

    def cut(self, path: str, size: int) -> None:
        """Shorten a file behind everybody's back."""
        inode = self._file(path)
        del inode.content[size:]
        inode.synced = bytes(inode.content)

    def content(self, path: str) -> bytes:
        return bytes(self._file(path).content)

    def put(self, path: str, content: bytes) -> None:
        """Set a file's content behind everybody's back."""
        inode = self._file(path)
        inode.content, inode.synced = bytearray(content), content
        inode.pending.clear()

    # --- Storage -----------------------------------------------------------------------------------------------------

    def _directory(self, path: str) -> _Directory:
        node: _Inode | _Directory | None = self._root
        for name in path.strip("/").split("/"):
            node = node.names.get(name) if isinstance(node, _Directory) and name else node
        if not isinstance(node, _Directory):
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        return node

    def _node(self, path: str) -> _Inode | _Directory | None:
        parent, name = posixpath.split(path.rstrip("/"))
        try:
            return self._directory(parent).names.get(name)
        except FileNotFoundError:
            return None

    def _file(self, path: str) -> _Inode:
        node = self._node(path)
        if not isinstance(node, _Inode):
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return node

    def open(self, path: str, *, create: bool = False) -> SimulatedFile:
        if create and self._node(path) is None:
            if self.free_bytes("/") <= 0:
                raise OSError(errno.ENOSPC, "no space left on device", path)
            parent, name = posixpath.split(path)
            self._directory(parent).change({name: _Inode()})
            self.changed("create", path)
        return SimulatedFile(self, path, self._file(path))

    def rename(self, source: str, target: str) -> None:
        (parent, old), (target_parent, new) = posixpath.split(source), posixpath.split(target)
        assert parent == target_parent, "renames stay in their directory"
        directory = self._directory(parent)
        node = directory.names.get(old)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", source)
        directory.change({old: None, new: node})
        self.changed("rename", target)

    def unlink(self, path: str) -> None:
        self._file(path)
        parent, name = posixpath.split(path)
        self._directory(parent).change({name: None})
        self.changed("unlink", path)

    def mkdir(self, path: str) -> None:
        parts = path.strip("/").split("/")
        directory = self._root
        for name in parts:
            found = directory.names.get(name)
            if found is None:
                found = _Directory()
                directory.change({name: found})
                self.changed("mkdir", path)
            assert isinstance(found, _Directory), f"{path} is a file"
            directory = found

    def rmdir(self, path: str) -> None:
        if self._directory(path).names:
            raise OSError(errno.ENOTEMPTY, "directory not empty", path)
        parent, name = posixpath.split(path)
        self._directory(parent).change({name: None})
        self.changed("rmdir", path)

    def listdir(self, path: str) -> list[str]:
        return sorted(self._directory(path).names)

    def exists(self, path: str) -> bool:
        return self._node(path) is not None

    def size(self, path: str) -> int:
        return len(self._file(path).content)

    def sync_dir(self, path: str) -> None:
        directory = self._directory(path)
        self.changed("sync_dir", path)
        if self.fail_fsync is not None and self.fail_fsync(path):
            raise OSError(errno.EIO, "simulated fsync failure", path)
        directory.synced = dict(directory.names)
        directory.pending.clear()
        self.changed("sync_dir done", path)

    def free_bytes(self, path: str) -> int:
        return 1 << 40 if self.capacity_bytes is None else self.capacity_bytes - _used(self._root)

    def lock(self, path: str) -> _SimulatedLock:
        if path in self._locks:
            raise BlockingIOError(errno.EAGAIN, "locked", path)
        self._locks.add(path)
        return _SimulatedLock(self._locks, path)


def _used(node: _Inode | _Directory) -> int:
    return len(node.content) if isinstance(node, _Inode) else sum(map(_used, node.names.values()))
