"""When in processing time: the trigger algebra, as frozen data.

The meaning of each trigger is written in docs/concepts/triggers.md and held by tests/transcripts; evaluation is in `kernels/`."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.clock import micros, spoken
from penstock.dataflow.window import Duration
from penstock.errors import ConfigError


class Trigger:
    """Decides, per key and window, at the end of each batch, whether a pane is due."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class AfterWatermark(Trigger):
    early: Trigger | None = None
    late: Trigger | None = None


@dataclass(frozen=True, slots=True)
class AfterCount(Trigger):
    count: int


@dataclass(frozen=True, slots=True)
class AfterProcessingTime(Trigger):
    delay_us: int


@dataclass(frozen=True, slots=True)
class AfterDelta(Trigger):
    column: str
    threshold: float


@dataclass(frozen=True, slots=True)
class AfterPunctuation(Trigger):
    condition: str


@dataclass(frozen=True, slots=True)
class Repeatedly(Trigger):
    trigger: Trigger


@dataclass(frozen=True, slots=True)
class AfterAny(Trigger):
    parts: tuple[Trigger, ...]


@dataclass(frozen=True, slots=True)
class AfterAll(Trigger):
    parts: tuple[Trigger, ...]


@dataclass(frozen=True, slots=True)
class AfterEach(Trigger):
    parts: tuple[Trigger, ...]


@dataclass(frozen=True, slots=True)
class OrFinally(Trigger):
    trigger: Trigger
    until: Trigger


DEFAULT = AfterWatermark(late=AfterCount(1))


def after_watermark(*, early: Trigger | None = None, late: Trigger | None = None) -> AfterWatermark:
    return AfterWatermark(early, late)


def after_count(count: int) -> AfterCount:
    if count < 1:
        raise ConfigError(f"after_count({count}) never fires", remedy="count at least one record")
    return AfterCount(count)


def after_processing_time(delay: Duration) -> AfterProcessingTime:
    if micros(delay) < 0:
        raise ConfigError(f"after_processing_time({delay!r}) lies in the past", remedy="give a delay of zero or more")
    return AfterProcessingTime(micros(delay))


def every(interval: Duration) -> Repeatedly:
    if micros(interval) <= 0:
        raise ConfigError(f"every({interval!r}) never ends", remedy="give an interval above zero")
    return Repeatedly(AfterProcessingTime(micros(interval)))


def after_delta(column: str, threshold: float) -> AfterDelta:
    if threshold <= 0:
        raise ConfigError(f"after_delta threshold is {threshold}", remedy="give a threshold above zero")
    return AfterDelta(column, float(threshold))


def after_punctuation(condition: str) -> AfterPunctuation:
    return AfterPunctuation(condition)


def repeatedly(trigger: Trigger) -> Repeatedly:
    return Repeatedly(trigger)


def after_any(*parts: Trigger) -> AfterAny:
    return AfterAny(_some(parts, "after_any"))


def after_all(*parts: Trigger) -> AfterAll:
    return AfterAll(_some(parts, "after_all"))


def after_each(*parts: Trigger) -> AfterEach:
    return AfterEach(_some(parts, "after_each"))


def or_finally(trigger: Trigger, until: Trigger) -> OrFinally:
    return OrFinally(trigger, until)


def _some(parts: tuple[Trigger, ...], name: str) -> tuple[Trigger, ...]:
    if not parts:
        raise ConfigError(f"{name}() has no parts and never fires", remedy="give it at least one trigger")
    return parts


def parts(trigger: Trigger) -> tuple[Trigger, ...]:
    """The triggers that it is made of."""
    match trigger:
        case AfterWatermark():
            return tuple(part for part in (trigger.early, trigger.late) if part is not None)
        case Repeatedly():
            return (trigger.trigger,)
        case AfterAny() | AfterAll() | AfterEach():
            return trigger.parts
        case OrFinally():
            return (trigger.trigger, trigger.until)
        case _:
            return ()


def finishes(trigger: Trigger) -> bool:
    """Whether one of its panes can be the last, so that records that come afterwards make none."""
    match trigger:
        case AfterWatermark():
            return trigger.late is None
        case Repeatedly():
            return False
        case AfterEach():
            return all(finishes(part) for part in trigger.parts)
        case _:
            return True


def finishes_early(trigger: Trigger) -> bool:
    """Whether it can finish before the window is complete: then records that are on time make no pane."""
    match trigger:
        case AfterWatermark() | Repeatedly():
            return False
        case AfterAll() | AfterEach():
            return finishes(trigger) and all(finishes_early(part) for part in trigger.parts)
        case AfterAny():
            return any(finishes_early(part) or isinstance(part, Repeatedly) for part in trigger.parts)
        case OrFinally():
            return finishes_early(trigger.trigger) or finishes_early(trigger.until)
        case _:
            return True


def fires(trigger: Trigger, *, window_ends: bool) -> bool:
    """Whether it can ever make a pane."""
    match trigger:
        case AfterWatermark():
            return window_ends or (trigger.early is not None and fires(trigger.early, window_ends=window_ends))
        case Repeatedly():
            return fires(trigger.trigger, window_ends=window_ends)
        case AfterAny():
            return any(fires(part, window_ends=window_ends) for part in trigger.parts)
        case AfterAll():
            return all(fires(part, window_ends=window_ends) for part in trigger.parts)
        case AfterEach():
            return fires(trigger.parts[0], window_ends=window_ends)
        case OrFinally():
            return fires(trigger.trigger, window_ends=window_ends) or fires(trigger.until, window_ends=window_ends)
        case _:
            return True


def unreached(trigger: Trigger, *, window_ends: bool) -> Trigger | None:
    """The first part of an after_each whose turn never comes, because the part before it never finishes."""
    if isinstance(trigger, AfterEach):
        for part, following in zip(trigger.parts, trigger.parts[1:], strict=False):
            if not finishes(part) or not fires(part, window_ends=window_ends):
                return following
    for part in parts(trigger):
        if (found := unreached(part, window_ends=window_ends)) is not None:
            return found
    return None


def refines(trigger: Trigger, *, allowed_lateness_us: int | None) -> bool:
    """Whether a window can have more than one pane."""
    match trigger:
        case AfterWatermark():
            return trigger.early is not None or (trigger.late is not None and allowed_lateness_us != 0)
        case AfterCount() | AfterProcessingTime() | AfterDelta() | AfterPunctuation():
            return False
        case AfterAny() | AfterAll():
            return False  # they finish when they fire
        case _:
            return True


def delays_us(trigger: Trigger) -> tuple[int, ...]:
    """The processing times that it waits for."""
    own = (trigger.delay_us,) if isinstance(trigger, AfterProcessingTime) else ()
    return own + tuple(delay for part in parts(trigger) for delay in delays_us(part))


def columns(trigger: Trigger) -> tuple[tuple[str, str], ...]:
    """The expressions over a record that it needs: (text, "number" or "condition")."""
    match trigger:
        case AfterDelta():
            own: tuple[tuple[str, str], ...] = ((trigger.column, "number"),)
        case AfterPunctuation():
            own = ((trigger.condition, "condition"),)
        case _:
            own = ()
    return own + tuple(pair for part in parts(trigger) for pair in columns(part))


def text(trigger: Trigger) -> str:
    """As its constructor is written.

    >>> text(after_watermark(early=every("1s"), late=after_count(1)))
    'after_watermark(early=every(1s), late=after_count(1))'
    """
    match trigger:
        case AfterWatermark():
            named = (("early", trigger.early), ("late", trigger.late))
            return f"after_watermark({', '.join(f'{name}={text(part)}' for name, part in named if part is not None)})"
        case AfterCount():
            return f"after_count({trigger.count})"
        case AfterProcessingTime():
            return f"after_processing_time({spoken(trigger.delay_us)})"
        case AfterDelta():
            return f"after_delta({trigger.column}, {trigger.threshold:g})"
        case AfterPunctuation():
            return f"after_punctuation({trigger.condition})"
        case Repeatedly(AfterProcessingTime(delay_us)):
            return f"every({spoken(delay_us)})"
        case Repeatedly():
            return f"repeatedly({text(trigger.trigger)})"
        case OrFinally():
            return f"or_finally({text(trigger.trigger)}, {text(trigger.until)})"
        case AfterAny() | AfterAll() | AfterEach():
            name = {AfterAny: "after_any", AfterAll: "after_all", AfterEach: "after_each"}[type(trigger)]
            return f"{name}({', '.join(map(text, trigger.parts))})"
        case _:
            raise AssertionError(f"no text for {type(trigger).__name__}")
