"""JSON values to typed Arrow columns, and rows to JSON values.

A value is a JSON object; fields of the schema become columns, other fields are ignored, missing ones are null. One compiled pass
(`json_loops.json_rows`) reads the ordinary rows; what it leaves (rare forms, and everything that is wrong) goes through `_full`, the
definition of the meaning, which says for each bad record what is wrong with it. So a bad record costs itself and nothing else.

    BOOLEAN true, false       INT, BIGINT integers in range        FLOAT, DOUBLE numbers, "NaN", "Infinity", "-Infinity"
    STRING text; the JSON text of anything else                    DATE "2026-01-31"       BINARY base64
    TIMESTAMP ISO 8601 text, UTC unless it names an offset; or a number of seconds since 1970
    ARRAY<T> of the above

Invariant: compiled pass and `_full` agree (tests/spark/test_serde.py). Bare NaN and Infinity, as some writers put them, are no JSON: bad."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.schema import Schema, arrow_type
from penstock.spark import json_loops, loops
from penstock.spark.decode import bitmap, read_only

Array = Any  # numpy.ndarray

_HOW = {
    "BOOLEAN": json_loops.AS_BOOLEAN, "INT": json_loops.AS_INT, "BIGINT": json_loops.AS_LONG, "FLOAT": json_loops.AS_DOUBLE, "DOUBLE": json_loops.AS_DOUBLE,
    "STRING": json_loops.AS_TEXT, "BINARY": json_loops.AS_TEXT, "TIMESTAMP": json_loops.AS_TIMESTAMP, "DATE": json_loops.AS_DATE,
}  # fmt: skip
_NUMPY = {"INT": np.int32, "BIGINT": np.int64, "TIMESTAMP": np.int64, "DATE": np.int32, "FLOAT": np.float32, "DOUBLE": np.float64}
_SHOWN_CHARS_MAX = 60
_YEAR_0_US, _YEAR_10000_US = -62_167_219_200_000_000, 253_402_300_800_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_INSTANT = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d):(\d\d)(?::(\d\d)(?:\.(\d+))?)?(Z|[+-]\d\d(?::?\d\d)?)?)?", re.ASCII
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Decoded:
    """The good rows as a table, which rows of the input they are, and what is wrong with the others."""

    table: pa.Table
    rows: Array  # int64: the input row of each table row, rising
    bad: Array  # int64: the input rows that are bad, rising
    reasons: tuple[str, ...]  # one per bad row


class BadValue(Exception):
    """Why one record cannot be read."""


# --- decoding -------------------------------------------------------------------------------------------------------


def decode_json(data: Array, positions: Array, sizes: Array, schema: Schema) -> Decoded:
    """Read the spans of `data` as JSON objects. A span of negative size is a null value, which is bad."""
    data, positions, sizes = read_only(data), np.ascontiguousarray(positions), np.ascontiguousarray(sizes)
    count = len(positions)
    columns = len(schema.fields)
    names, name_ends, hows = _program(schema)
    ints = np.zeros((columns, count), np.int64)
    lengths = np.zeros((columns, count), np.int32)
    states = np.zeros((columns, count), np.uint8)
    rows = np.zeros(count, np.uint8)
    if count:
        json_loops.json_rows(data, positions, sizes, names, name_ends, hows, ints, ints.view(np.float64), lengths, states, rows)
    made = [_column(data, field.type, ints[i], lengths[i], states[i], rows) for i, field in enumerate(schema.fields)]
    hard = np.flatnonzero(rows)  # after the columns: making one can turn a row hard
    arrow = schema.to_arrow()
    if not len(hard):
        return Decoded(pa.Table.from_arrays(made, schema=arrow), np.arange(count), hard, ())
    return _with_hard(pa.Table.from_arrays(made, schema=arrow), data, positions, sizes, schema, hard)


def _with_hard(table: pa.Table, data: Array, positions: Array, sizes: Array, schema: Schema, hard: Array) -> Decoded:
    """Read the hard rows one by one, and put the good ones of them in their places."""
    count = table.num_rows
    good, values, bad, reasons = [], [], [], []
    for row in hard.tolist():
        at, size = int(positions[row]), int(sizes[row])
        try:
            values.append(_full(None if size < 0 else data[at : at + size].tobytes(), schema))
            good.append(row)
        except BadValue as error:
            bad.append(row)
            reasons.append(str(error))
    keep = np.ones(count, bool)
    keep[bad] = False
    source = np.arange(count)
    source[good] = count + np.arange(len(good))
    if good:
        table = pa.concat_tables([table, pa.Table.from_pylist(values, schema=table.schema)])
    rows = np.flatnonzero(keep)
    return Decoded(table.take(pa.array(source[rows])).combine_chunks(), rows, np.array(bad, np.int64), tuple(reasons))


@lru_cache(maxsize=64)
def _program(schema: Schema) -> tuple[Array, Array, Array]:
    names = [json.dumps(name, ensure_ascii=False)[1:-1].encode() for name in schema.names]
    ends = np.zeros(len(names) + 1, np.int64)
    ends[1:] = np.cumsum([len(name) for name in names])
    hows = np.array([_HOW.get(field.type, json_loops.AS_SPAN) for field in schema.fields], np.int64)
    return np.frombuffer(b"".join(names) or b"\0", np.uint8), ends, hows


def _column(data: Array, type: str, ints: Array, lengths: Array, states: Array, rows: Array) -> pa.Array:
    """One column of the rows that are not hard; the others' cells are anything."""
    if type in ("STRING", "BINARY") or type not in _HOW:
        text = _texts(data, ints, lengths, states, rows)
        if type == "STRING":
            return text
        return _binary(text, rows) if type == "BINARY" else _arrays(text, type, rows)
    count = len(ints)
    given = states != json_loops.NULL
    values = ints.view(np.float64) if type in ("FLOAT", "DOUBLE") else ints
    if type in ("FLOAT", "DOUBLE"):
        _long_numbers(data, ints, lengths, states, values)
    nulls = count - int(given.sum())
    valid = bitmap(given) if nulls else None
    if type == "BOOLEAN":
        return pa.Array.from_buffers(pa.bool_(), count, [valid, bitmap(values != 0)], null_count=nulls)
    narrow = values.astype(_NUMPY[type], copy=False)
    return pa.Array.from_buffers(arrow_type(type), count, [valid, pa.py_buffer(narrow)], null_count=nulls)


def _long_numbers(data: Array, ints: Array, lengths: Array, states: Array, values: Array) -> None:
    """Numbers with more digits than the compiled pass converts exactly: Arrow's reader rounds them correctly."""
    long = np.flatnonzero(states == json_loops.NUMBER_TEXT)
    if len(long):
        out = np.empty(int(lengths[long].sum()), np.uint8)
        ends = np.empty(len(long) + 1, np.int32)
        loops.gather(data, ints[long], lengths[long].astype(np.int64), out, ends, np.empty(len(long), np.uint8))
        texts = pa.Array.from_buffers(pa.string(), len(long), [None, pa.py_buffer(ends), pa.py_buffer(out)])
        values[long] = texts.cast(pa.float64()).to_numpy()


def _texts(data: Array, positions: Array, lengths: Array, states: Array, rows: Array) -> pa.Array:
    count = len(positions)
    out = np.empty(int(lengths.sum(dtype=np.int64)), np.uint8)
    ends = np.zeros(count + 1, np.int32)
    if count:
        json_loops.gather_text(data, positions, lengths, states, rows, out, ends)
    given = states != json_loops.NULL
    nulls = count - int(given.sum())
    buffers = [bitmap(given) if nulls else None, pa.py_buffer(ends), pa.py_buffer(out[: ends[-1]])]
    return pa.Array.from_buffers(pa.string(), count, buffers, null_count=nulls)


def _binary(text: pa.Array, rows: Array) -> pa.Array:
    import polars as pl

    unpacked = pl.from_arrow(text).str.decode("base64", strict=False).to_arrow().cast(pa.binary())  # type: ignore[union-attr]
    rows[np.asarray(pc.and_(text.is_valid(), unpacked.is_null()))] = json_loops.ROW_HARD
    return unpacked


def _arrays(text: pa.Array, type: str, rows: Array) -> pa.Array:
    """ARRAY<…>: one vectorised parse. If that balks, the rows with arrays go through the full reader."""
    import polars as pl

    wanted = arrow_type(type)
    item = pl.from_arrow(pa.array([], wanted.value_type)).dtype  # type: ignore[union-attr]
    if item in (pl.Int32, pl.Int64, pl.Float64, pl.String, pl.Boolean):
        texts = pl.from_arrow(pc.if_else(pa.array(rows == json_loops.ROW_READ), text, None))
        try:
            return texts.str.json_decode(pl.List(item)).to_arrow().cast(wanted)  # type: ignore[union-attr]
        except (pl.exceptions.PolarsError, pa.ArrowInvalid):
            pass
    rows[np.asarray(text.is_valid())] = json_loops.ROW_HARD
    return pa.nulls(len(text), wanted)


# --- the full reader: one record, and why it is bad -----------------------------------------------------------------


class _Number(str):
    """A number as it is written."""

    __slots__ = ()


def _full(value: bytes | None, schema: Schema) -> dict[str, Any]:
    """One record by the book: the columns, or BadValue with the reason."""
    if value is None:
        raise BadValue("the value is null; a JSON object is expected")
    try:
        text = value.decode()
    except UnicodeDecodeError as error:
        raise BadValue(f"the value is not UTF-8 at byte {error.start}") from error
    try:
        given = json.loads(text, parse_float=_Number, parse_int=_Number, parse_constant=_constant)
    except json.JSONDecodeError as error:
        raise BadValue(f"the value is not JSON: {error.msg} at character {error.pos}") from error
    except RecursionError as error:
        raise BadValue("the value is nested too deeply") from error
    if not isinstance(given, dict):
        raise BadValue(f"the value is JSON but no object: {_shown(given)}")
    row = {}
    for field in schema.fields:
        cell = given.get(field.name)
        try:
            row[field.name] = None if cell is None else _cell(cell, field.type)
        except (ValueError, OverflowError) as error:
            raise BadValue(f"column '{field.name}': {_shown(cell)} is no {field.type}") from error
    return row


def _constant(name: str) -> Any:
    raise BadValue(f"the value is not JSON: it contains {name}")


def _cell(value: Any, type: str) -> Any:
    """A value of the column's type, or ValueError."""
    if type.startswith("ARRAY<"):
        if not isinstance(value, list):
            raise ValueError
        return [None if item is None else _cell(item, type[6:-1]) for item in value]
    return _CELLS[type](value)


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _integer(bits: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if not isinstance(value, _Number):
            raise ValueError
        number = int(value)
        if not -(1 << bits - 1) <= number < 1 << bits - 1:
            raise ValueError
        return number

    return read


def _double(value: Any) -> float:
    if isinstance(value, _Number):
        return float(value)
    return {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}[value] if value in ("NaN", "Infinity", "-Infinity") else _no()


def _no() -> float:
    raise ValueError


def _string(value: Any) -> str:
    if isinstance(value, str):
        if not value.isascii():
            value.encode()  # a lone surrogate is no text
        return str(value)
    return json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"))


def _plain(value: Any) -> Any:
    if isinstance(value, _Number):
        return float(value) if not value.lstrip("-").isdigit() else int(value)
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _bytes(value: Any) -> bytes:
    if not isinstance(value, str) or isinstance(value, _Number):
        raise ValueError
    return base64.b64decode(value, validate=True)


def _timestamp(value: Any) -> datetime:
    if isinstance(value, _Number):
        return _EPOCH + timedelta(microseconds=round(int(value) * 1_000_000 if value.lstrip("-").isdigit() else float(value) * 1_000_000))
    found = _INSTANT.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError
    day, hour, minute, second, fraction, zone = found.groups()
    time_us = (date.fromisoformat(day) - _EPOCH.date()).days * 86_400_000_000
    hours, minutes, seconds = int(hour or 0), int(minute or 0), int(second or 0)
    if hours > 23 or minutes > 59 or seconds > 59:
        raise ValueError
    time_us += (hours * 3600 + minutes * 60 + seconds) * 1_000_000 + int(((fraction or "") + "000000")[:6])
    if zone and zone != "Z":
        zone_hours, zone_minutes = int(zone[1:3]), int(zone[3:].lstrip(":") or 0)
        if zone_hours > 18 or zone_minutes > 59:
            raise ValueError
        shift_us = (zone_hours * 60 + zone_minutes) * 60_000_000
        time_us += shift_us if zone[0] == "-" else -shift_us
    return _EPOCH + timedelta(microseconds=time_us)


def _day(value: Any) -> date:
    if not isinstance(value, str) or not re.fullmatch(r"\d{4}-\d\d-\d\d", value, re.ASCII):
        raise ValueError
    return date.fromisoformat(value)


_CELLS: dict[str, Callable[[Any], Any]] = {
    "BOOLEAN": _boolean, "INT": _integer(32), "BIGINT": _integer(64), "FLOAT": _double, "DOUBLE": _double, "STRING": _string,
    "BINARY": _bytes, "TIMESTAMP": _timestamp, "DATE": _day,
}  # fmt: skip


def _shown(value: Any) -> str:
    text = str(value) if isinstance(value, _Number) else json.dumps(_plain(value), ensure_ascii=False)
    return text if len(text) <= _SHOWN_CHARS_MAX else text[:_SHOWN_CHARS_MAX] + "…"


# --- encoding -------------------------------------------------------------------------------------------------------


def encode_json(table: pa.Table) -> pa.Array:
    """Each row as a JSON object, in a BINARY column. What `decode_json` reads back with the same schema.

    Nulls are written as null, NaN and infinities as text, times in UTC with milliseconds (or finer, if they need it)."""
    if not table.num_rows:
        return pa.array([], pa.binary())
    pieces: list[Any] = []
    for index, (name, column) in enumerate(zip(table.column_names, table.columns)):
        pieces.append(("," if index else "{") + json.dumps(name, ensure_ascii=False) + ":")
        pieces.append(_json_text(column.combine_chunks()))
    pieces.append("}" if pieces else "{}")
    joined = pc.binary_join_element_wise(*pieces, "") if len(pieces) > 1 else pa.array(pieces * table.num_rows)
    return joined.cast(pa.binary())


def _json_text(column: pa.Array) -> pa.Array:
    """Each cell as JSON text."""
    kind = column.type
    if pa.types.is_list(kind):
        items = _json_text(column.flatten())
        lists = pa.ListArray.from_arrays(_list_ends(column), items)
        text = pc.if_else(column.is_valid(), pc.binary_join_element_wise("[", pc.binary_join(lists, ","), "]", ""), None)
    elif pa.types.is_struct(kind):
        fields = pa.table(column.flatten(), names=[field.name for field in kind])
        text = pc.if_else(column.is_valid(), encode_json(fields).cast(pa.string()), None)
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        text = pc.binary_join_element_wise('"', _escaped(column.cast(pa.string())), '"', "")
    elif pa.types.is_floating(kind):
        text = column.cast(pa.string())
        odd = pc.fill_null(pc.invert(pc.is_finite(column)), False)
        if pc.any(odd).as_py():
            named = pc.if_else(pc.is_nan(column), '"NaN"', pc.if_else(pc.greater(column, 0), '"Infinity"', '"-Infinity"'))
            text = pc.if_else(odd, named, text)
    elif pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        text = column.cast(pa.string())
    else:
        text = pc.binary_join_element_wise('"', plain_text(column), '"', "")
    return pc.fill_null(text, "null")


def _list_ends(column: pa.Array) -> pa.Array:
    """Offsets into `column.flatten()`, which leaves out what null or sliced-off lists hold."""
    sizes = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    return pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int32())


def plain_text(column: pa.Array) -> pa.Array:
    """Times, dates and bytes as the text that a JSON value holds; anything else as Arrow writes it."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        return _instants(column.cast(pa.timestamp("us", tz="UTC")))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.array([None if value is None else base64.b64encode(value).decode() for value in column.to_pylist()], pa.string())
    if pa.types.is_null(kind):
        return column.cast(pa.string())
    return column.cast(pa.string())


def _instants(column: pa.Array) -> pa.Array:
    """ISO 8601 in UTC, with milliseconds; with microseconds if some time in the column has them."""
    times_us = read_only(pc.fill_null(column.cast(pa.int64()), 0).to_numpy(zero_copy_only=False))
    digits = 6 if (times_us % 1_000).any() else 3
    if len(times_us) and not _YEAR_0_US <= times_us.min() <= times_us.max() < _YEAR_10000_US:
        return pc.strftime(column.cast(pa.timestamp("us" if digits == 6 else "ms", tz="UTC")), "%Y-%m-%dT%H:%M:%SZ")
    width = 21 + digits
    out = np.empty(len(times_us) * width, np.uint8)
    json_loops.put_instants(times_us, digits, out)
    ends = np.arange(0, len(out) + 1, width, dtype=np.int32)
    valid = bitmap(column.is_valid().to_numpy(zero_copy_only=False)) if column.null_count else None
    return pa.Array.from_buffers(pa.string(), len(times_us), [valid, pa.py_buffer(ends), pa.py_buffer(out)])


def _escaped(column: pa.Array) -> pa.Array:
    """Text with JSON's escapes; only columns that need some pay for them."""
    if not pc.any(pc.match_substring_regex(column, r'["\\\x00-\x1f]')).as_py():
        return column
    column = pc.replace_substring(pc.replace_substring(column, "\\", "\\\\"), '"', '\\"')
    for code in range(32):
        column = pc.replace_substring(column, chr(code), json.dumps(chr(code))[1:-1])
    return column


def encode_keys(table: pa.Table, keys: Sequence[str]) -> pa.Array | None:
    """The record key: the key column as text, or a JSON object of several; None without key columns."""
    if not keys:
        return None
    if len(keys) > 1:
        return encode_json(table.select(list(keys)))
    column = table[keys[0]].combine_chunks()
    return column.cast(pa.binary()) if pa.types.is_binary(column.type) else plain_text(column).cast(pa.binary())
