"""Spark's own Kafka connector instead of ours, when the profile says `connector = "jvm"`.

The connector reads, a `mapInArrow` step decodes and packs exactly as our reader does (`scan.py`), so a plan gives the same rows. Why anyone would:
settings of the Java client that ours lacks, and real-time mode later. It is slower (see benchmarks/source.py), and it cannot
end by itself: a bounded run needs our reader. Jars come by coordinates (`jars.py`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError
from penstock.planner.physical import PhysicalPlan, Scan
from penstock.spark import jars

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = ("key", "value", "headers", "topic", "partition", "offset", "timestamp")


def session_conf() -> dict[str, str]:
    """The settings with which a session knows the connector. Resolves its jars; MissingPart says why if they cannot be had."""
    found = jars.resolve(jars.kafka_connector(jars.spark_version()))
    return {"spark.jars": ",".join(map(str, found.paths))}


def envelopes(spark: SparkSession, plan: PhysicalPlan, *, address: str, options: Mapping[str, str] | None = None) -> Iterator[DataFrame]:
    """Each scan of topics as a stream of envelopes. Ticks are not here: they have their own source (`clock.py`)."""
    from penstock.kernels.envelope import DDL
    from penstock.protocol.client import Client

    groups = {stage.id: stage.groups for stage in plan.stages}
    for scan in plan.scans:
        if scan.dataframe is not None or scan.place != "scan":
            continue
        if scan.end is not None:
            raise ConfigError(
                f"scan '{scan.name}' has an end, which Spark's own connector cannot keep",
                remedy='use connector = "python" for a bounded run',
            )
        with Client(address) as client:
            found = client.partitions(scan.topics)
        places = [(topic, partition) for topic in scan.topics for partition in found[topic]]
        frame = spark.readStream.format("kafka").options(**source_options(scan, places, address, options or {})).load()
        yield frame.select(*COLUMNS).mapInArrow(packer(scan, groups, places), DDL)


def source_options(scan: Scan, places: list[tuple[str, int]], address: str, options: Mapping[str, str]) -> dict[str, str]:
    """Our options in the connector's words. Those that begin with `kafka.` go to the Java client as they are."""
    found = {
        "kafka.bootstrap.servers": address, "subscribe": ",".join(scan.topics), "includeHeaders": "true", "kafka.isolation.level": "read_committed",
        "failOnDataLoss": str(options.get("on_lost", "fail") == "fail").lower(), **_start(scan, places),
    }  # fmt: skip
    if "records_per_batch_max" in options:
        found["maxOffsetsPerTrigger"] = options["records_per_batch_max"]
    return found | {name: value for name, value in options.items() if name.startswith("kafka.")}


def _start(scan: Scan, places: list[tuple[str, int]]) -> dict[str, str]:
    match scan.start:
        case "earliest" | "latest":
            return {"startingOffsets": str(scan.start)}
        case {"timestamp_ms": int(time_ms)}:
            return {"startingTimestamp": str(time_ms), "startingOffsetsByTimestampStrategy": "latest"}
        case dict() as given:
            full: dict[str, dict[str, int]] = {}
            for topic, partition in places:
                full.setdefault(topic, {})[str(partition)] = given.get(topic, {}).get(str(partition), -2)
            return {"startingOffsets": json.dumps(full)}
    raise ConfigError(
        f"{scan.start!r} is no position in a topic", remedy='use "earliest", "latest", {"timestamp_ms": n} or {"topic": {"0": offset}}'
    )


def packer(
    scan: Scan, groups: dict[int, int], places: list[tuple[str, int]]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function of the packing step: one task's records to envelopes. Every task names all partitions, as one without records has no task."""

    def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        from penstock.kernels.envelope import to_batch
        from penstock.spark.scan import ScanTask

        context = TaskContext.get()
        task = ScanTask(scan, frozenset(groups), context.partitionId() if context is not None else 0)
        for batch in batches:
            for place, records in records_of(batch):
                given = list(task.take(place, records))
                if given:
                    yield to_batch(given)
        yield to_batch(task.finish(sorted({*places, *task.greatest_us}), set(), groups))

    return pack


def records_of(batch: pa.RecordBatch) -> Iterator[tuple[tuple[str, int], Any]]:
    """The connector's rows as `decode.Records`, partition by partition."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from penstock.spark import loops
    from penstock.spark.decode import Records
    from penstock.spark.encode import header_spans, spans

    table = pa.Table.from_batches([batch])
    for row in table.group_by(["topic", "partition"]).aggregate([]).to_pylist():
        place = (row["topic"], row["partition"])
        part = (
            table.filter(pc.and_(pc.equal(table["topic"], place[0]), pc.equal(table["partition"], place[1])))
            .sort_by("offset")
            .combine_chunks()
        )
        columns = np.empty((loops.RECORD_COLUMNS, part.num_rows), np.int64)
        columns[loops.OFFSET] = part["offset"].to_numpy()
        columns[loops.TIME] = part["timestamp"].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_numpy() // 1_000
        pieces, base = [], 0
        for name, at, size in (("key", loops.KEY, loops.KEY_SIZE), ("value", loops.VALUE, loops.VALUE_SIZE)):
            data, ends, valid = spans(part[name].combine_chunks())
            columns[at] = ends[:-1] + base
            columns[size] = np.where(valid, np.diff(ends), -1)
            pieces.append(data)
            base += len(data)
        data, ends, counts = header_spans(part["headers"].combine_chunks(), part.num_rows)
        columns[loops.HEADERS] = ends[:-1] + base
        columns[loops.HEADER_COUNT] = counts
        yield place, Records(np.concatenate([*pieces, data]), columns)
