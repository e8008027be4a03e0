"""Stateless steps on Arrow tables: what a scan, a stage or the test host runs between two kernels.

A step keeps `_time, _source, _partition, _offset` and, on a stream of retractions, `sign`. It is frozen and travels to workers; the compiled
form is made there, once per process. A step outside the typed subset says so (`runs_on_arrow` is false) and runs as a Spark expression."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, Protocol

from penstock.dataflow import expression
from penstock.kernels.kernel import OFFSET, PARTITION, SOURCE, TIME
from penstock.schema import Schema

if TYPE_CHECKING:
    import pyarrow as pa

CARRIED = (TIME, SOURCE, PARTITION, OFFSET)
SIGN = "sign"


class RowStep(Protocol):
    """A pure function from rows to rows."""

    @property
    def schema(self) -> Schema:
        """The user's columns after the step."""
        ...

    @property
    def runs_on_arrow(self) -> bool: ...
    def apply(self, table: pa.Table) -> pa.Table: ...


@dataclass(frozen=True, slots=True)
class Filter:
    """Keeps the rows for which the condition is true."""

    condition: str
    schema: Schema
    runs_on_arrow: bool = True

    def apply(self, table: pa.Table) -> pa.Table:
        return table.filter(_compiled(self.condition, str(self.schema))(table))

    def __str__(self) -> str:
        return f"where {self.condition}"


@dataclass(frozen=True, slots=True)
class Project:
    """Computes columns: (name, expression)."""

    columns: tuple[tuple[str, str], ...]
    input: Schema
    schema: Schema
    runs_on_arrow: bool = True

    def apply(self, table: pa.Table) -> pa.Table:
        import pyarrow as pa

        arrays: dict[str, Any] = {}
        for name, text in self.columns:
            arrays[name] = table[text] if text in self.input else _compiled(text, str(self.input))(table)
        for name in CARRIED:
            if name in table.column_names:
                arrays[name] = table[name]
        fields = [pa.field(name, array.type) for name, array in arrays.items()]
        return pa.table(list(arrays.values()), schema=pa.schema(fields))

    def __str__(self) -> str:
        return "select " + ", ".join(name if name == text else f"{text} AS {name}" for name, text in self.columns)


@dataclass(frozen=True, slots=True)
class Apply:
    """A Python function, per record (`map`, `flat_map`: dict in, dict or dicts out) or per Arrow batch (table in, table out)."""

    function: Callable[..., Any]
    per: Literal["record", "records", "batch"]  # map, flat_map, batch
    input: Schema
    schema: Schema
    signed: bool = False  # copy `sign` from the input record to what it became

    @property
    def runs_on_arrow(self) -> bool:
        return True

    def apply(self, table: pa.Table) -> pa.Table:
        if self.per == "batch":
            return _conform(self.function(table.select(list(self.input.names))), table, self.schema, self.function)
        return _per_record(self, table)

    def __str__(self) -> str:
        verb = {"record": "map", "records": "flat_map", "batch": "map batches"}[self.per]
        return f"{verb} {getattr(self.function, '__qualname__', self.function)}"


def run_steps(steps: Sequence[RowStep], table: pa.Table) -> pa.Table:
    """All steps, one after the other; stops early when no row is left but keeps the last schema."""
    for step in steps:
        table = step.apply(table)
    return table


@lru_cache(maxsize=256)
def _compiled(text: str, schema: str) -> Callable[[pa.Table], pa.ChunkedArray]:
    return expression.compiled(text, Schema.of(schema))


def _per_record(step: Apply, table: pa.Table) -> pa.Table:
    import pyarrow as pa

    rows, origin = [], []
    for index, record in enumerate(table.select(list(step.input.names)).to_pylist()):
        given = step.function(record)
        results = (() if given is None else (given,)) if step.per == "record" else given
        for result in results:
            row = dict(result)
            if step.signed:
                row[SIGN] = record[SIGN]
            rows.append(row)
            origin.append(index)
    made = pa.Table.from_pylist(rows, schema=step.schema.to_arrow())
    carried = table.select([name for name in CARRIED if name in table.column_names]).take(pa.array(origin, pa.int64()))
    for name in carried.column_names:
        made = made.append_column(name, carried[name])
    return made


def _conform(made: pa.Table, given: pa.Table, schema: Schema, function: Callable[..., Any]) -> pa.Table:
    """What a batch function gave, with our columns. It must keep the number and order of rows, or carry our columns itself."""
    from penstock.errors import PlanError

    wanted = schema.to_arrow()
    missing = [name for name in schema.names if name not in made.column_names]
    label = getattr(function, "__qualname__", str(function))
    if missing:
        raise PlanError(label, f"gave no column {', '.join(missing)}", remedy=f"return a table with {schema}")
    made = made.select(list(schema.names)).cast(wanted)
    if made.num_rows != given.num_rows:
        raise PlanError(
            label, f"gave {made.num_rows} rows for {given.num_rows}", remedy="keep one row per row; use where or flat_map to change the number"
        )
    for name in CARRIED:
        if name in given.column_names:
            made = made.append_column(name, given[name])
    return made
