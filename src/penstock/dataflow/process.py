"""Record-at-a-time user code, as frozen data: a function, the state it keeps per key, and what it emits.

The views that the function gets (`Event`, `State`, `Out`) are protocols here, for type checkers; `kernels/process.py` has them at work."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol

from penstock.dataflow.window import Duration
from penstock.errors import PlanError
from penstock.schema import Schema

Order = Literal["event_time", "arrival"]
Per = Literal["record", "batch"]


class Event(Protocol):
    """One record. Its columns are attributes and items; a TIMESTAMP is a datetime in UTC."""

    key: tuple[Any, ...]
    input: int  # 0, or 1 for the second of two connected streams
    stream: str  # the name of that input
    time: datetime | None
    time_us: int | None
    now_us: int  # processing time of the batch
    watermark_us: int  # at the start of the batch

    def __getattr__(self, name: str) -> Any: ...
    def __getitem__(self, name: str) -> Any: ...


class Timer(Protocol):
    """A timer that is due."""

    key: tuple[Any, ...]
    kind: str  # "event" or "processing"
    name: str
    time: datetime
    time_us: int


class State(Protocol):
    """The state of one key: attributes with the names of the state's columns; None, [] or {} at first."""

    def __getattr__(self, name: str) -> Any: ...
    def __setattr__(self, name: str, value: Any) -> None: ...
    def clear(self) -> None: ...


class Out(Protocol):
    """Where a process function puts rows and timers."""

    def emit(self, **columns: Any) -> None: ...
    def emit_to(self, output: str, /, **columns: Any) -> None: ...
    def timer(self, at: datetime | int, *, name: str = "") -> None: ...
    def timer_after(self, delay: Duration, *, name: str = "") -> None: ...
    def cancel(self, name: str = "") -> None: ...


@dataclass(frozen=True, slots=True)
class Process:
    """A process function and what it declares. `version` rises when the meaning of the state changes."""

    function: Callable[..., None]
    state: Schema
    output: Schema
    outputs: tuple[tuple[str, Schema], ...] = ()
    on_timer: Callable[..., None] | None = None
    order: Order = "event_time"
    per: Per = "record"
    retractions: bool = False  # the function reads `event.sign` itself
    version: int = 1
    name: str = "process"

    def __call__(self, *args: Any) -> None:
        """The user's function itself, so that it can be tried without a pipeline."""
        self.function(*args)


def process(
    *, state: str | Schema = "", output: str | Schema, outputs: Mapping[str, str | Schema] | None = None, on_timer: Callable[..., None] | None = None,
    order: Order = "event_time", per: Per = "record", retractions: bool = False, version: int = 1,
) -> Callable[[Callable[..., None]], Process]:  # fmt: skip
    """Declares a process function: `fn(event, state, out)` per record, or `fn(rows, state, out)` per Arrow batch of a key group.

    >>> @process(state="n BIGINT", output="area STRING, n BIGINT")
    ... def counted(event, state, out):
    ...     state.n = (state.n or 0) + 1
    ...     out.emit(area=event.area, n=state.n)
    >>> counted.name
    'counted'
    """
    if order not in ("event_time", "arrival"):
        raise PlanError("process", f"order is '{order}'", remedy="use 'event_time' or 'arrival'")
    if per not in ("record", "batch"):
        raise PlanError("process", f"per is '{per}'", remedy="use 'record' or 'batch'")
    sides = tuple((name, Schema.of(schema)) for name, schema in (outputs or {}).items())
    for name, _ in sides:
        if name in ("rows", "late", "dead_letters"):
            raise PlanError("process", f"an output is named '{name}'", remedy="choose another name: that one is taken")

    def declare(function: Callable[..., None]) -> Process:
        name = getattr(function, "__name__", "process")
        for role, given in (("process function", function), ("on_timer", on_timer)):
            if given is not None and not _takes_three(given):
                raise PlanError(name, f"the {role} does not take three arguments", remedy="write def f(event, state, out)")
        return Process(function, Schema.of(state), Schema.of(output), sides, on_timer, order, per, retractions, version, name)

    return declare


def _takes_three(function: Callable[..., None]) -> bool:
    try:
        inspect.signature(function).bind(None, None, None)
    except TypeError:
        return False
    return True
