"""Opening after a crash: a torn tail is cut, damage is loud, and no wrong bit is ever served."""

from __future__ import annotations

import random

import pytest

from penstock.log import batch as rb
from penstock.log.compaction import compact
from penstock.log.errors import Damaged
from penstock.log.partition import Partition
from penstock.testing.storage import SimulatedStorage
from tests.log.conftest import NOW_US, World, put, values


def _filled(world: World, count: int = 12, **configs: object) -> Partition:
    partition = world.topic(**configs)
    for number in range(count):
        put(partition, b"value %d" % number)
    return partition


def _all(count: int) -> list[bytes | None]:
    return [b"value %d" % number for number in range(count)]


def test_a_tail_cut_at_every_byte_leaves_the_longest_whole_prefix(os_world: World) -> None:
    partition = _filled(os_world, 6)
    (path,) = os_world.files(partition)
    disk = os_world.disk.after_kill()
    content = disk.content(path)
    ends = [0]
    for header, position in rb.walk(content):
        ends.append(position + header.size)
    for size in range(len(content) + 1):
        disk.put(path, content[:size])
        recovered = os_world.reopen(disk.after_kill()).partition("words", 0)
        whole = sum(end <= size for end in ends) - 1
        assert recovered.next_offset == whole
        assert values(recovered) == _all(whole)
        assert put(recovered, b"next") == whole
        assert recovered.recovered.bytes_cut == size - ends[whole]


@pytest.mark.parametrize("garbage", [b"\0" * 500, b"\xff" * 61, random.Random(1).randbytes(3_000), b"\0" * 16 + b"\x02" + b"\0" * 100])
def test_garbage_behind_the_end_is_cut(os_world: World, garbage: bytes) -> None:
    partition = _filled(os_world, 6)
    (path,) = os_world.files(partition)
    disk = os_world.disk.after_kill()
    disk.put(path, disk.content(path) + garbage)
    log = os_world.reopen(disk)
    assert values(log.partition("words", 0)) == _all(6)
    assert f"cut {len(garbage)} bytes" in log.report[0]
    assert "words-0" in log.report[0]


def test_every_flipped_bit_is_found_before_it_is_served(world: World) -> None:
    partition = _filled(world, 3)
    world.sync()
    world.log.close()
    (path,) = world.files(partition)
    clean = world.disk.after_kill()
    for bit in range(8 * clean.size(path)):
        disk = clean.after_kill()
        disk.flip(path, bit)
        log = world.reopen(disk)  # closed cleanly, so nothing is read at the start: the reader must find it
        with pytest.raises(Damaged) as caught:
            values(log.partition("words", 0))
        assert "words-0: damage at offset" in str(caught.value)
        assert disk.size(path) == clean.size(path), "damage is never cut"


def test_every_flipped_bit_of_a_compacted_file_is_found(world: World) -> None:
    """Its offsets have gaps, so only its full index can tell that a base offset is wrong."""
    partition = world.topic(cleanup_policy="compact", segment_bytes=1_000)
    for number in range(40):
        put(partition, b"v%d" % number, key=b"k%d" % (number if number in (3, 8, 12) else number % 4 + 100))
    world.sync()
    compact(partition, now_us=NOW_US, force=True)
    world.log.close()
    clean = world.disk.after_kill()
    path = next(path for path in world.files(partition) if "-0" in path.rsplit("/", 1)[1] and clean.size(path))
    assert clean.size(path) > 150
    for bit in range(8 * clean.size(path)):
        disk = clean.after_kill()
        disk.flip(path, bit)
        partition = world.reopen(disk).partition("words", 0)
        with pytest.raises(Damaged):
            values(partition)


def test_flipped_bits_after_a_kill_are_damage_and_not_a_tail(world: World) -> None:
    """The same without a clean end: what was synced is known, so a bad batch in it is no torn tail."""
    partition = _filled(world, 40, segment_bytes=1_000)
    world.sync()
    rng = random.Random(7)
    files = world.files(partition)
    clean = world.disk.after_kill()
    for _ in range(300):
        path = rng.choice(files)
        if not clean.size(path):
            continue
        disk = clean.after_kill()
        disk.flip(path, rng.randrange(8 * disk.size(path)))
        log = world.reopen(disk)
        partition = log.partition("words", 0)
        with pytest.raises(Damaged):
            values(partition)
        assert disk.size(path) == clean.size(path)


def test_good_records_before_and_after_the_damage_are_served(world: World) -> None:
    partition = _filled(world, 40, segment_bytes=1_000)
    world.sync()
    world.log.close()
    path = world.files(partition)[1]
    base = int(path.rsplit("/", 1)[1].split(".")[0])
    world.disk.flip(path, 8 * 70)
    log = world.reopen()
    partition = log.partition("words", 0)
    with pytest.raises(Damaged):
        partition.read(base, bytes_max=1)
    assert partition.read(0, bytes_max=1 << 20)
    following = partition.segments[2].base_offset
    assert values(partition, following) == _all(40)[following:]
    assert put(partition, b"more") == 40


def test_an_end_that_is_missing_what_was_on_disk_is_loud_and_takes_no_appends(world: World) -> None:
    partition = _filled(world, 6)
    world.sync()
    (path,) = world.files(partition)
    disk = world.disk.after_kill()
    disk.cut(path, disk.size(path) - 5)
    log = world.reopen(disk)
    partition = log.partition("words", 0)
    assert "offset 5" in log.report[0]
    assert "words-0" in log.report[0]
    with pytest.raises(Damaged):
        put(partition, b"x")
    assert disk.size(path) > 0


def test_a_missing_segment_is_loud(world: World) -> None:
    partition = _filled(world, 40, segment_bytes=1_000)
    world.sync()
    world.log.close()
    path = world.files(partition)[1]
    world.disk.unlink(path)
    log = world.reopen()
    assert any("damage" in line and "words-0" in line for line in log.report)


def test_whole_batches_behind_a_torn_one_are_saved(os_world: World) -> None:
    """At level os nothing says whether they were on disk; they cannot be served, but they are not thrown away."""
    partition = _filled(os_world, 6)
    (path,) = os_world.files(partition)
    disk = os_world.disk.after_kill()
    disk.flip(path, 8 * 70)
    size = disk.size(path)
    log = os_world.reopen(disk)
    assert log.partition("words", 0).next_offset == 0
    assert "saved" in log.report[0]
    (saved,) = os_world.files(partition, ".cut")
    assert disk.size(saved) == size


def test_without_recovery_points_only_a_tail_without_whole_batches_is_cut(world: World) -> None:
    partition = _filled(world, 6)
    world.sync()
    (path,) = world.files(partition)
    clean = world.disk.after_kill()
    clean.unlink("/data/recovery-points")
    torn = clean.after_kill()
    torn.cut(path, torn.size(path) - 5)
    assert world.reopen(torn).partition("words", 0).next_offset == 5
    damaged = clean.after_kill()
    damaged.flip(path, 8 * 70)
    log = world.reopen(damaged)
    assert "damage at offset 0" in log.report[0]
    assert log.partition("words", 0).failed is not None


def test_a_damaged_recovery_point_is_not_trusted(world: World) -> None:
    partition = _filled(world, 6)
    world.sync()
    world.log.sync_points()
    disk = world.disk.after_kill()
    disk.flip("/data/recovery-points", 8 * 25)
    disk.flip(world.files(partition)[0], 8 * 70)
    log = world.reopen(disk)
    assert log.partition("words", 0).failed is not None
    assert any("damaged slots" in line for line in log.report)


def test_a_lost_or_damaged_index_is_made_anew(world: World) -> None:
    partition = _filled(world, 60, segment_bytes=1_000, index_interval_bytes=100)
    world.sync()
    world.log.close()
    clean = world.disk.after_kill()
    indexes = world.files(partition, ".index")
    assert len(indexes) > 3
    rng = random.Random(3)
    for path in indexes:
        for bad in ("gone", "cut", "flip"):
            disk = clean.after_kill()
            match bad:
                case "gone":
                    disk.unlink(path)
                case "cut":
                    disk.cut(path, rng.randrange(disk.size(path)))
                case _:
                    disk.flip(path, rng.randrange(8 * disk.size(path)))
            partition = world.reopen(disk).partition("words", 0)
            assert [values(partition, start)[:1] for start in range(0, 60, 7)] == [[b"value %d" % start] for start in range(0, 60, 7)]


def test_a_damaged_snapshot_is_replaced_by_reading_the_log(world: World) -> None:
    partition = world.topic()
    for number in range(3):
        put(partition, b"x", producer_id=9, producer_epoch=0, base_sequence=number)
    world.sync()
    world.log.close()
    (path,) = world.files(partition, ".snapshot")
    world.disk.flip(path, 8 * 60)
    log = world.reopen()
    partition = log.partition("words", 0)
    assert put(partition, b"x", producer_id=9, producer_epoch=0, base_sequence=2) == 2
    assert partition.next_offset == 3
    assert any("read from the log instead" in line for line in log.report)


def test_recovery_reads_no_more_than_what_came_after_the_last_checkpoint(world: World) -> None:
    partition = _filled(world, 50)
    world.sync()
    partition.checkpoint_index()
    put(partition, b"last")
    world.sync()
    disk = world.disk.after_kill()
    (path,) = world.files(partition)
    disk.flip(path, 8 * 70)  # in front of the checkpoint: would be found by a full scan
    partition = world.reopen(disk).partition("words", 0)
    assert partition.next_offset == 51
    assert partition.failed is None
    with pytest.raises(Damaged):
        partition.read(0, bytes_max=1)


def test_what_was_read_from_the_page_cache_is_synced_before_it_counts(world: World) -> None:
    partition = _filled(world, 4)  # appended, never synced, then the process is killed
    disk = world.disk.after_kill()
    inode = disk._file(world.files(partition)[0])
    inode.pending = [type(w)(w.position, w.data, w.size) for w in world.disk._file(world.files(partition)[0]).pending]
    inode.synced = b""
    world.reopen(disk)
    assert world.log.partition("words", 0).high_watermark == 4
    for seed in range(20):
        after = world.reopen(disk.after_power_loss(random.Random(seed)))
        assert values(after.partition("words", 0)) == _all(4)


def test_a_fresh_disk_opens_empty() -> None:
    world = World(SimulatedStorage())
    assert dict(world.log.topics) == {}
    assert world.log.maintain(now_us=NOW_US) == []
