"""A user's streaming DataFrame through the real window kernel and back to a DataFrame."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import penstock as ps

pytestmark = pytest.mark.spark
SCHEMA = "area STRING, celsius DOUBLE, at TIMESTAMP"


def write(folder: Path, number: int, rows: list[tuple[str, float, int]]) -> None:
    lines = [
        json.dumps({"area": area, "celsius": celsius, "at": datetime.fromtimestamp(at, UTC).isoformat()}) for area, celsius, at in rows
    ]
    (folder / f"{number:03d}.json").write_text("\n".join(lines))


@pytest.mark.parametrize("condition", ["celsius < 90", "regexp_like(area, '^a') AND celsius < 90"], ids=["in Arrow", "in the JVM"])
def test_windows_over_a_dataframe_equal_a_count_by_hand(spark: Any, tmp_path: Path, condition: str) -> None:
    seed = 7
    print("seed", seed)
    randomness = random.Random(seed)
    folder = tmp_path / "in"
    folder.mkdir()
    expected: dict[tuple[str, int], list[float]] = defaultdict(list)
    for number in range(4):
        rows = [
            (f"a{randomness.randrange(5)}", float(randomness.randrange(100)), 10 * number + randomness.randrange(10)) for _ in range(50)
        ]
        write(folder, number, rows)
        for area, celsius, at in rows:
            if celsius < 90:
                expected[(area, at // 10 * 10)].append(celsius)
    write(folder, 9, [("a0", 95.0, 1_000)])  # filtered out, and yet it moves the watermark past all windows
    frame = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder))
    stream = ps.from_dataframe(frame).event_time("at", lateness="0s").where(condition)
    result = stream.key_by("area").window(ps.tumbling("10s")).aggregate(n="count(*)", total="sum(celsius)").to_dataframe(spark)
    name = "windows_" + str(abs(hash(condition)))
    writer = result.writeStream.format("memory").queryName(name).option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    rows = spark.table(name).where("pane_timing = 'on_time'").collect()
    assert {(row.area, int(row.window_start.replace(tzinfo=UTC).timestamp())): (row.n, row.total) for row in rows} == {
        place: (len(values), sum(values)) for place, values in expected.items()
    }
