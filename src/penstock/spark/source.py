"""Topics as a Spark source: the Python Data Source "penstock".

Three ways in, one reader: `spark.readStream.format("penstock")` for anyone; `rows` gives a scan's decoded rows to Spark's
operators; `envelopes` gives a whole plan's scans, and its clock, ready for the first stage. Offsets per partition are in Spark's
checkpoint (`offsets.py`); the group's offsets at the broker are only for people who watch it. The planner lives in one process on the
driver as long as the query; `read` runs in workers and keeps nothing but connections.

    option               meaning                                                   default
    address              bootstrap servers                                         must be given
    topics               comma-separated                                           must be given
    format, schema       json, csv, text with columns, or raw                      raw
    select               columns of raw: key, value, headers, topic, partition,    all but headers
                         offset, timestamp; fewer are faster
    start, end           earliest, latest, {"timestamp_ms": n}, {"t": {"0": n}}    earliest, none (stream) or latest (batch)
    records_per_batch_max, bytes_per_batch_max   admission per batch               2000000, none
    group                where to commit offsets for monitoring                    none
    on_lost              fail or resume when records are gone                      fail
    tasks                reader tasks                                              cores of the session
    check                verify checksums                                          true"""

from __future__ import annotations

import base64
import json
import logging
import pickle
import struct
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, SupportsTriggerAvailableNow

from penstock.errors import ConfigError
from penstock.planner.physical import PhysicalPlan, Scan
from penstock.schema import Schema
from penstock.spark.offsets import LATEST, Offsets, Place, Slice, admit, client_of, flat, nested, resolve, share

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

# Spark starts several processes per query that import this module; what only one of them needs is imported where it is used.

FORMAT = "penstock"
RECORDS_PER_BATCH_MAX = 2_000_000
SAMPLE_BYTES = 64 << 10
PLACES_S_MAX = 1.0
IDLE_POLL_S = 0.01
AWAY_POLL_S = 0.2
PLANNER_RETRY_S = 2.0  # the planner is asked again anyway, and must hear a stop
AWAY_S_MAX = 300.0
RAW_COLUMNS = {
    "key": "BINARY", "value": "BINARY", "headers": "ARRAY<STRUCT<key: STRING, value: BINARY>>", "topic": "STRING", "partition": "INT", "offset": "BIGINT",
    "timestamp": "TIMESTAMP",
}  # fmt: skip
OURS_DDL = "_time BIGINT, _source INT, _partition INT, _offset BIGINT, _envelopes BINARY"
OPTIONS = frozenset({
    "address", "topics", "format", "schema", "start", "end", "records_per_batch_max", "bytes_per_batch_max", "group", "on_lost", "tasks", "check", "select",
    "event_time", "compression", "connector", "plan", "emit", "columns", "path",
})  # fmt: skip

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reading:
    """Everything that planner and workers need to know, as frozen data."""

    address: str
    scans: tuple[Scan, ...]
    emit: str  # raw, typed (the user's columns), rows (and ours), envelopes
    tasks: int
    groups: tuple[tuple[int, int], ...] = ()  # of the stages, for envelopes: (id, groups)
    ticked: tuple[int, ...] = ()  # stages that want ticks
    interval_us: int | None = None
    records_per_batch_max: int | None = RECORDS_PER_BATCH_MAX
    bytes_per_batch_max: int | None = None
    group: str | None = None
    on_lost: str = "fail"
    check: bool = True


# --- for the rest of Penstock ---------------------------------------------------------------------------------------


def envelopes(spark: SparkSession, plan: PhysicalPlan, *, address: str, options: Mapping[str, str] | None = None) -> DataFrame:
    """All scans of a plan that run in the reader, and its clock, as one stream of envelopes."""
    scans = tuple(scan for scan in plan.scans if scan.dataframe is None and scan.place == "scan")
    needs_clock = tuple(stage.id for stage in plan.stages if stage.needs_clock)
    reading = Reading(
        address=address, scans=scans, emit="envelopes", groups=tuple((stage.id, stage.groups) for stage in plan.stages),
        ticked=needs_clock, interval_us=plan.clock.interval_us, **_settings({"tasks": str(_cores(spark)), **(options or {})}),
    )  # fmt: skip
    return _load(spark, reading)


def rows(
    spark: SparkSession, scan: Scan, *, groups: Mapping[int, int], address: str, options: Mapping[str, str] | None = None
) -> DataFrame:
    """A scan's good rows for Spark's operators: the user's columns and OURS_DDL. `groups` are those of the plan's stages.

    One row per task has nothing but `_envelopes`: dead letters, partitions' times and counts, to be forwarded as they are."""
    reading = Reading(
        address=address,
        scans=(scan,),
        emit="rows",
        groups=tuple(sorted(groups.items())),
        **_settings({"tasks": str(_cores(spark)), **(options or {})}),
    )
    return _load(spark, reading)


def register(spark: SparkSession) -> None:
    """Make `format("penstock")` known to a session."""
    spark.dataSource.register(TopicSource)


def _load(spark: SparkSession, reading: Reading) -> DataFrame:
    register(spark)
    packed = base64.b64encode(_pickled(reading)).decode()
    return spark.readStream.format(FORMAT).option("plan", packed).option("columns", _ddl(reading.emit, reading.scans[0])).load()


def _pickled(reading: Reading) -> bytes:
    """Plans may hold users' functions, so they travel as Spark's own closures do. Never stored."""
    from pyspark import cloudpickle

    packed: bytes = cloudpickle.dumps(reading)  # type: ignore[no-untyped-call]
    return packed


def _cores(spark: SparkSession) -> int:
    return int(spark.sparkContext.defaultParallelism)


def _settings(options: Mapping[str, str]) -> dict[str, Any]:
    """The settings that all ways in share, from options."""
    unknown = sorted(set(options) - OPTIONS)
    if unknown:
        raise ConfigError(
            f"option '{unknown[0]}' is not known", remedy=f"use one of {', '.join(sorted(OPTIONS - {'plan', 'emit', 'columns', 'path'}))}"
        )
    found: dict[str, Any] = {"tasks": _number(options, "tasks", 2)}
    found["records_per_batch_max"] = _number(options, "records_per_batch_max", RECORDS_PER_BATCH_MAX)
    found["bytes_per_batch_max"] = _number(options, "bytes_per_batch_max", None)
    found["group"] = options.get("group")
    found["on_lost"] = options.get("on_lost", "fail")
    found["check"] = options.get("check", "true").lower() != "false"
    if found["on_lost"] not in ("fail", "resume"):
        raise ConfigError(f"on_lost is '{found['on_lost']}'", remedy="use fail or resume")
    return found


def _number(options: Mapping[str, str], name: str, default: int | None) -> int | None:
    if name not in options:
        return default
    if not options[name].isdigit() or int(options[name]) < 1:
        raise ConfigError(f"option {name} is '{options[name]}'", remedy="give a whole number above zero")
    return int(options[name])


# --- the data source ------------------------------------------------------------------------------------------------


class TopicSource(DataSource):
    """`format("penstock")`, to read and to write."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        if "columns" in self.options:
            return str(self.options["columns"])
        reading = self._reading(bounded=False)
        return _ddl(reading.emit, reading.scans[0])

    def streamReader(self, schema: Any) -> TopicStreamReader:
        return TopicStreamReader(self._reading(bounded=False))

    def reader(self, schema: Any) -> TopicReader:
        return TopicReader(self._reading(bounded=True))

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        from penstock.spark.sink import stream_writer

        return stream_writer(dict(self.options))

    def writer(self, schema: Any, overwrite: bool) -> Any:
        from penstock.spark.sink import batch_writer

        return batch_writer(dict(self.options))

    def _reading(self, *, bounded: bool) -> Reading:
        options = {name.lower(): value for name, value in self.options.items()}
        if "plan" in options:
            reading: Reading = pickle.loads(base64.b64decode(options["plan"]))
            return reading
        for name in ("address", "topics"):
            if name not in options:
                raise ConfigError(f"option {name} is missing", remedy=f'write .option("{name}", …)')
        topics = tuple(topic.strip() for topic in options["topics"].split(",") if topic.strip())
        kind = options.get("format", "raw" if "schema" not in options else "json")
        if kind != "raw" and "schema" not in options:
            raise ConfigError(f"format {kind} needs a schema", remedy='write for example .option("schema", "area STRING, celsius DOUBLE")')
        scan = Scan(
            id=0, name=options["topics"], schema=Schema.of(options.get("schema", "value BINARY")), feeds=(), topics=topics, format=kind,
            event_time=options.get("event_time"), start=_position(options.get("start", "earliest")),
            end=_position(options["end"]) if "end" in options else "latest" if bounded else None, columns=_selected(options) if kind == "raw" else None,
        )  # fmt: skip
        return Reading(
            address=options["address"], scans=(scan,), emit="raw" if kind == "raw" else options.get("emit", "typed"), **_settings(options)
        )


def _selected(options: Mapping[str, str]) -> tuple[str, ...]:
    given = tuple(name.strip() for name in options.get("select", "key, value, topic, partition, offset, timestamp").split(","))
    for name in given:
        if name not in RAW_COLUMNS:
            raise ConfigError(f"a raw record has no column '{name}'", remedy=f"use {', '.join(RAW_COLUMNS)}")
    return given


def _position(text: str) -> Any:
    if text in ("earliest", "latest"):
        return text
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"'{text}' is no position in a topic", remedy='use earliest, latest, {"timestamp_ms": n} or {"topic": {"0": n}}'
        ) from error


def _ddl(emit: str, scan: Scan) -> str:
    match emit:
        case "envelopes":
            from penstock.kernels.envelope import DDL

            return DDL
        case "rows":
            return f"{scan.schema}, {OURS_DDL}"
        case "typed":
            return f"{scan.schema}, _error STRING"
    return ", ".join(f"{name} {RAW_COLUMNS[name]}" for name in scan.columns or ())


class ScanSlices(InputPartition):
    """What one task reads: slices of each scan, and the tick that it announces."""

    def __init__(
        self, task: int, slices: dict[int, list[Slice]], places: dict[int, list[Place]], ended: dict[int, list[Place]], tick_us: int | None
    ) -> None:
        self.task, self.slices, self.places, self.ended, self.tick_us = task, slices, places, ended, tick_us


class _Planner:
    """Which offsets there are, and which a batch reads. Holds no connection of its own, so it can travel."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.target: dict[int, Offsets] | None = None  # where an AvailableNow run ends
        self._places: dict[int, tuple[float, list[Place]]] = {}  # by scan: when they were asked for

    def places(self, scan: Scan) -> list[Place]:
        """All partitions of a scan. New ones are noticed within a second, not at every idle poll."""
        asked_s, places = self._places.get(scan.id, (-PLACES_S_MAX, []))
        if time.monotonic() - asked_s < PLACES_S_MAX:
            return places
        found = client_of(self.reading.address, retry_s=PLANNER_RETRY_S).partitions(scan.topics)
        places = [(topic, partition) for topic, partitions in found.items() for partition in partitions]
        self._places[scan.id] = time.monotonic(), places
        return places

    def initial(self) -> dict[str, Any]:
        client = client_of(self.reading.address, retry_s=PLANNER_RETRY_S)
        scans, ends = {}, {}
        for scan in self.reading.scans:
            places = self.places(scan)
            scans[str(scan.id)] = nested(resolve(client, scan.start, places))
            if scan.end is not None:
                ends[str(scan.id)] = nested(resolve(client, scan.end, places))
        for id, end in ends.items():  # a range that ends before it starts is empty
            start = flat(scans[id])
            ends[id] = nested({place: max(offset, start[place]) for place, offset in flat(end).items()})
        return {"clock": 0, "scans": scans, "ends": ends}

    def available(self, start: Mapping[str, Any]) -> dict[int, Offsets]:
        """How far each scan could be read now; a scan with an end, at most to it. New partitions are there from their first record."""
        client = client_of(self.reading.address, retry_s=PLANNER_RETRY_S)
        result = {}
        for scan in self.reading.scans:
            ends = flat(start.get("ends", {}).get(str(scan.id), {}))
            if self.target is not None:
                latest = self.target[scan.id]
            else:
                latest = client.list_offsets(dict.fromkeys(ends or self.places(scan), LATEST))
            result[scan.id] = {place: min(end, latest.get(place, 0)) for place, end in ends.items()} if ends else latest
        return result

    def next(self, start: Mapping[str, Any], limit: ReadLimit | None) -> dict[str, Any]:
        available = self.available(start)
        begin = {scan.id: self._begin(scan, start, available[scan.id]) for scan in self.reading.scans}
        backlog = sum(max(end - begin[id].get(place, 0), 0) for id, ends in available.items() for place, end in ends.items())
        records_max = self._records_max(begin, available, limit)
        scans = {}
        for scan in self.reading.scans:
            mine = sum(max(end - begin[scan.id][place], 0) for place, end in available[scan.id].items())
            part = None if records_max is None or backlog <= records_max else max(1, records_max * mine // backlog)
            end = admit(begin[scan.id], available[scan.id], part)
            self._check_order(begin[scan.id], end)
            scans[str(scan.id)] = nested({**begin[scan.id], **end})
        clock = self._clock(start, moved=scans != start["scans"])
        return {"clock": clock, "scans": scans, "ends": start.get("ends", {})}

    def _begin(self, scan: Scan, start: Mapping[str, Any], available: Offsets) -> Offsets:
        """Where a batch begins. A partition that is new begins at 0."""
        known = flat(start["scans"].get(str(scan.id), {}))
        return {place: known.get(place, 0) for place in {**known, **available}}

    def _check_order(self, begin: Offsets, end: Offsets) -> None:
        for place, offset in end.items():
            if offset < begin[place] and self.reading.on_lost == "fail":
                from penstock.spark.fetch import LostOffsets

                raise LostOffsets(place, begin[place], offset)
        for place in begin.keys() - end.keys():
            from penstock.protocol.client import UnknownTopic

            raise UnknownTopic(f"{place[0]}/{place[1]}", self.reading.address)

    def _clock(self, start: Mapping[str, Any], *, moved: bool) -> int:
        """Processing time: recorded with every batch that has data, and at the interval that the plan asks for."""
        if self.reading.interval_us is None and not self.reading.ticked:
            return 0
        now_us = max(time.time_ns() // 1_000, start["clock"])
        due = self.reading.interval_us is not None and self.target is None and now_us - start["clock"] >= self.reading.interval_us
        return now_us if moved or due else int(start["clock"])

    def _records_max(self, begin: dict[int, Offsets], available: dict[int, Offsets], limit: ReadLimit | None) -> int | None:
        limits = [self.reading.records_per_batch_max]
        bytes_max = self.reading.bytes_per_batch_max
        if isinstance(limit, ReadMaxRows):
            limits.append(limit.max_rows)
        if isinstance(limit, ReadMaxBytes):
            bytes_max = min(bytes_max or limit.max_bytes, limit.max_bytes)
        if bytes_max is not None and (size := self._record_bytes(begin, available)):
            limits.append(max(1, int(bytes_max / size)))
        given = [each for each in limits if each is not None]
        return min(given) if given else None

    def _record_bytes(self, begin: dict[int, Offsets], available: dict[int, Offsets]) -> float | None:
        """About how many bytes a record takes: from the first batch of the partition with the most to read."""
        waiting = [
            (end - begin[id][place], place, begin[id][place])
            for id, ends in available.items()
            for place, end in ends.items()
            if end > begin[id][place]
        ]
        if not waiting:
            return None
        from penstock.protocol.client import Wanted

        _, (topic, partition), offset = max(waiting)
        ((frame, part),) = client_of(self.reading.address, retry_s=PLANNER_RETRY_S).fetch(
            [Wanted(topic, partition, offset, SAMPLE_BYTES)], bytes_max=SAMPLE_BYTES
        )
        if part.error or part.end - part.start < 61:
            return None
        (size,) = struct.unpack_from(">i", frame, part.start + 8)
        (count,) = struct.unpack_from(">i", frame, part.start + 57)
        return float(size / max(count, 1))

    def tasks(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[ScanSlices]:
        """The tasks of a batch, the same whenever it is planned."""
        count = self.reading.tasks
        slices: list[tuple[int, Slice]] = []
        places: dict[int, list[Place]] = {}
        ended: dict[int, list[Place]] = {}
        for scan in self.reading.scans:
            begin, stop = flat(start["scans"].get(str(scan.id), {})), flat(end["scans"][str(scan.id)])
            bounds = flat(end.get("ends", {}).get(str(scan.id), {}))
            places[scan.id] = list(stop)
            ended[scan.id] = [place for place, offset in stop.items() if place in bounds and offset >= bounds[place]]
            for place, offset in stop.items():
                first = begin.get(place, 0)
                if offset < first:  # cut short, and the reader shall resume with what is there
                    first = client_of(self.reading.address, retry_s=PLANNER_RETRY_S).list_offsets({place: -2})[place]
                if offset > first:
                    slices.append((scan.id, Slice(*place, first, offset)))
        loads = share([each._replace(topic=f"{id}/{each.topic}") for id, each in slices], count) or [[]]
        tick_us = end["clock"] if end["clock"] != start["clock"] and self.reading.ticked else None
        result = []
        for task, load in enumerate(loads):
            mine: dict[int, list[Slice]] = {}
            for each in load:
                id, _, topic = each.topic.partition("/")
                mine.setdefault(int(id), []).append(each._replace(topic=topic))
            # One task speaks for all partitions that none reads; each speaks for its own.
            told = {
                id: [place for place in all_places if task == 0 or any(place == each[:2] for each in mine.get(id, ()))]
                for id, all_places in places.items()
            }
            result.append(ScanSlices(task, mine, told, ended, tick_us if task == 0 else None))
        return result


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._planner = _Planner(reading)
        self._committed: dict[str, Any] | None = None
        self._away_s: float | None = None  # since when no broker answers

    def initialOffset(self) -> dict[str, Any]:
        return self._planner.initial()

    def prepareForTriggerAvailableNow(self) -> None:
        self._planner.target = self._planner.available({})  # a scan's own end, in the offsets, still holds

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()  # the options say how much: both limits at once, which Spark's classes cannot

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit | None = None) -> dict[str, Any]:
        from penstock.protocol.client import Unreachable

        try:
            return self._latest(start, limit)
        except Unreachable as error:
            # A broker that is away for a while is no reason to end a query: there is nothing new, for now. A run up to
            # a target must not take that for its end.
            self._away_s = self._away_s if self._away_s is not None else time.monotonic()
            if self._planner.target is not None or time.monotonic() - self._away_s > AWAY_S_MAX:
                raise
            _log.warning("no new offsets for now: %s", error)
            time.sleep(AWAY_POLL_S)
            return start

    def _latest(self, start: dict[str, Any], limit: ReadLimit | None) -> dict[str, Any]:
        self.commit(start)  # Spark commits a batch when it plans the next but one; an idle stream would show a lag that it has not
        end = self._planner.next(start, limit)
        self._away_s = None
        if end == start and self._planner.target is None:
            time.sleep(IDLE_POLL_S)  # Spark asks again at once
        return end

    def reportLatestOffset(self) -> dict[str, Any] | None:
        from penstock.protocol.client import Unreachable

        try:
            latest = self._planner.available({})
        except Unreachable:
            return None
        return {"clock": 0, "scans": {str(id): nested(offsets) for id, offsets in latest.items()}, "ends": {}}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[ScanSlices]:
        return self._planner.tasks(start, end)

    def read(self, partition: ScanSlices) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        from penstock.spark.reader import read

        return read(self._reading, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Tell the broker how far the query is, for those who watch its lag. The checkpoint is what counts, so a failure is only logged."""
        if self._reading.group is None or end["scans"] == self._committed:
            return
        self._committed = end["scans"]
        offsets: Offsets = {}
        for scan in end["scans"].values():
            for place, offset in flat(scan).items():
                offsets[place] = min(offset, offsets.get(place, offset))
        try:
            client_of(self._reading.address, retry_s=PLANNER_RETRY_S).commit_offsets(self._reading.group, offsets)
        except Exception as error:
            _log.warning("offsets of group '%s' were not committed: %s", self._reading.group, error)

    def stop(self) -> None:
        client_of(self._reading.address, retry_s=PLANNER_RETRY_S).close()


class TopicReader(DataSourceReader):
    """A bounded read of a range of offsets."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    def partitions(self) -> list[ScanSlices]:
        planner = _Planner(self._reading)
        start = planner.initial()
        end = {"clock": 0, "scans": {str(id): nested(offsets) for id, offsets in planner.available(start).items()}, "ends": start["ends"]}
        return planner.tasks(start, end)

    def read(self, partition: ScanSlices) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        from penstock.spark.reader import read

        return read(self._reading, partition)
