"""`log verify` and `log dump`: what they say of good and of bad files, and that they only look."""

from __future__ import annotations

from penstock.log import inspect
from penstock.log.batch import parse
from penstock.log.compaction import compact
from tests.log.conftest import NOW_US, World, put


def _world(world: World) -> tuple[World, list[str]]:
    partition = world.topic(partitions=2, segment_bytes=400)
    for number in range(20):
        put(partition, b"value %d" % number)
    world.sync()
    return world, world.files(partition)


def test_a_good_directory_has_no_problem(world: World) -> None:
    _world(world)
    table = world.topic("table", cleanup_policy="compact", segment_bytes=300)
    for number in range(30):
        put(table, b"%d" % number, key=b"k%d" % (number % 3))
    world.sync()
    compact(table, now_us=NOW_US, force=True)
    rows = list(inspect.verify("/data", storage=world.disk))
    assert [row.problem for row in rows] == [None] * len(rows)
    words = [row for row in rows if row.topic == "words" and row.partition == 0]
    assert sum(row.records for row in words) == 20
    assert words[-1].next_offset == 20
    assert {row.topic for row in inspect.verify("/data", topic="table", storage=world.disk)} == {"table"}


def test_damage_and_a_torn_tail_are_told_apart(world: World) -> None:
    _, files = _world(world)
    world.disk.flip(files[1], 8 * 70)
    end = world.disk.content(files[-1])
    world.disk.put(files[-1], end + end[:30])
    bad = [row for row in inspect.verify("/data", storage=world.disk) if row.problem]
    assert [(row.topic, row.partition, row.is_torn_tail) for row in bad] == [("words", 0, False), ("words", 0, True)]
    assert "CRC32C" in (bad[0].problem or "")
    assert f"offset {bad[0].base_offset}" in (bad[0].problem or "")


def test_a_missing_file_is_a_problem(world: World) -> None:
    _, files = _world(world)
    world.disk.unlink(files[1])
    assert [row.problem is not None and "missing" in row.problem for row in inspect.verify("/data", storage=world.disk)].count(True) == 1


def test_a_dump_shows_every_batch_and_every_record(world: World) -> None:
    _, files = _world(world)
    before = {path: world.disk.content(path) for path in files}
    batches = list(inspect.dump_batches("/data", topic="words", storage=world.disk))
    assert [row.header.base_offset for row in batches] == list(range(20))
    assert batches[0].header == parse(before[files[0]])
    records = list(inspect.dump_records("/data", topic="words", partition=0, start=15, storage=world.disk))
    assert [row.record.value for row in records] == [b"value %d" % number for number in range(15, 20)]
    assert before == {path: world.disk.content(path) for path in files}


def test_a_directory_without_a_log_has_no_rows(world: World) -> None:
    world.disk.mkdir("/other")
    assert list(inspect.verify("/other", storage=world.disk)) == []
