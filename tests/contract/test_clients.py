"""Other people's clients, unchanged: kafka-python and aiokafka through the whole of an application's day, and the Java client 4.x
through Kafka's own tools. librdkafka is the client of the contract itself; the Java client 3.9 is in Spark's Kafka connector."""

import asyncio
import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import MissingPart
from penstock.spark import jars
from penstock.spark.java import find_java
from penstock.testing.apache_kafka import kafka_class_path
from penstock.testing.contract import Subject
from penstock.testing.contract.frame import wait_until

TOOL_S = 60
# kafka-python reads its own schema files in a way that Python 3.11 calls old.
pytestmark = pytest.mark.filterwarnings("ignore:.*_text is deprecated:DeprecationWarning")


def java_tool(name: str, *arguments: str, given: str = "") -> str:
    """Run one of Kafka's own tools and return what it printed."""
    command = [str(find_java().program), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", kafka_class_path()]
    done = subprocess.run(
        [*command, f"org.apache.kafka.tools.{name}", *arguments], input=given, capture_output=True, text=True, timeout=TOOL_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_kafka_python(subject: Subject) -> None:
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
    from kafka.admin import NewTopic

    topic, group = subject.fresh("topic"), subject.fresh("group")
    admin = KafkaAdminClient(bootstrap_servers=subject.address)
    admin.create_topics([NewTopic(name=topic, num_partitions=2, replication_factor=1)])
    wait_until(lambda: len(subject.leaders(topic)) == 2, "the topic is there")
    producer = KafkaProducer(bootstrap_servers=subject.address, acks="all", enable_idempotence=True, compression_type="gzip")
    sent = [producer.send(topic, value=b"%d" % n, key=b"k%d" % n, headers=[("n", b"%d" % n)], partition=n % 2) for n in range(100)]
    producer.flush(30)
    assert [future.get(30).offset for future in sent] == [n // 2 for n in range(100)]
    producer.close(10)

    config = {"bootstrap_servers": subject.address, "group_id": group, "auto_offset_reset": "earliest", "enable_auto_commit": False}
    consumer = KafkaConsumer(topic, **config)
    got = []

    def all_read() -> bool:
        for records in consumer.poll(500).values():
            got.extend(records)
        return len(got) == 100

    wait_until(all_read, "all records are read")
    assert sorted(int(r.value) for r in got) == list(range(100))
    assert all(r.key == b"k" + r.value and r.headers == [("n", r.value)] for r in got)
    consumer.commit()
    assert consumer.committed(TopicPartition(topic, 0)) == 50
    assert consumer.end_offsets([TopicPartition(topic, 1)]) == {TopicPartition(topic, 1): 50}
    consumer.close()
    assert subject.committed(group, topic, partition=1) == 50
    admin.delete_topics([topic])
    admin.close()


def test_kafka_python_transactions(subject: Subject) -> None:
    from kafka import KafkaProducer

    topic = subject.topic()
    producer = KafkaProducer(bootstrap_servers=subject.address, transactional_id=subject.fresh("txn"))
    producer.init_transactions()
    for value, commit in ((b"kept", True), (b"dropped", False)):
        producer.begin_transaction()
        producer.send(topic, value=value, partition=0)
        producer.flush(30)
        producer.commit_transaction() if commit else producer.abort_transaction()
    producer.close(10)
    wait_until(lambda: subject.values(topic, isolation_level="read_committed") == [b"kept"], "only the committed record is visible")


def test_aiokafka(subject: Subject) -> None:
    topic, group = subject.topic(partitions=2), subject.fresh("group")
    asyncio.run(asyncio.wait_for(_aiokafka(subject, topic, group), 60))
    assert subject.committed(group, topic) + subject.committed(group, topic, partition=1) == 100


async def _aiokafka(subject: Subject, topic: str, group: str) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    async with AIOKafkaProducer(bootstrap_servers=subject.address, enable_idempotence=True, compression_type="gzip") as producer:
        sent = [await producer.send(topic, b"%d" % n, key=b"k", partition=n % 2, headers=[("n", b"%d" % n)]) for n in range(100)]
        assert [(await future).offset for future in sent] == [n // 2 for n in range(100)]
    config = {"bootstrap_servers": subject.address, "group_id": group, "auto_offset_reset": "earliest", "enable_auto_commit": False}
    async with AIOKafkaConsumer(topic, **config) as consumer:
        got = [await consumer.getone() for _ in range(100)]
        assert sorted(int(r.value) for r in got) == list(range(100))
        await consumer.commit()


def test_aiokafka_transactions(subject: Subject) -> None:
    topic = subject.topic()
    asyncio.run(asyncio.wait_for(_aiokafka_transactions(subject, topic), 60))
    wait_until(lambda: subject.values(topic, isolation_level="read_committed") == [b"kept"], "only the committed record is visible")


async def _aiokafka_transactions(subject: Subject, topic: str) -> None:
    from aiokafka import AIOKafkaProducer

    async with AIOKafkaProducer(bootstrap_servers=subject.address, transactional_id=subject.fresh("txn")) as producer:
        async with producer.transaction():
            await producer.send_and_wait(topic, b"kept", partition=0)
        with contextlib.suppress(ZeroDivisionError):
            async with producer.transaction():
                await producer.send_and_wait(topic, b"dropped", partition=0)
                raise ZeroDivisionError


def test_java_client_4(embedded: Subject) -> None:
    """Kafka's own tools make a topic, load it in transactions, read it in a group, describe the group, and look at offsets."""
    topic, group, at = embedded.fresh("topic"), embedded.fresh("group"), ["--bootstrap-server", embedded.address]
    java_tool(
        "TopicCommand", *at, "--create", "--topic", topic, "--partitions", "3", "--replication-factor", "1", "--config", "retention.ms=-1"
    )
    assert "PartitionCount: 3" in java_tool("TopicCommand", *at, "--describe", "--topic", topic)
    load = ["--topic", topic, "--num-records", "3000", "--record-size", "100", "--throughput", "-1"]
    props = [f"bootstrap.servers={embedded.address}", "acks=all", "enable.idempotence=true"]
    assert "3000 records sent" in java_tool("ProducerPerformance", *load, "--producer-props", *props)
    props += [f"transactional.id={embedded.fresh('txn')}", "transaction.timeout.ms=20000"]
    output = java_tool("ProducerPerformance", *load, "--transaction-duration-ms", "50", "--producer-props", *props)
    assert "3000 records sent" in output
    read = java_tool(
        "consumer.ConsoleConsumer",
        *at,
        "--topic",
        topic,
        "--group",
        group,
        "--max-messages",
        "6000",
        "--from-beginning",
        "--isolation-level",
        "read_committed",
    )
    assert len(read.splitlines()) == 6000
    described = java_tool("consumer.group.ConsumerGroupCommand", *at, "--describe", "--group", group)
    lags = [line.split() for line in described.splitlines() if line.startswith(group)]
    assert len(lags) == 3, described
    assert sum(int(line[3]) for line in lags) >= 6000, described
    ends = java_tool("GetOffsetShell", *at, "--topic", topic, "--time", "latest")
    assert len(ends.splitlines()) == 3
    assert sum(int(line.split(":")[2]) for line in ends.splitlines()) > 6000, "records and markers"
    java_tool("TopicCommand", *at, "--delete", "--topic", topic)


# A process of its own: the connector's jars belong to a session from its start, and the tests' session has none.
_CONNECTOR = """
import sys
from pathlib import Path
from penstock.profile import Profile
from penstock.spark.session import session, stop_session

address, source, target, folder, after_ms = sys.argv[1:]
spark = session(Profile(data=Path(folder), spark="local[2]", connector="jvm"), quick=True)
reader = spark.read.format("kafka").option("kafka.bootstrap.servers", address).option("subscribe", source).option("includeHeaders", "true")
rows = reader.option("kafka.isolation.level", "read_committed").load()
rows.selectExpr("key", "value", "headers").write.format("kafka").option("kafka.bootstrap.servers", address).option("topic", target).save()
later = reader.option("kafka.isolation.level", "read_committed").option("startingTimestamp", after_ms).option("startingOffsetsByTimestampStrategy", "latest").load()
print("rows", rows.count(), later.count(), flush=True)
stop_session()
"""


@pytest.mark.spark
def test_java_client_3_9(embedded: Subject, tmp_path: Path) -> None:
    """Spark's own Kafka connector brings it: read committed records in ranges, by time, and write them idempotently."""
    try:
        jars.resolve(jars.kafka_connector(jars.spark_version()))
    except MissingPart as error:
        pytest.skip(f"no Kafka connector for Spark: {error}")
    source, target = embedded.topic(partitions=3), embedded.topic(partitions=2)
    records = [
        {"value": b"%d" % n, "key": b"k%d" % n, "headers": [("n", b"%d" % n)], "timestamp": 1_000_000 + n, "partition": n % 3}
        for n in range(300)
    ]
    embedded.send_records(source, records)
    aborted = embedded.transactional(embedded.fresh("txn"))
    aborted.begin_transaction()
    aborted.produce(source, value=b"aborted", partition=0)
    aborted.flush(30)
    aborted.abort_transaction(30)
    arguments = [embedded.address, source, target, str(tmp_path), "1000200"]
    done = subprocess.run([sys.executable, "-c", _CONNECTOR, *arguments], capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "rows 300 100" in done.stdout, done.stdout
    written = [message for partition in range(2) for message in embedded.read(target, partition=partition)]
    assert sorted((m.key(), m.value(), tuple(m.headers())) for m in written) == sorted(
        (r["key"], r["value"], tuple(r["headers"])) for r in records
    )
