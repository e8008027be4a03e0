"""The topic source: planning and reading without Spark, and a query on Spark that stops and goes on."""

from __future__ import annotations

import json
import threading
import uuid
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from penstock.broker.embedded import broker
from penstock.errors import ConfigError
from penstock.kernels.envelope import ACTIVE, CLOCK, COUNTS, ENDED, from_batch, open_table, open_times
from penstock.kernels.kernel import NEVER_US
from penstock.planner.physical import Feed, Scan
from penstock.protocol.client import Client, UnknownTopic
from penstock.schema import Schema
from penstock.spark import source
from penstock.spark.fetch import LostOffsets, read_slices
from penstock.spark.offsets import Slice, admit, flat, share
from penstock.spark.reader import read
from penstock.spark.source import Reading, TopicSource, TopicStreamReader, _Planner

SCHEMA = Schema.of("area STRING, celsius DOUBLE, at TIMESTAMP")


@pytest.fixture(scope="module")
def client(penstock_broker):
    with Client(penstock_broker.address) as made:
        yield made


@pytest.fixture
def topic(client) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    client.create_topic(name, partitions=2, config={"retention.ms": "-1"})  # the tests write records of 1970
    return name


def event(n: int, **more) -> bytes:
    return json.dumps({"area": f"a{n % 3}", "celsius": float(n), "at": 1_000 + n, **more}).encode()


def write(client: Client, topic: str, partition: int, values: list[bytes], *, start_ms: int = 1_000) -> None:
    producer = Producer({"bootstrap.servers": client.address, "linger.ms": 1})
    for index, value in enumerate(values):
        producer.produce(topic, value, key=b"k", partition=partition, timestamp=start_ms + index)
        producer.poll(0)
    assert producer.flush(20) == 0


def scan_of(topic: str, **more) -> Scan:
    return Scan(**{"id": 1, "name": topic, "schema": SCHEMA, "feeds": (), "topics": (topic,), "event_time": "at", **more})


def reading_of(client: Client, *scans: Scan, emit: str = "raw", **more) -> Reading:
    return Reading(**{"address": client.address, "scans": scans, "emit": emit, "tasks": 2, **more})


def offsets_of(state: dict, scan: int = 1) -> dict:
    return flat(state["scans"][str(scan)])


def rows_of(reading: Reading, start: dict, end: dict) -> list[dict]:
    parts = _Planner(reading).tasks(start, end)
    return [row for part in parts for batch in read(reading, part) for row in batch.to_pylist()]


# --- which offsets ---


def test_a_limit_is_shared_by_backlog_and_starves_nobody():
    start, available = {("t", 0): 0, ("t", 1): 5, ("t", 2): 9}, {("t", 0): 1_000, ("t", 1): 6, ("t", 2): 9}
    assert admit(start, available, None) == available
    assert admit(start, available, 2_000) == available
    assert admit(start, available, 100) == {("t", 0): 99, ("t", 1): 6, ("t", 2): 9}


def test_slices_are_shared_evenly_and_never_two_of_a_partition_in_a_task():
    slices = [Slice("t", 0, 0, 1_000_000), *(Slice("t", p, 0, 10) for p in range(1, 6))]
    loads = share(slices, 4)
    assert sorted(load[0].start for load in loads if load[0].partition == 0) == [0, 250_000, 500_000, 750_000]
    assert sum(each.end - each.start for load in loads for each in load) == 1_000_050
    for load in loads:
        assert len({each.partition for each in load}) == len(load)
    assert share(slices, 4) == loads
    assert share([], 4) == []
    assert share([Slice("t", 0, 5, 9)], 4) == [[Slice("t", 0, 5, 9)]]


def test_positions(client, topic):
    write(client, topic, 0, [b"a", b"b", b"c"], start_ms=5_000)
    write(client, topic, 1, [b"d"], start_ms=9_000)

    def at(position) -> list[int]:
        return list(offsets_of(_Planner(reading_of(client, scan_of(topic, start=position))).initial()).values())

    assert at("earliest") == [0, 0]
    assert at("latest") == [3, 1]
    assert at({"timestamp_ms": 5_002}) == [2, 0]
    assert at({"timestamp_ms": 99_000}) == [3, 1]
    assert at({topic: {"0": 1}}) == [1, 0]
    assert at({topic: {"0": -1, "1": -2}}) == [3, 0]
    with pytest.raises(ConfigError, match=f"{topic}/7"):
        at({topic: {"7": 1}})
    with pytest.raises(ConfigError, match="no position"):
        at("yesterday")


def test_a_topic_that_is_not_there_is_named(client):
    with pytest.raises(UnknownTopic, match="'nowhere'"):
        _Planner(reading_of(client, scan_of("nowhere"))).initial()


def test_options_are_checked(client):
    for options, message in (
        ({"topics": "t"}, "address"), ({"address": client.address}, "topics"), ({"address": "x:1", "topics": "t", "tasks": "0"}, "tasks"),
        ({"address": "x:1", "topics": "t", "on_lost": "ignore"}, "on_lost"), ({"address": "x:1", "topics": "t", "stat": "earliest"}, "'stat' is not known"),
        ({"address": "x:1", "topics": "t", "format": "json"}, "needs a schema"), ({"address": "x:1", "topics": "t", "select": "values"}, "'values'"), ({"address": "x:1", "topics": "t", "start": "then"}, "no position"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=message):
            TopicSource(options).schema()


def test_batches_stop_at_the_limit_and_go_on(client, topic):
    write(client, topic, 0, [b"%d" % n for n in range(30)])
    write(client, topic, 1, [b"%d" % n for n in range(30, 40)])
    reader = TopicStreamReader(reading_of(client, scan_of(topic), records_per_batch_max=20))
    state, sizes, seen = reader.initialOffset(), [], []
    for _ in range(4):
        end = json.loads(json.dumps(reader.latestOffset(state)))
        rows = rows_of(reader._reading, state, end)
        sizes.append(len(rows))
        seen += [int(row["value"]) for row in rows]
        state = end
    assert sizes == [20, 20, 0, 0]
    assert sorted(seen) == list(range(40))
    assert reader.reportLatestOffset()["scans"]["1"] == {topic: {"0": 30, "1": 10}}


def test_a_limit_in_bytes_is_about_kept(client, topic):
    write(client, topic, 0, [b"x" * 1_000] * 200)
    planner = _Planner(reading_of(client, scan_of(topic), bytes_per_batch_max=50_000))
    assert 30 <= offsets_of(planner.next(planner.initial(), None))[topic, 0] <= 50


def test_available_now_does_not_run_after_what_comes_later(client, topic):
    write(client, topic, 0, [b"a", b"b"])
    reader = TopicStreamReader(reading_of(client, scan_of(topic)))
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    write(client, topic, 0, [b"c"])
    end = reader.latestOffset(start)
    assert offsets_of(end)[topic, 0] == 2
    assert reader.latestOffset(end) == end


def test_a_range_ends_by_itself_also_when_planned_again(client, topic):
    write(client, topic, 0, [event(n) for n in range(5)])
    reading = reading_of(client, scan_of(topic, end="latest", start={topic: {"0": 2}}))
    start = _Planner(reading).initial()
    write(client, topic, 0, [event(5)])
    end = _Planner(reading).next(start, None)
    assert offsets_of(end) == {(topic, 0): 5, (topic, 1): 0}
    assert [part.ended for part in _Planner(reading).tasks(start, end)] == [{1: [(topic, 0), (topic, 1)]}]
    assert _Planner(reading).next(end, None) == end


def test_new_partitions_are_read_from_their_first_record(client, topic, monkeypatch):
    monkeypatch.setattr(source, "PLACES_S_MAX", 0.0)
    planner = _Planner(reading_of(client, scan_of(topic, start="latest")))
    start = planner.initial()
    admin = AdminClient({"bootstrap.servers": client.address})
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(20)
    write(client, topic, 2, [b"new"])
    end = planner.next(start, None)
    assert offsets_of(end)[topic, 2] == 1
    assert [row["value"] for row in rows_of(planner.reading, start, end)] == [b"new"]


def test_a_topic_that_vanishes_is_an_error(client, topic, monkeypatch):
    monkeypatch.setattr(source, "PLACES_S_MAX", 0.0)
    planner = _Planner(reading_of(client, scan_of(topic)))
    start = planner.initial()
    client.delete_topic(topic)
    with pytest.raises(UnknownTopic, match=topic):
        planner.next(start, None)


def test_lost_records_are_an_error_or_skipped_as_told(client, topic):
    write(client, topic, 0, [b"%d" % n for n in range(10)])
    planner = _Planner(reading_of(client, scan_of(topic)))
    start = planner.initial()
    end = planner.next(start, None)
    admin = AdminClient({"bootstrap.servers": client.address})
    admin.delete_records([TopicPartition(topic, 0, 6)])[TopicPartition(topic, 0)].result(20)
    with pytest.raises(LostOffsets, match=rf"{topic}/0: offset 0 is gone, the first one is now 6.*on_lost=resume"):
        rows_of(planner.reading, start, end)
    assert [row["offset"] for row in rows_of(reading_of(client, scan_of(topic), on_lost="resume"), start, end)] == [6, 7, 8, 9]


def test_a_topic_made_anew_is_noticed(client, topic):
    write(client, topic, 0, [b"x"] * 5)
    planner = _Planner(reading_of(client, scan_of(topic, start="latest")))
    start = planner.initial()
    client.delete_topic(topic)
    client.create_topic(topic, partitions=2)
    write(client, topic, 0, [b"y"])
    with pytest.raises(LostOffsets, match=f"{topic}/0: offset 5 is gone"):
        planner.next(start, None)


def test_offsets_are_committed_for_those_who_watch(client, topic):
    write(client, topic, 0, [b"x"] * 5)
    reader = TopicStreamReader(reading_of(client, scan_of(topic), group="watchers"))
    end = reader.latestOffset(reader.initialOffset())
    reader.commit(end)
    assert client.committed_offsets("watchers", [(topic, 0), (topic, 1)]) == {(topic, 0): 5, (topic, 1): 0}


# --- what is read ---


def all_of(reading: Reading) -> tuple[dict, dict]:
    start = _Planner(reading).initial()
    return start, _Planner(reading).next(start, None)


def test_raw_rows(client, topic):
    producer = Producer({"bootstrap.servers": client.address})
    producer.produce(topic, b"v", key=b"k", partition=1, timestamp=1_234, headers=[("h", b"x"), ("n", None)])
    producer.produce(topic, None, partition=1, timestamp=1_235)
    producer.flush(20)
    reading = reading_of(client, scan_of(topic))
    rows = rows_of(reading, *all_of(reading))
    assert [(row["key"], row["value"], row["topic"], row["partition"], row["offset"]) for row in rows] == [
        (b"k", b"v", topic, 1, 0),
        (None, None, topic, 1, 1),
    ]
    assert rows[0]["headers"] == [{"key": "h", "value": b"x"}, {"key": "n", "value": None}]
    assert rows[0]["timestamp"].timestamp() == 1.234


def test_aborted_transactions_are_not_read(client, topic):
    producer = Producer({"bootstrap.servers": client.address, "transactional.id": topic})
    producer.init_transactions(20)
    for value, end in ((b"no", producer.abort_transaction), (b"yes", producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce(topic, value, partition=0)
        producer.flush(20)
        end(20)
    reading = reading_of(client, scan_of(topic))
    assert [row["value"] for row in rows_of(reading, *all_of(reading))] == [b"yes"]


def test_typed_rows_tell_bad_ones_apart(client, topic):
    write(client, topic, 0, [event(1), b"bad", event(2)])
    reading = reading_of(client, scan_of(topic), emit="typed")
    rows = rows_of(reading, *all_of(reading))
    assert [row["celsius"] for row in rows] == [1.0, 2.0, None]
    assert [row["_error"] is None for row in rows] == [True, True, False]


@pytest.mark.parametrize(("kind", "schema", "values", "good", "bad"), [
    ("text", "line STRING", [b"a", b"\xff", b"c"], ["a", "c"], 1),
    ("csv", "line STRING, n INT", [b"a,1", b"b,x", b'"c,d",3'], ["a", "c,d"], 1),
])  # fmt: skip
def test_other_formats(client, topic, kind, schema, values, good, bad):
    write(client, topic, 0, values)
    reading = reading_of(client, scan_of(topic, format=kind, schema=Schema.of(schema), event_time=None), emit="typed")
    rows = rows_of(reading, *all_of(reading))
    assert [row["line"] for row in rows if row["_error"] is None] == good
    assert sum(row["_error"] is not None for row in rows) == bad


def test_rows_for_sparks_operators_carry_what_the_reader_has_to_say(client, topic):
    write(client, topic, 0, [event(1), b"bad", event(7)])
    reading = reading_of(
        client, scan_of(topic, feeds=(Feed(to=2, schema=SCHEMA, groups=2),), dead_letters=4), emit="rows", groups=((2, 2),)
    )
    rows = rows_of(reading, *all_of(reading))
    assert [(row["celsius"], row["_time"], row["_offset"]) for row in rows if row["_envelopes"] is None] == [
        (1.0, 1_001_000_000, 0),
        (7.0, 1_007_000_000, 2),
    ]
    (packed,) = [row["_envelopes"] for row in rows if row["_envelopes"] is not None]
    envelopes = [each for batch in open_table(packed).to_batches() for each in from_batch(batch)]
    times = [(each.group, open_times(each.times)) for each in envelopes if each.to == 2]
    assert [group for group, _ in times] == [0, 1]
    assert [(each.partition, each.greatest_us, each.state) for each in times[0][1]] == [(0, 1_007_000_000, ACTIVE), (1, NEVER_US, ACTIVE)]
    assert [json.loads(each.counts) for each in envelopes if each.to == COUNTS] == [{"records": 3, "bad": 1}]
    (letter,) = [open_table(each.payload).to_pylist()[0] for each in envelopes if each.to == 4]
    assert (letter["offset"], letter["key"], letter["value"]) == (1, b"k", b"bad")


def test_envelopes_carry_rows_times_counts_and_ticks(client, topic):
    write(client, topic, 0, [event(n) for n in range(20)] + [b"bad"])
    feeds = (Feed(to=2, schema=SCHEMA, keys=("area",), groups=4), Feed(to=3, schema=SCHEMA))
    reading = reading_of(
        client,
        scan_of(topic, feeds=feeds, dead_letters=4, end="latest"),
        emit="envelopes",
        groups=((2, 4),),
        ticked=(2,),
        interval_us=1_000,
    )
    start, end = all_of(reading)
    parts = _Planner(reading).tasks(start, end)
    envelopes = [each for part in parts for batch in read(reading, part) for each in from_batch(batch)]
    to_stage = [each for each in envelopes if each.to == 2]
    rows = pa.concat_tables([open_table(each.payload) for each in to_stage if each.payload])
    assert sorted(rows["celsius"].to_pylist()) == [float(n) for n in range(20)]
    assert len({each.group for each in to_stage if each.payload}) == len(set(rows["area"].to_pylist())) or len(to_stage) >= 4
    times = [(each.group, open_times(each.times)) for each in to_stage if each.times]
    assert [group for group, _ in times] == [0, 1, 2, 3]
    assert [(each.partition, each.greatest_us, each.state) for each in times[0][1]] == [(0, 1_019_000_000, ENDED), (1, NEVER_US, ENDED)]
    assert {each.tick_us for each in envelopes if each.source == CLOCK} == {end["clock"]}
    assert [json.loads(each.counts) for each in envelopes if each.to == COUNTS] == [{"records": 21, "bad": 1}]
    assert sum(open_table(each.payload).num_rows for each in envelopes if each.to == 3) == 20
    (letter,) = [open_table(each.payload).to_pylist()[0] for each in envelopes if each.to == 4]
    assert (letter["value"], letter["key"], letter["offset"]) == (b"bad", b"k", 20)
    assert "not JSON" in letter["reason"]


def test_the_clock_moves_with_data_or_when_it_is_due(client, topic):
    planner = _Planner(reading_of(client, scan_of(topic), emit="envelopes", groups=((2, 1),), ticked=(2,), interval_us=3_600_000_000))
    first = planner.next(planner.initial(), None)
    assert first["clock"] > 0
    assert planner.next(first, None) == first
    write(client, topic, 0, [event(1)])
    assert planner.next(first, None)["clock"] > first["clock"]
    assert planner.next({**first, "clock": first["clock"] - 3_600_000_000}, None)["clock"] >= first["clock"]


# --- a broker that goes away ---


def test_reading_and_writing_go_on_when_the_broker_comes_back(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("penstock.spark.fetch.FETCH_BYTES_MAX", 20_000)
    monkeypatch.setattr("penstock.spark.fetch.PARTITION_BYTES_MIN", 20_000)
    topic, values = "away", [b"%06d" % n + b"x" * 100 for n in range(2_000)]
    with ExitStack() as stack:
        running = stack.enter_context(broker(tmp_path))
        port = running.port
        client = stack.enter_context(Client(running.address))
        client.create_topic(topic, partitions=1, config={"retention.ms": "-1"})
        for start in range(0, 2_000, 100):
            write(client, topic, 0, values[start : start + 100])
        reader = TopicStreamReader(reading_of(client, scan_of(topic)))
        start = reader.initialOffset()
        end = reader.latestOffset(start)
        chunks = read_slices(client.address, [Slice(topic, 0, 0, 2_000)])
        seen = next(chunks)[1].values().to_pylist()
        assert len(seen) < 2_000
    assert reader.latestOffset(end) == end, "nothing new while it is away"
    back = threading.Timer(0.5, lambda: stack.enter_context(broker(tmp_path, port=port)))
    with stack:
        back.start()
        for _, records in chunks:
            seen += records.values().to_pylist()
        back.join()
        write(client, topic, 0, [b"more"])
        assert offsets_of(reader.latestOffset(end)) == {(topic, 0): 2_001}
    assert seen == values


# --- on Spark ---


@pytest.mark.spark
def test_a_query_on_spark_goes_on_where_it_stopped(spark, client, topic, tmp_path: Path):
    source.register(spark)

    def run(name: str) -> list[int]:
        frame = (
            spark.readStream.format("penstock").option("address", client.address).option("topics", topic)
            .option("schema", str(SCHEMA)).option("records_per_batch_max", "40").option("group", f"{topic}-watch").load()
        )  # fmt: skip
        query = (
            frame.writeStream.format("parquet").option("path", str(tmp_path / "out")).option("checkpointLocation", str(tmp_path / "state"))
        )
        query = query.trigger(availableNow=True).start()
        query.awaitTermination()
        batches = len([each for each in query.recentProgress if each["numInputRows"]])
        return [batches, *sorted(int(row.celsius) for row in spark.read.parquet(str(tmp_path / "out")).collect())]

    write(client, topic, 0, [event(n) for n in range(60)])
    write(client, topic, 1, [event(n) for n in range(60, 100)])
    assert run("first") == [3, *range(100)]
    write(client, topic, 1, [event(n) for n in range(100, 130)])
    assert run("second") == [1, *range(130)]
    assert client.committed_offsets(f"{topic}-watch", [(topic, 0), (topic, 1)]) == {(topic, 0): 60, (topic, 1): 70}


@pytest.mark.spark
def test_a_bounded_read_on_spark(spark, client, topic):
    source.register(spark)
    write(client, topic, 0, [event(n) for n in range(50)], start_ms=1_000)
    read_range = spark.read.format("penstock").option("address", client.address).option("topics", topic).option("schema", str(SCHEMA))
    bounded = read_range.option("start", '{"timestamp_ms": 1010}').option("end", json.dumps({topic: {"0": 20}})).load()
    assert sorted(int(row.celsius) for row in bounded.collect()) == list(range(10, 20))
