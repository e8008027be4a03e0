"""When in processing time: the trigger algebra, as frozen data.

The meaning of each trigger is written in docs/concepts/triggers.md and held by tests/transcripts; evaluation is in `kernels/`."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.clock import micros
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
    return AfterDelta(column, float(threshold))


def after_punctuation(condition: str) -> AfterPunctuation:
    return AfterPunctuation(condition)


def repeatedly(trigger: Trigger) -> Repeatedly:
    return Repeatedly(trigger)


def after_any(*parts: Trigger) -> AfterAny:
    return AfterAny(parts)


def after_all(*parts: Trigger) -> AfterAll:
    return AfterAll(parts)


def after_each(*parts: Trigger) -> AfterEach:
    return AfterEach(parts)


def or_finally(trigger: Trigger, until: Trigger) -> OrFinally:
    return OrFinally(trigger, until)
