"""Expressions: Spark SQL text, checked against a schema when the plan is built and, in a typed subset, run on Arrow tables.

`check` parses the text, resolves its columns and infers its type. Inside the subset it gives the expression twice: for Spark and for
DuckDB, with equal results value by value (nulls, NaN, division, casts). What cannot be computed (overflow, division by zero, a cast that
does not fit) is NULL in both, whatever the session's ANSI mode, because one record must not stop a stream. A literal with a point is a
DOUBLE. Outside the subset the text goes to Spark as it is, and `outside` says why. Running is `evaluation.py`; no engine is imported here."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from penstock.dataflow import functions
from penstock.errors import ConfigError, MissingPart, PlanError
from penstock.schema import Schema

_WIDTH = {"INT": 0, "BIGINT": 1, "FLOAT": 2, "DOUBLE": 3}
_NULL = "NULL"  # the type of the literal
_INT_RANGE = {"INT": 1 << 31, "BIGINT": 1 << 63}
_REAL = r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[dDfF]?\s*"  # how Java, and so Spark, writes a number
_INTERVALS_US = {"MICROSECOND": 1, "MILLISECOND": 1_000, "SECOND": 10**6, "MINUTE": 60 * 10**6, "HOUR": 3_600 * 10**6, "DAY": 86_400 * 10**6, "WEEK": 604_800 * 10**6}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Checked:
    """An expression whose columns exist. `type` is None if only Spark can tell it."""

    text: str
    type: str | None
    columns: tuple[str, ...]
    spark: str
    arrow: str | None = None  # DuckDB SQL over the same columns, times without zone
    outside: str | None = None  # why it is outside the subset


@dataclass(frozen=True, slots=True)
class _Typed:
    type: str
    spark: str
    arrow: str


class _Outside(Exception):
    """This is Spark's business alone."""


@lru_cache(maxsize=1024)
def check(text: str, schema: Schema, *, step: str) -> Checked:
    """The expression, typed. Raises a PlanError that names the step and the column.

    >>> check("celsius * 2 > 80", Schema.of("celsius DOUBLE"), step="where").type
    'BOOLEAN'
    """
    tree = parse(text, step=step)
    columns = tuple(dict.fromkeys(_resolved(column, schema, step, text) for column in _columns(tree)))
    try:
        typed = _Checker(schema, step, text).typed(tree)
    except _Outside as outside:
        return Checked(text, _declared(tree), columns, text, outside=str(outside))
    kind = None if typed.type == _NULL else typed.type
    return Checked(text, kind, columns, typed.spark, typed.arrow)


def condition(text: str, schema: Schema, *, step: str) -> Checked:
    """An expression that must be BOOLEAN."""
    checked = check(text, schema, step=step)
    if checked.type not in (None, "BOOLEAN"):
        raise PlanError(step, f"condition '{text}' is {checked.type}, not BOOLEAN", remedy="compare it with something")
    return checked


def value(text: str, schema: Schema, *, step: str) -> Checked:
    """An expression whose type must be known before Spark sees it."""
    checked = check(text, schema, step=step)
    if checked.type is None:
        why = checked.outside or "it is NULL"
        raise PlanError(step, f"the type of '{text}' is not known when the plan is built ({why})", remedy=f"write CAST({text} AS <type>)")
    return checked


def parse(text: str, *, step: str) -> Any:
    """The syntax tree of one expression."""
    dialect, errors = _dialect()
    try:
        import sqlglot

        return sqlglot.parse_one(text, dialect=dialect)
    except (errors.ParseError, errors.TokenError) as error:
        details = getattr(error, "errors", None)
        where = f" near '{details[0]['highlight']}'" if details and details[0].get("highlight") else ""
        raise PlanError(step, f"'{text}' is not a Spark SQL expression{where}", remedy="check brackets, quotes and commas") from None


def unknown_column(name: str, names: Sequence[str], *, step: str, text: str | None = None) -> PlanError:
    """The error for a column that is not there, with the nearest one that is."""
    by_folded = {known.lower(): known for known in names}
    near = difflib.get_close_matches(name.lower(), list(by_folded), n=1, cutoff=0.6)
    remedy = f"did you mean '{by_folded[near[0]]}'?" if near else f"the columns here are {', '.join(names) or 'none'}"
    place = f" in '{text}'" if text and text != name else ""
    return PlanError(step, f"no column '{name}'{place}", remedy=remedy)


@lru_cache(maxsize=1)
def _dialect() -> tuple[Any, Any]:
    try:
        from sqlglot import errors
        from sqlglot.dialects.spark import Spark
    except ImportError as error:
        raise MissingPart("expressions need sqlglot", remedy="pip install 'penstock[spark]'") from error

    class Plain(Spark):
        """Spark's syntax with every function call left as a name and its arguments."""

        class Parser(Spark.Parser):  # type: ignore[misc,valid-type]  # a class made by a metaclass
            FUNCTIONS: dict[str, Any] = {}  # noqa: RUF012 - the library's way to configure a dialect
            FUNCTION_PARSERS = {k: v for k, v in Spark.Parser.FUNCTION_PARSERS.items() if k in ("CAST", "TRY_CAST")}  # noqa: RUF012

    return Plain, errors


def _columns(tree: Any) -> list[Any]:
    from sqlglot import exp

    return list(tree.find_all(exp.Column))


def _resolved(column: Any, schema: Schema, step: str, text: str) -> str:
    name = ".".join(part.name for part in column.parts)
    for known in schema.names:
        if known.lower() == name.lower():
            return known
    raise unknown_column(name, schema.names, step=step, text=text)


def _declared(tree: Any) -> str | None:
    """The type of a cast at the top: known even if what it casts is not."""
    from sqlglot import exp

    inner = tree.unnest()
    if isinstance(inner, exp.Cast):
        try:
            return Schema.of(f"x {inner.to.sql(dialect='spark')}").fields[0].type
        except ConfigError:
            return None
    return None


def _promoted(a: str, b: str) -> str:
    """The type in which two numbers meet. Whole numbers and FLOAT meet in DOUBLE, which both engines agree on."""
    if a == b:
        return a
    return "BIGINT" if {a, b} == {"INT", "BIGINT"} else "DOUBLE"


def _as(given: _Typed, type: str) -> _Typed:
    """A conversion that always fits: null to anything, a number to a wider one."""
    if given.type == type:
        return given
    return _Typed(type, f"CAST({given.spark} AS {type})", f"CAST({given.arrow} AS {_duck(type)})")


def _duck(type: str) -> str:
    return {"STRING": "VARCHAR", "BINARY": "BLOB"}.get(type, type)


def _text_literal(text: str) -> _Typed:
    spark = text.replace("\\", "\\\\").replace("'", "\\'")
    return _Typed("STRING", f"'{spark}'", "'" + text.replace("'", "''") + "'")


class _Checker:
    """Types one expression from the leaves up."""

    def __init__(self, schema: Schema, step: str, text: str) -> None:
        self.schema, self.step, self.text = schema, step, text

    def error(self, message: str, remedy: str) -> PlanError:
        return PlanError(self.step, f"{message} in '{self.text}'", remedy=remedy)

    def typed(self, node: Any) -> _Typed:
        from sqlglot import exp

        match node:
            case exp.Paren():
                inner = self.typed(node.this)
                return _Typed(inner.type, f"({inner.spark})", f"({inner.arrow})")
            case exp.Column():
                return self.column(node)
            case exp.Literal() | exp.Boolean() | exp.Null():
                return self.literal(node)
            case exp.Neg():
                return self.negative(node)
            case exp.Not():
                inner = self.boolean(node.this)
                return _Typed("BOOLEAN", f"(NOT {inner.spark})", f"(NOT {inner.arrow})")
            case exp.And() | exp.Or():
                word = "AND" if isinstance(node, exp.And) else "OR"
                a, b = self.boolean(node.left), self.boolean(node.right)
                return _Typed("BOOLEAN", f"({a.spark} {word} {b.spark})", f"({a.arrow} {word} {b.arrow})")
            case exp.Add() | exp.Sub() | exp.Mul() | exp.Div() | exp.Mod() | exp.IntDiv():
                return self.arithmetic(node)
            case exp.EQ() | exp.NEQ() | exp.GT() | exp.GTE() | exp.LT() | exp.LTE() | exp.NullSafeEQ():
                return self.comparison(node)
            case exp.Between():
                x = node.this
                low, high = exp.GTE(this=x, expression=node.args["low"]), exp.LTE(this=x, expression=node.args["high"])
                return self.typed(exp.And(this=low, expression=high))
            case exp.In() if node.expressions:
                return self.membership(node)
            case exp.Is():
                inner, wanted = self.typed(node.this), node.expression
                if not isinstance(wanted, exp.Null):
                    raise _Outside("IS with something other than NULL")
                return _Typed("BOOLEAN", f"({inner.spark} IS NULL)", f"({inner.arrow} IS NULL)")
            case exp.Like():
                return self.like(node)
            case exp.Case():
                return self.case(node)
            case exp.If():
                return self.case(exp.Case(ifs=[exp.If(this=node.this, true=node.args["true"])], default=node.args.get("false")))
            case exp.DPipe():
                return self.call("concat", [node.left, node.right])
            case exp.Cast():
                return self.cast(node)
            case exp.Anonymous():
                return self.call(node.name.lower(), node.expressions)
            case _:
                raise _Outside(f"{type(node).__name__.upper()} is not in the typed subset")

    def boolean(self, node: Any) -> _Typed:
        given = self.typed(node)
        if given.type == _NULL:
            return _as(given, "BOOLEAN")
        if given.type != "BOOLEAN":
            raise self.error(f"'{node.sql(dialect='spark')}' is {given.type}, not BOOLEAN,", "compare it with something")
        return given

    def number(self, node: Any) -> _Typed:
        given = self.typed(node)
        if given.type == _NULL:
            return _as(given, "INT")
        if given.type not in _WIDTH:
            raise self.error(f"'{node.sql(dialect='spark')}' is {given.type}, not a number,", "convert it with CAST(… AS DOUBLE)")
        return given

    def column(self, node: Any) -> _Typed:
        name = _resolved(node, self.schema, self.step, self.text)
        spark, arrow = name.replace("`", "``"), name.replace('"', '""')
        return _Typed(self.schema.type_of(name), f"`{spark}`", f'"{arrow}"')

    def literal(self, node: Any) -> _Typed:
        from sqlglot import exp

        if isinstance(node, exp.Null):
            return _Typed(_NULL, "NULL", "NULL")
        if isinstance(node, exp.Boolean):
            return _Typed("BOOLEAN", str(node.this).upper(), str(node.this).upper())
        if node.is_string:
            return _text_literal(node.this)
        text = node.this
        if text.isdigit():
            if int(text) >= 1 << 63:
                raise _Outside(f"{text} does not fit BIGINT")
            type = "INT" if int(text) < 1 << 31 else "BIGINT"
            return _Typed(type, text if type == "INT" else f"{text}L", f"CAST({text} AS {type})")
        return _Typed("DOUBLE", f"{text}D", f"CAST({text} AS DOUBLE)")

    def negative(self, node: Any) -> _Typed:
        from sqlglot import exp

        if isinstance(node.this, exp.Literal) and not node.this.is_string:
            plain = self.literal(node.this)
            return _Typed(plain.type, f"-{plain.spark}", f"CAST(-{node.this.this} AS {plain.type})")
        given = self.number(node.this)
        if given.type in _INT_RANGE:
            return _Typed(
                given.type, f"try_subtract(CAST(0 AS {given.type}), {given.spark})", f"TRY(CAST(0 AS {given.type}) - {given.arrow})"
            )
        return _Typed(given.type, f"(- {given.spark})", f"(- {given.arrow})")

    def arithmetic(self, node: Any) -> _Typed:
        from sqlglot import exp

        if isinstance(node, exp.Add | exp.Sub) and isinstance(node.right, exp.Interval):
            return self.moved(node)
        a, b = self.number(node.left), self.number(node.right)
        type = _promoted(a.type, b.type)
        if isinstance(node, exp.Div):
            a, b = _as(a, "DOUBLE"), _as(b, "DOUBLE")
            return _Typed("DOUBLE", f"try_divide({a.spark}, {b.spark})", f"({a.arrow} / NULLIF({b.arrow}, 0))")
        if isinstance(node, exp.IntDiv):
            if type not in _INT_RANGE:
                raise self.error(f"DIV divides whole numbers, not {type},", "use / or CAST to BIGINT")
            a, b = _as(a, "BIGINT"), _as(b, "BIGINT")
            return _Typed("BIGINT", f"({a.spark} DIV NULLIF({b.spark}, 0L))", f"TRY({a.arrow} // NULLIF({b.arrow}, 0))")
        a, b = _as(a, type), _as(b, type)
        if isinstance(node, exp.Mod):
            # The smallest number by -1 is no overflow for Spark: nothing remains.
            rest = f"({a.arrow} % NULLIF({b.arrow}, 0))"
            arrow = (
                f"CASE WHEN {b.arrow} = -1 AND {a.arrow} IS NOT NULL THEN CAST(0 AS {type}) ELSE {rest} END" if type in _INT_RANGE else rest
            )
            return _Typed(type, f"try_mod({a.spark}, {b.spark})", arrow)
        name, sign = {exp.Add: ("add", "+"), exp.Sub: ("subtract", "-"), exp.Mul: ("multiply", "*")}[node.__class__]
        arrow = f"({a.arrow} {sign} {b.arrow})"
        if type in _INT_RANGE:
            return _Typed(type, f"try_{name}({a.spark}, {b.spark})", f"TRY{arrow}")
        return _Typed(type, f"({a.spark} {sign} {b.spark})", arrow)

    def moved(self, node: Any) -> _Typed:
        """A time plus or minus a fixed interval."""
        from sqlglot import exp

        at, interval = self.typed(node.left), node.right
        unit = interval.args.get("unit")
        name = unit.name.upper().rstrip("S") if unit is not None else ""
        if at.type != "TIMESTAMP" or name not in _INTERVALS_US or not isinstance(interval.this, exp.Literal):
            raise _Outside("only TIMESTAMP and an interval of fixed length are in the typed subset")
        try:
            shift_us = round(float(interval.this.this) * _INTERVALS_US[name])
        except ValueError:
            raise _Outside("an interval of several units") from None
        shift_us = -shift_us if isinstance(node, exp.Sub) else shift_us
        return _Typed("TIMESTAMP", f"timestampadd(MICROSECOND, {shift_us}, {at.spark})", f"({at.arrow} + to_microseconds({shift_us}))")

    def meeting(self, a: _Typed, b: _Typed, node: Any) -> tuple[_Typed, _Typed]:
        """Two values in the type in which they can be compared."""
        if a.type == _NULL or b.type == _NULL:
            type = a.type if b.type == _NULL else b.type
            type = "INT" if type == _NULL else type
            return _as(a, type), _as(b, type)
        if a.type in _WIDTH and b.type in _WIDTH:
            type = _promoted(a.type, b.type)
            return _as(a, type), _as(b, type)
        if {a.type, b.type} == {"TIMESTAMP", "STRING"}:
            return self.at(a), self.at(b)
        if a.type != b.type:
            raise self.error(f"{a.type} is compared with {b.type}", f"convert one side, for example CAST(… AS {a.type})")
        if a.type.startswith(("ARRAY", "MAP")):
            raise _Outside(f"comparing {a.type}")
        return a, b

    def at(self, given: _Typed) -> _Typed:
        """A text literal as the time it names."""
        if given.type == "TIMESTAMP":
            return given
        if not given.spark.startswith("'"):
            raise self.error("TIMESTAMP is compared with STRING", "convert the text with CAST(… AS TIMESTAMP)")
        try:
            moment = datetime.fromisoformat(given.spark.strip("'"))
        except ValueError:
            raise self.error(f"{given.spark} is not a time", "write '2026-01-31 12:00:00'") from None
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
        micros = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // (datetime.resolution)
        return _Typed("TIMESTAMP", f"timestamp_micros({micros}L)", f"make_timestamp({micros}::BIGINT)")

    def comparison(self, node: Any) -> _Typed:
        from sqlglot import exp

        a, b = self.meeting(self.typed(node.left), self.typed(node.right), node)
        if isinstance(node, exp.NullSafeEQ):
            return _Typed("BOOLEAN", f"({a.spark} <=> {b.spark})", f"({a.arrow} IS NOT DISTINCT FROM {b.arrow})")
        sign = {exp.EQ: "=", exp.NEQ: "<>", exp.GT: ">", exp.GTE: ">=", exp.LT: "<", exp.LTE: "<="}[node.__class__]
        return _Typed("BOOLEAN", f"({a.spark} {sign} {b.spark})", f"({a.arrow} {sign} {b.arrow})")

    def membership(self, node: Any) -> _Typed:
        from sqlglot import exp

        either: Any = exp.EQ(this=node.this, expression=node.expressions[0])
        for item in node.expressions[1:]:
            either = exp.Or(this=either, expression=exp.EQ(this=node.this, expression=item))
        return self.typed(either)

    def like(self, node: Any) -> _Typed:
        from sqlglot import exp

        if node.__class__ is not exp.Like or not isinstance(node.expression, exp.Literal):
            raise _Outside("LIKE with a pattern that is not a literal")
        given, pattern = self.typed(node.this), node.expression.this
        if given.type != "STRING":
            raise self.error(f"LIKE compares text, not {given.type},", "convert it with CAST(… AS STRING)")
        if "\\" in pattern:
            raise _Outside("LIKE with an escape")
        literal = _text_literal(pattern)
        return _Typed("BOOLEAN", f"({given.spark} LIKE {literal.spark})", f"({given.arrow} LIKE {literal.arrow})")

    def case(self, node: Any) -> _Typed:
        from sqlglot import exp

        branches = []
        for branch in node.args["ifs"]:
            test = branch.this if node.this is None else exp.EQ(this=node.this, expression=branch.this)
            branches.append((self.boolean(test), self.typed(branch.args["true"])))
        default = node.args.get("default")
        otherwise = self.typed(default) if default is not None else _Typed(_NULL, "NULL", "NULL")
        type = self.common([value for _, value in branches] + [otherwise])
        spark, arrow = "CASE", "CASE"
        for test, value in branches:
            value = _as(value, type)
            spark, arrow = f"{spark} WHEN {test.spark} THEN {value.spark}", f"{arrow} WHEN {test.arrow} THEN {value.arrow}"
        otherwise = _as(otherwise, type)
        return _Typed(type, f"{spark} ELSE {otherwise.spark} END", f"{arrow} ELSE {otherwise.arrow} END")

    def common(self, values: Sequence[_Typed]) -> str:
        types = list(dict.fromkeys(value.type for value in values if value.type != _NULL))
        if not types:
            return "STRING"
        type = types[0]
        for other in types[1:]:
            if type in _WIDTH and other in _WIDTH:
                type = _promoted(type, other)
            elif type != other:
                raise self.error(f"{type} and {other} cannot be one column", "give all branches one type with CAST")
        return type

    def cast(self, node: Any) -> _Typed:
        given = self.typed(node.this)
        try:
            to = Schema.of(f"x {node.to.sql(dialect='spark')}").fields[0].type
        except ConfigError:
            raise _Outside(f"CAST to {node.to.sql(dialect='spark')}") from None
        spark = f"try_cast({given.spark} AS {to})"
        match given.type, to:
            case (a, b) if a in (b, _NULL):
                return _as(given, to)
            case (("FLOAT" | "DOUBLE"), ("INT" | "BIGINT")):
                return _Typed(to, spark, f"TRY_CAST(trunc({given.arrow}) AS {to})")
            case ("DOUBLE", "FLOAT"):  # too large is infinite
                bound = f"CASE WHEN {given.arrow} > 0 THEN 'inf'::FLOAT WHEN {given.arrow} < 0 THEN '-inf'::FLOAT END"
                return _Typed(to, spark, f"coalesce(TRY_CAST({given.arrow} AS FLOAT), {bound})")
            case (("INT" | "BIGINT" | "FLOAT" | "DOUBLE"), ("INT" | "BIGINT" | "FLOAT" | "DOUBLE")):
                return _Typed(to, spark, f"TRY_CAST({given.arrow} AS {to})")
            case (("INT" | "BIGINT"), "STRING"):
                return _Typed(to, spark, f"CAST({given.arrow} AS VARCHAR)")
            case "STRING", ("INT" | "BIGINT"):
                whole = f"regexp_full_match({given.arrow}, '\\s*[+-]?[0-9]+\\s*')"
                return _Typed(to, spark, f"CASE WHEN {whole} THEN TRY_CAST(trim({given.arrow}) AS {to}) END")
            case "STRING", "DOUBLE":
                real = f"regexp_full_match({given.arrow}, '{_REAL}')"
                return _Typed(to, spark, f"CASE WHEN {real} THEN TRY_CAST(regexp_replace(trim({given.arrow}), '[dDfF]$', '') AS DOUBLE) WHEN lower(trim({given.arrow})) IN ('nan', 'inf', '+inf', '-inf', 'infinity', '+infinity', '-infinity') THEN CAST(trim({given.arrow}) AS DOUBLE) END")  # fmt: skip
            case "BOOLEAN", ("INT" | "BIGINT" | "DOUBLE"):
                return _Typed(to, spark, f"CAST({given.arrow} AS {to})")
            case "BOOLEAN", "STRING":
                return _Typed(to, spark, f"CASE WHEN {given.arrow} THEN 'true' WHEN NOT {given.arrow} THEN 'false' END")
            case (("INT" | "BIGINT"), "BOOLEAN"):
                return _Typed(to, spark, f"({given.arrow} <> 0)")
            case _:
                raise _Outside(f"CAST from {given.type} to {to}")

    def call(self, name: str, nodes: Sequence[Any]) -> _Typed:
        if name in functions.ANY_OF and nodes:
            values = [self.typed(node) for node in nodes]
            type = self.common(values)
            values = [_as(value, type) for value in values]
            return _Typed(type, f"coalesce({', '.join(v.spark for v in values)})", f"coalesce({', '.join(v.arrow for v in values)})")
        if name == "if" and len(nodes) == 3:
            return self.branch(nodes)
        if name == "nullif" and len(nodes) == 2:
            a, b = self.meeting(self.typed(nodes[0]), self.typed(nodes[1]), nodes[0])
            return _Typed(a.type, f"nullif({a.spark}, {b.spark})", f"nullif({a.arrow}, {b.arrow})")
        if name in ("isnull", "isnotnull") and len(nodes) == 1:
            given, word = self.typed(nodes[0]), "IS NULL" if name == "isnull" else "IS NOT NULL"
            return _Typed("BOOLEAN", f"({given.spark} {word})", f"({given.arrow} {word})")
        if name == "date_trunc" and len(nodes) == 2:
            return self.truncated(nodes)
        rows = functions.matching(name, len(nodes))
        if not rows:
            raise _Outside(f"the function {name} with {len(nodes)} argument(s) is not in the typed subset")
        values = [self.typed(node) for node in nodes]
        for row in rows:
            if (arguments := self.fitted(row, values)) is not None:
                return self.spelled(row, arguments)
        takes = ", ".join("a number" if want in (functions.REAL, functions.NUMBER) else want[0] for want in rows[0].takes)
        raise self.error(f"{name} takes ({takes}), not ({', '.join(value.type for value in values)}),", "convert the arguments with CAST")

    def branch(self, nodes: Sequence[Any]) -> _Typed:
        from sqlglot import exp

        return self.case(exp.Case(ifs=[exp.If(this=nodes[0], true=nodes[1])], default=nodes[2]))

    def truncated(self, nodes: Sequence[Any]) -> _Typed:
        unit, at = self.typed(nodes[0]), self.typed(nodes[1])
        name = unit.spark.strip("'").lower()
        if name not in functions.TRUNC_UNITS or at.type != "TIMESTAMP":
            raise _Outside(f"date_trunc('{name}', {at.type})")
        return _Typed("TIMESTAMP", f"date_trunc('{name}', {at.spark})", f"CAST(date_trunc('{name}', {at.arrow}) AS TIMESTAMP)")

    def fitted(self, row: functions.Function, values: Sequence[_Typed]) -> list[_Typed] | None:
        """The arguments as this row takes them, or None if they do not fit."""
        given = []
        for index, value in enumerate(values):
            want = row.takes[min(index, len(row.takes) - 1)]
            kinds = tuple(_WIDTH) if want == functions.REAL else want
            if value.type == _NULL:
                value = _as(value, "DOUBLE" if want == functions.REAL else want[0])
            if value.type not in kinds:
                return None
            given.append(_as(value, "DOUBLE") if want == functions.REAL else value)
        return given

    def spelled(self, row: functions.Function, values: list[_Typed]) -> _Typed:
        type = row.gives
        if type == functions.SAME:
            type = self.common(values)
            values = [_as(value, type) for value in values]
        spark_args, arrow_args = [value.spark for value in values], [value.arrow for value in values]
        smallest = f"CAST({-_INT_RANGE[type]} AS {type})" if type in _INT_RANGE and type == "INT" else "-9223372036854775808L"
        call = f"{row.name}({', '.join(spark_args)})"
        spark = call if row.spark is None else row.spark.format(*spark_args, args=", ".join(spark_args), min=smallest)
        arrow = row.arrow.format(*arrow_args, args=", ".join(arrow_args), args_piped=" || ".join(arrow_args))
        return _Typed(type, spark, arrow)
