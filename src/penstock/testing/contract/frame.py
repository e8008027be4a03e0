"""The server under test, and the register of cases.

Invariant: every wait has an end (`WAIT_S`) and names what did not happen. Not here: any case."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

WAIT_S = 30.0
Case = Callable[["Subject"], None]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    """Register a case under its module and name."""
    name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
    assert name not in CASES, f"two cases are called {name}"
    CASES[name] = function
    return function


class Subject:
    """A server under test: its address, and the clients, topics and names that a case needs."""

    def __init__(self, name: str, address: str, *, session_ms: int = 6000) -> None:
        """`session_ms` is the shortest session that the server allows a group's member (Kafka's default is 6 s)."""
        self.name = name
        self.session_ms = session_ms
        self.address = address
        self._run = uuid.uuid4().hex[:8]
        self._numbers = itertools.count()
        self._admin: AdminClient | None = None

    def __repr__(self) -> str:
        return f"{self.name} at {self.address}"

    @property
    def admin(self) -> AdminClient:
        if self._admin is None:
            self._admin = AdminClient({**self.client(), "topic.metadata.refresh.interval.ms": 1000})
        return self._admin

    def client(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.address, "log_level": 2, "socket.timeout.ms": 20_000}

    def fresh(self, kind: str) -> str:
        """A name that nobody else uses: of a topic, a group or a transactional id."""
        return f"{kind}-{self._run}-{os.getpid()}-{next(self._numbers)}"

    def topic(self, *, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        """A new topic, known to the server when this returns. Its records stay, however old, unless the configuration says otherwise."""
        name = self.fresh("topic")
        config = {"retention.ms": "-1", **(config or {})}
        done(self.admin.create_topics([NewTopic(name, num_partitions=partitions, replication_factor=1, config=config)]))
        wait_until(lambda: len(self.leaders(name)) == partitions, f"topic {name} has {partitions} partitions with a leader")
        return name

    def leaders(self, topic: str) -> list[int]:
        metadata = self.admin.list_topics(topic, timeout=10).topics[topic]
        return [] if metadata.error else [p.leader for p in metadata.partitions.values() if p.leader >= 0]

    def producer(self, **config: Any) -> Producer:
        defaults = {"linger.ms": 0, "acks": "all", "message.timeout.ms": 20_000}
        return Producer({**self.client(), **defaults, **_dotted(config)})

    def transactional(self, transactional_id: str, **config: Any) -> Producer:
        """A producer that has already taken up its transactional id."""
        producer = self.producer(transactional_id=transactional_id, **config)
        producer.init_transactions(WAIT_S)
        return producer

    def consumer(self, group: str | None = None, **config: Any) -> Consumer:
        defaults: dict[str, Any] = {
            "group.id": group or self.fresh("group"),
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,
            "session.timeout.ms": 10_000,
            "heartbeat.interval.ms": 300,
        }
        return Consumer({**self.client(), **defaults, **_dotted(config)})

    def send(self, topic: str, values: Iterable[bytes | None], *, partition: int = 0, **config: Any) -> list[int]:
        """Send the values and return the acknowledged offsets, in the order of sending."""
        return self.send_records(topic, [{"value": value, "partition": partition} for value in values], **config)

    def send_records(self, topic: str, records: Sequence[Mapping[str, Any]], **config: Any) -> list[int]:
        producer = self.producer(**config)
        offsets = [-1] * len(records)
        for n, record in enumerate(records):
            enqueue(producer, topic, on_delivery=_store(offsets, n), **record)
        left = producer.flush(WAIT_S)
        assert left == 0, f"{left} records were not answered in {WAIT_S} s"
        return offsets

    def read(self, topic: str, *, partition: int = 0, start: int = OFFSET_BEGINNING, **config: Any) -> list[Message]:
        """All records from `start` to the end of the partition as it is now (the last stable offset under read_committed)."""
        consumer = self.consumer(**config)
        try:
            if start == OFFSET_BEGINNING:  # asking first spares librdkafka its half second of waiting for metadata
                start, _ = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)
            consumer.assign([TopicPartition(topic, partition, start)])
            return read_to_end(consumer, partitions=1)
        finally:
            consumer.close()

    def values(self, topic: str, *, partition: int = 0, **config: Any) -> list[bytes | None]:
        return [message.value() for message in self.read(topic, partition=partition, **config)]

    def ends(self, topic: str, partition: int = 0, **config: Any) -> tuple[int, int]:
        """Low and high watermark."""
        with closing(self.consumer(**config)) as consumer:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)
        return low, high

    def committed(self, group: str, topic: str, *, partition: int = 0) -> int:
        with closing(self.consumer(group)) as consumer:
            [found] = consumer.committed([TopicPartition(topic, partition)], timeout=10)
        assert found.error is None, found.error
        offset: int = found.offset
        return offset


def read_to_end(consumer: Consumer, *, partitions: int) -> list[Message]:
    """Poll until each of the partitions has told its end once."""
    messages: list[Message] = []
    ended: set[tuple[str, int]] = set()
    deadline = time.monotonic() + WAIT_S
    while len(ended) < partitions:
        assert time.monotonic() < deadline, f"the end was not reached in {WAIT_S} s; {len(messages)} records, ended {ended}"
        message = consumer.poll(1)
        if message is None:
            continue
        if message.error() is None:
            messages.append(message)
        elif message.error().code() == KafkaError._PARTITION_EOF:
            ended.add((message.topic(), message.partition()))
        else:
            raise KafkaException(message.error())
    return messages


def poll_until(consumer: Consumer, count: int) -> list[Message]:
    """Poll until so many records have come."""
    messages: list[Message] = []
    deadline = time.monotonic() + WAIT_S
    while len(messages) < count:
        assert time.monotonic() < deadline, f"{len(messages)} of {count} records in {WAIT_S} s"
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            messages.append(message)
    return messages


def enqueue(producer: Producer, topic: str, **record: Any) -> None:
    """`produce`, waiting while the client's own queue is full."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            producer.produce(topic, **record)
            return
        except BufferError:
            assert time.monotonic() < deadline, "the producer's queue does not empty"
            producer.poll(0.1)


def wait_until(condition: Callable[[], Any], what: str, *, seconds: float = WAIT_S) -> Any:
    """The first true result of the condition; an error that says what did not happen."""
    deadline = time.monotonic() + seconds
    while True:
        result = condition()
        if result:
            return result
        assert time.monotonic() < deadline, f"not so in {seconds} s: {what}"
        time.sleep(0.02)


def done(futures: Mapping[Any, Any]) -> list[Any]:
    """The results of an admin call; its first error is raised."""
    return [future.result(timeout=WAIT_S) for future in futures.values()]


def error_code(action: Callable[[], Any]) -> int:
    """The Kafka error code that the action raises; 0 if none."""
    try:
        action()
    except KafkaException as error:
        code: int = error.args[0].code()
        return code
    return 0


@contextlib.contextmanager
def closing(consumer: Consumer) -> Iterator[Consumer]:
    try:
        yield consumer
    finally:
        consumer.close()


def _dotted(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key.replace("_", "."): value for key, value in config.items()}


def _store(offsets: list[int], n: int) -> Callable[[KafkaError | None, Message], None]:
    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            raise KafkaException(error)
        offsets[n] = message.offset()

    return delivered
