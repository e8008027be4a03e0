"""Transactions: all or nothing, fenced, bounded in time; the last stable offset; offsets inside a transaction."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

from confluent_kafka import IsolationLevel, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import OffsetSpec

from penstock.testing.contract.frame import WAIT_S, Subject, case, closing, done, enqueue, error_code, poll_until, wait_until
from penstock.testing.history import Assign, Event, Outcome, Poll, Send, check

COMMITTED: dict[str, Any] = {"isolation_level": "read_committed"}
EVERYTHING: dict[str, Any] = {"isolation_level": "read_uncommitted"}


def _send(producer: Producer, topic: str, *values: bytes, partition: int = 0) -> None:
    for value in values:
        enqueue(producer, topic, value=value, partition=partition)
    assert producer.flush(WAIT_S) == 0


def _last_stable(subject: Subject, topic: str) -> int:
    request = {TopicPartition(topic, 0): OffsetSpec.latest()}
    [found] = done(subject.admin.list_offsets(request, isolation_level=IsolationLevel.READ_COMMITTED))
    offset: int = found.offset
    return offset


@case
def a_committed_transaction_is_seen_whole_and_an_aborted_one_not_at_all(subject: Subject) -> None:
    topic = subject.topic(partitions=2)
    producer = subject.transactional(subject.fresh("txn"))
    for n, commit in enumerate([True, False, True]):
        producer.begin_transaction()
        for partition in range(2):
            _send(producer, topic, b"%d" % n, b"%d again" % n, partition=partition)
        producer.commit_transaction(WAIT_S) if commit else producer.abort_transaction(WAIT_S)
    for partition in range(2):
        seen = _values_when(subject, topic, 4, partition=partition)
        assert seen == [b"0", b"0 again", b"2", b"2 again"]
        everything = subject.values(topic, partition=partition, **EVERYTHING)
        assert everything == [b"0", b"0 again", b"1", b"1 again", b"2", b"2 again"]


@case
def a_marker_takes_one_offset(subject: Subject) -> None:
    topic = subject.topic()
    producer = subject.transactional(subject.fresh("txn"))
    for commit in (True, False):
        producer.begin_transaction()
        _send(producer, topic, b"v")
        producer.commit_transaction(WAIT_S) if commit else producer.abort_transaction(WAIT_S)
    wait_until(lambda: subject.ends(topic) == (0, 4), "two records and two markers")
    assert subject.send(topic, [b"plain"]) == [4]
    assert [m.offset() for m in subject.read(topic, **EVERYTHING)] == [0, 2, 4]
    assert [m.offset() for m in subject.read(topic, **COMMITTED)] == [0, 4]


@case
def an_open_transaction_holds_back_what_follows(subject: Subject) -> None:
    topic = subject.topic()
    subject.send(topic, [b"before"])
    producer = subject.transactional(subject.fresh("txn"))
    producer.begin_transaction()
    _send(producer, topic, b"inside")
    subject.send(topic, [b"after"])
    assert subject.values(topic, **COMMITTED) == [b"before"]
    assert subject.values(topic, **EVERYTHING) == [b"before", b"inside", b"after"]
    assert _last_stable(subject, topic) == 1
    producer.commit_transaction(WAIT_S)
    wait_until(lambda: _last_stable(subject, topic) == 4, "the last stable offset reaches the end")
    assert subject.values(topic, **COMMITTED) == [b"before", b"inside", b"after"]


@case
def an_empty_transaction_leaves_no_trace(subject: Subject) -> None:
    topic = subject.topic()
    producer = subject.transactional(subject.fresh("txn"))
    for _ in range(3):
        producer.begin_transaction()
        producer.commit_transaction(WAIT_S)
    assert subject.ends(topic) == (0, 0)


@case
def a_new_holder_of_the_id_aborts_and_fences_the_old(subject: Subject) -> None:
    topic, name = subject.topic(), subject.fresh("txn")
    old = subject.transactional(name)
    old.begin_transaction()
    _send(old, topic, b"zombie")
    new = subject.transactional(name)
    assert error_code(lambda: old.commit_transaction(WAIT_S)) in (
        KafkaError._FENCED,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
    )
    new.begin_transaction()
    _send(new, topic, b"alive")
    new.commit_transaction(WAIT_S)
    assert wait_until(lambda: subject.values(topic, **COMMITTED), "the new one's record is visible") == [b"alive"]


@case
def a_transaction_that_takes_too_long_is_aborted(subject: Subject) -> None:
    topic = subject.topic()
    producer = subject.transactional(subject.fresh("txn"), transaction_timeout_ms=1500, message_timeout_ms=1400, socket_timeout_ms=1400)
    producer.begin_transaction()
    _send(producer, topic, b"late")
    subject.send(topic, [b"plain"])
    wait_until(lambda: subject.values(topic, **COMMITTED) == [b"plain"], "the server ends the transaction")
    assert error_code(lambda: producer.commit_transaction(WAIT_S)) != 0, (
        "a transaction that was aborted for its age was committed afterwards"
    )
    assert subject.values(topic, **COMMITTED) == [b"plain"]


@case
def offsets_in_a_transaction_follow_its_fate(subject: Subject) -> None:
    topic, output, group = subject.topic(), subject.topic(), subject.fresh("group")
    subject.send(topic, [b"%d" % n for n in range(6)])
    producer = subject.transactional(subject.fresh("txn"))
    with closing(subject.consumer(group, isolation_level="read_committed")) as consumer:
        consumer.subscribe([topic])
        poll_until(consumer, 6)
        for offset, commit in ((2, True), (4, False)):
            producer.begin_transaction()
            _send(producer, output, b"%d" % offset)
            producer.send_offsets_to_transaction([TopicPartition(topic, 0, offset)], consumer.consumer_group_metadata(), WAIT_S)
            producer.commit_transaction(WAIT_S) if commit else producer.abort_transaction(WAIT_S)
            wait_until(lambda: subject.committed(group, topic) == 2, "the committed offset is the one of the committed transaction")
    assert subject.values(output, **COMMITTED) == [b"2"]


@case
def copying_in_transactions_copies_once(subject: Subject) -> None:
    """Read, write and commit offsets in one transaction, aborting at random and starting again: each record arrives once."""
    source, target, group = subject.topic(), subject.topic(), subject.fresh("group")
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    count = 200
    subject.send(source, [b"%d" % n for n in range(count)])
    producer = subject.transactional(subject.fresh("txn"))
    with closing(subject.consumer(group, **COMMITTED)) as consumer:
        consumer.subscribe([source])
        [first] = poll_until(consumer, 1)
        consumer.seek(TopicPartition(source, 0, first.offset()))
        position = 0
        deadline = time.monotonic() + WAIT_S
        while position < count:
            assert time.monotonic() < deadline, f"only {position} of {count} copied"
            messages = [m for m in consumer.consume(rng.randrange(1, 40), 0.2) if m.error() is None]
            if not messages:
                continue
            producer.begin_transaction()
            _send(producer, target, *[m.value() for m in messages])
            end = messages[-1].offset() + 1
            producer.send_offsets_to_transaction([TopicPartition(source, 0, end)], consumer.consumer_group_metadata(), WAIT_S)
            if rng.random() < 0.4:
                producer.abort_transaction(WAIT_S)
                consumer.seek(TopicPartition(source, 0, position))
            else:
                producer.commit_transaction(WAIT_S)
                position = end
    expected = [b"%d" % n for n in range(count)]
    assert _values_when(subject, target, count) == expected
    assert subject.committed(group, source) == count


@case
def readers_see_only_committed_records_under_load(subject: Subject) -> None:
    """Several transactional producers that commit and abort, a plain one between them, and a reader beside them; the history must hold."""
    topic = subject.topic()
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    events: list[Event] = []
    failures: list[BaseException] = []
    threads = [threading.Thread(target=_load, args=(subject, topic, n, random.Random(seed + n), events, failures)) for n in range(3)]
    polled: list[Event] = []
    ended = threading.Event()
    reader = threading.Thread(target=_follow, args=(subject, topic, polled, ended, failures))
    for thread in [*threads, reader]:
        thread.start()
    for thread in threads:
        thread.join(2 * WAIT_S)
    _, high = subject.ends(topic, **EVERYTHING)
    wait_until(lambda: _last_stable(subject, topic) == high, "all transactions have ended")
    ended.set()
    reader.join(2 * WAIT_S)
    assert not failures, failures
    final = [Poll("final", (topic, 0), m.offset(), m.value()) for m in subject.read(topic, **COMMITTED)]
    anomalies = check([*events, *polled, Assign("final", (topic, 0)), *final], ends={(topic, 0): high})
    assert not anomalies, "\n".join(map(str, anomalies[:10]))
    assert [e.offset for e in polled if isinstance(e, Poll)] == [e.offset for e in final], "the reader beside the load saw the same records"


def _load(subject: Subject, topic: str, number: int, rng: random.Random, events: list[Event], failures: list[BaseException]) -> None:
    try:
        plain = number == 0
        producer = subject.producer(enable_idempotence=True) if plain else subject.transactional(subject.fresh("txn"))
        for n in range(25):
            name = None if plain else f"{number}.{n}"
            if not plain:
                producer.begin_transaction()
            for m in range(rng.randrange(1, 8)):
                value = b"%d.%d.%d" % (number, n, m)

                def delivered(error: KafkaError | None, message: object, value: bytes = value, name: str | None = name) -> None:
                    offset = None if error else message.offset()  # type: ignore[attr-defined]
                    events.append(Send(f"producer {number}", (topic, 0), value, offset, name))

                enqueue(producer, topic, value=value, partition=0, on_delivery=delivered)
            assert producer.flush(WAIT_S) == 0
            if name is not None:
                commit = rng.random() < 0.6
                producer.commit_transaction(WAIT_S) if commit else producer.abort_transaction(WAIT_S)
                events.append(Outcome(name, commit))
    except BaseException as error:  # a thread's error must reach the case
        failures.append(error)


def _follow(subject: Subject, topic: str, polled: list[Event], ended: threading.Event, failures: list[BaseException]) -> None:
    """Reads until the load is over and the end of the partition is told once more."""
    try:
        with closing(subject.consumer(**COMMITTED)) as consumer:
            consumer.assign([TopicPartition(topic, 0, 0)])
            polled.append(Assign("reader", (topic, 0)))
            deadline = time.monotonic() + 3 * WAIT_S
            while time.monotonic() < deadline:
                over = ended.is_set()
                message = consumer.poll(0.2)
                if message is not None and message.error() is None:
                    polled.append(Poll("reader", (topic, 0), message.offset(), message.value()))
                elif over and message is None:
                    return
            raise AssertionError("the reader did not reach the end")
    except BaseException as error:  # a thread's error must reach the case
        failures.append(error)


def _values_when(subject: Subject, topic: str, count: int, *, partition: int = 0) -> list[bytes | None]:
    """The committed values once there are so many: a commit may be answered before its markers are visible."""

    def enough() -> list[bytes | None]:
        values = subject.values(topic, partition=partition, **COMMITTED)
        return values if len(values) >= count else []

    found: list[bytes | None] = wait_until(enough, f"{count} committed records are visible")
    return found
