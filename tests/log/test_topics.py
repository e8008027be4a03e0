"""Topics: names, ids, partitions, configurations, and their life on a real disk."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.log import Log, LogConfig
from penstock.log.config import OPTIONS, TopicConfig, validate
from penstock.log.errors import InvalidConfig, InvalidPartitions, InvalidTopicName, LogError, TopicExists, UnknownTopic
from tests.log.conftest import World, put, values


def test_a_topic_keeps_its_id_and_a_new_one_gets_another(tmp_path: Path) -> None:
    with Log.open(tmp_path / "data") as log:
        first = log.create_topic("words", partitions=3, configs={"retention.ms": "1000"}).id
        assert len(first) == 16
    with Log.open(tmp_path / "data") as log:
        topic = log.topic_by_id(first)
        assert (topic.name, len(topic.partitions), topic.config.retention_ms) == ("words", 3, 1_000)
        log.delete_topic("words")
        with pytest.raises(UnknownTopic):
            log.topic_by_id(first)
        assert log.create_topic("words", partitions=1).id != first


def test_a_deleted_topic_leaves_nothing_behind(tmp_path: Path) -> None:
    with Log.open(tmp_path / "data") as log:
        partition = log.create_topic("words", partitions=2).partitions[0]
        put(partition, b"x")
        log.delete_topic("words")
        assert list((tmp_path / "data" / "topics").iterdir()) == []
        with pytest.raises(UnknownTopic):
            put(partition, b"y")


def test_partitions_are_added_and_never_taken(world: World) -> None:
    first = world.topic(partitions=1)
    put(first, b"x")
    world.log.add_partitions("words", total=3)
    put(world.log.partition("words", 2), b"y")
    world.sync()
    with pytest.raises(InvalidPartitions, match="only be added"):
        world.log.add_partitions("words", total=2)
    log = world.reopen()
    assert [values(partition) for partition in log.topic("words").partitions] == [[b"x"], [], [b"y"]]
    with pytest.raises(UnknownTopic, match="partitions 0 to 2"):
        log.partition("words", 3)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ä", "x" * 250, "a\n"])
def test_a_name_that_kafka_refuses_is_refused(world: World, name: str) -> None:
    with pytest.raises(InvalidTopicName):
        world.log.create_topic(name, partitions=1)


def test_the_longest_name_fits_on_disk(tmp_path: Path) -> None:
    with Log.open(tmp_path) as log:
        log.create_topic("x" * 249, partitions=1)
    with Log.open(tmp_path) as log:
        assert list(log.topics) == ["x" * 249]


@pytest.mark.parametrize("count", [0, -1, 10_001])
def test_a_partition_count_has_bounds(world: World, count: int) -> None:
    with pytest.raises(InvalidPartitions):
        world.log.create_topic("words", partitions=count)


def test_a_topic_exists_once(world: World) -> None:
    world.topic()
    with pytest.raises(TopicExists):
        world.topic()


# --- configurations --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention.ms", "soon"),
        ("retention.ms", "-2"),
        ("cleanup.policy", "shrink"),
        ("cleanup.policy", ""),
        ("segment.bytes", "3"),
        ("message.timestamp.type", "createtime"),
        ("min.cleanable.dirty.ratio", "1.5"),
        ("compression.type", "brotli"),
        ("preallocate", "maybe"),
    ],
)
def test_a_wrong_value_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(InvalidConfig, match=name) as caught:
        validate({name: value})
    assert caught.value.kafka_code == 40


def test_an_unknown_name_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(InvalidConfig, match=r"did you mean 'retention.ms'"):
        validate({"retention.msec": "1"})


def test_every_option_is_described_with_its_default() -> None:
    entries = {entry.name: entry for entry in TopicConfig.of({"retention.ms": "5"}, defaults={"segment.ms": "7"}).entries()}
    assert entries.keys() == OPTIONS.keys()
    assert entries["retention.ms"][1:3] == ("5", False)
    assert entries["segment.ms"][1:3] == ("7", True)
    assert entries["cleanup.policy"][1:3] == ("delete", True)


def test_altered_configurations_hold_at_once_and_after_a_restart(world: World) -> None:
    partition = world.topic(retention_ms=5, segment_bytes=500)
    world.log.alter_configs("words", set={"max.message.bytes": "80"}, delete=["segment.bytes"])
    with pytest.raises(LogError):
        put(partition, b"x" * 100)
    config = world.reopen().topic("words").config
    assert (config.retention_ms, config.max_message_bytes, config.segment_bytes) == (5, 80, 1 << 30)
    with pytest.raises(InvalidConfig):
        world.log.alter_configs("words", set={"retention.ms": "x"})


def test_defaults_of_the_broker_lie_under_the_topics(tmp_path: Path) -> None:
    with Log.open(tmp_path, config=LogConfig(topic_defaults={"retention.ms": "9"})) as log:
        assert log.create_topic("a", partitions=1).config.retention_ms == 9
        assert log.create_topic("b", partitions=1, configs={"retention.ms": "8"}).config.retention_ms == 8
    with pytest.raises(InvalidConfig):
        Log.open(tmp_path / "other", config=LogConfig(topic_defaults={"retention": "9"}))


# --- a real disk -----------------------------------------------------------------------------------------------------

_WRITER = """
import os, sys
from penstock.log import Log
from penstock.log import batch as rb
log = Log.open(sys.argv[1])
partition = log.create_topic("words", partitions=1, configs={"segment.bytes": "2000"}).partitions[0]
while True:
    appended = partition.append(rb.encode([rb.Record(0, 1, None, b"%d" % partition.next_offset)]), now_us=1000)
    log.commits.when_durable(partition, appended.next_offset, lambda error, at=appended.base_offset: os.write(1, b"%d\\n" % at))
"""


def test_a_killed_process_loses_nothing_that_it_acknowledged(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        acked = -1
        for line in process.stdout:
            acked = int(line)
            if acked >= 500:
                break
        with pytest.raises(LogError, match="another process"):
            Log.open(tmp_path)
        process.kill()
        rest = process.stdout.read().split(b"\n")
    acked = max([acked, *(int(line) for line in rest[:-1])])
    with Log.open(tmp_path) as log:
        found = values(log.partition("words", 0))
        assert len(found) > acked
        assert found == [b"%d" % number for number in range(len(found))]
