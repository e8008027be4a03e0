"""Stateless steps on Arrow tables: what a scan, a stage or the test host runs between two kernels.

A step keeps `_time, _source, _partition, _offset` and, on a stream of retractions, `sign`. It is frozen and travels to workers with its expressions
already translated, so a worker loads neither the parser nor the plan. A step outside the typed subset says why (`outside`) and runs as a Spark
expression: `spark` has its text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from penstock.dataflow.evaluation import evaluate
from penstock.dataflow.expression import Checked
from penstock.errors import PlanError
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
    def outside(self) -> str | None:
        """Why the step cannot run on Arrow; None if it can."""
        ...

    def apply(self, table: pa.Table) -> pa.Table: ...


@dataclass(frozen=True, slots=True)
class Filter:
    """Keeps the rows for which the condition is true."""

    condition: Checked
    schema: Schema

    @property
    def outside(self) -> str | None:
        return self.condition.outside

    @property
    def spark(self) -> str:
        return self.condition.spark

    def holds(self, table: pa.Table) -> pa.ChunkedArray:
        """True, false or null for each row."""
        return _values([self.condition], ["BOOLEAN"], table)[0]

    def apply(self, table: pa.Table) -> pa.Table:
        return table.filter(self.holds(table))

    def __str__(self) -> str:
        return f"where {self.condition.text}"


@dataclass(frozen=True, slots=True)
class Project:
    """Computes columns."""

    columns: tuple[tuple[str, Checked], ...]
    schema: Schema

    @property
    def outside(self) -> str | None:
        return next((checked.outside for _, checked in self.columns if checked.outside), None)

    @property
    def spark(self) -> tuple[tuple[str, str], ...]:
        """(name, Spark SQL) of each column."""
        return tuple((name, checked.spark) for name, checked in self.columns)

    def apply(self, table: pa.Table) -> pa.Table:
        import pyarrow as pa

        computed = [(name, checked) for name, checked in self.columns if not _is_column(checked)]
        types = [self.schema.type_of(name) for name, _ in computed]
        values = dict(zip((name for name, _ in computed), _values([checked for _, checked in computed], types, table), strict=True))
        arrays = {name: values[name] if name in values else table[checked.columns[0]] for name, checked in self.columns}
        arrays |= {name: table[name] for name in CARRIED if name in table.column_names}
        return pa.table(arrays)

    def __str__(self) -> str:
        return "select " + ", ".join(name if name == checked.text else f"{checked.text} AS {name}" for name, checked in self.columns)


@dataclass(frozen=True, slots=True)
class Apply:
    """A Python function, per record (`map`, `flat_map`: dict in, dict or dicts out) or per Arrow batch (table in, table out)."""

    function: Callable[..., Any]
    per: Literal["record", "records", "batch"]  # map, flat_map, batch
    input: Schema
    schema: Schema
    signed: bool = False  # copy `sign` from the input record to what it became

    @property
    def outside(self) -> str | None:
        return None

    def apply(self, table: pa.Table) -> pa.Table:
        if self.per == "batch":
            return _conform(self.function(table.select(list(self.input.names))), table, self.schema, str(self))
        return _per_record(self, table)

    def __str__(self) -> str:
        verb = {"record": "map", "records": "flat_map", "batch": "map batches"}[self.per]
        return f"{verb} {getattr(self.function, '__qualname__', self.function)}"


def run_steps(steps: Sequence[RowStep], table: pa.Table) -> pa.Table:
    """All steps, one after the other."""
    for step in steps:
        table = step.apply(table)
    return table


def _is_column(checked: Checked) -> bool:
    return checked.columns == (checked.text,)


def _values(checked: Sequence[Checked], types: Sequence[str], table: pa.Table) -> list[Any]:
    if not checked:
        return []
    texts = [expression.arrow for expression in checked]
    assert None not in texts, "the planner sends steps outside the subset to Spark"
    return evaluate(table, [text for text in texts if text is not None], types=types, columns=[name for e in checked for name in e.columns])


def _per_record(step: Apply, table: pa.Table) -> pa.Table:
    import pyarrow as pa

    rows: list[dict[str, Any]] = []
    origin: list[int] = []
    for index, record in enumerate(table.select(list(step.input.names)).to_pylist()):
        given = step.function(record)
        results = (() if given is None else (given,)) if step.per == "record" else given
        for result in results:
            rows.append({**result, SIGN: record[SIGN]} if step.signed else dict(result))
            origin.append(index)
    try:
        made = pa.Table.from_pylist(rows, schema=step.schema.to_arrow())
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise PlanError(str(step), f"gave a value that does not fit ({error})", remedy=f"return values for {step.schema}") from error
    carried = table.select([name for name in CARRIED if name in table.column_names]).take(pa.array(origin, pa.int64()))
    for name in carried.column_names:
        made = made.append_column(name, carried[name])
    return made


def _conform(made: pa.Table, given: pa.Table, schema: Schema, step: str) -> pa.Table:
    """What a batch function gave, with our columns."""
    missing = [name for name in schema.names if name not in made.column_names]
    if missing:
        raise PlanError(step, f"gave no column {', '.join(missing)}", remedy=f"return a table with {schema}")
    if made.num_rows != given.num_rows:
        raise PlanError(
            step,
            f"gave {made.num_rows} rows for {given.num_rows}",
            remedy="keep one row per row; use where or flat_map to change the number",
        )
    made = made.select(list(schema.names)).cast(schema.to_arrow())
    for name in CARRIED:
        if name in given.column_names:
            made = made.append_column(name, given[name])
    return made
