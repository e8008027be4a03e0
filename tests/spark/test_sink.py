"""The sink: rows become records that other clients read, counters become one line per batch."""

from __future__ import annotations

import json
import uuid
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition

from penstock.broker.embedded import broker
from penstock.errors import ConfigError
from penstock.kernels.envelope import counts_envelope, rows_to_sink, to_batch
from penstock.planner.physical import Clock, Feed, PhysicalPlan, Scan, Sink
from penstock.protocol.client import Client, UnknownTopic
from penstock.schema import Schema
from penstock.spark import sink as sink_module
from penstock.spark import source
from penstock.spark.scan import LETTERS
from penstock.spark.sink import TopicStreamWriter, Writing, Written, read_progress, stream_writer
from penstock.spark.writer import write_envelopes, write_rows

SCHEMA = Schema.of("area STRING, n BIGINT")


@pytest.fixture(scope="module")
def client(penstock_broker):
    with Client(penstock_broker.address) as made:
        yield made


@pytest.fixture
def topic(client) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    client.create_topic(name, partitions=3, config={"retention.ms": "-1"})
    return name


def consumed(client: Client, topic: str, count: int) -> list:
    """All records of a topic, by another client: (partition, key, value, headers, time), in order of partition and offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": client.address,
            "group.id": uuid.uuid4().hex,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    partitions = client.partitions([topic])[topic]
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    found = []
    while len(found) < count:
        message = consumer.poll(20)
        assert message is not None, f"{len(found)} of {count} records came"
        found.append((message.partition(), message.offset(), message.key(), message.value(), message.headers(), message.timestamp()[1]))
    consumer.close()
    assert sum(client.list_offsets({(topic, partition): -1 for partition in partitions}).values()) == count
    return [(partition, *rest) for partition, _, *rest in sorted(found, key=lambda each: each[:2])]


def test_rows_with_everything_set(client, topic):
    other = f"{topic}-other"
    client.create_topic(other, partitions=1, config={"retention.ms": "-1"})
    table = pa.table({
        "topic": [other, None], "key": pa.array([b"k", None]), "value": ["text", "more"], "timestamp": pa.array([5_000_000, None], pa.timestamp("us", "UTC")),
        "headers": [[{"key": "h", "value": b"x"}], None],
    })  # fmt: skip
    counts = write_rows(Writing(client.address, topic=topic), iter(table.to_batches()), spare=1)
    assert counts == {"0": {"rows_out": 2}}
    assert consumed(client, other, 1) == [(0, b"k", b"text", [("h", b"x")], 5_000)]
    ((_, key, value, headers, time_ms),) = consumed(client, topic, 1)
    assert (key, value, headers) == (None, b"more", None)
    assert time_ms > 1_600_000_000_000


def test_rows_without_a_value_are_json_and_keys_come_from_columns(client, topic):
    batches = pa.table({"area": ["a", "b"], "n": [1, None]}).to_batches()
    write_rows(Writing(client.address, topic=topic, key=("area",)), iter(batches), spare=0)
    assert {(key, value) for _, key, value, _, _ in consumed(client, topic, 2)} == {
        (b"a", b'{"area":"a","n":1}'),
        (b"b", b'{"area":"b","n":null}'),
    }


@pytest.mark.parametrize("compression", sink_module.COMPRESSIONS)
def test_many_rows_keep_their_order_per_key(client, topic, compression, monkeypatch):
    monkeypatch.setattr("penstock.spark.encode.BATCH_BYTES_MAX", 20_000)
    monkeypatch.setattr("penstock.spark.writer.WAITING_BYTES_MAX", 100_000)
    numbers = np.arange(20_000)
    table = pa.table({"key": pa.array(numbers % 17).cast(pa.string()), "value": pa.array(numbers).cast(pa.string())})
    write_rows(Writing(client.address, topic=topic, compression=compression), iter(table.to_batches(max_chunksize=3_000)), spare=0)
    by_key: dict[bytes, list[int]] = {}
    where: dict[bytes, set[int]] = {}
    for partition, key, value, _, _ in consumed(client, topic, 20_000):
        by_key.setdefault(key, []).append(int(value))
        where.setdefault(key, set()).add(partition)
    assert by_key == {b"%d" % key: list(range(key, 20_000, 17)) for key in range(17)}
    assert all(len(partitions) == 1 for partitions in where.values())


def test_envelopes_become_records_letters_and_counts(client, topic):
    letters_topic = f"{topic}-dead"
    client.create_topic(letters_topic, partitions=1)
    sinks = (
        Sink(id=7, name="out", schema=SCHEMA, topic=topic, key=("area",)),
        Sink(id=8, name="dead", schema=SCHEMA, topic=letters_topic, dead_letters=True),
    )
    rows = pa.table({"area": ["a", "b"], "n": [1, 2], "_time": [5_000_000, None], "_offset": [1, 2]})
    letter = {
        "key": b"k",
        "value": b"bad",
        "headers": [{"key": "h", "value": b"x"}],
        "topic": "in",
        "partition": 2,
        "offset": 9,
        "timestamp": 7_000_000,
        "reason": "why",
    }
    bad = pa.Table.from_pylist([letter], schema=LETTERS)
    envelopes = [
        *rows_to_sink(rows, to=7, source=1), *rows_to_sink(bad, to=8, source=1),
        counts_envelope({"records": 3, "bad": 1}, source=1), counts_envelope({"records": 2, "watermark_us": 4}, source=1), counts_envelope({"watermark_us": 3}, source=1),
    ]  # fmt: skip
    counts = write_envelopes(Writing(client.address, sinks=sinks), iter([to_batch(envelopes)]), spare=0)
    assert counts == {"1": {"records": 5, "bad": 1, "watermark_us": 4}, "7": {"rows_out": 2}, "8": {"rows_out": 1}}
    found = consumed(client, topic, 2)
    assert {key: value for _, key, value, _, _ in found} == {b"a": b'{"area":"a","n":1}', b"b": b'{"area":"b","n":2}'}
    assert all(time_ms > 1_600_000_000_000 for *_, time_ms in found), "retention goes by record time: old events' results must stay"
    headers = [
        ("h", b"x"),
        ("penstock.reason", b"why"),
        ("penstock.topic", b"in"),
        ("penstock.partition", b"2"),
        ("penstock.offset", b"9"),
        ("penstock.timestamp", b"1970-01-01T00:00:07.000Z"),
    ]
    assert [record[:-1] for record in consumed(client, letters_topic, 1)] == [(0, b"k", b"bad", headers)]


def test_a_batch_that_ran_twice_counts_once(tmp_path: Path):
    path = tmp_path / "progress.jsonl"
    writer = TopicStreamWriter(Writing("x:1", progress=str(path)))
    writer.commit([Written({"1": {"late": 1}}), Written({"1": {"late": 2}}), None], 0)
    writer.commit([Written({"1": {"late": 5}})], 1)
    writer.commit([Written({"1": {"late": 6}})], 1)
    with path.open("a") as file:
        file.write('{"batch": 2, "cou')
    found = read_progress(path)
    assert {batch: line["counts"] for batch, line in found.items()} == {0: {"1": {"late": 3}}, 1: {"1": {"late": 6}}}


def test_mistakes_have_remedies(client):
    table = pa.table({"value": ["x"]})
    with pytest.raises(ConfigError, match=r"no topic.*option"):
        write_rows(Writing(client.address), iter(table.to_batches()), spare=0)
    with pytest.raises(UnknownTopic, match="nowhere"):
        write_rows(Writing(client.address, topic="nowhere"), iter(table.to_batches()), spare=0)
    with pytest.raises(ConfigError, match="address"):
        stream_writer({})
    with pytest.raises(ConfigError, match="compression 'zip'"):
        stream_writer({"address": "x:1", "compression": "zip"})


def test_writing_goes_on_when_the_broker_comes_back(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("penstock.spark.writer.WAITING_BYTES_MAX", 1_000)
    table = pa.table({"value": [f"{n:06d}" for n in range(2_000)]})
    with ExitStack() as stack:
        first = stack.enter_context(broker(tmp_path))
        client = stack.enter_context(Client(first.address))
        client.create_topic("away", partitions=1)

        def restarting():
            for number, batch in enumerate(table.to_batches(max_chunksize=200)):
                if number == 5:
                    stack.close()
                    stack.enter_context(broker(tmp_path, port=first.port))
                yield batch

        write_rows(Writing(first.address, topic="away"), restarting(), spare=0)
        with Client(first.address) as again:
            found = [value for _, _, value, _, _ in consumed(again, "away", 2_000)]
    assert found == [value.encode() for value in table["value"].to_pylist()]


@pytest.mark.spark
def test_a_plan_from_topic_to_topic_on_spark(spark, client, topic, tmp_path: Path):
    out, dead = f"{topic}-out", f"{topic}-dead"
    values = [json.dumps({"area": f"a{n % 5}", "n": n}) for n in range(1_000)] + ["bad"] * 3
    rows = spark.createDataFrame([(value,) for value in values], "value STRING")
    source.register(spark)
    rows.write.format("penstock").option("address", client.address).option("topic", topic).mode("append").save()
    scan = Scan(id=1, name="in", schema=SCHEMA, topics=(topic,), dead_letters=3, feeds=(Feed(to=2, schema=SCHEMA),))
    sinks = (
        Sink(id=2, name="out", schema=SCHEMA, topic=out, key=("area",)),
        Sink(id=3, name="dead", schema=SCHEMA, topic=dead, dead_letters=True),
    )
    plan = PhysicalPlan(scans=(scan,), stages=(), sinks=sinks, clock=Clock())
    envelopes = source.envelopes(spark, plan, address=client.address, options={"records_per_batch_max": "400"})
    progress = tmp_path / "penstock" / "progress.jsonl"
    query = sink_module.writer(spark, envelopes, plan, address=client.address, progress=progress)
    query = query.option("checkpointLocation", str(tmp_path / "state")).trigger(availableNow=True).start()
    query.awaitTermination()
    assert sorted(json.loads(value)["n"] for _, _, value, _, _ in consumed(client, out, 1_000)) == list(range(1_000))
    assert [value for _, _, value, _, _ in consumed(client, dead, 3)] == [b"bad"] * 3
    totals = sink_module.merged(line["counts"] for line in read_progress(progress).values())
    assert totals == {"1": {"records": 1_003, "bad": 3}, "2": {"rows_out": 1_000}, "3": {"rows_out": 3}}
    assert len(read_progress(progress)) == 3
