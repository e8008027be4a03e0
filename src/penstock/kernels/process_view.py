"""What a process function sees: events, the state of a key, timers, and the place where rows go.

The classes are made from the declared schemas, once per instance, so that access costs what a slot or a tuple item costs and a wrong name is
an error. Nothing here runs a function or keeps a key: that is `process.py`."""

from __future__ import annotations

import keyword
from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from penstock.clock import micros
from penstock.dataflow.process import Process
from penstock.dataflow.window import Duration
from penstock.errors import PlanError
from penstock.kernels.kernel import FOREVER_US, NEVER_US, TIME
from penstock.schema import Schema, arrow_type

META = ("key", "input", "stream", "time_us", "now_us", "watermark_us")  # the first fields of every event
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Owner(Protocol):
    """The instance behind the views: keeps keys and timers."""

    spec: Process
    states: dict[Any, Any]

    def state_of(self, key: Any) -> Any: ...
    def set_timer(self, state: Any, name: str, *, processing: bool, time_us: int) -> None: ...
    def cancel_timer(self, state: Any, name: str) -> None: ...


def to_datetime(time_us: int | None) -> datetime | None:
    return None if time_us is None else _EPOCH + timedelta(microseconds=time_us)


def to_micros(at: datetime | int) -> int:
    if isinstance(at, datetime):
        return ((at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH) // _MICROSECOND
    return at


class Timer(NamedTuple):
    """A timer that is due, as `on_timer` gets it."""

    key: tuple[Any, ...]
    kind: str
    name: str
    time_us: int

    @property
    def time(self) -> datetime | None:
        return to_datetime(self.time_us)


def event_class(schema: Schema) -> Any:
    """A tuple with named fields: the fastest object with attributes that Python can make in bulk.

    Ours come first; a user's column of the same name is reached as an item. A TIMESTAMP stays a number until it is looked at."""
    fields = " ".join(f"f{place}" for place in range(len(META) + len(schema.fields)))
    plain: Any = namedtuple("Event", fields)  # type: ignore[misc]
    members: dict[str, Any] = {"__slots__": ()}
    by_name: dict[str, Callable[[Any], Any]] = {}
    for place, field in enumerate(schema, start=len(META)):
        getter = getattr(plain, f"f{place}")
        if field.type == "TIMESTAMP":
            getter = property(_time_getter(place))
        members[field.name] = getter
        by_name[field.name] = getter.__get__
    for place, name in enumerate(META):
        members[name] = getattr(plain, f"f{place}")
    members["time"] = property(lambda self: to_datetime(self.time_us))

    def item(self: Any, name: Any) -> Any:
        try:
            return by_name[name](self)
        except KeyError:
            raise KeyError(f"no column '{name}'; there are {', '.join(by_name)}") from None

    members["__getitem__"] = item
    members["__repr__"] = lambda self: f"Event({', '.join(f'{name}={self[name]!r}' for name in by_name)}, time_us={self.time_us})"
    return type("Event", (plain,), members)


def _time_getter(place: int) -> Callable[[Any], datetime | None]:
    return lambda event: to_datetime(tuple.__getitem__(event, place))


def state_class(schema: Schema) -> Any:
    """The state of one key: slots only, so that a wrong name is an error and access costs what an attribute costs."""
    names = schema.names
    empties: list[tuple[str, Callable[[], Any]]] = []
    for field in schema:
        empties.append((field.name, list if field.type.startswith("ARRAY") else dict if field.type.startswith("MAP") else _nothing))

    def clear(self: Any) -> None:
        for name, empty in empties:
            setattr(self, name, empty())

    def is_empty(self: Any) -> bool:
        return all(getattr(self, name) in (None, [], {}) for name in names)

    def init(self: Any, key: tuple[Any, ...]) -> None:
        self._key, self._timers, self._due_us = key, None, FOREVER_US
        clear(self)

    members = {"__slots__": (*names, "_key", "_timers", "_due_us"), "__init__": init, "clear": clear, "_is_empty": is_empty}
    members["__repr__"] = lambda self: f"State({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"
    return type("State", (), members)


def _nothing() -> None:
    return None


class Rows:
    """The columns of one output, filled by `emit`."""

    def __init__(self, schema: Schema, out: Out, label: str) -> None:
        self.schema, self.label = schema, label
        self.columns: list[list[Any]] = [[] for _ in schema.fields]
        self.times: list[int | None] = []
        self.tables: list[pa.Table] = []
        self.emit = self._compiled(out) if all(map(_is_plain, schema.names)) else self._by_name(out)

    def _compiled(self, out: Out) -> Callable[..., None]:
        # A function with the columns as parameters: five times as fast as unpacking a dict per row, and wrong names are told by Python.
        names = self.schema.names
        world: dict[str, Any] = {f"_a{place}": column.append for place, column in enumerate(self.columns)}
        world.update(_t=self.times.append, _o=out)
        body = "; ".join([*(f"_a{place}({name})" for place, name in enumerate(names)), "_t(_o.at_us)"])
        parameters = ", ".join(f"{name}=None" for name in names)
        exec(f"def emit({parameters}): {body}", world)
        emit: Callable[..., None] = world["emit"]
        return emit

    def _by_name(self, out: Out) -> Callable[..., None]:
        def emit(**columns: Any) -> None:
            for name in columns:
                if name not in self.schema:
                    raise TypeError(f"emit() got an unexpected keyword argument '{name}'")
            for name, column in zip(self.schema.names, self.columns):
                column.append(columns.get(name))
            self.times.append(out.at_us)

        return emit

    def take(self, step: str) -> pa.Table | None:
        """The rows since the last call, with their event time."""
        tables, self.tables = self.tables, []
        if self.times:
            arrays = [
                to_array(column, field.type, step, f"column '{field.name}' of {self.label}")
                for column, field in zip(self.columns, self.schema)
            ]
            arrays.append(pa.array(self.times, pa.int64()))
            tables.append(pa.table(arrays, schema=timed(self.schema)))
            for column in (*self.columns, self.times):
                column.clear()  # type: ignore[attr-defined]
        return pa.concat_tables(tables) if tables else None


def timed(schema: Schema) -> pa.Schema:
    return schema.to_arrow().append(pa.field(TIME, pa.int64()))


def _is_plain(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name) and not name.startswith("_")


def to_array(values: Sequence[Any], type_name: str, step: str, where: str) -> pa.Array:
    """Values of a user's, as Arrow. Times may be datetimes or microseconds."""
    wanted = arrow_type(type_name)
    try:
        return pa.array(values, wanted)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        first = error
    try:
        if type_name == "TIMESTAMP":
            return pa.array([None if each is None else to_micros(each) for each in values], pa.int64()).cast(wanted)
        return pa.array(values).cast(wanted)  # an integral float for a whole number, and the like
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        raise PlanError(
            step, f"{where} is {type_name}, and got a value that does not fit: {first}", remedy="give values of that type"
        ) from None


class Out:
    """Where the function puts rows and timers."""

    __slots__ = ("_instance", "at_us", "emit", "input", "now_us", "rows", "sides", "state", "stream", "watermark_us")

    def __init__(self, instance: Owner, spec: Process) -> None:
        self._instance = instance
        self.at_us: int | None = None
        self.state: Any = None
        self.input, self.stream, self.now_us, self.watermark_us = 0, "", 0, NEVER_US
        self.rows = Rows(spec.output, self, "the output")
        self.sides = {name: Rows(schema, self, f"output '{name}'") for name, schema in spec.outputs}
        self.emit = self.rows.emit

    def emit_to(self, output: str, /, *args: Any, **columns: Any) -> None:
        self._side(output).emit(*args, **columns)

    def emit_table(self, table: pa.Table, *, output: str | None = None) -> None:
        """Many rows at once; `_time` is their event time, if the table has it."""
        rows = self.rows if output is None else self._side(output)
        missing = [name for name in rows.schema.names if name not in table.column_names]
        if missing:
            raise PlanError(self._instance.spec.name, f"emit_table got no column {', '.join(missing)}", remedy=f"give {rows.schema}")
        if TIME not in table.column_names:
            table = table.append_column(TIME, pa.nulls(table.num_rows, pa.int64()))
        rows.tables.append(table.select([*rows.schema.names, TIME]).cast(timed(rows.schema)))

    def _side(self, output: str) -> Rows:
        rows = self.sides.get(output)
        if rows is None:
            names = ", ".join(self.sides) or "none"
            raise PlanError(self._instance.spec.name, f"there is no output '{output}' (declared: {names})", remedy="declare it in outputs=")
        return rows

    def timer(self, at: datetime | int, *, name: str = "", key: Any = None) -> None:
        """Fires when the watermark reaches `at`. A timer of the same name is replaced."""
        self._instance.set_timer(self._owner(key), name, processing=False, time_us=to_micros(at))

    def timer_after(self, delay: Duration, *, name: str = "", key: Any = None) -> None:
        """Fires when processing time has come to now + delay."""
        self._instance.set_timer(self._owner(key), name, processing=True, time_us=self.now_us + micros(delay))

    def cancel(self, name: str = "", *, key: Any = None) -> None:
        self._instance.cancel_timer(self._owner(key), name)

    def _owner(self, key: Any) -> Any:
        if self._instance.spec.on_timer is None:
            raise PlanError(
                self._instance.spec.name, "a timer is set, but nothing handles it", remedy="write @ps.process(…, on_timer=function)"
            )
        if key is not None:
            return self._instance.state_of(key)
        if self.state is None:
            raise PlanError(self._instance.spec.name, "a timer needs a key in a function per batch", remedy="write out.timer(at, key=…)")
        return self.state


class KeyedStates:
    """The state of all keys of the group, for functions per batch: `state["a"]`, or `state["a", 1]` for two key columns. Made at first use."""

    __slots__ = ("_instance",)

    def __init__(self, instance: Owner) -> None:
        self._instance = instance

    def __getitem__(self, key: Any) -> Any:
        return self._instance.state_of(key)

    def __contains__(self, key: Any) -> bool:
        return key in self._instance.states

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._instance.states))
