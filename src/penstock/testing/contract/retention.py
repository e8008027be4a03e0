"""What is removed: by age, by size, by key, by request. What stays keeps its offset."""

from __future__ import annotations

import time

from confluent_kafka import KafkaError, TopicPartition

from penstock.testing.contract.frame import Subject, case, done, error_code, wait_until

# Removal is background work that a server may do every few seconds.
REMOVAL_S = 60.0
_SMALL_SEGMENTS = {"segment.bytes": str(1 << 20), "file.delete.delay.ms": "100"}


@case
def back_dated_records_vanish(subject: Subject) -> None:
    """Retention goes by record time, not by the time of arrival."""
    topic = subject.topic(config={"retention.ms": "60000"})
    old = int(time.time() * 1000) - 3_600_000
    subject.send_records(topic, [{"value": b"old", "partition": 0, "timestamp": old}] * 5)
    wait_until(lambda: subject.ends(topic) == (5, 5), "the old records are gone", seconds=REMOVAL_S)
    assert subject.send(topic, [b"new"]) == [5]
    assert subject.values(topic) == [b"new"]


@case
def retention_by_size_removes_the_oldest(subject: Subject) -> None:
    topic = subject.topic(config={"retention.bytes": str(2 << 20), **_SMALL_SEGMENTS})
    subject.send(topic, [b"x" * 50_000] * 100)
    low = wait_until(lambda: subject.ends(topic)[0], "the low watermark rises", seconds=REMOVAL_S)
    low, high = subject.ends(topic)
    assert high == 100
    assert (high - low) * 50_000 >= 2 << 20, "more was removed than allowed"
    messages = subject.read(topic)
    assert [m.offset() for m in messages] == list(range(messages[0].offset(), 100))


@case
def compaction_keeps_the_newest_of_each_key(subject: Subject) -> None:
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "100", "delete.retention.ms": "0"}
    topic = subject.topic(config={**config, **_SMALL_SEGMENTS})
    newest = {b"k%d" % (n % 7): n for n in range(200)}
    subject.send_records(topic, [{"key": b"k%d" % (n % 7), "value": b"%d" % n, "partition": 0} for n in range(200)])
    subject.send_records(topic, [{"key": b"k0", "value": None, "partition": 0}])
    newest[b"k0"] = 200

    def compacted() -> bool:
        # Only closed segments are compacted: each new record gives the server a reason to close one.
        subject.send_records(topic, [{"key": b"tick", "value": b"", "partition": 0}])
        records = [m for m in subject.read(topic) if m.key() != b"tick"]
        for key in {m.key() for m in records}:
            survivors = [m for m in records if m.key() == key]
            last = survivors[-1]
            assert last.offset() == newest[key], f"the newest record of {key!r} is not the one at {newest[key]}"
            assert last.value() == (None if key == b"k0" else b"%d" % newest[key])
        assert {m.key() for m in records} >= {b"k%d" % n for n in range(1, 7)}, "a key has vanished"
        return len(records) <= 7

    wait_until(compacted, "one record is left of each key", seconds=REMOVAL_S)


@case
def a_record_without_a_key_is_refused_on_a_compacted_topic(subject: Subject) -> None:
    topic = subject.topic(config={"cleanup.policy": "compact"})
    assert error_code(lambda: subject.send(topic, [b"no key"])) == KafkaError.INVALID_RECORD
    assert subject.send_records(topic, [{"key": b"k", "value": b"v", "partition": 0}]) == [0]


@case
def delete_records_moves_the_start(subject: Subject) -> None:
    topic = subject.topic()
    subject.send(topic, [b"%d" % n for n in range(10)])
    [deleted] = done(subject.admin.delete_records([TopicPartition(topic, 0, 4)]))
    assert deleted.low_watermark == 4
    assert subject.ends(topic) == (4, 10)
    assert [m.offset() for m in subject.read(topic)] == list(range(4, 10))
    assert [m.offset() for m in subject.read(topic, start=0)] == list(range(4, 10))
    assert error_code(lambda: done(subject.admin.delete_records([TopicPartition(topic, 0, 11)]))) == KafkaError.OFFSET_OUT_OF_RANGE
    done(subject.admin.delete_records([TopicPartition(topic, 0, -1)]))
    assert subject.ends(topic) == (10, 10)
    assert subject.send(topic, [b"next"]) == [10]
