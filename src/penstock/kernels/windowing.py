"""The windowed aggregate at work on one key group: batch in, panes and late rows out, state saved and restored.

One batch is: rows find their windows (an assigner, by kind of window) → triggers are examined, panes made, windows dropped
(`panes.py`) → results are computed for the panes. What was too late is judged by the watermark at the start of the batch,
what is complete by the one at its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.dataflow import trigger as triggers
from penstock.dataflow import window as spec
from penstock.kernels import assign
from penstock.kernels.aggregate import Extreme, Function, Rows, function_of
from penstock.kernels.aligned import Absorbed, Aligned, Custom, EventTimeline, ProcessingTimeline, Sliced, Timeline
from penstock.kernels.assign import Grid
from penstock.kernels.kernel import FOREVER_US, NEVER_US, TIME, Context, Output
from penstock.kernels.last import KEY_COLUMNS, LastRecords
from penstock.kernels.panes import TIMINGS, Moment, Panes, Windows
from penstock.kernels.sequence import CountTimeline, DeltaTimeline, PunctuationTimeline, Sequenced, SlicedSequence
from penstock.kernels.session import Sessions
from penstock.kernels.state import Array, Column, Keys, Table, pack_state, unpack_state
from penstock.kernels.trigger import build
from penstock.kernels.window import WindowKernel
from penstock.schema import arrow_type

_TIMESTAMP = arrow_type("TIMESTAMP")
_TIME_FIELD = pa.field(TIME, pa.int64())


class Clockwork(Protocol):
    """What time it is for a step's windows."""

    def moment(self, at: Context) -> Moment: ...


class Assigner(Protocol):
    """How rows find their windows."""

    @property
    def tables(self) -> dict[str, Table]: ...
    def absorb(self, rows: Rows, moment: Moment) -> Absorbed: ...
    def due(self, moment: Moment) -> list[Array]: ...
    def loaded(self) -> None: ...
    def held(self) -> list[tuple[int, int, int, bool]]: ...


class Windowing:
    """An instance of `WindowKernel`."""

    def __init__(self, kernel: WindowKernel) -> None:
        kernel = replace(kernel, window=_plain(kernel.window))
        self._kernel = kernel
        self._timed = not _untimed(kernel.window)
        self._key_types = [arrow_type(kernel.schema.type_of(name)) for name in kernel.keys]
        functions = _functions(kernel)
        self._keys = Keys(self._key_types, _key_columns(kernel.window))
        self._windows = Windows(functions, kernel.trigger, kernel.refinement, self._keys)
        self._timeline, self._assigner = _assigner(kernel, self._windows, self._keys)

    def on_batch(self, inputs: Sequence[pa.Table | None], at: Context) -> Output:
        table = inputs[0] if inputs else None
        moment = self._timeline.moment(at)
        absorbed, late, untimed = Absorbed(), None, 0
        if table is not None and table.num_rows:
            absorbed, late, untimed = self._absorb(table, moment)
        candidates = [*absorbed.touched, *self._assigner.due(moment), self._windows.due_now(at.now_us)]
        panes = self._windows.evaluate(candidates, moment)
        rows = None if panes is None else self._rows(panes, at)
        self._keys.forget_unused()
        held = self._windows.table.count + sum(table.count for table in self._assigner.tables.values())
        counts = {"late": absorbed.late_count, "untimed": untimed, "windows": held, "keys": len(self._keys)}
        return Output(rows=rows, late=late, counts=counts)

    def _absorb(self, table: pa.Table, moment: Moment) -> tuple[Absorbed, pa.Table | None, int]:
        if assign.is_partials(table):
            assert isinstance(self._assigner, Aligned)
            return self._absorb_partials(table, moment)
        untimed = None
        if self._timed and table.column(TIME).null_count:
            missing = table.column(TIME).is_null()
            untimed, table = table.filter(missing), table.filter(_not(missing))
        absorbed, late = Absorbed(), None
        if table.num_rows:
            absorbed = self._assigner.absorb(Rows(table, signed=self._kernel.signed), moment)
            if absorbed.late is not None and absorbed.late_count:
                late = table.filter(pa.array(absorbed.late))
        if untimed is not None:
            late = untimed if late is None else pa.concat_tables([late, untimed])
        return absorbed, late, 0 if untimed is None else untimed.num_rows

    def _absorb_partials(self, table: pa.Table, moment: Moment) -> tuple[Absorbed, None, int]:
        assert isinstance(self._assigner, Aligned)
        untimed = 0
        if table.column(assign.START).null_count:
            missing = table.column(assign.START).is_null()
            untimed = int(pc.sum(table.filter(missing).column(assign.COUNT)).as_py())
            table = table.filter(_not(missing))
        absorbed = self._assigner.absorb_partials(table, moment) if table.num_rows else Absorbed()
        return absorbed, None, untimed

    def _rows(self, panes: Panes, at: Context) -> pa.Table:
        columns = self._keys.arrays(panes.key)
        functions = self._windows.functions
        for aggregate, function, partials in zip(self._kernel.aggregates, functions, panes.columns):
            result = function.lower(partials)
            wanted = arrow_type(aggregate.type)
            columns.append(result if result.type == wanted else result.cast(wanted))
        start, end, time = self._bounds(panes, at)
        columns += [
            start.cast(_TIMESTAMP), end.cast(_TIMESTAMP), pa.array(panes.index, pa.int32()), pa.array(panes.late_index, pa.int32()),
            pa.DictionaryArray.from_arrays(pa.array(panes.timing.astype(np.int32)), pa.array(TIMINGS)).cast(pa.string()),
            pa.array(panes.index == 0), pa.array(panes.last),
        ]  # fmt: skip
        if self._kernel.refinement == "retracting":
            columns.append(pa.array(panes.sign, pa.int32()))
        return pa.Table.from_arrays([*columns, time], schema=self._kernel.output.to_arrow().append(_TIME_FIELD))

    def _bounds(self, panes: Panes, at: Context) -> tuple[pa.Array, pa.Array, pa.Array]:
        """Start and end as they are shown, and the pane's event time: the last instant of its window."""
        if isinstance(self._kernel.window, spec.Global):
            # It has no last instant that will ever come: its panes lie where the watermark is.
            known_us = [us for us in (at.next_watermark_us, at.watermark_us) if NEVER_US < us < FOREVER_US]
            nothing = pa.nulls(panes.key.size, pa.int64())
            return nothing, nothing, pa.array(np.full(panes.key.size, known_us[0])) if known_us else nothing
        start, end, nobody = panes.start, panes.end, None
        if isinstance(self._assigner, Sequenced | SlicedSequence | LastRecords):  # the times of the records that are in it
            (start, _), (last, known) = panes.columns[-2:]
            end, nobody = last + 1, known == 0
        return pa.array(start, mask=nobody), pa.array(end, mask=nobody), pa.array(end - 1, mask=nobody)

    def held(self) -> list[tuple[tuple[Any, ...], int | None, int | None, bool]]:
        """The windows in memory: key, bounds in time (None if they have none), and whether its trigger has finished."""
        plain = isinstance(self._kernel.window, spec.Global | spec.Count | spec.Delta | spec.Punctuation | spec.Last)
        held = self._assigner.held()
        arrays = self._keys.arrays(np.array([key for key, *_ in held], np.int64))
        keys = list(zip(*(array.to_pylist() for array in arrays))) if arrays else [()] * len(held)
        return [(key, None if plain else start, None if plain else end, finished) for key, (_, start, end, finished) in zip(keys, held)]

    def save(self, *, full: bool) -> bytes | None:
        tables = {"keys": self._keys.table, "windows": self._windows.table, **self._assigner.tables}
        parts = {name: saved for name, table in tables.items() if (saved := table.save(full=full)) is not None}
        if not parts and not full:
            return None
        return pack_state(parts, version=self._kernel.state_version, marks={"reached_us": getattr(self._assigner, "reached_us", NEVER_US)})

    def load(self, saved: Sequence[bytes]) -> None:
        opened = [unpack_state(each, version=self._kernel.state_version) for each in saved]

        def parts(name: str) -> list[bytes]:
            return [tables[name] for tables, _ in opened if name in tables]

        self._keys.load(parts("keys"))
        for name, table in self._assigner.tables.items():
            table.load(parts(name))
        self._windows.load(parts("windows"))
        if opened and hasattr(self._assigner, "reached_us"):
            self._assigner.reached_us = opened[-1][1]["reached_us"]
        self._assigner.loaded()


def combine(kernel: WindowKernel, rows: pa.Table) -> pa.Table:
    """See `WindowKernel.combine`."""
    assert kernel.combinable, "only event-time grids are combined before the step"
    functions = _functions(kernel)
    root = build(kernel.trigger)
    timed = rows.filter(_not(rows.column(TIME).is_null())) if rows.column(TIME).null_count else rows
    known = Rows(timed, signed=kernel.signed)
    keyed = assign.keyed(known, kernel.keys)
    grid = _grid(kernel.window)
    assert grid is not None
    groups = assign.group(known, keyed.code, grid.slice_of(assign.times(known)[0]), functions, root, 0)
    types = [arrow_type(kernel.schema.type_of(name)) for name in kernel.keys]
    partials = assign.to_table(groups, keyed, kernel.keys, types, functions)
    untimed = rows.num_rows - timed.num_rows
    if untimed:
        lost = {name: pa.nulls(1, partials.schema.field(name).type) for name in partials.column_names}
        lost[assign.COUNT] = pa.array([untimed], pa.int64())
        partials = pa.concat_tables([partials, pa.table(lost)])
    return partials


def _functions(kernel: WindowKernel) -> list[Function]:
    functions = [function_of(aggregate, kernel.schema, signed=kernel.signed) for aggregate in kernel.aggregates]
    if isinstance(kernel.window, spec.Count | spec.Delta | spec.Punctuation | spec.Last):
        functions += [Extreme(TIME, whole=True, greatest=greatest, type="BIGINT") for greatest in (False, True)]
    return functions


def _plain(window: spec.Window) -> spec.Window:
    """A mixed policy of one measure is a plain window."""
    match window:
        case spec.Last(range_us=int(range_us), every_us=int(every_us), time=time):
            return spec.Sliding(range_us, every_us, 0, time)
        case spec.Last(range_count=int(size), every_count=int(every)):
            return spec.Count(size, every)
        case _:
            return window


def _untimed(window: spec.Window) -> bool:
    """Whether records need no event time to find their window."""
    return isinstance(window, spec.Global | spec.Count | spec.Delta | spec.Punctuation) or _in_processing_time(window)


def _in_processing_time(window: spec.Window) -> bool:
    return getattr(window, "time", "event") == "processing"


def _key_columns(window: spec.Window) -> list[Column]:
    match window:
        case spec.Last():
            return list(KEY_COLUMNS)
        case spec.Count() | spec.Punctuation():
            return [Column("position", "i8"), Column("before", "i8")]
        case spec.Delta():
            return [Column("position", "i8"), Column("before", "i8"), Column("anchor", "f8"), Column("anchored", "?", False)]
        case _:
            return []


def _grid(window: spec.Window) -> Grid | None:
    match window:
        case spec.Tumbling(size_us, offset_us, _):
            return Grid(size_us, size_us, offset_us)
        case spec.Sliding(size_us, every_us, offset_us, _):
            return Grid(size_us, every_us, offset_us)
        case _:
            return None


def _assigner(kernel: WindowKernel, windows: Windows, keys: Keys) -> tuple[Clockwork, Assigner]:
    window, names = kernel.window, kernel.keys
    quiet = isinstance(kernel.trigger, triggers.AfterWatermark) and kernel.trigger.early is None
    lateness_us = None if kernel.allowed_lateness_us is None or kernel.allowed_lateness_us >= FOREVER_US else kernel.allowed_lateness_us
    timeline: Timeline = ProcessingTimeline() if _in_processing_time(window) else EventTimeline(lateness_us)
    match window:
        case spec.Tumbling() | spec.Sliding():
            grid = _grid(window)
            assert grid is not None
            kind = Sliced if quiet and not grid.tumbling else Aligned
            return timeline, kind(windows, keys, names, timeline, grid)
        case spec.Global():
            return timeline, Aligned(windows, keys, names, timeline, None)
        case spec.Session(gap_us, gap):
            return timeline, Sessions(windows, keys, names, timeline, gap_us, gap)
        case spec.Custom(function):
            return timeline, Custom(windows, keys, names, timeline, function)
        case spec.Count(size, every):
            grid = Grid(size, every, every - size)  # windows end at multiples of `every`
            timeline = CountTimeline(keys, grid)
            if size == every or not quiet:
                return timeline, Sequenced(windows, keys, names, timeline, grid)
            return timeline, SlicedSequence(windows, keys, names, timeline, grid)
        case spec.Delta(column, threshold):
            timeline = DeltaTimeline(keys, column, threshold)
            return timeline, Sequenced(windows, keys, names, timeline, Grid(1, 1))
        case spec.Punctuation(condition):
            timeline = PunctuationTimeline(keys, condition)
            return timeline, Sequenced(windows, keys, names, timeline, Grid(1, 1))
        case spec.Last():
            records = LastRecords(windows, keys, names, window)
            return records, records
        case _:
            raise NotImplementedError(f"no assigner for {window!r}")


def _not(mask: Any) -> Any:
    return pc.invert(mask)
