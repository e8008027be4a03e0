"""The chain on Spark: two stages in one query, with watermark, ticks and a restart in the middle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

from penstock.kernels.envelope import open_table
from penstock.spark.collected import collect_to, collected
from penstock.spark.compile import compile_chain
from penstock.spark.scripted import scripted, write_script

from . import toy
from .toy import chain, step

pytestmark = pytest.mark.spark
cloudpickle.register_pickle_by_value(toy)

SCRIPT = [
    step([("a", 5), ("b", 9), ("a", 10)]),
    step([("c", 8), ("a", 20)], first_offset=3),
    step(tick_us=1_000),
    step([("b", 21), ("b", 3)], first_offset=5),
    step([("a", 30)], first_offset=7, tick_us=2_000),
    step(ended=True),
]


def play(spark: Any, path: Path, folder: Path, *, until: int | None = None) -> list[tuple[int, str, int]]:
    """Every row that has reached the sink, with the stage that sent it."""
    frame = compile_chain(chain(on_tick=True), scripted(spark, path, until=until, tasks=2), job="toy")
    writer = collect_to(spark, frame.writeStream, folder / "out")
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    envelopes = [each for batch in collected(folder / "out").values() for each in batch]
    return sorted(
        (each.source, row["k"], row["n"])
        for each in envelopes
        if each.to == 3 and each.payload
        for row in open_table(each.payload).to_pylist()
    )


def test_a_query_that_is_stopped_and_started_again_gives_the_same_rows(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "script.arrow"
    write_script(path, SCRIPT)
    whole = play(spark, path, tmp_path / "whole")
    assert play(spark, path, tmp_path / "parts", until=3) != whole
    assert play(spark, path, tmp_path / "parts") == whole
    firsts = [(key, count) for source, key, count in whole if source == 1]
    # The last batch ends the stream: every key tells its final count, and the late row (b, 3) is not among them.
    assert {key: max(count for other, count in firsts if other == key) for key, _ in firsts} == {"a": 4, "b": 2, "c": 1}
    assert any(source == 2 for source, _, _ in whole)
