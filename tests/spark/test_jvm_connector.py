"""Spark's own Kafka connector, where the profile asks for it: the same rows as ours, from the embedded broker and its Java client."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from confluent_kafka import Producer

from penstock.errors import ConfigError, MissingPart
from penstock.planner.physical import Scan
from penstock.protocol.client import Client
from penstock.schema import Schema
from penstock.spark import jars, jvm_connector
from penstock.spark.sink import merged, read_progress

SCHEMA = Schema.of("area STRING, n BIGINT")

# A process of its own: the connector's jars belong to a session from its start, and the tests' session has none.
SCRIPT = """
import sys
from pathlib import Path
from penstock.planner.physical import Clock, Feed, PhysicalPlan, Scan, Sink
from penstock.profile import Profile
from penstock.schema import Schema
from penstock.spark import jvm_connector, sink
from penstock.spark.session import session, stop_session

address, topic, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
schema = Schema.of("area STRING, n BIGINT")
scan = Scan(id=1, name="in", schema=schema, topics=(topic,), dead_letters=3, feeds=(Feed(to=2, schema=schema),))
sinks = (Sink(id=2, name="out", schema=schema, topic=topic + "-out", key=("area",)), Sink(id=3, name="dead", schema=schema, topic=topic + "-dead", dead_letters=True))
plan = PhysicalPlan(scans=(scan,), stages=(), sinks=sinks, clock=Clock())
spark = session(Profile(data=folder, spark="local[2]", connector="jvm"), quick=True)
(envelopes,) = jvm_connector.envelopes(spark, plan, address=address)
writer = sink.writer(spark, envelopes, plan, address=address, progress=folder / "progress.jsonl")
writer.option("checkpointLocation", str(folder / "state")).trigger(availableNow=True).start().awaitTermination()
stop_session()
"""


def test_positions_in_the_connectors_words():
    def options(start, **more):
        return jvm_connector.source_options(
            Scan(id=1, name="t", schema=SCHEMA, feeds=(), topics=("t",), start=start), [("t", 0), ("t", 1)], "a:1", more
        )

    assert options("latest")["startingOffsets"] == "latest"
    assert options({"timestamp_ms": 5})["startingTimestamp"] == "5"
    assert json.loads(options({"t": {"1": 7}})["startingOffsets"]) == {"t": {"0": -2, "1": 7}}
    given = options("earliest", on_lost="resume", records_per_batch_max="9", **{"kafka.security.protocol": "SSL"})
    assert (given["failOnDataLoss"], given["maxOffsetsPerTrigger"], given["kafka.security.protocol"]) == ("false", "9", "SSL")
    with pytest.raises(ConfigError, match="no position"):
        options("then")


@pytest.mark.spark
@pytest.mark.kafka
def test_the_same_rows_as_ours(penstock_broker, tmp_path: Path):
    try:
        jars.resolve(jars.kafka_connector(jars.spark_version()))
    except MissingPart as error:
        pytest.skip(f"no Kafka connector for Spark: {error}")
    topic = f"t-{uuid.uuid4().hex[:8]}"
    with Client(penstock_broker.address) as client:
        client.create_topic(topic, partitions=2)
        producer = Producer({"bootstrap.servers": penstock_broker.address})
        for n in range(500):
            producer.produce(topic, json.dumps({"area": f"a{n % 5}", "n": n}) if n % 100 else b"bad", key=str(n), headers=[("h", b"x")])
        assert producer.flush(20) == 0
        command = [sys.executable, "-c", SCRIPT, penstock_broker.address, topic, str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        totals = merged(line["counts"] for line in read_progress(tmp_path / "progress.jsonl").values())
        assert totals == {"1": {"records": 500, "bad": 5}, "2": {"rows_out": 495}, "3": {"rows_out": 5}}
        for name, count in ((f"{topic}-out", 495), (f"{topic}-dead", 5)):
            places = [(name, partition) for partition in client.partitions([name])[name]]
            assert sum(client.list_offsets(dict.fromkeys(places, -1)).values()) == count
