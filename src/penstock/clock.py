"""Time as a value that is passed in, and durations as people write them.

Times are integer microseconds since 1970 (UTC); durations are integer microseconds. Nothing else in Penstock
asks the operating system for the time of day."""

from __future__ import annotations

import re
import time
from datetime import timedelta
from typing import Protocol

from penstock.errors import ConfigError

MICROS = 1_000_000
_UNITS_US = {"us": 1, "ms": 1_000, "s": MICROS, "m": 60 * MICROS, "h": 3_600 * MICROS, "d": 86_400 * MICROS}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(us|ms|s|m|h|d)")


class Clock(Protocol):
    def now_us(self) -> int: ...


class SystemClock:
    """The machine's clock."""

    def now_us(self) -> int:
        return time.time_ns() // 1_000


class ManualClock:
    """A clock that a test moves by hand."""

    def __init__(self, now_us: int = 0) -> None:
        self._now_us = now_us

    def now_us(self) -> int:
        return self._now_us

    def move_to(self, now_us: int) -> None:
        assert now_us >= self._now_us, "a clock does not go back"
        self._now_us = now_us


def micros(duration: str | int | float | timedelta) -> int:
    """A duration in microseconds. Text has units ("90s", "1m30s", "250ms"); a number is seconds.

    >>> micros("1m30s"), micros(2), micros("250ms")
    (90000000, 2000000, 250000)
    """
    if isinstance(duration, timedelta):
        return round(duration / timedelta(microseconds=1))
    if isinstance(duration, int | float):
        return round(duration * MICROS)
    parts = _DURATION.findall(duration)
    if not parts or _DURATION.sub("", duration).strip():
        raise ConfigError(f"'{duration}' is not a duration", remedy='write for example "500ms", "10s", "1m30s" or "2h"')
    return sum(round(float(amount) * _UNITS_US[unit]) for amount, unit in parts)


def spoken(duration_us: int) -> str:
    """The shortest text that `micros` reads back.

    >>> spoken(90_000_000), spoken(1_500)
    ('90s', '1500us')
    """
    for unit in ("d", "h", "m", "s", "ms"):
        if duration_us and duration_us % _UNITS_US[unit] == 0 and (unit == "s" or duration_us // _UNITS_US[unit] < 90):
            return f"{duration_us // _UNITS_US[unit]}{unit}"
    return f"{duration_us}us"
