"""Compaction keeps the last record of every key, and nothing that happens to the machine changes that."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.log import batch as rb
from penstock.log.batch import Record
from penstock.log.compaction import compact
from penstock.log.partition import Partition
from penstock.testing.storage import SimulatedStorage
from tests.log.conftest import NOW_MS, NOW_US, World, consume, put, values

TABLE = {"cleanup_policy": "compact", "segment_bytes": 300, "min_cleanable_dirty_ratio": 0}
DAY_US = 86_400_000_000


def table(partition: Partition) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for record in consume(partition)}


def test_the_last_record_of_every_key_stays_at_its_offset(os_world: World) -> None:
    partition = os_world.topic(**TABLE)
    for number in range(100):
        put(partition, b"v%d" % number, key=b"k%d" % (number % 7))
    before, size = table(partition), partition.size_bytes
    done = compact(partition, now_us=NOW_US)
    assert done is not None
    assert done.bytes_after < done.bytes_before
    assert table(partition) == before
    assert partition.size_bytes < size / 3
    assert all(record.value == b"v%d" % record.offset for record in consume(partition))
    assert partition.next_offset == 100
    assert put(partition, b"new", key=b"k") == 100


def test_a_second_pass_changes_nothing_that_is_visible_and_a_restart_neither(world: World) -> None:
    partition = world.topic(**TABLE)
    for number in range(100):
        put(partition, b"v%d" % number, key=b"k%d" % (number % 7))
    world.sync()
    compact(partition, now_us=NOW_US)
    found = list(consume(partition))
    compact(partition, now_us=NOW_US, force=True)
    assert list(consume(partition)) == found
    partition = world.reopen().partition("words", 0)
    assert list(consume(partition)) == found
    for start in range(100):
        assert list(consume(partition, start, bytes_max=1)) == [record for record in found if record.offset >= start]


def test_every_codec_survives(os_world: World) -> None:
    partition = os_world.topic(**TABLE)
    for number in range(50):
        partition.append(
            rb.encode([Record(0, NOW_MS, b"k%d" % (number % 5 + at), b"%d" % number, (("h", b"x"),)) for at in range(3)], codec=number % 5),
            now_us=NOW_US,
        )
    before = {record.key: record for record in consume(partition)}
    compact(partition, now_us=NOW_US)
    assert {record.key: record for record in consume(partition)} == before


def test_a_tombstone_stays_until_readers_had_time_to_see_it(os_world: World) -> None:
    partition = os_world.topic(**TABLE, delete_retention_ms=1_000)
    put(partition, b"v", key=b"gone")
    put(partition, None, key=b"gone", at_ms=NOW_MS - 999_999)  # an old time does not shorten its stay
    put(partition, b"v", key=b"kept")
    partition.roll()
    compact(partition, now_us=NOW_US)
    assert table(partition) == {b"gone": None, b"kept": b"v"}
    assert next(record for record in consume(partition) if record.key == b"gone").timestamp_ms == NOW_MS - 999_999
    for moment_us, left in (
        (NOW_US + 500_000, {b"gone": None, b"kept": b"v", b"x": b"1"}),
        (NOW_US + 1_500_000, {b"kept": b"v", b"x": b"1"}),
    ):
        put(partition, b"1", key=b"x")
        partition.roll()
        compact(partition, now_us=moment_us)
        assert table(partition) == left


def test_nothing_is_compacted_beyond_an_open_transaction(os_world: World) -> None:
    partition = os_world.topic(**TABLE)
    for number in range(10):
        put(partition, b"before%d" % number, key=b"k")
    data = rb.encode([Record(0, NOW_MS, b"k", b"open")], producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    start = partition.append(data, now_us=NOW_US).base_offset
    for number in range(20):
        put(partition, b"after%d" % number, key=b"k")
    compact(partition, now_us=NOW_US)
    kept = [record.offset for record in consume(partition)]
    assert kept[-21:] == list(range(start, start + 21))
    partition.append_marker(producer_id=1, producer_epoch=0, commit=True, now_us=NOW_US)
    partition.roll()
    compact(partition, now_us=NOW_US)
    assert table(partition) == {b"k": b"after19"}


def test_records_of_aborted_transactions_go_and_their_markers_follow(os_world: World) -> None:
    partition = os_world.topic(**TABLE, delete_retention_ms=1_000)
    put(partition, b"good", key=b"k")
    data = rb.encode([Record(0, NOW_MS, b"k", b"bad")], producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    partition.append(data, now_us=NOW_US)
    partition.append_marker(producer_id=1, producer_epoch=0, commit=False, now_us=NOW_US)
    partition.roll()
    compact(partition, now_us=NOW_US)
    assert table(partition) == {b"k": b"good"}
    assert partition.aborted(0, 100) == []
    assert [header.is_control for header, _ in partition.batches()][-1] is True
    put(partition, b"more", key=b"l")
    partition.roll()
    compact(partition, now_us=NOW_US + 2_000_000)
    assert not any(header.is_control for header, _ in partition.batches())


def test_a_producers_sequence_outlives_its_records(world: World) -> None:
    partition = world.topic(**TABLE)
    put(partition, b"mine", key=b"k", producer_id=5, producer_epoch=0, base_sequence=0)
    put(partition, b"other", key=b"k")
    world.sync()
    partition.roll()
    compact(partition, now_us=NOW_US)
    assert values(partition) == [b"other"]
    disk = world.disk.after_kill()
    for path in [f"{partition.directory}/{name}" for name in disk.listdir(partition.directory) if name.endswith(".snapshot")]:
        disk.unlink(path)  # the log alone must tell
    partition = world.reopen(disk).partition("words", 0)
    assert put(partition, b"mine", key=b"k", producer_id=5, producer_epoch=0, base_sequence=0) == 0
    assert put(partition, b"next", key=b"k", producer_id=5, producer_epoch=0, base_sequence=1) == 2


def test_lag_and_dirty_ratio_are_respected(os_world: World) -> None:
    young = os_world.topic("young", cleanup_policy="compact", segment_bytes=300, min_compaction_lag_ms=1_000, min_cleanable_dirty_ratio=0)
    clean = os_world.topic("clean", cleanup_policy="compact", segment_bytes=300, min_cleanable_dirty_ratio=0.9)
    for partition in (young, clean):
        for number in range(30):
            put(partition, b"%d" % number, key=b"k%d" % number)
    assert compact(young, now_us=NOW_US) is None
    assert compact(young, now_us=NOW_US + 2_000_000) is not None
    assert compact(clean, now_us=NOW_US) is not None
    put(clean, b"x", key=b"x")
    clean.roll()
    assert compact(clean, now_us=NOW_US) is None


def test_small_files_become_few(os_world: World) -> None:
    partition = os_world.topic(**TABLE)
    for number in range(300):
        put(partition, b"v%d" % number, key=b"k%d" % (number % 3))
    assert len(partition.segments) > 50
    compact(partition, now_us=NOW_US)
    assert len(partition.segments) < 5


def test_the_map_of_keys_has_a_limit(os_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.log.compaction.KEYS_MAX", 10)
    partition = os_world.topic(**TABLE)
    for number in range(200):
        put(partition, b"v%d" % number, key=b"k%d" % (number % 50))
    before = table(partition)
    for _ in range(60):
        compact(partition, now_us=NOW_US, force=True)
        assert table(partition) == before
    assert all(segment.is_compacted for segment in partition.segments[:-1])


def test_maintain_compacts_a_quiet_topic_by_age(os_world: World) -> None:
    partition = os_world.topic(cleanup_policy="compact", segment_ms=1_000, min_cleanable_dirty_ratio=0)
    for number in range(10):
        put(partition, b"v%d" % number, key=b"k")
    assert os_world.log.maintain(now_us=NOW_US) == []
    (line,) = os_world.log.maintain(now_us=NOW_US + 2_000_000)
    assert "compacted up to offset 10" in line
    assert values(partition) == [b"v9"]


def test_a_crash_at_every_step_of_a_pass_loses_nothing(world: World) -> None:
    partition = world.topic(**TABLE)
    for number in range(40):
        put(partition, b"v%d" % number, key=b"k%d" % (number % 4))
    world.sync()
    compact(partition, now_us=NOW_US)
    for number in range(40, 60):
        put(partition, b"v%d" % number, key=b"k%d" % (number % 4))
    world.sync()
    expected = table(partition)
    rng = random.Random(5)
    states: list[SimulatedStorage] = []
    world.disk.on_change = lambda what, path: states.extend(
        [*(world.disk.after_power_loss(rng) for _ in range(5)), world.disk.after_kill()]
    )
    compact(partition, now_us=NOW_US, force=True)
    world.disk.on_change = None
    assert len(states) > 100
    for disk in states:
        recovered = world.reopen(disk)
        assert recovered.report == []
        assert table(recovered.partition("words", 0)) == expected
        names = disk.listdir(partition.directory)
        assert not [name for name in names if name.endswith((".cleaned", ".tmp"))]


@settings(max_examples=60, deadline=None)
@given(
    writes=st.lists(st.tuples(st.integers(0, 5), st.one_of(st.none(), st.binary(max_size=10)), st.booleans()), max_size=60),
    passes=st.integers(1, 3),
)
def test_compaction_never_changes_the_table(writes: list[tuple[int, bytes | None, bool]], passes: int) -> None:
    world = World(SimulatedStorage(), durability="os")
    partition = world.topic(**TABLE, delete_retention_ms=DAY_US)
    model: dict[bytes, bytes | None] = {}
    for number, (key, value, rolls) in enumerate(writes):
        put(partition, value, key=b"k%d" % key)
        model[b"k%d" % key] = value
        if rolls:
            partition.roll()
        if number % 20 == 19:
            for _ in range(passes):
                compact(partition, now_us=NOW_US, force=True)
    compact(partition, now_us=NOW_US, force=True)
    assert table(partition) == model
