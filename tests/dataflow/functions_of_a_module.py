"""Functions that a saved plan names by import path."""

from __future__ import annotations

from typing import Any

import numpy as np

import penstock as ps


def doubled(row: dict[str, Any]) -> dict[str, Any]:
    return {"area": row["area"], "celsius": row["celsius"] * 2}


def halves(times: Any) -> Any:
    """Each record its own window of half a second."""
    return np.arange(len(times)), times, times + 500_000


@ps.process(state="n BIGINT", output="area STRING, n BIGINT", outputs={"rare": "area STRING"})
def counted(event: ps.Event, state: ps.State, out: ps.Out) -> None:
    state.n = (state.n or 0) + 1
    out.emit(area=event.area, n=state.n)


class Spread:
    state = "low DOUBLE, high DOUBLE"
    output = "DOUBLE"

    @staticmethod
    def zero() -> tuple[Any, ...]:
        return (float("inf"), float("-inf"))

    @staticmethod
    def lift(value: Any) -> tuple[Any, ...]:
        return (value, value)

    @staticmethod
    def combine(a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
        return (min(a[0], b[0]), max(a[1], b[1]))

    @staticmethod
    def lower(state: tuple[Any, ...]) -> Any:
        return state[1] - state[0]
