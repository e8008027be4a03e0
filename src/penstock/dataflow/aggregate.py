"""What is computed: aggregate functions over columns, as frozen data, and the table of those that are built in.

Evaluation (lift, combine, lower) is in `kernels/`. An aggregate is *additive* if a record can be taken out again by its sign; only those
work on a stream that carries retractions, and only those add up when panes of a window are added."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from penstock.dataflow import expression
from penstock.errors import PlanError
from penstock.schema import Schema

Option = float | int | str


@dataclass(frozen=True, slots=True)
class Aggregate:
    """`output = function(column, *options)`. `column` is a column of the step's input (expressions are projected
    into columns before the step); None for count(*). `user` is set for user-defined functions."""

    output: str
    function: str
    column: str | None
    type: str  # the Spark type of the result
    options: tuple[Option, ...] = ()
    user: UserClass | None = None


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


UserClass = type[UserAggregate]


@dataclass(frozen=True, slots=True)
class Using:
    """A user's aggregate on an expression, before the plan knows its column."""

    aggregate: type[UserAggregate]
    expression: str


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """A row of the table. `gives`: a type, or "same", "sum" (BIGINT for whole numbers, else DOUBLE), "array" of the argument."""

    name: str
    function: str  # the kernel's name for it
    takes: str  # "any", "number", "ordered" (anything but arrays and maps), "none or any"
    gives: str
    options: tuple[str, ...] = ()  # names of further, literal arguments
    additive: bool = False
    ordered: bool = False  # depends on the order of records


BUILT_IN: tuple[BuiltIn, ...] = (
    BuiltIn("count", "count", "none or any", "BIGINT", additive=True),
    BuiltIn("sum", "sum", "number", "sum", additive=True),
    BuiltIn("avg", "avg", "number", "DOUBLE", additive=True),
    BuiltIn("mean", "avg", "number", "DOUBLE", additive=True),
    BuiltIn("stddev", "stddev", "number", "DOUBLE", additive=True),
    BuiltIn("stddev_samp", "stddev", "number", "DOUBLE", additive=True),
    BuiltIn("variance", "variance", "number", "DOUBLE", additive=True),
    BuiltIn("var_samp", "variance", "number", "DOUBLE", additive=True),
    BuiltIn("min", "min", "ordered", "same"),
    BuiltIn("max", "max", "ordered", "same"),
    BuiltIn("first", "first", "any", "same", ordered=True),
    BuiltIn("last", "last", "any", "same", ordered=True),
    BuiltIn("collect", "collect", "any", "array", ordered=True),
    BuiltIn("collect_list", "collect", "any", "array", ordered=True),
    BuiltIn("top_k", "top_k", "ordered", "array", options=("k",)),
    BuiltIn("median", "median", "number", "DOUBLE"),
    BuiltIn("quantile", "quantile", "number", "DOUBLE", options=("q",)),
    BuiltIn("percentile", "quantile", "number", "DOUBLE", options=("q",)),
    BuiltIn("approx_percentile", "quantile", "number", "DOUBLE", options=("q",)),
    BuiltIn("count_distinct", "count_distinct", "any", "BIGINT"),
    BuiltIn("approx_count_distinct", "approx_count_distinct", "any", "BIGINT"),
)
_BY_NAME = {row.name: row for row in BUILT_IN}
ADDITIVE = frozenset(row.function for row in BUILT_IN if row.additive)
_NUMBERS = ("INT", "BIGINT", "FLOAT", "DOUBLE")


def using(aggregate: type[UserAggregate], expression: str) -> Using:
    """A user-defined aggregate: `.aggregate(spread=ps.using(Spread, "celsius"))`."""
    missing = [name for name in ("state", "output", "zero", "lift", "combine", "lower") if not hasattr(aggregate, name)]
    if missing:
        raise PlanError("aggregate", f"{getattr(aggregate, '__name__', aggregate)} has no {', '.join(missing)}", remedy="see UserAggregate")
    return Using(aggregate, expression)


def parsed(output: str, given: str | Using, schema: Schema, *, step: str) -> tuple[Aggregate, expression.Checked | None]:
    """The aggregate, and the checked argument (None for count(*)). The aggregate's column is the argument's text until it is projected."""
    if isinstance(given, Using):
        argument = expression.value(given.expression, schema, step=step)
        type = Schema.of(f"x {given.aggregate.output}").fields[0].type
        return Aggregate(output, "user", given.expression, type, (), given.aggregate), argument
    from sqlglot import exp

    tree = expression.parse(given, step=step)
    if not isinstance(tree, exp.Anonymous):
        raise PlanError(step, f"'{given}' is not an aggregate", remedy=f"call one, for example avg({given})")
    name, arguments = tree.name.lower(), list(tree.expressions)
    if arguments and isinstance(arguments[0], exp.Distinct):
        if name != "count":
            raise PlanError(step, f"DISTINCT in '{given}'", remedy="only count(DISTINCT …) is known")
        name, arguments = "count_distinct", list(arguments[0].expressions)
    row = _BY_NAME.get(name)
    if row is None:
        raise PlanError(
            step, f"no aggregate '{name}' in '{given}'", remedy=f"use one of {', '.join(sorted(_BY_NAME))}, or ps.using for your own"
        )
    if row.takes == "none or any" and (not arguments or isinstance(arguments[0], exp.Star)):
        return Aggregate(output, row.function, None, "BIGINT"), None
    if len(arguments) != 1 + len(row.options):
        wanted = ", ".join(("column", *row.options))
        raise PlanError(step, f"'{given}' has {len(arguments)} argument(s)", remedy=f"write {name}({wanted})")
    text = arguments[0].sql(dialect="spark")
    argument = expression.value(text, schema, step=step)
    assert argument.type is not None
    text = argument.columns[0] if isinstance(arguments[0], exp.Column) else text  # a column by its own name
    options = tuple(_option(node, given, step) for node in arguments[1:])
    _fits(row, argument.type, options, given, step)
    return Aggregate(output, row.function, text, _result(row, argument.type), options), argument


def _option(node: Any, given: str, step: str) -> Option:
    from sqlglot import exp

    if isinstance(node, exp.Literal):
        return str(node.this) if node.is_string else (int(node.this) if node.this.isdigit() else float(node.this))
    raise PlanError(step, f"'{node.sql(dialect='spark')}' in '{given}' is not a literal", remedy="write a number")


def _fits(row: BuiltIn, type: str, options: tuple[Option, ...], given: str, step: str) -> None:
    if row.takes == "number" and type not in _NUMBERS:
        raise PlanError(step, f"{row.name} needs a number, but '{given}' is over {type}", remedy="convert it with CAST(… AS DOUBLE)")
    if row.takes == "ordered" and type.startswith(("ARRAY", "MAP")):
        raise PlanError(step, f"{row.name} needs values with an order, but '{given}' is over {type}", remedy="choose another column")
    if row.options == ("k",) and not (isinstance(options[0], int) and options[0] > 0):
        raise PlanError(step, f"'{given}' keeps {options[0]} values", remedy="give a whole number above zero")
    if row.options == ("q",) and not (isinstance(options[0], int | float) and 0 <= options[0] <= 1):
        raise PlanError(step, f"'{given}' asks for the quantile {options[0]}", remedy="give a number from 0 to 1")


def _result(row: BuiltIn, type: str) -> str:
    match row.gives:
        case "same":
            return type
        case "sum":
            return "BIGINT" if type in ("INT", "BIGINT") else "DOUBLE"
        case "array":
            return f"ARRAY<{type}>"
        case given:
            return given
