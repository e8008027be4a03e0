"""The raw client against real brokers: what others wrote is fetched, what it writes others read."""

from __future__ import annotations

import os
import socket
import threading
import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from penstock.errors import MissingPart, PenstockError
from penstock.log import batch
from penstock.protocol.client import EARLIEST, LATEST, BrokerError, Client, UnknownTopic, Unreachable, Wanted, parse_address


@pytest.fixture(scope="module")
def kafka() -> Iterator[str]:
    if address := os.environ.get("PENSTOCK_TEST_KAFKA"):
        yield address
        return
    from penstock.testing.apache_kafka import ApacheKafka

    try:
        with ApacheKafka(jvm_options=("-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")) as server:
            yield server.address
    except MissingPart as error:
        pytest.skip(f"no Apache Kafka to compare with: {error}")


@pytest.fixture(scope="module")
def embedded() -> Iterator[str]:
    from penstock.broker.embedded import broker

    with broker() as server:
        yield server.address


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=pytest.mark.kafka)])
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    with Client(request.getfixturevalue(request.param), timeout_s=20) as made:
        yield made


@pytest.fixture
def topic(client: Client) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    assert client.create_topic(name, partitions=3, config={"retention.ms": "-1"})
    client.partitions([name])
    return name


def write(client: Client, topic: str, partition: int, *values: bytes, start_ms: int = 1_000) -> None:
    producer = Producer({"bootstrap.servers": client.address, "linger.ms": 0})
    for index, value in enumerate(values):
        producer.produce(topic, value, partition=partition, timestamp=start_ms + index)
    assert producer.flush(20) == 0


def values(client: Client, topic: str, partition: int, offset: int = 0) -> list[bytes | None]:
    ((frame, part),) = client.fetch([Wanted(topic, partition, offset)], wait_ms_max=100)
    assert part.error == 0
    found, at = [], part.start
    while at < part.end:
        header = batch.parse(memoryview(frame), at)
        found += [record.value for record in batch.decode(memoryview(frame)[at : at + header.size])]
        at += header.size
    return found


def test_a_topic_is_made_once_and_listed(client, topic):
    assert client.partitions([topic]) == {topic: [0, 1, 2]}
    assert client.create_topic(topic) is False
    assert topic in client.topics()
    client.delete_topic(topic)


def test_what_another_client_wrote_is_fetched_for_many_partitions_at_once(client, topic):
    write(client, topic, 0, b"a", b"b")
    write(client, topic, 2, b"c")
    answers = client.fetch([Wanted(topic, partition, 0) for partition in range(3)], wait_ms_max=100)
    assert {part.partition: part.high_watermark for _, part in answers} == {0: 2, 1: 0, 2: 1}
    assert values(client, topic, 0) == [b"a", b"b"]
    assert values(client, topic, 2) == [b"c"]


def test_offsets_by_place_and_by_time(client, topic):
    write(client, topic, 1, b"a", b"b", b"c", start_ms=5_000)
    places = {(topic, 1): EARLIEST, (topic, 0): EARLIEST}
    assert client.list_offsets(places) == {(topic, 1): 0, (topic, 0): 0}
    assert client.list_offsets({(topic, 1): LATEST, (topic, 0): LATEST}) == {(topic, 1): 3, (topic, 0): 0}
    assert client.list_offsets({(topic, 1): 5_001}) == {(topic, 1): 1}
    assert client.list_offsets({(topic, 1): 9_000}) == {(topic, 1): -1}


def test_a_batch_we_write_is_read_by_another_client(client, topic):
    record = batch.Record(0, 1_234, b"k", b"v", (("h", b"x"),))
    assert client.produce({(topic, 0): batch.encode([record]), (topic, 1): batch.encode([record, record])}) == {
        (topic, 0): 0,
        (topic, 1): 0,
    }
    assert client.produce({(topic, 1): batch.encode([record])}) == {(topic, 1): 2}
    consumer = Consumer(
        {"bootstrap.servers": client.address, "group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    message = consumer.poll(20)
    consumer.close()
    assert (message.key(), message.value(), message.timestamp()[1], message.headers()) == (b"k", b"v", 1_234, [("h", b"x")])


def test_a_damaged_batch_is_refused(client, topic):
    damaged = bytearray(batch.encode([batch.Record(0, 1, b"k", b"v", ())]))
    damaged[-1] ^= 1
    with pytest.raises(BrokerError, match=rf"writing to {topic}/0"):
        client.produce({(topic, 0): bytes(damaged)})


def test_group_offsets_are_stored_without_joining(client, topic):
    group = f"g-{uuid.uuid4().hex[:8]}"
    assert client.committed_offsets(group, [(topic, 0)]) == {}
    client.commit_offsets(group, {(topic, 0): 7, (topic, 2): 9})
    assert client.committed_offsets(group, [(topic, 0), (topic, 1), (topic, 2)]) == {(topic, 0): 7, (topic, 2): 9}


def test_mistakes_have_names(client):
    with pytest.raises(UnknownTopic, match=r"'nowhere'.*penstock topic create nowhere"):
        client.partitions(["nowhere"])
    with pytest.raises(PenstockError, match="'here' is no broker address"):
        parse_address("here")


def test_nobody_there():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(Unreachable, match=f"127.0.0.1:{port}"):
        Client(f"127.0.0.1:{port}").topics()


def test_someone_else_there():
    """A server of another protocol gets a sentence, not a hang or a huge allocation."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            for _ in range(2):
                connection, _ = server.accept()
                with connection:
                    connection.recv(1024)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(Unreachable, match="Kafka's protocol"), Client(f"127.0.0.1:{server.getsockname()[1]}", timeout_s=5) as client:
            client.topics()
        thread.join()
