"""A windowed step driven by hand: rows from plain tuples, batches with the watermark, what came out as plain values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from penstock.dataflow.aggregate import Aggregate
from penstock.dataflow.trigger import DEFAULT, Trigger
from penstock.dataflow.window import Window
from penstock.kernels.kernel import NEVER_US, Context, Output
from penstock.kernels.window import WindowKernel
from penstock.schema import Schema

SECOND = 1_000_000
SCHEMA = Schema.of("key STRING, value BIGINT")
COLLECT = Aggregate("values", "collect", "value", "ARRAY<BIGINT>")
SUM = Aggregate("total", "sum", "value", "BIGINT")
COUNT = Aggregate("n", "count", None, "BIGINT")


def rows(records: Iterable[Sequence[Any]], schema: Schema = SCHEMA, *, offset: int = 0) -> pa.Table:
    """Records are (event time in seconds or None, column, column, …)."""
    records = list(records)
    columns = {
        field.name: pa.array([record[i + 1] for record in records], kind)
        for i, (field, kind) in enumerate(zip(schema, schema.to_arrow().types))
    }
    columns["_time"] = pa.array([None if record[0] is None else round(record[0] * SECOND) for record in records], pa.int64())
    columns["_source"] = pa.array([0] * len(records), pa.int32())
    columns["_partition"] = pa.array([0] * len(records), pa.int32())
    columns["_offset"] = pa.array(range(offset, offset + len(records)), pa.int64())
    return pa.table(columns)


class Step:
    """One instance, and how far time has come. With `restarts` it is saved and restored after every batch."""

    def __init__(
        self,
        window: Window,
        *,
        aggregates: tuple[Aggregate, ...] = (COLLECT, SUM, COUNT),
        trigger: Trigger = DEFAULT,
        refinement: Any = "accumulating",
        lateness: float | None = 0,
        keys: tuple[str, ...] = ("key",),
        schema: Schema = SCHEMA,
        restarts: bool = False,
        combined: bool = False,
    ) -> None:
        lateness_us = None if lateness is None else round(lateness * SECOND)
        self.kernel = WindowKernel(
            schema=schema,
            keys=keys,
            window=window,
            aggregates=aggregates,
            trigger=trigger,
            refinement=refinement,
            allowed_lateness_us=lateness_us,
        )
        self.schema, self.restarts, self.combined = schema, restarts, combined
        self.instance = self.kernel.start()
        self.saves: list[bytes] = []
        self.watermark_us, self.now_us, self.offset = NEVER_US, 0, 0
        self.panes: list[dict[str, Any]] = []
        self.late: list[dict[str, Any]] = []

    def batch(
        self, records: Iterable[Sequence[Any]] = (), *, watermark: float | None = None, now: float | None = None
    ) -> list[dict[str, Any]]:
        table = rows(records, self.schema, offset=self.offset)
        self.offset += table.num_rows
        self.now_us = self.now_us if now is None else round(now * SECOND)
        next_us = self.watermark_us if watermark is None else round(watermark * SECOND)
        given = self.kernel.combine(table) if self.combined and table.num_rows else table
        output = self.instance.on_batch([given], Context(self.watermark_us, next_us, self.now_us))
        self.watermark_us = next_us
        return self._out(output)

    def _out(self, output: Output) -> list[dict[str, Any]]:
        new = [] if output.rows is None else output.rows.to_pylist()
        self.panes += new
        self.late += [] if output.late is None else output.late.to_pylist()
        self.counts = output.counts
        if self.restarts:
            saved = self.instance.save(full=not self.saves)
            if saved is not None:
                self.saves.append(saved)
            self.instance = self.kernel.restore(self.saves)
        return new


def window_of(pane: dict[str, Any]) -> tuple[float, float]:
    return pane["window_start"].timestamp(), pane["window_end"].timestamp()
