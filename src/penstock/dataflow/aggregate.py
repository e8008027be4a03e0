"""What is computed: an aggregate function over a column, as frozen data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Aggregate:
    """`output = function(column, *options)`. `column` is a column of the step's input (expressions are projected
    into columns before the step); None for count(*). `user` is set for user-defined functions."""

    output: str
    function: str
    column: str | None
    type: str  # the Spark type of the result
    options: tuple[float | int | str, ...] = ()
    user: type[UserAggregate] | None = None


class UserAggregate(Protocol):
    """A user's aggregate. The accumulator is a tuple with the columns of `state`; it is stored, so it must be plain data.

    `combine` is associative and `zero` its neutral element."""

    state: str  # e.g. "n BIGINT, total DOUBLE"
    output: str  # the result's type, e.g. "DOUBLE"

    @staticmethod
    def zero() -> tuple[Any, ...]: ...
    @staticmethod
    def lift(value: Any) -> tuple[Any, ...]: ...
    @staticmethod
    def combine(a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]: ...
    @staticmethod
    def lower(state: tuple[Any, ...]) -> Any: ...
