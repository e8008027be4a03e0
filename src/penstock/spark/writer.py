"""What a sink task does: open envelopes, encode values and keys, send record batches. Runs in Spark's workers.

Rows wait until enough of them make fat record batches; at the end everything is acknowledged by all in-sync replicas, or the task fails.
Invariant: when a function here returns, every row it was given is in the log."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import ConfigError
from penstock.kernels.envelope import COUNTS, from_batch, open_table
from penstock.planner.physical import Sink
from penstock.spark.decode import HEADERS_TYPE
from penstock.spark.encode import CODECS, Outgoing, record_batches
from penstock.spark.offsets import Place, client_of
from penstock.spark.serde import encode_json, encode_keys, plain_text

if TYPE_CHECKING:
    from penstock.spark.sink import Counts, Writing

WAITING_BYTES_MAX = 8 << 20
SPECIAL = ("topic", "key", "headers", "timestamp")


class TopicWriter:
    """Sends rows to topics of one cluster, one record batch per partition and request."""

    def __init__(self, address: str, *, compression: str, spare: int) -> None:
        self._client = client_of(address)
        self._codec = CODECS[compression]
        self._spare = spare
        self._partitions: dict[str, int] = {}
        self._waiting: dict[str, list[Outgoing]] = {}
        self._waiting_bytes = 0

    def put(self, topic: str, rows: Outgoing) -> None:
        if len(rows):
            self._waiting.setdefault(topic, []).append(rows)
            self._waiting_bytes += rows.values.nbytes
        if self._waiting_bytes >= WAITING_BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        queues: dict[Place, deque[Any]] = {}
        for topic, rows in self._waiting.items():
            self._spare += 1
            for partition, batch in record_batches(
                _joined(rows), partitions=self._partitions_of(topic), spare=self._spare, codec=self._codec
            ):
                queues.setdefault((topic, partition), deque()).append(batch)
        self._waiting.clear()
        self._waiting_bytes = 0
        while queues:
            self._client.produce({place: memoryview(queue[0]) for place, queue in queues.items()})
            for place in list(queues):
                queues[place].popleft()
                if not queues[place]:
                    del queues[place]

    def _partitions_of(self, topic: str) -> int:
        if topic not in self._partitions:
            self._partitions[topic] = len(self._client.partitions([topic])[topic])
        return self._partitions[topic]


def write_envelopes(writing: Writing, batches: Iterator[pa.RecordBatch], *, spare: int) -> Counts:
    """Envelopes addressed to sinks become records; counters are merged and given back."""
    from penstock.spark.sink import merged

    topics = TopicWriter(writing.address, compression=writing.compression, spare=spare)
    sinks = {sink.id: sink for sink in writing.sinks}
    all_counts: list[Counts] = []
    for batch in batches:
        for envelope in from_batch(batch):
            if envelope.to == COUNTS and envelope.counts is not None:
                all_counts.append({str(envelope.source): json.loads(envelope.counts)})
            elif envelope.payload is not None and (sink := sinks.get(envelope.to)) is not None:
                table = open_table(envelope.payload)
                all_counts.append({str(sink.id): {"rows_out": table.num_rows}})
                if sink.topic is not None:
                    topics.put(sink.topic, letters(table) if sink.dead_letters else records_of(table, sink))
    topics.flush()
    return merged(all_counts)


def records_of(table: pa.Table, sink: Sink) -> Outgoing:
    """A sink's rows: values by its format, keys from its key columns. The records' time is now, as the log's retention
    goes by it: results about last year's events must not vanish at once. Their event time is in the value."""
    rows = table.select(list(sink.schema.names))
    match sink.format:
        case "json":
            value = encode_json(rows)
        case "text" | "raw":
            value = (
                plain_text(rows.column(0).combine_chunks()).cast(pa.binary())
                if sink.format == "text"
                else rows.column(0).combine_chunks().cast(pa.binary())
            )
        case _:
            raise ConfigError(f"sink '{sink.name}': format '{sink.format}' is not known", remedy="use json, text or raw")
    return Outgoing(value, encode_keys(table, sink.key), None, _times_ms(pa.nulls(table.num_rows, pa.int64())))


def letters(table: pa.Table) -> Outgoing:
    """Bad records as they came, with the reason and where and when they were in headers; written as of now."""
    names = ("reason", "topic", "partition", "offset", "timestamp")
    shown = table.set_column(table.column_names.index("timestamp"), "timestamp", plain_text(table["timestamp"].combine_chunks()))
    extra = [
        [*(headers or ()), *({"key": f"penstock.{name}", "value": None if row[name] is None else str(row[name]).encode()} for name in names)]
        for headers, row in zip(table["headers"].to_pylist(), shown.select(list(names)).to_pylist())
    ]  # fmt: skip
    now = _times_ms(pa.nulls(table.num_rows, pa.int64()))
    return Outgoing(table["value"].combine_chunks(), table["key"].combine_chunks(), pa.array(extra, HEADERS_TYPE), now)


def _times_ms(times_us: pa.Array) -> Any:
    """Record times in milliseconds. A row without one, or from before 1970 (which the protocol cannot say), is written as of now."""
    now_ms = time.time_ns() // 1_000_000
    times_ms = pc.fill_null(times_us, -1).to_numpy(zero_copy_only=False) // 1_000
    return np.where(times_ms < 0, now_ms, times_ms).astype(np.int64)


def write_rows(writing: Writing, batches: Iterator[pa.RecordBatch], *, spare: int) -> Counts:
    """Rows of a user's DataFrame, each to its topic."""
    topics = TopicWriter(writing.address, compression=writing.compression, spare=spare)
    count = 0
    for batch in batches:
        table = pa.Table.from_batches([batch])
        count += table.num_rows
        for topic, part in _by_topic(table, writing.topic):
            topics.put(topic, _plain_rows(part, writing.key))
    topics.flush()
    return {"0": {"rows_out": count}}


def _by_topic(table: pa.Table, default: str | None) -> Iterator[tuple[str, pa.Table]]:
    if "topic" not in table.column_names:
        if default is None:
            raise ConfigError("rows have no topic", remedy='write .option("topic", …) or add a column named topic')
        yield default, table
        return
    names = pc.fill_null(table["topic"], default) if default is not None else table["topic"]
    for name in pc.unique(names).to_pylist():
        if name is None:
            raise ConfigError("a row's topic is null", remedy='fill the column, or write .option("topic", …) for such rows')
        yield name, table.filter(pc.equal(names, name))


def _plain_rows(table: pa.Table, key: tuple[str, ...]) -> Outgoing:
    names = table.column_names
    if "value" in names:
        value = table["value"].combine_chunks().cast(pa.binary())
    else:
        value = encode_json(table.select([name for name in names if name not in SPECIAL]))
    keys = table["key"].combine_chunks().cast(pa.binary()) if "key" in names else encode_keys(table, key)
    headers = table["headers"].combine_chunks() if "headers" in names else None
    times = (
        table["timestamp"].combine_chunks().cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
        if "timestamp" in names
        else pa.nulls(len(table), pa.int64())
    )
    return Outgoing(value, keys, headers, _times_ms(times))


def _joined(rows: list[Outgoing]) -> Outgoing:
    if len(rows) == 1:
        return rows[0]
    keys = headers = None
    if any(each.keys is not None for each in rows):
        keys = pa.concat_arrays([each.keys if each.keys is not None else pa.nulls(len(each), pa.binary()) for each in rows])
    if any(each.headers is not None for each in rows):
        headers = pa.concat_arrays(
            [each.headers.cast(HEADERS_TYPE) if each.headers is not None else pa.nulls(len(each), HEADERS_TYPE) for each in rows]
        )
    return Outgoing(pa.concat_arrays([each.values for each in rows]), keys, headers, np.concatenate([each.times_ms for each in rows]))
