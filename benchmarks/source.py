"""Rows per second from a topic into Spark: our data source against Spark's own Kafka connector, same topic, same session, same run.

    python benchmarks/source.py [--records 3000000] [--bytes 100] [--partitions 4] [--address HOST:PORT] [--quick] [--json]

Each reading ends in Spark's `noop` sink, so that only the reading is measured. Both readers are warmed by one run; then they take turns, and the
best and the median of each are printed. Without an address a real Apache Kafka is started. Then, alone in one core of this process, the
decoding; and JSON values: decoded in our scan against the connector's bytes and `from_json`."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.planner.physical import Clock, Feed, PhysicalPlan, Scan, Sink
from penstock.profile import Profile
from penstock.protocol.client import Client, Wanted
from penstock.schema import Schema
from penstock.spark import jars, serde, source
from penstock.spark.decode import decode, read_batches
from penstock.spark.encode import Outgoing, record_batches
from penstock.spark.session import session, stop_session

FOUND: dict[str, Any] = {}  # what `--json` prints; the tables go to stderr then
SCHEMA = "id STRING, area STRING, celsius DOUBLE, at TIMESTAMP"


def fill(client: Client, topic: str, *, records: int, partitions: int, value_of: Callable[[range], pa.Array]) -> None:
    """Write the records in fat batches, evenly over the partitions."""
    client.create_topic(topic, partitions=partitions)
    client.partitions([topic])
    step = 100_000
    for start in range(0, records, step):
        rows = range(start, min(start + step, records))
        times_ms = np.arange(rows.start, rows.stop, dtype=np.int64) + 1_700_000_000_000
        keys = pa.array(np.arange(rows.start, rows.stop) % 1_000).cast(pa.string()).cast(pa.binary())
        queue: dict[int, list[Any]] = {}
        for partition, batch in record_batches(Outgoing(value_of(rows), keys, None, times_ms), partitions=partitions, spare=0):
            queue.setdefault(partition, []).append(batch)
        while queue:
            client.produce({(topic, partition): memoryview(batches[0]) for partition, batches in queue.items()}, acks=1)
            queue = {partition: batches[1:] for partition, batches in queue.items() if len(batches) > 1}


def events(rows: range) -> pa.Array:
    numbers = np.arange(rows.start, rows.stop)
    return pa.array(
        [
            b'{"id": "t-%06d", "area": "area-%d", "sensor": "area-%d/t%d", "celsius": %.1f, "at": "2026-01-01T00:%02d:%02d.%03dZ"}'
            % (n, n % 7, n % 7, n % 3, 20 + n % 100 / 10, n // 60_000 % 60, n // 1000 % 60, n % 1000)
            for n in numbers.tolist()
        ],
        pa.binary(),
    )


def turns(readers: dict[str, Callable[[], object]], count: int) -> dict[str, list[float]]:
    """Seconds of each run; the readers take turns, so that a slow spell of the machine hits all."""
    times: dict[str, list[float]] = {name: [] for name in readers}
    for turn in range(count + 1):
        for name, read in readers.items():
            started = time.perf_counter()
            read()
            if turn:
                times[name].append(time.perf_counter() - started)
    return times


def show(title: str, times: dict[str, list[float]], records: int, *, than: str) -> None:
    base = statistics.median(times[than])
    FOUND[title] = {name: {"records_per_s": round(records / statistics.median(seconds)), "times_faster": round(base / statistics.median(seconds), 2)}
                    for name, seconds in times.items()}  # fmt: skip
    print(f"\n{title} ({records:,} records)")
    for name, seconds in times.items():
        best, median = records / min(seconds), records / statistics.median(seconds)
        print(f"  {name:42} best {best / 1e6:6.2f} M/s   median {median / 1e6:6.2f} M/s   {base / statistics.median(seconds):5.2f}x")


def in_spark(spark: Any, address: str, raw: str, typed: str, records: int, repeats: int) -> None:
    def run(frame: Any) -> Callable[[], object]:
        return lambda: frame.write.format("noop").mode("overwrite").save()

    def ours(topic: str) -> Any:
        return spark.read.format("penstock").option("address", address).option("topics", topic)

    def theirs(topic: str) -> Any:
        options = {"kafka.bootstrap.servers": address, "subscribe": topic, "startingOffsets": "earliest", "endingOffsets": "latest"}
        return spark.read.format("kafka").options(**options).load()

    readers = {
        "Spark's connector": run(theirs(raw)),
        "penstock": run(ours(raw).load()),
        "Spark's connector, value only": run(theirs(raw).select("value")),
        "penstock, value only": run(ours(raw).option("select", "value").load()),
    }
    show("raw records", turns(readers, repeats), records, than="Spark's connector")
    parsed = theirs(typed).selectExpr(f"from_json(cast(value AS STRING), '{SCHEMA}') AS row").select("row.*")
    readers = {
        "Spark's connector and from_json": run(parsed),
        "penstock, decoded in the scan": run(ours(typed).option("schema", SCHEMA).load()),
        "penstock, packed (a whole streaming query)": lambda: packed(spark, address, typed),
    }
    show("JSON values to typed rows", turns(readers, repeats), records, than="Spark's connector and from_json")


def packed(spark: Any, address: str, topic: str) -> None:
    """What a pipeline does: a streaming query whose scan decodes and hands the rows to Spark as envelopes."""
    schema = Schema.of(SCHEMA)
    feed = Feed(to=2, schema=schema, keys=("area",), groups=16)
    scan = Scan(id=1, name=topic, schema=schema, topics=(topic,), event_time="at", feeds=(feed,))
    stages = PhysicalPlan(scans=(scan,), stages=(), sinks=(Sink(id=2, name="none", schema=schema),), clock=Clock())
    with tempfile.TemporaryDirectory() as folder:
        frame = source.envelopes(spark, stages, address=address, options={"records_per_batch_max": "100000000"})
        frame.writeStream.format("noop").option("checkpointLocation", folder).trigger(availableNow=True).start().awaitTermination()


def in_one_core(client: Client, raw: str, typed: str, repeats: int) -> None:
    """Decoding alone: one fetched frame, again and again."""
    ((frame, part),) = client.fetch([Wanted(raw, 0, 0, 32 << 20)])
    data = np.frombuffer(frame, np.uint8)

    def positions() -> Any:
        return decode(read_batches(data, start=part.start, end=part.end, place=raw), start=0, end=1 << 62)

    count = len(positions())
    readers: dict[str, Callable[[], object]] = {
        "record batches to positions": positions,
        "and values gathered": lambda: positions().values(),
    }
    show("decoding, one core, checksums checked", turns(readers, repeats * 5), count, than="record batches to positions")
    ((frame, part),) = client.fetch([Wanted(typed, 0, 0, 32 << 20)])
    data = np.frombuffer(frame, np.uint8)
    records = decode(read_batches(data, start=part.start, end=part.end, place=typed), start=0, end=1 << 62)
    schema = Schema.of(SCHEMA)
    decoded = serde.decode_json(records.data, records.table[4], records.table[5], schema)
    assert not decoded.reasons
    json_readers: dict[str, Callable[[], object]] = {
        "JSON to typed columns": lambda: serde.decode_json(records.data, records.table[4], records.table[5], schema),
        "typed columns to JSON": lambda: serde.encode_json(decoded.table),
    }
    show("JSON, one core", turns(json_readers, repeats * 2), len(records), than="JSON to typed columns")


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--records", type=int, default=3_000_000)
    arguments.add_argument("--bytes", type=int, default=100)
    arguments.add_argument("--partitions", type=int, default=4)
    arguments.add_argument("--repeats", type=int, default=3)
    arguments.add_argument("--cores", type=int, default=2)
    arguments.add_argument("--address")
    arguments.add_argument("--quick", action="store_true", help="few records: shows that it works, says little")
    arguments.add_argument("--json", action="store_true")
    given = arguments.parse_args()
    if given.quick:
        given.records, given.repeats = 100_000, 1
    with ExitStack() as stack:
        if given.json:
            stack.enter_context(redirect_stdout(sys.stderr))
        data = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        address = given.address
        if address is None:
            from penstock.testing.apache_kafka import ApacheKafka

            address = stack.enter_context(ApacheKafka()).address
        client = stack.enter_context(Client(address))
        raw, typed = f"bench-raw-{time.time_ns()}", f"bench-json-{time.time_ns()}"
        noise = np.random.default_rng(1).integers(32, 127, (1_000, given.bytes), np.uint8)
        words = pa.array([row.tobytes() for row in noise], pa.binary())
        started = time.perf_counter()
        fill(
            client,
            raw,
            records=given.records,
            partitions=given.partitions,
            value_of=lambda rows: words.take(pa.array(np.arange(len(rows)) % 1_000)),
        )
        fill(client, typed, records=given.records, partitions=given.partitions, value_of=events)
        print(f"two topics of {given.records:,} records in {given.partitions} partitions written in {time.perf_counter() - started:.1f} s")
        connector = jars.resolve(jars.kafka_connector(jars.spark_version()))
        conf = {"spark.jars": ",".join(map(str, connector.paths))}
        spark = session(Profile(data=data, spark=f"local[{given.cores}]", conf=conf), memory_mb=2048)
        stack.callback(stop_session)
        source.register(spark)
        print(json.dumps({"connector": connector.taken, "cores": given.cores, "value_bytes": given.bytes}))
        in_spark(spark, address, raw, typed, given.records, given.repeats)
        in_one_core(client, raw, typed, given.repeats)
        for topic in (raw, typed):
            client.delete_topic(topic)
    if given.json:
        print(json.dumps(FOUND))
    return 0


if __name__ == "__main__":
    sys.exit(main())
