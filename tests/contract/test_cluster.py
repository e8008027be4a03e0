"""Replication is Kafka's own work; this shows it: three nodes, replication factor 3, a leader killed under load, nothing acknowledged lost."""

import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import NewTopic

from penstock.errors import MissingPart
from penstock.testing.apache_kafka import ApacheKafka, status
from penstock.testing.contract import Subject
from penstock.testing.contract.frame import done, wait_until
from penstock.testing.history import Assign, Event, Poll, Send, check

pytestmark = pytest.mark.kafka
SETTLE_S = 60


@pytest.fixture(scope="module")
def cluster() -> Iterator[ApacheKafka]:
    # Sessions of brokers end sooner than Kafka's 9 s, so that a dead leader is replaced while the test still runs.
    impatient = {"broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "500"}
    try:
        with ApacheKafka(nodes=3, config=impatient, jvm_options=("-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")) as running:
            yield running
    except MissingPart as error:
        pytest.skip(f"no Apache Kafka: {error}")


class Load(threading.Thread):
    """An idempotent producer that never stops sending, and writes down what was acknowledged where."""

    def __init__(self, subject: Subject, topic: str) -> None:
        super().__init__(daemon=True)
        self.topic, self.over, self.sent, self.acknowledged = topic, threading.Event(), list[list[object]](), 0
        self.producer: Producer = subject.producer(
            enable_idempotence=True, message_timeout_ms=0, linger_ms=2, queue_buffering_max_messages=1000
        )
        self.left = -1

    def run(self) -> None:
        while not self.over.is_set():
            entry: list[object] = [b"%d" % len(self.sent), None]
            try:
                self.producer.produce(self.topic, value=entry[0], partition=0, on_delivery=self._delivered(entry))
                self.sent.append(entry)
                self.over.wait(0.0005)  # a steady stream, not a race
            except BufferError:
                self.producer.poll(0.02)
            self.producer.poll(0)
        self.left = self.producer.flush(SETTLE_S)

    def _delivered(self, entry: list[object]) -> object:
        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                entry[1] = message.offset()
                self.acknowledged += 1

        return delivered


def test_a_killed_leader_loses_nothing(cluster: ApacheKafka) -> None:
    subject = Subject("three nodes", cluster.address)
    topic = subject.fresh("replicated")
    place = (topic, 0)
    done(subject.admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=3, config={"min.insync.replicas": "2"})]))
    wait_until(lambda: subject.leaders(topic), "the topic has a leader")
    partition = subject.admin.list_topics(topic, timeout=10).topics[topic].partitions[0]
    assert len(partition.replicas) == 3
    wait_until(lambda: len(subject.admin.list_topics(topic, timeout=10).topics[topic].partitions[0].isrs) == 3, "all replicas are in sync")
    load = Load(subject, topic)
    load.start()
    wait_until(lambda: load.acknowledged > 500, "records flow", seconds=SETTLE_S)
    [leader] = subject.leaders(topic)
    cluster.kill_node(leader)
    wait_until(lambda: subject.leaders(topic) not in ([], [leader]), "another replica leads", seconds=SETTLE_S)
    before = load.acknowledged
    wait_until(lambda: load.acknowledged > before + 500, "records flow without the old leader", seconds=SETTLE_S)
    cluster.start_node(leader)
    wait_until(
        lambda: len(subject.admin.list_topics(topic, timeout=10).topics[topic].partitions[0].isrs) == 3,
        "it is in sync again",
        seconds=SETTLE_S,
    )
    load.over.set()
    load.join(2 * SETTLE_S)
    assert load.left == 0, "every record was answered"
    events: list[Event] = [Send("producer", place, value, offset) for value, offset in load.sent]  # type: ignore[arg-type]
    _, end = subject.ends(topic)
    events += [Assign("reader", place), *(Poll("reader", place, m.offset(), m.value()) for m in subject.read(topic))]
    print(f"killed leader {leader}; {load.acknowledged} acknowledged")
    anomalies = check(events, ends={place: end})
    assert not anomalies, "\n".join(map(str, anomalies[:10]))


def test_status_tells_which_nodes_run(cluster: ApacheKafka) -> None:
    assert [node.running for node in status(cluster.data).nodes] == [True, True, True]
