"""A stream source that plays a script: one step per batch, for tests of the real path.

A script is a list of steps, each a list of envelopes. Batch n of the query is step n; when all are played, a query
started with `trigger(availableNow=True)` ends. The offset is the number of steps played, so a restarted query goes on where its
checkpoint stands. `until` holds the rest back, as if it had not been produced yet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from penstock.kernels.envelope import ARROW, DDL, Envelope, to_batch

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

FORMAT = "penstock-script"


def write_script(path: Path, steps: Sequence[Sequence[Envelope]]) -> None:
    """One record batch per step in an Arrow file."""
    import pyarrow as pa

    with pa.ipc.new_file(str(path), ARROW) as writer:
        for step in steps:
            writer.write_batch(to_batch(step))


def scripted(spark: SparkSession, path: Path, *, until: int | None = None, tasks: int = 1) -> DataFrame:
    """The script as a stream of envelopes."""
    spark.dataSource.register(ScriptSource)
    return (
        spark.readStream.format(FORMAT)
        .option("path", str(path))
        .option("until", str(until if until is not None else -1))
        .option("tasks", str(tasks))
        .load()
    )


class ScriptSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return DDL

    def streamReader(self, schema: Any) -> ScriptReader:
        return ScriptReader(self.options)


class Step(InputPartition):
    def __init__(self, start: int, end: int, task: int) -> None:
        self.start, self.end, self.task = start, end, task


class ScriptReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Any) -> None:
        self.path = options["path"]
        self.until = int(options["until"])
        self.tasks = int(options["tasks"])

    def _steps(self) -> int:
        import pyarrow as pa

        count = int(pa.ipc.open_file(self.path).num_record_batches)
        return count if self.until < 0 else min(count, self.until)

    def initialOffset(self) -> dict[str, int]:
        return {"played": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        pass

    def getDefaultReadLimit(self) -> Any:
        from pyspark.sql.streaming.datasource import ReadAllAvailable

        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, int], limit: Any = None) -> dict[str, int]:
        return {"played": min(start["played"] + 1, self._steps())}

    def reportLatestOffset(self) -> dict[str, int]:
        return {"played": self._steps()}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[Step]:
        return [Step(start["played"], end["played"], task) for task in range(self.tasks)]

    def read(self, partition: Step) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        import pyarrow as pa

        file = pa.ipc.open_file(self.path)
        for step in range(partition.start, partition.end):
            batch = file.get_batch(step)
            rows = list(range(partition.task, batch.num_rows, self.tasks))
            yield batch.take(pa.array(rows, type=pa.int64()))

    def commit(self, end: dict[str, int]) -> None:
        pass

    def stop(self) -> None:
        pass
