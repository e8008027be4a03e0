"""The scalar functions of the typed subset, as a table: what they take, what they give, and how two engines spell them.

Each row says the same thing in Spark SQL and in DuckDB SQL; tests/dataflow compares the two engines value by value. A function that is not
here (or has another meaning there) is not wrong: it runs on Spark only. Aggregate functions are not here (`aggregate.py`)."""

from __future__ import annotations

from dataclasses import dataclass

NUMBER = ("INT", "BIGINT", "FLOAT", "DOUBLE")
TEXT = ("STRING",)
TIME = ("TIMESTAMP",)
REAL = "DOUBLE"  # as an argument: any number, converted
SAME = "same"  # as a result: the common type of all arguments


@dataclass(frozen=True, slots=True)
class Function:
    """`{0}` is the first argument. `rest` repeats for further arguments. Without `spark`, Spark's spelling is name(arguments)."""

    name: str
    takes: tuple[tuple[str, ...] | str, ...]
    gives: str
    arrow: str
    spark: str | None = None
    rest: bool = False  # the last of `takes` may repeat

    def fits(self, arity: int) -> bool:
        return arity == len(self.takes) or (self.rest and arity >= len(self.takes))


# A substring counts from 1, from the end if negative, and 0 means 1; a window that begins before the text is cut.
_SUBSTRING = (
    "CASE WHEN {0} IS NULL OR {1} IS NULL OR {2} IS NULL THEN NULL WHEN {2} <= 0 THEN '' "
    "WHEN {1} > 0 THEN substring({0}, {1}, {2}) WHEN {1} = 0 THEN substring({0}, 1, {2}) "
    "WHEN length({0}) + {1} >= 0 THEN substring({0}, length({0}) + {1} + 1, {2}) "
    "ELSE substring({0}, 1, greatest({2} + length({0}) + {1}, 0)) END"
)
_SUBSTRING_TO_END = (
    "CASE WHEN {0} IS NULL OR {1} IS NULL THEN NULL WHEN {1} > 0 THEN substring({0}, {1}) "
    "ELSE substring({0}, CASE WHEN {1} = 0 THEN 1 ELSE greatest(length({0}) + {1} + 1, 1) END) END"
)
# As Java converts: NaN is 0, and what is too large becomes the largest.
_WHOLE_PART = (
    "CASE WHEN isnan({0}) THEN 0::BIGINT WHEN {0} >= 9223372036854775807::DOUBLE THEN 9223372036854775807::BIGINT "
    "WHEN {0} <= (-9223372036854775808)::DOUBLE THEN (-9223372036854775808)::BIGINT ELSE CAST({f}({0}) AS BIGINT) END"
)
_WHOLE = ("INT", "BIGINT")
_FRACTION = ("FLOAT", "DOUBLE")

FUNCTIONS: tuple[Function, ...] = (
    Function("upper", (TEXT,), "STRING", "upper(replace({0}, 'ß', 'SS'))"),
    Function("ucase", (TEXT,), "STRING", "upper(replace({0}, 'ß', 'SS'))"),
    Function("lower", (TEXT,), "STRING", "lower({0})"),
    Function("lcase", (TEXT,), "STRING", "lower({0})"),
    Function("length", (TEXT,), "INT", "CAST(length({0}) AS INT)"),
    Function("char_length", (TEXT,), "INT", "CAST(length({0}) AS INT)"),
    Function("trim", (TEXT,), "STRING", "trim({0}, ' ')"),
    Function("ltrim", (TEXT,), "STRING", "ltrim({0}, ' ')"),
    Function("rtrim", (TEXT,), "STRING", "rtrim({0}, ' ')"),
    Function("reverse", (TEXT,), "STRING", "reverse({0})"),
    Function("concat", (TEXT,), "STRING", "({args_piped})", rest=True),
    Function("replace", (TEXT, TEXT, TEXT), "STRING", "CASE WHEN {1} = '' THEN {0} ELSE replace({0}, {1}, {2}) END"),
    Function("startswith", (TEXT, TEXT), "BOOLEAN", "starts_with({0}, {1})"),
    Function("endswith", (TEXT, TEXT), "BOOLEAN", "suffix({0}, {1})"),
    Function("contains", (TEXT, TEXT), "BOOLEAN", "contains({0}, {1})"),
    Function("instr", (TEXT, TEXT), "INT", "CAST(instr({0}, {1}) AS INT)"),
    Function("left", (TEXT, _WHOLE), "STRING", "CASE WHEN {1} <= 0 THEN '' ELSE left({0}, {1}) END"),
    Function("right", (TEXT, _WHOLE), "STRING", "CASE WHEN {1} <= 0 THEN '' ELSE right({0}, {1}) END"),
    Function("substring", (TEXT, _WHOLE, _WHOLE), "STRING", _SUBSTRING),
    Function("substring", (TEXT, _WHOLE), "STRING", _SUBSTRING_TO_END),
    Function("substr", (TEXT, _WHOLE, _WHOLE), "STRING", _SUBSTRING),
    Function("substr", (TEXT, _WHOLE), "STRING", _SUBSTRING_TO_END),
    Function("abs", (_FRACTION,), SAME, "abs({0})"),
    Function("abs", (_WHOLE,), SAME, "TRY(abs({0}))", spark="CASE WHEN {0} = {min} THEN NULL ELSE abs({0}) END"),
    Function("sign", (REAL,), "DOUBLE", "CASE WHEN isnan({0}) THEN {0} ELSE CAST(sign({0}) AS DOUBLE) END"),
    Function("ceil", (REAL,), "BIGINT", _WHOLE_PART.replace("{f}", "ceil")),
    Function("ceiling", (REAL,), "BIGINT", _WHOLE_PART.replace("{f}", "ceil")),
    Function("floor", (REAL,), "BIGINT", _WHOLE_PART.replace("{f}", "floor")),
    Function("sqrt", (REAL,), "DOUBLE", "CASE WHEN {0} < 0 THEN 'nan'::DOUBLE ELSE sqrt({0}) END"),
    Function("exp", (REAL,), "DOUBLE", "exp({0})"),
    Function("ln", (REAL,), "DOUBLE", "CASE WHEN {0} <= 0 THEN NULL ELSE ln({0}) END"),
    Function("log10", (REAL,), "DOUBLE", "CASE WHEN {0} <= 0 THEN NULL ELSE log10({0}) END"),
    Function("power", (REAL, REAL), "DOUBLE", "power({0}, {1})"),
    Function("pow", (REAL, REAL), "DOUBLE", "power({0}, {1})"),
    Function("isnan", (REAL,), "BOOLEAN", "({0} IS NOT NULL AND isnan({0}))"),
    Function("nanvl", (REAL, REAL), "DOUBLE", "CASE WHEN isnan({0}) THEN {1} ELSE {0} END"),
    Function("greatest", (NUMBER, NUMBER), SAME, "greatest({args})", rest=True),
    Function("least", (NUMBER, NUMBER), SAME, "least({args})", rest=True),
    Function("year", (TIME,), "INT", "CAST(year({0}) AS INT)"),
    Function("month", (TIME,), "INT", "CAST(month({0}) AS INT)"),
    Function("day", (TIME,), "INT", "CAST(day({0}) AS INT)"),
    Function("hour", (TIME,), "INT", "CAST(hour({0}) AS INT)"),
    Function("minute", (TIME,), "INT", "CAST(minute({0}) AS INT)"),
    Function("second", (TIME,), "INT", "CAST(second({0}) AS INT)"),
    Function("unix_micros", (TIME,), "BIGINT", "epoch_us({0})"),
    Function("unix_millis", (TIME,), "BIGINT", "((epoch_us({0}) - ((epoch_us({0}) % 1000) + 1000) % 1000) // 1000)"),
    Function("unix_seconds", (TIME,), "BIGINT", "((epoch_us({0}) - ((epoch_us({0}) % 1000000) + 1000000) % 1000000) // 1000000)"),
    Function("timestamp_micros", (_WHOLE,), "TIMESTAMP", "make_timestamp(CAST({0} AS BIGINT))"),
    Function("timestamp_millis", (_WHOLE,), "TIMESTAMP", "make_timestamp(CAST({0} AS BIGINT) * 1000)"),
)

TRUNC_UNITS = ("second", "minute", "hour", "day", "week", "month", "year")
ANY_OF = ("coalesce", "ifnull", "nvl")  # the first argument that is not null; any one type


def matching(name: str, arity: int) -> tuple[Function, ...]:
    """The rows of that name and number of arguments; empty if the subset has none."""
    return tuple(row for row in FUNCTIONS if row.name == name and row.fits(arity))
