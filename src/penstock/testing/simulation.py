"""A whole pipeline on the test host: no Spark, no broker, no clock but the one the test moves.

What runs is what runs in production: records are encoded as a producer does and go through the scan, the envelopes, the stages' hosts with their
state, and the sinks. Only Spark between them is replaced by a loop over stages and key groups. One call of `send`, `clock` or `end` is one batch.

    sim = simulate(pipeline)
    sim.send("temperatures", {"area": "a", "celsius": 50.0, "at": "2026-01-01T00:00:01Z"})
    sim.end()
    assert sim.rows("averages") == […]"""

from __future__ import annotations

import base64
import itertools
import json
import math
import struct
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from typing import Any

import numpy as np

from penstock import planner
from penstock.clock import micros
from penstock.dataflow.pipeline import Pipeline
from penstock.dataflow.window import Duration
from penstock.errors import ConfigError
from penstock.kernels.envelope import COUNTS, Envelope, open_table, tick_to_stage
from penstock.log import batch
from penstock.planner.physical import PhysicalPlan, Scan, Stage
from penstock.protocol.client import Place
from penstock.spark.decode import decode, read_batches
from penstock.spark.host import Head, Host, hosts
from penstock.spark.scan import ScanTask

Value = Mapping[str, Any] | bytes | str | None
_jobs = itertools.count()


def simulate(pipeline: Pipeline, *, groups: int = 4, without: Collection[str] = (), start_ms: int = 0) -> Simulation:
    """The pipeline, ready for its first batch. `groups` and `without` (planner rules) change how it runs, never what comes out."""
    return Simulation(planner.plan(pipeline, groups=groups, without=without), start_ms=start_ms)


class Simulation:
    """A physical plan at work. Rows are kept per topic in the order in which they were written."""

    def __init__(self, plan: PhysicalPlan, *, start_ms: int = 0) -> None:
        if plan.needs_spark:
            why = "; ".join(scan.reason for scan in plan.scans if scan.place == "spark")
            raise ConfigError(f"the test host cannot run this pipeline: {why}", remedy="test it on Spark, or stay in the typed subset")
        self.plan = plan
        self.now_us = start_ms * 1_000
        self.counts: Counter[str] = Counter()
        self._stores: dict[tuple[int, int], _Store] = defaultdict(_Store)
        self._offsets: Counter[Place] = Counter()
        self._ended: set[Place] = set()
        self._written: dict[int, list[dict[str, Any]]] = defaultdict(list)
        self._taken: Counter[int] = Counter()
        self._hosts: dict[int, Host] = {}
        self.restart()

    # What happens to it

    def send(self, topic: str, *values: Value, partition: int = 0, at_ms: int | None = None) -> None:
        """Records of one partition, as one batch. A dict is sent as JSON; bytes and text as they are."""
        self.batch([(topic, partition, value) for value in values], at_ms=at_ms)

    def batch(self, records: Iterable[tuple[str, int, Value]], *, at_ms: int | None = None) -> None:
        """Records of several topics and partitions, (topic, partition, value), as one batch."""
        by_place: dict[Place, list[bytes | None]] = defaultdict(list)
        for topic, partition, value in records:
            by_place[(topic, partition)].append(_encoded(value))
        known = {topic for scan in self.plan.scans for topic in scan.topics}
        for topic, _ in by_place:
            if topic not in known:
                raise ConfigError(f"the pipeline does not read '{topic}'", remedy=f"it reads {', '.join(sorted(known))}")
        timestamp_ms = self.now_us // 1_000 if at_ms is None else at_ms
        self._run([envelope for scan in self.plan.scans for envelope in self._scanned(scan, by_place, timestamp_ms)])
        for place, sent in by_place.items():
            self._offsets[place] += len(sent)

    def clock(self, to: Duration) -> None:
        """Processing time moves to so long after its start (numbers are seconds), and ticks."""
        now_us = micros(to)
        if now_us < self.now_us:
            raise ConfigError(f"the clock is at {self.now_us / 1e6:g} s and does not go back", remedy="move it forward")
        self.now_us = now_us
        self._run(
            [tick for stage in self.plan.stages if stage.needs_clock for tick in tick_to_stage(now_us, to=stage.id, groups=stage.groups)]
        )

    def end(self) -> None:
        """The topics have ended: every window is complete."""
        self._ended = {(topic, partition) for topic, partition in self._places()}
        self._run([envelope for scan in self.plan.scans for envelope in self._scanned(scan, {}, 0)])

    def restart(self) -> None:
        """Throws away everything but the saved state, as a crash after a batch does."""
        job = f"simulation-{next(_jobs)}"  # another name, so that no instance in memory is found again
        for stages in self.plan.operators:
            self._hosts |= {host.stage.id: host for host in hosts(self.plan, stages, job=job)}

    # What came out

    def rows(self, topic: str | None = None) -> list[dict[str, Any]]:
        """All rows written to a topic so far (None: those of `collect`)."""
        ids = self._sinks(topic)
        return [row for id in ids for row in self._written[id]]

    def take(self, topic: str | None = None) -> list[dict[str, Any]]:
        """The rows written to a topic since the last `take`."""
        taken = []
        for id in self._sinks(topic):
            taken += self._written[id][self._taken[id] :]
            self._taken[id] = len(self._written[id])
        return taken

    def _sinks(self, topic: str | None) -> list[int]:
        ids = [sink.id for sink in self.plan.sinks if sink.topic == topic]
        if not ids:
            written = ", ".join(sorted({str(sink.topic) for sink in self.plan.sinks}))
            raise ConfigError(f"the pipeline does not write '{topic}'", remedy=f"it writes {written}")
        return ids

    # One batch

    def _places(self) -> set[Place]:
        return set(self._offsets) | {(topic, 0) for scan in self.plan.scans for topic in scan.topics}

    def _scanned(self, scan: Scan, by_place: Mapping[Place, Sequence[bytes | None]], timestamp_ms: int) -> Iterator[Envelope]:
        stages = {stage.id: stage.groups for stage in self.plan.stages}
        task = ScanTask(scan, frozenset(stages), 0)
        for place, values in by_place.items():
            if place[0] in scan.topics:
                start = self._offsets[place]
                yield from task.take(place, _records(place, values, start=start, timestamp_ms=timestamp_ms))
        places = sorted(place for place in self._places() | set(by_place) if place[0] in scan.topics)
        yield from task.finish(places, self._ended, stages)

    def _run(self, envelopes: list[Envelope]) -> None:
        for stage in self.plan.stages:
            envelopes = [answer for group in range(stage.groups) for answer in self._answered(stage, group, envelopes)] + [
                envelope for envelope in envelopes if envelope.to != stage.id
            ]
        for envelope in envelopes:
            self._arrive(envelope)

    def _answered(self, stage: Stage, group: int, envelopes: Sequence[Envelope]) -> Iterator[Envelope]:
        mine = [envelope for envelope in envelopes if envelope.to == stage.id and envelope.group == group]
        return self._hosts[stage.id].on_batch(group, mine, self._stores[(stage.id, group)])

    def _arrive(self, envelope: Envelope) -> None:
        if envelope.to == COUNTS:
            for name, count in json.loads(envelope.counts or "{}").items():
                self.counts[name] = max(self.counts[name], count) if name.endswith("_us") else self.counts[name] + count
            return
        sink = self.plan.sink(envelope.to)
        assert envelope.payload is not None, "only rows are addressed to a sink"
        table = open_table(envelope.payload)
        self._written[sink.id] += table.select([name for name in sink.schema.names if name in table.column_names]).to_pylist()


class _Store:
    """The state of one group, as Spark would keep it."""

    def __init__(self) -> None:
        self._head: Head | None = None
        self._base: bytes | None = None
        self._deltas: list[bytes] = []

    def head(self) -> Head | None:
        return self._head

    def saved(self) -> list[bytes]:
        assert self._base is not None
        return [self._base, *self._deltas]

    def put_head(self, head: Head) -> None:
        self._head = head

    def put_base(self, base: bytes | None) -> None:
        self._base, self._deltas = base, []

    def add_delta(self, delta: bytes) -> None:
        self._deltas.append(delta)


def _records(place: Place, values: Sequence[bytes | None], *, start: int, timestamp_ms: int) -> Any:
    """The values as the records of a fetched batch."""
    encoded = batch.encode([batch.Record(0, timestamp_ms, None, value) for value in values])
    stored = struct.pack(">q", start) + encoded[8:]  # the base offset, as a broker sets it
    frame = np.frombuffer(stored, np.uint8)
    batches = read_batches(frame, start=0, end=len(frame), place=f"{place[0]}/{place[1]}")
    return decode(batches, start=start, end=start + len(values))


def _encoded(value: Value) -> bytes | None:
    match value:
        case None | bytes():
            return value
        case str():
            return value.encode()
        case _:
            return json.dumps({name: _plain(item) for name, item in value.items()}).encode()


def _plain(item: Any) -> Any:
    if isinstance(item, float) and not math.isfinite(item):
        return "NaN" if math.isnan(item) else "Infinity" if item > 0 else "-Infinity"
    if isinstance(item, datetime | date):
        return item.isoformat()
    return base64.b64encode(item).decode() if isinstance(item, bytes) else item
