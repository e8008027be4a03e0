"""JSON: the compiled reader and the full one agree, bad records are told apart one by one, and what is written reads back."""

from __future__ import annotations

import json
import math
import random
import re
from datetime import UTC, date, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest

from penstock.schema import Schema
from penstock.spark import serde
from penstock.spark.serde import BadValue, Decoded, decode_json, encode_json, encode_keys

SCHEMA = Schema.of("area STRING, celsius DOUBLE, n INT, big BIGINT, ok BOOLEAN, at TIMESTAMP, day DATE")
EVERYTHING = SCHEMA + Schema.of("raw BINARY, many ARRAY<DOUBLE>, words ARRAY<STRING>, small FLOAT")


def load(values: list[bytes | None], schema: Schema = SCHEMA) -> Decoded:
    """Decode the values as they lie in a fetched frame: at odd places, with other bytes between them."""
    data, positions, sizes = b"#", [], []
    for value in values:
        positions.append(len(data))
        sizes.append(-1 if value is None else len(value))
        data += (value or b"") + b'"}'
    return decode_json(np.frombuffer(data, np.uint8), np.array(positions, np.int64), np.array(sizes, np.int64), schema)


def utc(*parts) -> datetime:
    return datetime(*parts, tzinfo=UTC)


def test_ordinary_rows():
    decoded = load([
        b'{"area": "kitchen", "celsius": 21.4, "n": 1, "big": 9007199254740993, "ok": true, "at": "2026-01-01T00:03:20.123Z", "day": "2026-02-28"}',
        b' { "celsius" : -1e-3 , "unknown":null,"other":"x\\"y", "area":null } ',
        b"{}",
        b'{"at":1700000000,"celsius":5,"area":"caf\xc3\xa9 \\u00e9 \\ud83d\\ude00 \\n","ok":false}',
    ])  # fmt: skip
    assert decoded.bad.tolist() == []
    assert decoded.table.to_pylist() == [
        {
            "area": "kitchen",
            "celsius": 21.4,
            "n": 1,
            "big": 9007199254740993,
            "ok": True,
            "at": utc(2026, 1, 1, 0, 3, 20, 123000),
            "day": date(2026, 2, 28),
        },
        {"area": None, "celsius": -0.001, "n": None, "big": None, "ok": None, "at": None, "day": None},
        dict.fromkeys(SCHEMA.names),
        {"area": "café é 😀 \n", "celsius": 5.0, "n": None, "big": None, "ok": False, "at": utc(2023, 11, 14, 22, 13, 20), "day": None},
    ]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "null"),
        (b"", "not JSON"),
        (b"not json", "not JSON"),
        (b'{"area": "x"', "not JSON"),
        (b'{"area": "x"} {}', "not JSON"),
        (b"[1]", "no object"),
        (b'{"celsius": "warm"}', r"column 'celsius': \"warm\" is no DOUBLE"),
        (b'{"celsius": NaN}', "NaN"),
        (b'{"celsius": true}', "celsius"),
        (b'{"celsius": 01}', "not JSON"),
        (b'{"n": 2147483648}', r"column 'n': 2147483648 is no INT"),
        (b'{"n": 1.0}', "column 'n'"),
        (b'{"big": 9223372036854775808}', "column 'big'"),
        (b'{"at": "yesterday"}', "column 'at'"),
        (b'{"at": "2026-02-30T00:00:00Z"}', "column 'at'"),
        (b'{"at": "2026-02-28T24:00:00Z"}', "column 'at'"),
        (b'{"day": "2026-13-01"}', "column 'day'"),
        (b'{"area": "\xff"}', "UTF-8"),
        (b'{"area": "\\ud800"}', "column 'area'"),
        (b'{"area": "\\x"}', "not JSON"),
        (b'{"zzz": "\\x"}', "not JSON"),
        (b'{"zzz": {"a": [1,]}}', "not JSON"),
        (b'{"area": "tab\t"}', "not JSON"),
        (b"[" * 100_000, "not JSON|nested"),
    ],
)
def test_a_bad_record_says_why_and_harms_no_other(value, reason):
    good = b'{"area": "a", "celsius": 1}'
    decoded = load([good, value, good])
    assert decoded.rows.tolist() == [0, 2]
    assert decoded.table["celsius"].to_pylist() == [1.0, 1.0]
    assert decoded.bad.tolist() == [1]
    assert re.search(reason, decoded.reasons[0]), decoded.reasons


def test_rare_but_right_forms_are_read():
    decoded = load([
        b'{"celsius": "NaN"}', b'{"celsius": "-Infinity"}', b'{"celsius": 0.1234567890123456789}', b'{"celsius": 1e400}', b'{"ar\\u0065a": "escaped name"}',
        b'{"area": 12.50}', b'{"area": {"x": [1, 2.5]}}', b'{"area": "first", "area": "last"}', b'{"area": "x", "nested": {"a": [1, "}"]}}',
        b'{"celsius": 123456789012345678901234567890}', b'{"celsius": 9007199254740993}', b'{"area": true}',
    ])  # fmt: skip
    assert decoded.bad.tolist() == []
    celsius, area = decoded.table["celsius"].to_pylist(), decoded.table["area"].to_pylist()
    assert math.isnan(celsius[0])
    assert celsius[1:4] == [-math.inf, 0.1234567890123456789, math.inf]
    assert area[4:9] == ["escaped name", "12.50", '{"x":[1,2.5]}', "last", "x"]
    assert celsius[9:11] == [123456789012345678901234567890.0, 9007199254740993.0]
    assert area[11] == "true"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-01", utc(2026, 1, 1)),
        ("2026-01-01 10:20", utc(2026, 1, 1, 10, 20)),
        ("2026-01-01T10:20:30", utc(2026, 1, 1, 10, 20, 30)),
        ("2026-01-01T10:20:30.5Z", utc(2026, 1, 1, 10, 20, 30, 500000)),
        ("2026-01-01T10:20:30.123456789Z", utc(2026, 1, 1, 10, 20, 30, 123456)),
        ("2026-01-01T10:20:30+02:00", utc(2026, 1, 1, 8, 20, 30)),
        ("2026-01-01T10:20:30-0230", utc(2026, 1, 1, 12, 50, 30)),
        ("2026-01-01T10:20:30+02", utc(2026, 1, 1, 8, 20, 30)),
        ("1969-12-31T23:59:59.999999Z", utc(1969, 12, 31, 23, 59, 59, 999999)),
        ("9999-12-31T23:59:59Z", utc(9999, 12, 31, 23, 59, 59)),
        ("0001-01-01T00:00:00Z", utc(1, 1, 1)),
    ],
)
def test_instants(text, expected):
    assert load([json.dumps({"at": text}).encode()]).table["at"].to_pylist() == [expected]
    assert serde._full(json.dumps({"at": text}).encode(), SCHEMA)["at"] == expected


def random_value(rng: random.Random) -> bytes:
    """A JSON object of the schema, mostly; sometimes with other types, sometimes with damaged bytes."""

    def text() -> str:
        return "".join(rng.choice('abc"\\\n/é😀\u0000 {}[]:,') for _ in range(rng.randrange(6)))

    def number():
        return rng.choice(
            [rng.randrange(-9, 10), rng.randrange(-(1 << 65), 1 << 65), rng.random(), rng.uniform(-1e300, 1e300), 1e-320, -0.0]
        )

    def instant():
        return rng.choice(
            [
                "2026-01-01T00:00:00Z",
                "2024-02-29",
                "2023-02-29",
                "2026-1-1",
                "1999-12-31 23:59:60",
                rng.uniform(-2e9, 2e9),
                round(rng.uniform(-2e9, 2e9), 3),
                "2026-01-01T01:02:03.000001+05:30",
            ]
        )

    def anything():
        return rng.choice(
            [text(), number(), instant(), None, True, False, [1], [], {}, {"a": text(), "b": [{}, [number(), None], {"c": True}]}, "NaN"]
        )

    right = {
        "area": text,
        "celsius": number,
        "n": lambda: rng.randrange(1 << 31),
        "big": lambda: rng.randrange(1 << 62),
        "ok": lambda: True,
        "at": instant,
        "day": instant,
    }
    row = {name: (make if rng.random() < 0.9 else anything)() for name, make in right.items() if rng.random() < 0.7}
    if rng.random() < 0.3:
        row[text()] = anything()
    items = list(row.items())
    rng.shuffle(items)
    value = json.dumps(dict(items), ensure_ascii=rng.random() < 0.5, separators=rng.choice([(",", ":"), (", ", ": ")])).encode()
    if rng.random() < 0.3:
        damaged = bytearray(value)
        for _ in range(rng.randrange(1, 3)):
            damaged[rng.randrange(len(damaged))] = rng.choice(b'"\\{}[],:0-eE.x\xff\xc3 ')
        value = bytes(damaged)
    return value


def test_compiled_and_full_reader_agree():
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    values = [random_value(rng) for _ in range(4_000)]
    decoded = load(values)
    rows = dict(zip(decoded.rows.tolist(), decoded.table.to_pylist()))
    bad = dict(zip(decoded.bad.tolist(), decoded.reasons))
    assert len(rows) + len(bad) == len(values)
    assert len(rows) > 500
    assert len(bad) > 500
    for index, value in enumerate(values):
        expected, reason = by_the_book(value)
        assert bad.get(index) == reason, value
        assert repr(rows.get(index)) == repr(expected), value


def by_the_book(value: bytes) -> tuple[dict | None, str | None]:
    try:
        return normal(serde._full(value, SCHEMA)), None
    except BadValue as error:
        return None, str(error)


def normal(row: dict) -> dict:
    return pa.Table.from_pylist([row], schema=SCHEMA.to_arrow()).to_pylist()[0]


def test_arrays_and_bytes():
    decoded = load(
        [
            b'{"raw": "aGVsbG8=", "many": [1, 2.5, null], "words": ["a", "\\n"], "small": 0.1}',
            b'{"raw": "***"}', b'{"many": [1, "x"]}', b'{"many": []}', b'{"many": 3}', b'{"raw": "aGVsbG8"}', b'{"words": [1]}',
        ],
        EVERYTHING,
    )  # fmt: skip
    good = decoded.table.select(["raw", "many", "words"]).to_pylist()
    assert decoded.rows.tolist() == [0, 3, 6]
    assert good[0] == {"raw": b"hello", "many": [1.0, 2.5, None], "words": ["a", "\n"]}
    assert good[1]["many"] == []
    assert good[2]["words"] == ["1"]
    assert [reason.split(":")[0] for reason in decoded.reasons] == ["column 'raw'", "column 'many'", "column 'many'", "column 'raw'"]


def test_what_is_written_reads_back():
    rows = [
        {"area": 'q"\\\n\t\u0001é😀', "celsius": 0.1, "n": -1, "big": 1 << 62, "ok": True, "at": utc(2026, 1, 1, 0, 0, 0, 1), "day": date(1969, 1, 1),
         "raw": b"\x00\xff", "many": [1.0, None, math.inf], "words": ["", "x"], "small": 0.5},
        dict.fromkeys(EVERYTHING.names),
        {"area": "", "celsius": math.nan, "n": 0, "big": 0, "ok": False, "at": utc(9999, 12, 31), "day": date(2026, 1, 1), "raw": b"", "many": [], "words": None, "small": -math.inf},
    ]  # fmt: skip
    table = pa.Table.from_pylist(rows, schema=EVERYTHING.to_arrow())
    values = encode_json(table).to_pylist()
    for value in values:
        json.loads(value)
    decoded = load(values, EVERYTHING)
    assert decoded.reasons == ()
    assert repr(decoded.table.to_pylist()) == repr(table.to_pylist())
    assert (
        encode_json(table.slice(1)).to_pylist() == encode_json(table).to_pylist()[1:]
        or encode_json(table.slice(1)).to_pylist()[0] == values[1]
    )


def test_instants_are_written_as_the_calendar_has_them():
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    times_us = [rng.randrange(-62_135_596_800_000_000, 253_402_300_800_000_000) for _ in range(2_000)] + [
        None,
        0,
        -1,
        951_782_400_000_000,
        253_402_300_799_999_999,
    ]
    column = pa.array(times_us, pa.timestamp("us", tz="UTC"))
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    expected = [
        None if each is None else (epoch + timedelta(microseconds=each)).strftime("%Y-%m-%dT%H:%M:%S.%fZ").rjust(27, "0")
        for each in times_us
    ]
    assert serde.plain_text(column).to_pylist() == expected
    assert serde.plain_text(pa.array([1_500_000], pa.timestamp("us", tz="UTC"))).to_pylist() == ["1970-01-01T00:00:01.500Z"]
    assert serde.plain_text(column[:0]).to_pylist() == []


def test_keys_are_text_or_an_object_of_several():
    table = pa.table({"a": ["x", None], "n": [1, 2], "raw": [b"\xff", b""]})
    assert encode_keys(table, ()) is None
    assert encode_keys(table, ("a",)).to_pylist() == [b"x", None]
    assert encode_keys(table, ("n",)).to_pylist() == [b"1", b"2"]
    assert encode_keys(table, ("raw",)).to_pylist() == [b"\xff", b""]
    assert encode_keys(table, ("a", "n")).to_pylist() == [b'{"a":"x","n":1}', b'{"a":null,"n":2}']
