"""The test host: kernels on key groups in this process, one thread, time moved by hand.

    records ──▶ by key into groups ──▶ kernel instance of each group ──▶ panes ──▶ the next stage …
    watermark, partitions, clock: set by the test; every action is one batch

Invariant: nothing happens by itself. The kernels, the placing of keys, the watermark tracker and the saves are those that Spark runs; only what
carries them is replaced. `Simulator` runs transcripts, `Scenario` is the same in Python."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from penstock.clock import MICROS
from penstock.dataflow.trigger import DEFAULT, Trigger
from penstock.dataflow.window import Duration, Window
from penstock.errors import PenstockError
from penstock.kernels.envelope import ACTIVE, IDLE, Times, split
from penstock.kernels.kernel import FOREVER_US, NEVER_US, Context, Kernel, Output
from penstock.kernels.watermark import TimeInput, Tracker
from penstock.testing import judge
from penstock.testing.judge import Happened, Held, Refused
from penstock.testing.layout import KEY, Layout, as_input, kernel_of, kernels_of, layout, layouts_of
from penstock.testing.transcript import (
    Action,
    Clock,
    Expect,
    Idle,
    Input,
    Pane,
    Partitions,
    Record,
    Restart,
    Stage,
    State,
    Transcript,
    Watermark,
    read_step,
)  # fmt: skip

GROUPS = 4  # more than one, so that keys are really placed
_SOURCE = 0
_INPUTS = (TimeInput(_SOURCE, lateness_us=FOREVER_US),)  # a script tells its watermarks; event times alone move nothing


class KernelOnGroups:
    """One kernel: an instance per key group, and the saves it would be restored from."""

    def __init__(self, kernel: Kernel, *, keys: tuple[str, ...], groups: int = GROUPS) -> None:
        self.kernel, self.keys, self.groups = kernel, keys, groups
        self.instances = [kernel.start() for _ in range(groups)]
        self._saves: list[list[bytes]] = [[] for _ in range(groups)]

    def batch(self, rows: pa.Table | None, at: Context) -> list[Output]:
        """What each group gives. Every group gets every batch: time passes for all of them."""
        parts: dict[int, pa.Table] = {}
        if rows is not None and rows.num_rows:
            parts = dict(split(rows, keys=self.keys, groups=self.groups))
        return [instance.on_batch([parts.get(group)], at) for group, instance in enumerate(self.instances)]

    def restart(self) -> None:
        """Saves, throws everything away, restores: a full save the first time, changes after that."""
        for group, instance in enumerate(self.instances):
            saved = instance.save(full=not self._saves[group])
            if saved is not None:
                self._saves[group].append(saved)
            self.instances[group] = self.kernel.restore(self._saves[group])


class Chain:
    """The stages of a transcript on the test host: each action is a batch."""

    def __init__(self, stages: Sequence[Stage], layouts: Sequence[Layout], kernels: Sequence[Kernel], *, groups: int = GROUPS) -> None:
        self.stages, self.layouts = stages, layouts
        self.steps = [KernelOnGroups(kernel, keys=(KEY,), groups=groups) for kernel in kernels]
        self._tracker = Tracker.start(_INPUTS)
        self._partitions: dict[str, int] = {}
        self._told_us = NEVER_US  # by `watermark`, for the source as a whole
        self.watermark_us, self.now_us = NEVER_US, 0
        self._offset = 0

    def act(self, action: Action) -> Happened:
        rows = None
        match action:
            case Input(records):
                rows = self.layouts[0].rows(records, first_offset=self._offset)
                self._offset += len(records)
                self._hear((each.partition, Times(0, each.at_us or 0, ACTIVE)) for each in records if each.partition is not None)
            case Watermark(to_us):
                self._told_us = max(self._told_us, to_us)
            case Clock(to_us):
                self.now_us = to_us
            case Partitions(moves):
                self._hear((name, Times(0, 0, ACTIVE, to_us)) for name, to_us in moves)
            case Idle(name):
                self._hear([(name, Times(0, NEVER_US, IDLE))])
            case Restart():
                for step in self.steps:
                    step.restart()
                self._tracker = Tracker.restore(_INPUTS, self._tracker.save())
                return Happened(held=self.held())
        return self._batch(rows)

    def _hear(self, times: Any) -> None:
        for name, each in times:
            partition = self._partitions.setdefault(name, len(self._partitions))
            self._tracker.hear(_SOURCE, [each._replace(partition=partition)], self.now_us)

    def _batch(self, rows: pa.Table | None) -> Happened:
        before_us = self.watermark_us
        told_us = self._tracker.advance(self.now_us) if self._partitions else NEVER_US
        self.watermark_us = max(before_us, self._told_us, told_us)
        at = Context(before_us, self.watermark_us, self.now_us)
        panes: list[Pane] = []
        late: list[Record] = []
        for place, step in enumerate(self.steps):
            outputs = step.batch(rows, at)
            late += [record for output in outputs if output.late is not None for record in self.layouts[place].records(output.late)]
            if place + 1 == len(self.steps):
                panes = [
                    pane
                    for output in outputs
                    if output.rows is not None
                    for pane in self.layouts[place].panes(output.rows, self.stages[place])
                ]
            else:
                rows = self._passed_on(outputs, place)
        return Happened(tuple(panes), tuple(late), self.held())

    def _passed_on(self, outputs: Sequence[Output], place: int) -> pa.Table | None:
        tables = []
        for group, output in enumerate(outputs):
            if output.rows is not None and output.rows.num_rows:
                tables.append(as_input(output.rows, self.layouts[place + 1], source=place + 1, partition=group, first_offset=self._offset))
                self._offset += output.rows.num_rows
        return pa.concat_tables(tables) if tables else None

    def held(self) -> Held:
        windows: list[tuple[int, int] | None] = []
        keys = set()
        for instance in self.steps[-1].instances:
            for key, start_us, end_us, finished in instance.held():  # type: ignore[attr-defined]
                if not finished:
                    windows.append(None if start_us is None or end_us is None else (start_us, end_us))
                    keys.add(key)
        return Held(tuple(windows), len(keys))


class Simulator:
    """Runs transcripts on the test host. `always_restart` restarts after every action: nothing may change."""

    def __init__(self, *, groups: int = GROUPS, always_restart: bool = False) -> None:
        self.groups, self.always_restart = groups, always_restart

    @property
    def name(self) -> str:
        return "simulator"

    def run(self, transcripts: Sequence[Transcript]) -> Iterator[list[Happened] | Refused]:
        for transcript in transcripts:
            try:
                chain = Chain(transcript.stages, layouts_of(transcript), kernels_of(transcript), groups=self.groups)
            except PenstockError as error:
                yield Refused(str(error))
                continue
            yield [self._act(chain, action) for action in transcript.actions]

    def _act(self, chain: Chain, action: Action) -> Happened:
        happened = chain.act(action)
        if self.always_restart:
            chain.act(Restart())
        return happened


class Scenario:
    """A transcript in Python: add records, move time, expect panes.

    >>> import penstock as ps
    >>> story = Scenario(ps.tumbling(10), trigger=ps.after_watermark(late=ps.after_count(1)), allowed_lateness=20)
    >>> story.add(1, 2, {"key": "a", "at": 3, "value": 7})
    >>> story.watermark(12)
    >>> story.expect({"key": "k", "window": [0, 10], "values": [1, 2], "timing": "on_time"}, {"key": "a", "values": [7]})
    >>> story.end()
    """

    def __init__(
        self, window: Window, *, trigger: Trigger = DEFAULT, accumulate: str = "accumulating", allowed_lateness: Duration | None = 0,
        columns: Sequence[Mapping[str, Any]] = ({"at": 0, "value": 0},), groups: int = GROUPS,
    ) -> None:  # fmt: skip
        """`columns` are example records from which types are taken; `allowed_lateness` None is for ever."""
        from penstock.clock import micros

        lateness_us = FOREVER_US if allowed_lateness is None else micros(allowed_lateness)
        stage = Stage(window, trigger, accumulate, lateness_us)
        given = layout(stage, [_record(each) for each in columns])
        self._chain = Chain((stage,), (given,), (kernel_of(stage, given),), groups=groups)
        self._panes: list[Pane] = []
        self._late: list[Record] = []
        self._held = Held((), 0)

    def _act(self, action: Action) -> None:
        happened = self._chain.act(action)
        self._panes += happened.panes
        self._late += happened.late
        self._held = happened.held or self._held

    def add(self, *records: Any) -> None:
        """One batch: numbers of seconds, or mappings with key, at and value."""
        self._act(Input(tuple(_record(each) for each in records)))

    def watermark(self, seconds: float) -> None:
        self._act(Watermark(round(seconds * MICROS)))

    def clock(self, seconds: float) -> None:
        self._act(Clock(round(seconds * MICROS)))

    def partition(self, **watermarks: float) -> None:
        self._act(Partitions(tuple((name, round(each * MICROS)) for name, each in watermarks.items())))

    def idle(self, partition: str) -> None:
        self._act(Idle(partition))

    def restart(self) -> None:
        self._act(Restart())

    def expect(self, *panes: Mapping[str, Any]) -> None:
        """Every pane since the last `expect`; attributes that are left out are not compared."""
        expected = read_step("expect", [dict(each) for each in panes])
        assert isinstance(expected, Expect)
        self._check(judge.pane_differences(expected.panes, self._panes))
        self._panes = []

    def late(self, *records: Any) -> None:
        """What the late output received since the last `late`."""
        self._check(judge.late_differences([_record(each) for each in records], self._late))
        self._late = []

    def state(self, **expected: Any) -> None:
        """`state(open=[[20, 30]], keys=1)`: what is still held."""
        wanted = read_step("state", expected)
        assert isinstance(wanted, State)
        self._check(judge.state_differences(wanted, self._held))

    def end(self) -> None:
        """No pane is left that nobody expected."""
        self.expect()

    @staticmethod
    def _check(differences: Iterator[str]) -> None:
        text = "\n".join(differences)
        if text:
            raise AssertionError(text)


def _record(each: Any) -> Record:
    step = read_step("input", [each])
    assert isinstance(step, Input)
    return step.records[0]


__all__ = ["Chain", "KernelOnGroups", "Scenario", "Simulator"]
