"""Between a transcript and kernels: records as Arrow rows, stages as kernels, output rows as panes.

Shared by every host of transcripts, so that they differ only in what runs the kernels. Columns are typed by what the transcript holds (whole numbers,
numbers, text, booleans; a mixture travels as JSON), and conditions become columns, as the planner does for a pipeline."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.dataflow import evaluation, expression
from penstock.dataflow import trigger as triggers
from penstock.dataflow import window as windows
from penstock.dataflow.aggregate import Aggregate
from penstock.errors import ConfigError
from penstock.kernels.kernel import FOREVER_US, OFFSET, PARTITION, SOURCE, TIME
from penstock.kernels.window import WindowKernel
from penstock.schema import Field, Schema
from penstock.testing.transcript import Input, Pane, Record, Stage, Transcript

KEY, VALUE, VALUES, WORTH = "key", "value", "values", "worth"
_WHOLE = range(-(1 << 63), 1 << 63)


@dataclass(frozen=True, slots=True)
class Column:
    """How the values of a transcript's column travel."""

    name: str
    type: str
    as_json: bool = False
    keeps_null: bool = False  # as JSON text, because collecting values leaves nulls out

    def pack(self, values: Iterable[Any]) -> pa.Array:
        if self.as_json:
            return pa.array(
                [None if each is None and not self.keeps_null else json.dumps(each, default=str) for each in values], pa.string()
            )
        return pa.array(list(values), Schema((Field(self.name, self.type),)).to_arrow().field(0).type)

    def unpack(self, value: Any) -> Any:
        return json.loads(value) if self.as_json and value is not None else value


def column_of(name: str, values: Iterable[Any]) -> Column:
    kinds = {type(each) for each in values if each is not None}
    if kinds == {bool}:
        return Column(name, "BOOLEAN")
    if kinds <= {int} and all(each in _WHOLE for each in values if each is not None):
        return Column(name, "BIGINT")
    if kinds <= {int, float}:
        return Column(name, "DOUBLE")
    return Column(name, "STRING", as_json=kinds != {str})


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of a transcript's records, and the conditions that are computed from them."""

    columns: tuple[Column, ...]
    conditions: tuple[tuple[str, expression.Checked], ...] = ()  # (column, condition)

    @property
    def schema(self) -> Schema:
        own = tuple(Field(column.name, column.type) for column in self.columns)
        return Schema(own + tuple(Field(name, "BOOLEAN") for name, _ in self.conditions))

    def column(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)

    def rows(self, records: Sequence[Record], *, first_offset: int) -> pa.Table:
        """The records of one batch, in order of arrival."""
        contents = [record.columns for record in records]
        arrays: dict[str, Any] = {column.name: column.pack([each.get(column.name) for each in contents]) for column in self.columns}
        table = pa.table(arrays)
        for name, checked in self.conditions:
            assert checked.arrow is not None
            (holds,) = evaluation.evaluate(table, [checked.arrow], types=["BOOLEAN"], columns=checked.columns)
            table = table.append_column(name, holds)
        return with_places(table, [record.at_us for record in records], source=0, first_offset=first_offset)

    def records(self, rows: pa.Table) -> list[Record]:
        """Rows of ours as records again."""
        names = [column.name for column in self.columns]
        more = [column for column in self.columns if column.name not in (KEY, VALUE)]
        back = []
        for row, at_us in zip(rows.select(names).to_pylist(), rows[TIME].to_pylist()):
            extra = tuple(sorted((column.name, column.unpack(row[column.name])) for column in more if row[column.name] is not None))
            back.append(Record(self.column(KEY).unpack(row[KEY]), at_us, self.column(VALUE).unpack(row[VALUE]), extra))
        return back

    def panes(self, rows: pa.Table, stage: Stage) -> list[Pane]:
        """Output rows of a window kernel as panes."""
        key, value = self.column(KEY), self.column(VALUE)
        bounded = not isinstance(stage.window, windows.Global | windows.Count | windows.Delta | windows.Punctuation)
        columns = {name: rows[name].to_pylist() for name in rows.column_names if name not in ("window_start", "window_end")}
        starts, ends = (rows[name].cast(pa.int64()).to_pylist() for name in ("window_start", "window_end"))
        signs = columns.get("sign", [1] * rows.num_rows)
        return [
            Pane(
                key=key.unpack(columns[KEY][row]),
                window=(starts[row], ends[row]) if bounded else None,
                values=tuple(value.unpack(each) for each in columns[VALUES][row] or ()),
                timing=columns["pane_timing"][row],
                index=columns["pane_index"][row],
                on_time_index=columns["on_time_index"][row],
                first=columns["is_first"][row],
                last=columns["is_last"][row],
                sign="+" if signs[row] > 0 else "-",
            )
            for row in range(rows.num_rows)
        ]


def layout_of(transcript: Transcript) -> Layout:
    """From all the records that the transcript holds."""
    records = [record for action in transcript.actions if isinstance(action, Input) for record in action.records]
    return layout(transcript.stages[0], records)


def layout(stage: Stage, records: Sequence[Record]) -> Layout:
    contents = [record.columns for record in records] or [{KEY: "k", VALUE: 0}]
    names = list(dict.fromkeys(name for each in contents for name in each))
    columns = tuple(column_of(name, [each.get(name) for each in contents]) for name in names)
    if any(each[VALUE] is None for each in contents) and not _looks_at_values(stage):
        columns = tuple(Column(VALUE, "STRING", as_json=True, keeps_null=True) if column.name == VALUE else column for column in columns)
    plain = Schema(tuple(Field(column.name, column.type) for column in columns))
    found = dict.fromkeys(conditions_of(stage))
    checked = [(f"holds {number}", expression.condition(text, plain, step="transcript")) for number, text in enumerate(found)]
    for _, each in checked:
        if each.arrow is None:
            raise ConfigError(
                f"the condition '{each.text}' runs on Spark only ({each.outside})", remedy="use plain comparisons in a transcript"
            )
    return Layout(columns, tuple(checked))


def _looks_at_values(stage: Stage) -> bool:
    by_value = isinstance(stage.window, windows.Delta) or any(isinstance(part, triggers.AfterDelta) for part in parts_of(stage.trigger))
    return by_value or bool(conditions_of(stage))


def conditions_of(stage: Stage) -> list[str]:
    own = [stage.window.condition] if isinstance(stage.window, windows.Punctuation) else []
    return own + [part.condition for part in parts_of(stage.trigger) if isinstance(part, triggers.AfterPunctuation)]


def parts_of(trigger: triggers.Trigger) -> list[triggers.Trigger]:
    """The trigger and all that it is built of."""
    match trigger:
        case triggers.AfterWatermark(early, late):
            inner = [part for part in (early, late) if part is not None]
        case triggers.Repeatedly(part):
            inner = [part]
        case triggers.AfterAny(parts) | triggers.AfterAll(parts) | triggers.AfterEach(parts):
            inner = list(parts)
        case triggers.OrFinally(part, until):
            inner = [part, until]
        case _:
            inner = []
    return [trigger] + [each for part in inner for each in parts_of(part)]


def _by_column(trigger: triggers.Trigger, names: dict[str, str]) -> triggers.Trigger:
    """The same trigger with its conditions replaced by the columns that hold them."""
    match trigger:
        case triggers.AfterPunctuation(condition):
            return triggers.AfterPunctuation(names[condition])
        case triggers.AfterWatermark(early, late):
            return triggers.AfterWatermark(early and _by_column(early, names), late and _by_column(late, names))
        case triggers.Repeatedly(part):
            return triggers.Repeatedly(_by_column(part, names))
        case triggers.AfterAny(parts) | triggers.AfterAll(parts) | triggers.AfterEach(parts):
            return type(trigger)(tuple(_by_column(part, names) for part in parts))
        case triggers.OrFinally(part, until):
            return triggers.OrFinally(_by_column(part, names), _by_column(until, names))
        case _:
            return trigger


def kernel_of(stage: Stage, given: Layout, *, next_stage: Stage | None = None) -> WindowKernel:
    """The kernel of a stage; with what its panes are worth, if another stage follows."""
    names = {checked.text: name for name, checked in given.conditions}
    window = stage.window
    if isinstance(window, windows.Punctuation):
        window = windows.Punctuation(names[window.condition])
    kind = given.column(VALUE).type
    aggregates = [Aggregate(VALUES, "collect", VALUE, f"ARRAY<{kind}>")]
    if next_stage is not None:
        aggregates.append(Aggregate(WORTH, next_stage.value, None if next_stage.value == "count" else VALUE, worth_type(next_stage, kind)))
    return WindowKernel(
        schema=given.schema,
        keys=(KEY,),
        window=window,
        aggregates=tuple(aggregates),
        trigger=_by_column(stage.trigger, names),
        refinement=stage.accumulate,  # type: ignore[arg-type]
        allowed_lateness_us=None if stage.allowed_lateness_us >= FOREVER_US else stage.allowed_lateness_us,
    )


def worth_type(stage: Stage, kind: str) -> str:
    return "BIGINT" if stage.value == "count" else kind


def layouts_of(transcript: Transcript) -> list[Layout]:
    """One for each stage: the records, and then what the panes of the stage before are worth."""
    layouts = [layout_of(transcript)]
    for stage in transcript.stages[1:]:
        if conditions_of(stage):
            raise ConfigError("a condition stands under `then`", remedy="use punctuation in the first aggregation only")
        before = layouts[-1]
        layouts.append(Layout((before.column(KEY), Column(VALUE, worth_type(stage, before.column(VALUE).type)))))
    return layouts


def kernels_of(transcript: Transcript) -> list[WindowKernel]:
    followers: list[Stage | None] = [*transcript.stages[1:], None]
    return [
        kernel_of(stage, given, next_stage=follower) for stage, given, follower in zip(transcript.stages, layouts_of(transcript), followers)
    ]


def as_input(rows: pa.Table, given: Layout, *, source: int, partition: int, first_offset: int) -> pa.Table:
    """Panes as records of the next stage. A pane's event time is the last instant of its window."""
    table = pa.table({KEY: rows[KEY], VALUE: rows[WORTH].cast(given.schema.to_arrow().field(VALUE).type)})
    ends = [FOREVER_US if end is None else end - 1 for end in rows["window_end"].cast(pa.int64()).to_pylist()]
    return with_places(table, ends, source=source, partition=partition, first_offset=first_offset)


def with_places(table: pa.Table, times_us: Sequence[int | None], *, source: int, first_offset: int, partition: int = 0) -> pa.Table:
    """Our own columns: where and when each row stands."""
    count = table.num_rows
    table = table.append_column(TIME, pa.array(times_us, pa.int64()))
    table = table.append_column(SOURCE, pa.array([source] * count, pa.int32()))
    table = table.append_column(PARTITION, pa.array([partition] * count, pa.int32()))
    return table.append_column(OFFSET, pa.array(range(first_offset, first_offset + count), pa.int64()))
