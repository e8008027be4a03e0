"""Full disks and failing fsyncs: an acknowledgement never lies, and what failed says so."""

from __future__ import annotations

import pytest

from penstock.log import Log
from penstock.log.errors import DirectoryLocked, LogError, StorageFailed
from penstock.testing.storage import SimulatedStorage
from tests.log.conftest import NOW_US, World, put, values


def test_a_full_disk_refuses_appends_and_keeps_what_it_has(world: World) -> None:
    partition = world.topic()
    for number in range(5):
        put(partition, b"%d" % number)
    world.sync()
    used = sum(world.disk.size(path) for path in world.files(partition))
    for room in range(0, 90, 7):  # the batch is torn at another byte each time, and taken back
        world.disk.capacity_bytes = _used(world.disk) + room
        with pytest.raises(StorageFailed) as caught:
            put(partition, b"x" * 50)
        assert caught.value.kafka_code == 56
        assert "free disk space" in str(caught.value)
        assert sum(world.disk.size(path) for path in world.files(partition)) == used
    world.disk.capacity_bytes = None
    assert put(partition, b"5") == 5
    world.sync()
    assert values(partition) == [b"%d" % number for number in range(6)]


def _used(disk: SimulatedStorage) -> int:
    from penstock.testing import storage

    return storage._used(disk._root)


def test_a_full_disk_in_the_middle_of_a_roll_leaves_the_partition_usable(world: World) -> None:
    partition = world.topic(segment_bytes=200)
    count = 0
    for room in range(0, 2_000, 50):
        world.disk.capacity_bytes = _used(world.disk) + room
        try:
            while True:
                put(partition, b"value %d" % count)
                count += 1
        except StorageFailed:
            assert partition.failed is None
    world.disk.capacity_bytes = None
    put(partition, b"value %d" % count)
    world.sync()
    for opened in (partition, world.reopen().partition("words", 0)):
        assert values(opened) == [b"value %d" % number for number in range(count + 1)]


def test_a_failed_fsync_stops_the_partition_for_good(world: World) -> None:
    partition, other = world.topic("words"), world.topic("other")
    outcomes: list[LogError | None] = []
    put(partition, b"kept")
    world.sync()
    world.disk.fail_fsync = lambda path: "/words." in path
    appended = put(partition, b"lost")
    world.log.commits.when_durable(partition, appended + 1, outcomes.append)
    world.sync()
    assert isinstance(outcomes[0], StorageFailed)
    assert "words-0" in str(outcomes[0])
    world.disk.fail_fsync = None  # a second fsync would succeed, and prove nothing
    with pytest.raises(StorageFailed):
        put(partition, b"later")
    world.log.commits.when_durable(partition, appended + 1, outcomes.append)
    assert isinstance(outcomes[1], StorageFailed)
    assert partition.high_watermark == 1
    (found,) = partition.read(0, bytes_max=1 << 20)
    assert found
    with pytest.raises(StorageFailed):
        partition.read(1, bytes_max=1)
    put(other, b"fine")
    world.sync()
    assert values(other) == [b"fine"]


def test_a_partition_whose_fsync_failed_can_be_closed_and_serves_again_after_a_restart(world: World) -> None:
    partition = world.topic()
    put(partition, b"kept")
    world.sync()
    world.disk.fail_fsync = lambda path: path.endswith(".log")
    put(partition, b"unknown")
    world.sync()
    world.log.close()
    world.disk.fail_fsync = None
    partition = world.reopen().partition("words", 0)
    assert values(partition)[0] == b"kept"
    put(partition, b"again")


def test_a_failed_directory_sync_does_not_lose_an_acknowledged_record(world: World) -> None:
    partition = world.topic(segment_bytes=200)
    put(partition, b"x" * 100)
    world.sync()
    world.disk.fail_fsync = lambda path: path == partition.directory
    with pytest.raises(StorageFailed):
        put(partition, b"y" * 100)
    world.disk.fail_fsync = None
    put(partition, b"z" * 100)
    world.sync()
    assert values(world.reopen().partition("words", 0)) == [b"x" * 100, b"z" * 100]


def test_a_roll_that_failed_leaves_no_file_behind(os_world: World) -> None:
    """Otherwise the old segment would grow past the new one's name."""
    partition = os_world.topic()
    put(partition, b"a")
    os_world.disk.fail_fsync = lambda path: path == partition.directory
    with pytest.raises(StorageFailed):
        partition.roll()
    os_world.disk.fail_fsync = None
    put(partition, b"b")
    log = os_world.reopen()
    assert (values(log.partition("words", 0)), log.report) == ([b"a", b"b"], [])


def test_upkeep_of_one_bad_partition_does_not_stop_the_others(os_world: World) -> None:
    bad, good = os_world.topic("bad", retention_ms=0, segment_bytes=100), os_world.topic("good", retention_ms=0, segment_bytes=100)
    for partition in (bad, good):
        for number in range(5):
            put(partition, b"%d" % number)
    os_world.disk.fail_fsync = lambda path: "/bad." in path
    lines = os_world.log.maintain(now_us=NOW_US + 1_000_000)
    assert any(line.startswith("bad-0: upkeep failed") for line in lines)
    assert any(line.startswith("good-0: retention removed") for line in lines)


def test_a_second_opening_of_the_directory_is_refused(world: World) -> None:
    with pytest.raises(DirectoryLocked, match="another process"):
        Log.open("/data", storage=world.disk)
    world.log.close()
    Log.open("/data", storage=world.disk).close()
