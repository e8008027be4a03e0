"""A sink that keeps the envelopes of each batch in files, for tests and transcripts.

`<folder>/<batch>.<task>.arrow`. A batch that runs twice writes the same files, so what is read back has no repeats.
Spark's own memory sink cannot go on from a checkpoint; this one can."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.kernels.envelope import ARROW, Envelope, from_batch

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

FORMAT = "penstock-collected"


def collect_to(spark: SparkSession, writer: DataStreamWriter, folder: Path) -> DataStreamWriter:
    """The writer of a query, set to keep envelopes in a folder."""
    spark.dataSource.register(CollectedSource)
    folder.mkdir(parents=True, exist_ok=True)
    return writer.format(FORMAT).option("path", str(folder))


def collected(folder: Path) -> dict[int, list[Envelope]]:
    """The envelopes of every batch."""
    import pyarrow as pa

    batches: dict[int, list[Envelope]] = {}
    for file in sorted(folder.glob("*.arrow")):
        with pa.ipc.open_file(str(file)) as reader:
            batches.setdefault(int(file.name.split(".")[0]), []).extend(
                row for each in range(reader.num_record_batches) for row in from_batch(reader.get_batch(each))
            )
    return dict(sorted(batches.items()))


class CollectedSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamWriter(self, schema: Any, overwrite: bool) -> CollectingWriter:
        return CollectingWriter(self.options["path"])


class CollectingWriter(DataSourceStreamArrowWriter):
    def __init__(self, folder: str) -> None:
        self.folder = folder

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        import pyarrow as pa
        from pyspark import TaskContext

        task = TaskContext.get()
        assert task is not None, "runs in a task"
        batch = int(task.getLocalProperty("streaming.sql.batchId") or 0)
        name = os.path.join(self.folder, f"{batch:08d}.{task.partitionId()}.arrow")
        with pa.ipc.new_file(name + ".part", ARROW) as file:
            for each in iterator:
                file.write_batch(pa.record_batch(each.columns, names=each.schema.names).cast(ARROW))
        os.replace(name + ".part", name)
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        pass

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        pass
