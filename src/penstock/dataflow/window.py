"""Where in event time: the windows, as frozen data.

Durations are microseconds; windows are half open. Assignment and merging are the kernels' work (`kernels/`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from penstock.clock import micros, spoken
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
    """A duration above zero, or an error that names it."""
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


def last(
    *, records: int | None = None, time: Duration | None = None, delta: tuple[str, float] | None = None,
    every_records: int | None = None, every: Duration | None = None, every_delta: tuple[str, float] | None = None, measure: Measure = "event",
) -> Last:  # fmt: skip
    """Mixed policy: what is in range and when it is shown are chosen apart: `last(records=100, every="10s")`."""
    if (
        sum(given is not None for given in (records, time, delta)) != 1
        or sum(given is not None for given in (every_records, every, every_delta)) != 1
    ):
        raise ConfigError("last() needs one range and one step", remedy='write for example last(records=100, every="10s")')
    for given, name in ((records, "records"), (every_records, "every_records")):
        if given is not None and given < 1:
            raise ConfigError(f"last({name}={given})", remedy="give 1 or more")
    return Last(
        records, None if time is None else _positive(time, "range"), delta,
        every_records, None if every is None else _positive(every, "step"), every_delta, measure,
    )  # fmt: skip


def custom(assign: Callable[..., object]) -> Custom:
    """Windows of your own: `assign(times_us) -> (rows, starts_us, ends_us)`, three arrays, one entry per record and window."""
    return Custom(assign)


def ends(window: Window) -> bool:
    """Whether the watermark, or the window itself, can complete it: all but the global window."""
    return not isinstance(window, Global)


def by_event_time(window: Window) -> bool:
    """Whether it places records by their event time."""
    match window:
        case Tumbling() | Sliding():
            return window.time == "event"
        case Last():
            return window.time == "event" and (window.range_us is not None or window.every_us is not None)
        case Session() | Custom():
            return True
        case _:
            return False


def by_processing_time(window: Window) -> bool:
    return isinstance(window, Tumbling | Sliding | Last) and window.time == "processing"


def span_us(window: Window) -> int | None:
    """How much time a window covers, if that is fixed."""
    match window:
        case Tumbling() | Sliding():
            return window.size_us
        case Last():
            return window.range_us
        case _:
            return None


def columns(window: Window) -> tuple[str, ...]:
    """The expressions over a record that the window needs."""
    match window:
        case Session() if window.gap is not None:
            return (window.gap,)
        case Delta():
            return (window.column,)
        case Punctuation():
            return (window.condition,)
        case Last():
            return tuple(pair[0] for pair in (window.range_delta, window.every_delta) if pair is not None)
        case _:
            return ()


def text(window: Window) -> str:
    """As a person says it.

    >>> text(sliding("60s", every="5s"))
    'sliding 60s every 5s'
    """
    match window:
        case Tumbling():
            return f"tumbling {spoken(window.size_us)}{_placed(window.offset_us, window.time)}"
        case Sliding():
            return f"sliding {spoken(window.size_us)} every {spoken(window.every_us)}{_placed(window.offset_us, window.time)}"
        case Session():
            return f"session {window.gap if window.gap_us is None else spoken(window.gap_us)}"
        case Global():
            return "global"
        case Count():
            return f"count {window.size}" + ("" if window.every == window.size else f" every {window.every}")
        case Delta():
            return f"delta {window.column} {window.threshold:g}"
        case Punctuation():
            return f"punctuation {window.condition}"
        case Last():
            return f"last {_policy(window.range_count, window.range_us, window.range_delta)} every {_policy(window.every_count, window.every_us, window.every_delta)}"
        case Custom():
            return f"custom {getattr(window.assign, '__qualname__', 'function')}"
        case _:
            raise AssertionError(f"no text for {type(window).__name__}")


def _placed(offset_us: int, time: Measure) -> str:
    return (f" offset {spoken(offset_us)}" if offset_us else "") + (" of processing time" if time == "processing" else "")


def _policy(count: int | None, duration_us: int | None, delta: tuple[str, float] | None) -> str:
    if count is not None:
        return f"{count} records"
    return spoken(duration_us) if duration_us is not None else f"delta {delta[0]} {delta[1]:g}" if delta else "?"
