"""Rows to topics: the writing side of the Python Data Source "penstock".

`writer` ends a plan's chain: envelopes addressed to sinks become records, counters become one line per batch in the progress file.
`format("penstock")` takes a DataFrame with `value` (text or bytes) and optionally `topic, key, headers, timestamp`; without `value`, the row is written as JSON.

Guarantee: at least once. A task or batch that runs again writes its records again; within a partition they keep their order.

    progress.jsonl   {"batch": 7, "at_us": …, "counts": {"<id of scan, stage or sink>": {"records": 3, "watermark_us": …}}}
                     a batch that ran again has two lines: the later one counts

    option        meaning                                     default
    address       bootstrap servers                           must be given
    topic         where rows without a topic column go
    key           key columns when there is no key column     none
    compression   none, gzip, snappy, lz4, zstd               none"""

from __future__ import annotations

import base64
import json
import os
import pickle
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.errors import ConfigError
from penstock.planner.physical import PhysicalPlan, Sink

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

Counts = dict[str, dict[str, int]]
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True, slots=True)
class Writing:
    """What the writer must know, as frozen data."""

    address: str
    sinks: tuple[Sink, ...] = ()  # of a plan; empty: plain rows
    topic: str | None = None
    key: tuple[str, ...] = ()
    compression: str = "none"
    progress: str | None = None


@dataclass
class Written(WriterCommitMessage):
    """What one task wrote and counted."""

    counts: Counts = field(default_factory=dict)


def writer(
    spark: SparkSession, envelopes: DataFrame, plan: PhysicalPlan, *, address: str, options: Mapping[str, str] | None = None, progress: Path
) -> DataStreamWriter:
    """The end of a plan's query. Topics that are not there are made with the broker's defaults."""
    from pyspark import cloudpickle

    from penstock.protocol.client import Client
    from penstock.spark.source import FORMAT, register

    with Client(address) as client:
        there = set(client.topics())
        for topic in sorted({sink.topic for sink in plan.sinks if sink.topic is not None} - there):
            client.create_topic(topic)
    register(spark)
    progress.parent.mkdir(parents=True, exist_ok=True)
    compression = _compression(options or {})
    writing = Writing(address=address, sinks=plan.sinks, compression=compression, progress=str(progress))
    packed = base64.b64encode(cloudpickle.dumps(writing)).decode()  # type: ignore[no-untyped-call]
    return envelopes.writeStream.format(FORMAT).outputMode("append").option("writing", packed)


def stream_writer(options: Mapping[str, str]) -> TopicStreamWriter:
    return TopicStreamWriter(_writing(options))


def batch_writer(options: Mapping[str, str]) -> TopicWriter:
    return TopicWriter(_writing(options))


def _writing(options: Mapping[str, str]) -> Writing:
    if "writing" in options:
        writing: Writing = pickle.loads(base64.b64decode(options["writing"]))
        return writing
    if "address" not in options:
        raise ConfigError("option address is missing", remedy='write .option("address", "127.0.0.1:9092")')
    keys = tuple(name.strip() for name in options.get("key", "").split(",") if name.strip())
    return Writing(address=options["address"], topic=options.get("topic"), key=keys, compression=_compression(options))


def _compression(options: Mapping[str, str]) -> str:
    name = options.get("compression", "none")
    if name not in COMPRESSIONS:
        raise ConfigError(f"compression '{name}' is not known", remedy=f"use one of {', '.join(COMPRESSIONS)}")
    return name


class TopicStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, writing: Writing) -> None:
        self._writing = writing

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return _write(self._writing, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        if self._writing.progress is None:
            return
        counts = merged(message.counts for message in messages if isinstance(message, Written))
        line = json.dumps({"batch": batchId, "at_us": time.time_ns() // 1_000, "counts": counts}, sort_keys=True)
        with open(self._writing.progress, "a") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """What has been written stays: at least once."""


class TopicWriter(DataSourceArrowWriter):
    def __init__(self, writing: Writing) -> None:
        self._writing = writing

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return _write(self._writing, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        pass

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        pass


def merged(all_counts: Iterable[Counts]) -> Counts:
    """Counters of many tasks as those of the batch: names that end in `_us` by maximum, others summed.

    >>> merged([{"1": {"late": 2, "watermark_us": 5}}, {"1": {"late": 1, "watermark_us": 3}}])
    {'1': {'late': 3, 'watermark_us': 5}}
    """
    result: Counts = {}
    for counts in all_counts:
        for source, values in counts.items():
            into = result.setdefault(source, {})
            for name, value in values.items():
                if name.endswith("_us"):
                    into[name] = max(into.get(name, value), value)
                else:
                    into[name] = into.get(name, 0) + value
    return result


def read_progress(path: Path) -> dict[int, dict[str, Any]]:
    """The line of each batch; the later one where a batch ran twice, and no half-written last line."""
    batches: dict[int, dict[str, Any]] = {}
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                continue
            batches[entry["batch"]] = entry
    return batches


def _write(writing: Writing, batches: Iterator[pa.RecordBatch]) -> Written:
    """Runs in a worker; the heavy imports are there."""
    from pyspark import TaskContext

    from penstock.spark.writer import write_envelopes, write_rows

    task = TaskContext.get()
    assert task is not None, "runs in a task"
    spare = int(task.getLocalProperty("streaming.sql.batchId") or 0) + task.partitionId()
    counts = write_envelopes(writing, batches, spare=spare) if writing.sinks else write_rows(writing, batches, spare=spare)
    return Written(counts)
