"""The same pipeline on Spark and on the test host: the same rows, through a broker, with and without the planner's rules."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock import planner
from penstock.broker.embedded import Embedded
from penstock.profile import Profile
from penstock.testing.simulation import Value, _encoded, simulate
from tests.planner.pipelines import PIPELINES
from tests.planner.test_same_rows import Record, records

pytestmark = pytest.mark.spark

SECONDS_MAX = 120


@pytest.fixture(scope="module")
def sent(penstock_broker: Embedded) -> list[Record]:
    """Two minutes of readings in topics of two partitions."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    made = records(11)
    admin = AdminClient({"bootstrap.servers": penstock_broker.address})
    for future in admin.create_topics([NewTopic(topic, num_partitions=2) for topic in sorted({topic for topic, _, _ in made})]).values():
        future.result()
    producer = Producer({"bootstrap.servers": penstock_broker.address})
    for topic, partition, value in made:
        producer.produce(topic, value=_encoded(value), partition=partition)
    assert producer.flush(SECONDS_MAX) == 0
    return made


def on_spark(
    pipeline: ps.Pipeline, broker: Embedded, profile: Profile, job: Path, *, name: str, without: Collection[str] = ()
) -> dict[str, list[Any]]:
    """Runs over what is in the topics, and reads back what was written to topics of its own."""
    from penstock.spark.run import start

    plan = planner.plan(pipeline, without=without)
    renamed = tuple(replace(sink, topic=f"{name}.{sink.topic}") for sink in plan.sinks)
    plan = replace(plan, scans=tuple(replace(scan, end="latest") for scan in plan.scans), sinks=renamed)
    running = start(plan, replace(profile, broker=broker.address), name=name, job=job, bounded=True)
    assert running.wait(timeout_s=SECONDS_MAX)
    return {str(sink.topic).removeprefix(f"{name}."): _consumed(broker, str(sink.topic)) for sink in renamed}


def _consumed(broker: Embedded, topic: str) -> list[Any]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": broker.address, "group.id": "test", "enable.auto.commit": False, "enable.partition.eof": True}
    )
    partitions = consumer.list_topics(topic, timeout=SECONDS_MAX).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    values, ends = [], 0
    while ends < len(partitions):
        message = consumer.poll(SECONDS_MAX)
        assert message is not None, f"{topic} did not end within {SECONDS_MAX} s"
        if message.error():
            ends += 1
        else:
            values.append(json.loads(message.value()))
    consumer.close()
    return values


def comparable(rows: list[Any], columns: Collection[str]) -> list[str]:
    return sorted(str([f"{row[name]:.9g}" if isinstance(row[name], float) else row[name] for name in columns]) for row in rows)


CASES: dict[str, tuple[str, Collection[str], dict[str, tuple[str, ...]]]] = {
    # what runs, rules switched off, topics and their columns that are compared
    "stages in one operator": ("chain", (), {"out": ("area", "n", "stream"), "averages": ("area", "pane_index", "pane_timing")}),
    "steps as Spark expressions": ("tumbling", ("steps in the scan",), {"out": ("area", "most", "total", "readings")}),
    "two keys, by sign": ("two_keys", (), {"out": ("total", "panes", "pane_timing")}),
}


@pytest.mark.parametrize("case", CASES)
def test_spark_and_the_test_host_give_the_same_rows(
    case: str, sent: list[Record], penstock_broker: Embedded, spark: Any, profile: Profile, tmp_path: Path
) -> None:
    name, without, topics = CASES[case]
    pipeline = PIPELINES[name]()
    made = on_spark(pipeline, penstock_broker, profile, tmp_path / name, name=name, without=without)
    simulation = simulate(pipeline)
    read = {topic for scan in simulation.plan.scans for topic in scan.topics}
    simulation.batch([record for record in sent if record[0] in read])
    simulation.end()
    for topic, columns in topics.items():
        wanted = simulation.rows(topic)
        assert wanted
        assert comparable(made[topic], columns) == comparable(wanted, columns)


def test_an_expression_that_only_spark_knows(
    sent: list[Record], penstock_broker: Embedded, spark: Any, profile: Profile, tmp_path: Path
) -> None:
    import hashlib

    made = on_spark(PIPELINES["outside"](), penstock_broker, profile, tmp_path / "outside", name="outside")
    values: list[Value] = [value for topic, _, value in sent if topic == "temperatures"]
    wanted = [
        row["id"] for row in values if isinstance(row, dict) and row["area"] and hashlib.sha256(row["area"].encode()).hexdigest() > "8"
    ]
    assert wanted
    assert sorted(row["id"] for row in made["out"]) == sorted(wanted)
