"""Transcripts on the real engine: all of them in one Spark query, one key group for each.

    step n of the script = the n-th action of every transcript ──▶ stage 1 ──▶ stage 2 … ──▶ panes, late records, what is held

The query is the one that runs pipelines: scripted envelopes instead of topics, the same stages, host, state store and tracker. A key group has its
own watermark and clock, so a transcript is a group, and its kernel is chosen by the name that its rows carry. Between the segments that `restart`
cuts, the query is stopped and started again from its checkpoint, with nothing left in the workers' memory."""

from __future__ import annotations

import json
import secrets
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import PenstockError
from penstock.kernels.columns import framed, unframed
from penstock.kernels.envelope import ACTIVE, CLOCK, IDLE, Envelope, Times, open_table, pack_times, rows_to_stage
from penstock.kernels.kernel import FOREVER_US, NEVER_US, Context, Output
from penstock.kernels.placement import groups_of
from penstock.kernels.watermark import TimeInput, Tracker
from penstock.kernels.window import WindowKernel
from penstock.planner.physical import Clock as Ticks
from penstock.planner.physical import Feed, PhysicalPlan, Sender, Sink
from penstock.planner.physical import Input as StageInput
from penstock.planner.physical import Stage as PhysicalStage
from penstock.profile import Profile
from penstock.schema import Schema
from penstock.testing.judge import Happened, Held, Refused
from penstock.testing.layout import Layout, as_input, kernels_of, layouts_of
from penstock.testing.transcript import Action, Clock, Idle, Input, Partitions, Restart, Transcript, Watermark

NAME = "transcript"  # the column that says whose row it is
SCRIPT = 0  # the id of the script among the parts of the plan
PANES, HELD, HELD_COLUMN = "panes", "held", "windows"
_SCHEMA = Schema.of(f"{NAME} STRING")  # rows carry more; nothing between the stages looks at it


# ── The kernel of all transcripts ────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class ByTranscript:
    """One kernel for each transcript that has this stage, and the layout of the stage after it (None: its panes are the result)."""

    kernels: tuple[tuple[str, WindowKernel, Layout | None], ...]

    @property
    def state_version(self) -> int:
        return 1

    def start(self) -> OneTranscript:
        return OneTranscript(self)

    def restore(self, saved: Sequence[bytes]) -> OneTranscript:
        instance = OneTranscript(self)
        pieces = [unframed(piece) for piece in saved]
        names = [json.loads(piece[0])["name"] for piece in pieces if json.loads(piece[0])["name"] is not None]
        if names:
            instance.choose(names[-1])
            assert instance.kernel is not None
            instance.inner = instance.kernel.restore([part for piece in pieces for part in piece[1:]])
            instance.is_based = True
        return instance


class OneTranscript:
    """A group: which transcript it is, it learns from its first row."""

    def __init__(self, dispatch: ByTranscript) -> None:
        self.dispatch = dispatch
        self.name: str | None = None
        self.kernel: WindowKernel | None = None
        self.next_layout: Layout | None = None
        self.inner: Any = None
        self.is_based = False  # whether a full save of the inner kernel is stored

    def choose(self, name: str) -> None:
        self.name = name
        _, self.kernel, self.next_layout = next(each for each in self.dispatch.kernels if each[0] == name)

    def on_batch(self, inputs: Sequence[pa.Table | None], at: Context) -> Output:
        table = inputs[0]
        if self.inner is None:
            if table is None or not table.num_rows:
                return Output()
            self.choose(table[NAME][0].as_py())
            assert self.kernel is not None
            self.inner = self.kernel.start()
        output = self.inner.on_batch([None if table is None else table.drop_columns([NAME])], at)
        side = {HELD: self._held()}
        rows = None
        if output.rows is not None and output.rows.num_rows:
            if self.next_layout is None:
                side[PANES] = self._named(output.rows)
            else:
                rows = self._named(as_input(output.rows, self.next_layout, source=0, partition=0, first_offset=0))
        return Output(rows, None if output.late is None else self._named(output.late), side, output.counts)

    def _named(self, table: pa.Table) -> pa.Table:
        return table.append_column(NAME, pa.array([self.name] * table.num_rows, pa.string()))

    def _held(self) -> pa.Table:
        held = [(str(key), start_us, end_us) for key, start_us, end_us, finished in self.inner.held() if not finished]
        return pa.table(
            {NAME: [self.name], "windows": [json.dumps([each[1:] for each in held])], "keys": [len({each[0] for each in held})]}
        )

    def save(self, *, full: bool) -> bytes | None:
        head = json.dumps({"name": self.name}).encode()
        if self.inner is None:
            return framed(head) if full else None
        saved = self.inner.save(full=full or not self.is_based)
        self.is_based = True
        return None if saved is None else framed(head, saved)


# ── The script ───────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Part:
    """A transcript on its way through the query."""

    transcript: Transcript
    layouts: list[Layout]
    kernels: list[WindowKernel]
    group: int = 0
    name: str = ""
    steps: list[int | None] = field(default_factory=list)  # the step of the script for each action; None for a restart
    _offset: int = 0
    _now_us: int = 0
    _told_us: int = NEVER_US
    _partitions: dict[str, int] = field(default_factory=dict)
    _tracker: Tracker = field(default_factory=lambda: Tracker.start((TimeInput(SCRIPT, lateness_us=FOREVER_US),)))

    @property
    def mixes(self) -> bool:
        """Whether both `watermark` and `partition` say the time: then the script adds them up itself, as one partition."""
        kinds = {type(action) for action in self.transcript.actions}
        return Watermark in kinds and bool(kinds & {Partitions, Idle})

    def segments(self) -> list[list[Action]]:
        parts: list[list[Action]] = [[]]
        for action in self.transcript.actions:
            if isinstance(action, Restart):
                parts.append([])
            else:
                parts[-1].append(action)
        return parts

    def envelopes(self, action: Action, *, groups: int) -> Iterator[Envelope]:
        times: list[Times] = []
        match action:
            case Input(records):
                table = self.layouts[0].rows(records, first_offset=self._offset)
                self._offset += len(records)
                named = table.append_column(NAME, pa.array([self.name] * table.num_rows, pa.string()))
                yield from rows_to_stage(named, to=1, source=SCRIPT, keys=(NAME,), groups=groups)
                times = [self._time(each.partition, each.at_us or 0, ACTIVE, NEVER_US) for each in records if each.partition is not None]
            case Watermark(to_us):
                self._told_us = max(self._told_us, to_us)
                times = [Times(0, NEVER_US, ACTIVE, to_us)]
            case Partitions(moves):
                times = [self._time(name, 0, ACTIVE, to_us) for name, to_us in moves]
            case Idle(name):
                times = [self._time(name, NEVER_US, IDLE, NEVER_US)]
            case Clock(now_us):
                self._now_us = now_us
                for stage in range(1, len(self.kernels) + 1):
                    yield Envelope(self.group, stage, 0, CLOCK, tick_us=now_us)
            case _:
                raise AssertionError("restarts cut the script")
        if times and self.mixes:
            if not isinstance(action, Watermark):
                self._tracker.hear(SCRIPT, times, self._now_us)
            known_us = self._tracker.advance(self._now_us) if self._partitions else NEVER_US
            times = [Times(0, NEVER_US, ACTIVE, max(self._told_us, known_us))]
        if times:
            for stage in range(1, len(self.kernels) + 1):
                yield Envelope(self.group, stage, 0, SCRIPT, times=pack_times(times))

    def _time(self, name: str, greatest_us: int, state: int, watermark_us: int) -> Times:
        return Times(self._partitions.setdefault(name, len(self._partitions)), greatest_us, state, watermark_us)


def names_of_groups(count: int) -> list[str]:
    """For each group a name that is placed on it."""
    found: dict[int, str] = {}
    start = 0
    while len(found) < count:
        names = [f"transcript {number}" for number in range(start, start + 64 * count)]
        for group, name in zip(groups_of(pa.table({NAME: names}), keys=(NAME,), groups=count).tolist(), names):
            found.setdefault(group, name)
        start += len(names)
    return [found[group] for group in range(count)]


def plan_of(parts: Sequence[Part]) -> PhysicalPlan:
    depth = max(len(part.kernels) for part in parts)
    groups = len(parts)
    panes, late, held = depth + 1, depth + 2, depth + 3
    stages = []
    for level in range(depth):
        kernels = tuple(
            (part.name, part.kernels[level], part.layouts[level + 1] if level + 1 < len(part.kernels) else None)
            for part in parts
            if level < len(part.kernels)
        )
        feeds = [Feed(panes, _SCHEMA, output=PANES), Feed(late, _SCHEMA, output="late"), Feed(held, _SCHEMA, output=HELD)]
        if level + 1 < depth:
            feeds.append(Feed(level + 2, _SCHEMA, keys=(NAME,), groups=groups))
        sender = StageInput("script", _SCHEMA, (Sender(SCRIPT, "scan", lateness_us=FOREVER_US),))
        name = f"aggregation {level + 1}"
        stages.append(
            PhysicalStage(
                level + 1,
                name,
                ByTranscript(kernels),
                (NAME,),
                groups,
                (sender,),
                _SCHEMA,
                ((PANES, _SCHEMA), (HELD, _SCHEMA)),
                tuple(feeds),
            )
        )
    sinks = tuple(Sink(number, name, _SCHEMA) for number, name in ((panes, PANES), (late, "late"), (held, HELD)))
    return PhysicalPlan((), tuple(stages), sinks, Ticks())


# ── The host ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class SparkHost:
    """Runs transcripts on Spark. With a session of the caller's, or one that it starts and stops."""

    def __init__(self, profile: Profile | None = None, *, spark: Any = None) -> None:
        assert profile is not None or spark is not None, "one of them"
        self._profile, self._spark = profile, spark

    @property
    def name(self) -> str:
        return "spark"

    def run(self, transcripts: Sequence[Transcript]) -> list[list[Happened] | Refused]:
        answers: list[list[Happened] | Refused | None] = []
        parts: list[Part] = []
        for transcript in transcripts:
            try:
                parts.append(Part(transcript, layouts_of(transcript), kernels_of(transcript)))
                answers.append(None)
            except PenstockError as error:
                answers.append(Refused(str(error)))
        for group, name in enumerate(names_of_groups(len(parts))):
            parts[group].group, parts[group].name = group, name
        given = iter(self._answers(parts) if parts else ())
        return [next(given) if answer is None else answer for answer in answers]

    def _answers(self, parts: list[Part]) -> list[list[Happened]]:
        script, ends = script_of(parts)
        with tempfile.TemporaryDirectory(prefix="penstock-transcripts-") as folder:
            came = self._play(plan_of(parts), script, ends, Path(folder))
        return [list(happened(part, came)) for part in parts]

    def _play(self, plan: PhysicalPlan, script: list[list[Envelope]], ends: list[int], folder: Path) -> dict[int, list[Envelope]]:
        """Every segment of the script as a query of its own, on one checkpoint."""
        from penstock.spark.collected import collect_to, collected
        from penstock.spark.compile import compile_chain
        from penstock.spark.scripted import scripted, write_script
        from penstock.spark.session import session, stop_session

        write_script(folder / "script.arrow", script)
        if self._spark is None:
            assert self._profile is not None
            spark = session(self._profile, quick=True)
        else:
            spark = self._spark
        run = secrets.token_hex(4)
        try:
            for segment, end in enumerate(ends):
                source = scripted(spark, folder / "script.arrow", until=end)
                chain = compile_chain(plan, source, job=f"transcripts {run}.{segment}")  # another name: no instance is found alive
                writer = collect_to(spark, chain.writeStream, folder / "out").option("checkpointLocation", str(folder / "checkpoint"))
                writer.trigger(availableNow=True).start().awaitTermination()
        finally:
            if self._spark is None:
                stop_session()
        return collected(folder / "out")


def script_of(parts: Sequence[Part]) -> tuple[list[list[Envelope]], list[int]]:
    """The steps, and where each segment ends. Transcripts that are shorter than others wait at the end of a segment."""
    segments = [part.segments() for part in parts]
    script: list[list[Envelope]] = []
    ends: list[int] = []
    for number in range(max(map(len, segments))):
        mine = [(part, each[number]) for part, each in zip(parts, segments) if number < len(each)]
        for part, _ in mine if number else ():
            part.steps.append(None)
        for place in range(max(len(actions) for _, actions in mine)):
            step: list[Envelope] = []
            for part, actions in mine:
                if place < len(actions):
                    part.steps.append(len(script))
                    step += part.envelopes(actions[place], groups=len(parts))
            script.append(step)
        if len(script) > (ends[-1] if ends else 0):
            ends.append(len(script))
    return script, ends


def happened(part: Part, came: dict[int, list[Envelope]]) -> Iterator[Happened]:
    """What the query answered to each action of a transcript."""
    depth = len(part.kernels)
    held = Held((), 0)
    for step in part.steps:
        panes: list[Any] = []
        late: list[Any] = []
        for envelope in came.get(step, ()) if step is not None else ():
            if envelope.payload is None or envelope.group != part.group:
                continue
            table = open_table(envelope.payload)
            table = table.filter(pa.array(np.array(table[NAME].to_pylist(), object) == part.name))
            if HELD_COLUMN in table.column_names:
                if envelope.source == depth:
                    held = _held(table.to_pylist()[0])
            elif "pane_timing" in table.column_names:
                panes += part.layouts[depth - 1].panes(table, part.transcript.stages[depth - 1])
            else:
                late += part.layouts[envelope.source - 1].records(table)
        yield Happened(tuple(panes), tuple(late), held)


def _held(row: dict[str, Any]) -> Held:
    windows = [None if start is None or end is None else (start, end) for start, end in json.loads(row["windows"])]
    return Held(tuple(windows), row["keys"])
