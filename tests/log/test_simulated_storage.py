"""The simulated disk keeps what was synced, may lose the rest, and otherwise behaves like the real one."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from penstock.log.storage import DiskStorage, Storage
from penstock.testing.storage import SimulatedStorage

SEEDS = range(200)


def _file(disk: SimulatedStorage, *, synced: bytes, unsynced: list[bytes]) -> None:
    disk.mkdir("/d")
    disk.sync_dir("/")
    file = disk.open("/d/f", create=True)
    disk.sync_dir("/d")
    file.append([synced])
    file.fdatasync()
    for data in unsynced:
        file.append([data])


def test_synced_bytes_and_names_always_survive() -> None:
    disk = SimulatedStorage()
    _file(disk, synced=b"a" * 1_000, unsynced=[b"b" * 1_000, b"c" * 1_000])
    for seed in SEEDS:
        assert disk.after_power_loss(random.Random(seed)).content("/d/f")[:1_000] == b"a" * 1_000


def test_unsynced_bytes_are_kept_lost_torn_reordered_and_zeroed() -> None:
    disk = SimulatedStorage()
    _file(disk, synced=b"", unsynced=[b"b" * 4_096, b"c" * 4_096])
    found = [disk.after_power_loss(random.Random(seed)).content("/d/f") for seed in SEEDS]
    assert b"" in found
    assert b"b" * 4_096 + b"c" * 4_096 in found
    assert any(0 < len(content) < 4_096 for content in found), "torn"
    assert any(content[:4_096].count(0) and content[4_096:].count(b"c") for content in found), "the later one without the earlier"


def test_a_new_name_survives_only_with_its_directory() -> None:
    disk = SimulatedStorage()
    _file(disk, synced=b"x", unsynced=[])
    disk.open("/d/new", create=True)
    disk.rename("/d/f", "/d/g")
    states = [disk.after_power_loss(random.Random(seed)) for seed in SEEDS]
    assert {state.exists("/d/new") for state in states} == {True, False}
    assert {(state.exists("/d/f"), state.exists("/d/g")) for state in states} == {(True, False), (False, True)}
    disk.sync_dir("/d")
    assert all(disk.after_power_loss(random.Random(seed)).exists("/d/new") for seed in SEEDS)


def test_after_a_failed_fsync_a_second_one_proves_nothing() -> None:
    disk = SimulatedStorage()
    _file(disk, synced=b"x", unsynced=[])
    file = disk.open("/d/f")
    file.append([b"y"])
    disk.fail_fsync = lambda path: True
    with pytest.raises(OSError, match="simulated"):
        file.fdatasync()
    assert disk.after_power_loss(random.Random(1)).content("/d/f") == b"x"


@pytest.mark.parametrize("kind", ["real", "simulated"])
def test_both_disks_do_the_same(kind: str, tmp_path: Path) -> None:
    storage: Storage = DiskStorage() if kind == "real" else SimulatedStorage()
    root = str(tmp_path) if kind == "real" else "/tmp/x"
    storage.mkdir(f"{root}/a/b")
    storage.mkdir(f"{root}/a/b")
    file = storage.open(f"{root}/a/f", create=True)
    assert file.append([b"one", memoryview(b"two")]) == 0
    assert file.append([b"three"]) == 6
    assert (file.pread(5, 3), file.pread(100, 6), file.pread(5, 50), file.size()) == (b"twoth", b"three", b"", 11)
    file.pwrite(b"ONE", 0)
    file.pwrite(b"!", 11)
    file.truncate(8)
    file.append([b"."])
    file.fdatasync()
    file.close()
    storage.sync_dir(f"{root}/a")
    with pytest.raises(OSError):  # noqa: PT011
        file.pread(1, 0)
    assert storage.listdir(f"{root}/a") == ["b", "f"]
    storage.rename(f"{root}/a/f", f"{root}/a/g")
    assert (storage.exists(f"{root}/a/f"), storage.size(f"{root}/a/g")) == (False, 9)
    again = storage.open(f"{root}/a/g")
    assert again.pread(100, 0) == b"ONEtwoth."
    storage.unlink(f"{root}/a/g")
    assert again.pread(3, 0) == b"ONE"
    again.close()
    with pytest.raises(FileNotFoundError):
        storage.open(f"{root}/a/g")
    storage.rmdir(f"{root}/a/b")
    lock = storage.lock(f"{root}/a/lock")
    with pytest.raises(BlockingIOError):
        storage.lock(f"{root}/a/lock")
    lock.release()
    storage.lock(f"{root}/a/lock").release()
    assert storage.free_bytes(root) > 0


def test_more_buffers_than_one_call_takes(tmp_path: Path) -> None:
    file = DiskStorage().open(str(tmp_path / "f"), create=True)
    parts = [b"%04d" % number for number in range(3_000)]
    file.append(parts)
    assert file.pread(1 << 20, 0) == b"".join(parts)
    file.close()
