"""Where in event time: the windows, as frozen data.

Durations are microseconds; windows are half open. Assignment and merging are the kernels' work (`kernels/`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from penstock.clock import micros
from penstock.errors import ConfigError

Duration = str | int | float | timedelta
Measure = Literal["event", "processing"]


class Window:
    """A way to put records into windows."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Tumbling(Window):
    size_us: int
    offset_us: int = 0
    time: Measure = "event"


@dataclass(frozen=True, slots=True)
class Sliding(Window):
    size_us: int
    every_us: int
    offset_us: int = 0
    time: Measure = "event"


@dataclass(frozen=True, slots=True)
class Session(Window):
    """Records of a key that are less than the gap apart. The gap may be an expression over the record."""

    gap_us: int | None
    gap: str | None = None  # a Spark SQL expression giving seconds, for a gap per record


@dataclass(frozen=True, slots=True)
class Global(Window):
    """One window for all time."""


@dataclass(frozen=True, slots=True)
class Count(Window):
    """Every `every` records of a key, the last `size` of them. Exact: does not depend on batches."""

    size: int
    every: int


@dataclass(frozen=True, slots=True)
class Delta(Window):
    """A new window begins when `column` is `threshold` or more away from its value at the window's first record."""

    column: str
    threshold: float


@dataclass(frozen=True, slots=True)
class Punctuation(Window):
    """A record for which the condition holds ends its window and belongs to it."""

    condition: str


@dataclass(frozen=True, slots=True)
class Last(Window):
    """Mixed policy: at each step of `every`, the records within `range`. One of each pair is set."""

    range_count: int | None = None
    range_us: int | None = None
    range_delta: tuple[str, float] | None = None
    every_count: int | None = None
    every_us: int | None = None
    every_delta: tuple[str, float] | None = None
    time: Measure = "event"


@dataclass(frozen=True, slots=True)
class Custom(Window):
    """A user's function from event times to windows: `assign(times_us) -> [(row, start_us, end_us), …]` as three arrays."""

    assign: Callable[..., object]


def _positive(duration: Duration, what: str) -> int:
    value_us = micros(duration)
    if value_us <= 0:
        raise ConfigError(f"{what} is {duration}", remedy="give a duration above zero")
    return value_us


def tumbling(size: Duration, *, offset: Duration = 0, time: Measure = "event") -> Tumbling:
    return Tumbling(_positive(size, "window size"), micros(offset), time)


def sliding(size: Duration, *, every: Duration, offset: Duration = 0, time: Measure = "event") -> Sliding:
    return Sliding(_positive(size, "window size"), _positive(every, "window slide"), micros(offset), time)


def session(gap: Duration | None = None, *, gap_expression: str | None = None) -> Session:
    if (gap is None) == (gap_expression is None):
        raise ConfigError("a session needs a gap", remedy='write session("30s") or session(gap_expression="gap_seconds")')
    return Session(None if gap is None else _positive(gap, "session gap"), gap_expression)


def global_window() -> Global:
    return Global()


def count(size: int, *, every: int | None = None) -> Count:
    every = size if every is None else every
    if size < 1 or every < 1:
        raise ConfigError(f"count window of {size} every {every}", remedy="both must be 1 or more")
    return Count(size, every)


def delta(column: str, threshold: float) -> Delta:
    if threshold <= 0:
        raise ConfigError(f"delta threshold is {threshold}", remedy="give a threshold above zero")
    return Delta(column, float(threshold))


def punctuation(condition: str) -> Punctuation:
    return Punctuation(condition)
