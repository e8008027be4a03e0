"""What a reader task does with the records of a scan: decode, check, time, filter, combine, pack.

    records ─▶ values ─▶ requirements ─▶ steps before the time ─▶ _time, maxima ─▶ per feed: steps ─▶ combine ─▶ envelopes
                 └─ bad ──────┴──────────────────────────────────────────────────────────────────▶ dead letters

Runs in a Spark worker (or anywhere): Arrow in, Arrow out. Invariant: each record is counted once, as read, and at most once as bad. Not here:
where the records come from (`fetch.py`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import ConfigError
from penstock.kernels.envelope import ACTIVE, ENDED, Envelope, Times, counts_envelope, rows_to_sink, rows_to_stage, times_to_stage
from penstock.kernels.kernel import NEVER_US, OFFSET, PARTITION, SOURCE, TIME
from penstock.planner.physical import Feed, Scan
from penstock.planner.stateless import run_steps
from penstock.protocol.client import Place
from penstock.schema import Schema
from penstock.spark import loops
from penstock.spark.decode import HEADERS_TYPE, Records
from penstock.spark.json_loops import utf8
from penstock.spark.serde import Decoded, decode_json

Array = Any  # numpy.ndarray

FLUSH_ROWS = 500_000  # rows of one feed that are combined and packed together
ROW = "_row"
PARTITION_BITS = 20  # a partition's number in `Times`: topic index << 20 | partition

RAW = pa.schema(
    [("key", pa.binary()), ("value", pa.binary()), ("headers", HEADERS_TYPE), ("topic", pa.string()), ("partition", pa.int32()),
     ("offset", pa.int64()), ("timestamp", pa.timestamp("us", tz="UTC"))]
)  # fmt: skip
LETTERS = RAW.append(pa.field("reason", pa.string()))  # what a dead-letter sink gets


@dataclass(slots=True)
class ScanTask:
    """One scan in one task of one batch."""

    scan: Scan
    stages: frozenset[int]  # ids of stages; other addressees are sinks
    task: int
    greatest_us: dict[Place, int] = field(default_factory=dict)
    records: int = 0
    bad: int = 0
    waiting: dict[int, list[pa.Table]] = field(default_factory=dict)  # by index of the feed

    def rows(self, place: Place, records: Records) -> tuple[pa.Table, list[Envelope]]:
        """The good rows of a chunk of one partition, with the records' own time, and the dead letters of the bad ones."""
        self.records += len(records)
        decoded = values(self.scan, place, records)
        letters = list(self._letters(place, records.take(decoded.bad), list(decoded.reasons)))
        table = self._with_ours(decoded, place, records)
        for requirement in self.scan.requirements:
            kept = requirement.step.apply(table)
            dropped = np.setdiff1d(table[ROW].to_numpy(), kept[ROW].to_numpy(), assume_unique=True)
            letters += self._letters(place, records.take(dropped), [requirement.reason] * len(dropped))
            table = kept
        return table.drop_columns([ROW]), letters

    def timed(self, place: Place, table: pa.Table) -> pa.Table:
        """Set the rows' event time, and note the greatest of the partition."""
        if self.scan.event_time is not None:
            time = table[self.scan.event_time].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
            table = table.set_column(table.column_names.index(TIME), TIME, time)
        greatest_us = pc.max(table[TIME]).as_py()
        if greatest_us is not None:
            self.greatest_us[place] = max(self.greatest_us.get(place, NEVER_US), greatest_us)
        return table

    def take(self, place: Place, records: Records) -> Iterator[Envelope]:
        """The envelopes that a chunk of one partition gives; rows may wait for more of their kind."""
        table, letters = self.rows(place, records)
        yield from letters
        table = self.timed(place, run_steps(self.scan.before_time, table))
        for index, feed in enumerate(self.scan.feeds):
            rows = run_steps(feed.steps, table)
            if rows.num_rows:
                self.waiting.setdefault(index, []).append(rows)
            if sum(each.num_rows for each in self.waiting.get(index, ())) >= FLUSH_ROWS:
                yield from self._flush(index, feed)

    def finish(self, places: list[Place], ended: set[Place], groups: dict[int, int]) -> Iterator[Envelope]:
        """What is left, what every stage must know of this task's partitions, and the counts."""
        for index, feed in enumerate(self.scan.feeds):
            yield from self._flush(index, feed)
        times = [self._time(place, ended) for place in places]
        for to, input in sorted({(feed.to, feed.input) for feed in self.scan.feeds if feed.to in self.stages}):
            yield from times_to_stage(times, to=to, source=self.scan.id, groups=groups[to], input=input)
        yield counts_envelope({"records": self.records, "bad": self.bad}, source=self.scan.id, group=self.task)

    def _time(self, place: Place, ended: set[Place]) -> Times:
        number = self.scan.topics.index(place[0]) << PARTITION_BITS | place[1]
        return Times(number, self.greatest_us.get(place, NEVER_US), ENDED if place in ended else ACTIVE)

    def _flush(self, index: int, feed: Feed) -> Iterator[Envelope]:
        tables = self.waiting.pop(index, [])
        if not tables:
            return
        table = pa.concat_tables(tables).combine_chunks()
        if feed.combine is not None:
            table = feed.combine(table)
        if feed.to in self.stages:
            yield from rows_to_stage(table, to=feed.to, source=self.scan.id, keys=feed.keys, groups=feed.groups, input=feed.input)
        else:
            yield from rows_to_sink(table, to=feed.to, source=self.scan.id, group=self.task)

    def _letters(self, place: Place, records: Records, reasons: list[str]) -> Iterator[Envelope]:
        self.bad += len(reasons)
        if self.scan.dead_letters is not None and reasons:
            table = raw_table(place, records).append_column("reason", pa.array(reasons, pa.string()))
            yield from rows_to_sink(table, to=self.scan.dead_letters, source=self.scan.id, group=self.task)

    def _with_ours(self, decoded: Decoded, place: Place, records: Records) -> pa.Table:
        """The user's columns, and where each row comes from; its time is the record's own for now."""
        count = decoded.table.num_rows
        rows = slice(None) if count == len(records) else decoded.rows
        times_ms = records.times_ms[rows]
        number = self.scan.topics.index(place[0]) << PARTITION_BITS | place[1]
        ours = {
            TIME: pa.array(times_ms * 1_000, mask=times_ms < 0) if bool((times_ms < 0).any()) else pa.array(times_ms * 1_000),
            SOURCE: pa.array(np.full(count, self.scan.id, np.int32)),
            PARTITION: pa.array(np.full(count, number, np.int32)),
            OFFSET: pa.array(np.ascontiguousarray(records.offsets[rows])),
            ROW: pa.array(decoded.rows),
        }
        return pa.Table.from_arrays(decoded.table.columns + list(ours.values()), names=decoded.table.column_names + list(ours))


def values(scan: Scan, place: Place, records: Records) -> Decoded:
    """The records' values as the scan's columns, by its format."""
    schema = scan.schema if scan.columns is None else _selected(scan.schema, scan.columns)
    match scan.format:
        case "json":
            return decode_json(records.data, records.table[loops.VALUE], records.table[loops.VALUE_SIZE], schema)
        case "raw":
            table = raw_table(place, records, schema.names)
            return Decoded(table, np.arange(len(records)), np.empty(0, np.int64), ())
        case "text":
            return _texts(records, schema)
        case "csv":
            return _csv(records, schema)
    raise ConfigError(f"scan '{scan.name}': format '{scan.format}' is not known", remedy="use json, csv, text or raw")


@lru_cache(maxsize=64)
def _selected(schema: Schema, columns: tuple[str, ...]) -> Schema:
    return schema.select(*(name for name in schema.names if name in columns))


def raw_table(place: Place, records: Records, columns: tuple[str, ...] | None = None) -> pa.Table:
    """Records with nothing decoded: the columns of RAW, or some of them."""
    count = len(records)
    made = {
        "key": records.keys, "value": records.values, "headers": records.headers,
        "topic": lambda: pa.array([place[0]], pa.string()).take(pa.array(np.zeros(count, np.int32))),
        "partition": lambda: pa.array(np.full(count, place[1], np.int32)),
        "offset": lambda: pa.array(np.ascontiguousarray(records.offsets)),
        "timestamp": records.timestamps,
    }  # fmt: skip
    names = columns if columns is not None else tuple(made)
    for name in names:
        if name not in made:
            raise ConfigError(f"a raw record has no column '{name}'", remedy=f"use {', '.join(made)}")
    return pa.table([made[name]() for name in names], names=list(names))


def _texts(records: Records, schema: Schema) -> Decoded:
    """Each value as text, in the schema's one column."""
    if len(schema.fields) != 1 or schema.fields[0].type != "STRING":
        raise ConfigError(f"format text has one STRING column, not {schema}", remedy="write for example 'line STRING'")
    positions, sizes = records.table[loops.VALUE], records.table[loops.VALUE_SIZE]
    column = records.values()
    try:
        text = column.cast(pa.string())
        bad: list[int] = []
    except pa.ArrowInvalid:
        bad = [row for row in range(len(records)) if sizes[row] > 0 and not utf8(records.data, positions[row], positions[row] + sizes[row])]
        good = np.ones(len(records), bool)
        good[bad] = False
        text = column.filter(pa.array(good)).cast(pa.string())
    rows = np.setdiff1d(np.arange(len(records)), bad, assume_unique=True)
    return Decoded(pa.table([text], schema=schema.to_arrow()), rows, np.array(bad, np.int64), ("the value is not UTF-8",) * len(bad))


def _csv(records: Records, schema: Schema) -> Decoded:
    """One CSV line per record, fields in the schema's order. All lines are read at once; if one is wrong, each by itself."""
    import io

    from pyarrow import csv

    wanted = schema.to_arrow()
    read = csv.ReadOptions(column_names=list(schema.names))
    convert = csv.ConvertOptions(column_types=wanted, strings_can_be_null=True, quoted_strings_can_be_null=False)
    parse = csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False)

    def table_of(lines: list[bytes | None]) -> pa.Table:
        text = b"\n".join(line if line is not None else b"\0" for line in lines) + b"\n"
        made = csv.read_csv(io.BytesIO(text), read, parse, convert)
        if made.num_rows != len(lines):
            raise pa.ArrowInvalid(f"{made.num_rows} lines")
        return made.cast(wanted)

    lines = records.values().to_pylist()
    everything = np.arange(len(lines))
    if not lines:
        return Decoded(wanted.empty_table(), everything, everything, ())
    try:
        return Decoded(table_of(lines), everything, np.empty(0, np.int64), ())
    except (pa.ArrowInvalid, pa.ArrowKeyError):
        pass
    good, bad, reasons, tables = [], [], [], []
    for row, line in enumerate(lines):
        try:
            tables.append(table_of([line]))
            good.append(row)
        except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
            bad.append(row)
            reasons.append(f"the value is no CSV line of {schema}: {str(error).splitlines()[0]}")
    table = pa.concat_tables(tables).combine_chunks() if tables else wanted.empty_table()
    return Decoded(table, np.array(good, np.int64), np.array(bad, np.int64), tuple(reasons))
