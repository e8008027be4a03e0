"""A second reading of the transcripts' rules: plain Python, one record at a time, obvious rather than fast.

It shares no code with the kernels: only the parsed transcript and the frozen windows and triggers. Where kernel and oracle differ,
docs/guides/testing.md decides who is right. Also a `Host`, so that transcripts run on it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import duckdb

from penstock.dataflow.trigger import (
    AfterAll,
    AfterAny,
    AfterCount,
    AfterDelta,
    AfterEach,
    AfterProcessingTime,
    AfterPunctuation,
    AfterWatermark,
    OrFinally,
    Repeatedly,
    Trigger,
)  # fmt: skip
from penstock.dataflow.window import Count, Delta, Global, Punctuation, Session, Sliding, Tumbling
from penstock.testing.judge import Happened, Held
from penstock.testing.transcript import (
    FOREVER_US,
    Clock,
    Idle,
    Input,
    Pane,
    Partitions,
    Record,
    Restart,
    Stage,
    Transcript,
    Watermark,
)  # fmt: skip

BEGINNING_US = -FOREVER_US
Bounds = tuple[int, int]
_CONDITIONS: dict[tuple[str, Record], bool] = {}


def holds(condition: str, record: Record) -> bool:
    """Whether a SQL condition is true of a record."""
    known = _CONDITIONS.get((condition, record))
    if known is None:
        columns = ", ".join(f'? AS "{name}"' for name in record.columns)
        row = duckdb.execute(f"SELECT coalesce({condition}, false) FROM (SELECT {columns})", list(record.columns.values())).fetchone()
        assert row is not None
        known = _CONDITIONS[condition, record] = bool(row[0])
    return known


# ── Triggers: each node has its own small state ──────────────────────────────────────────────────────────────────────


@dataclass
class Moment:
    """What a trigger may look at at the end of a batch."""

    end_us: int
    watermark_us: int
    now_us: int

    @property
    def past_end(self) -> bool:
        return self.end_us <= self.watermark_us


class Node:
    finished = False

    def add(self, record: Record, now_us: int) -> None: ...
    def ready(self, at: Moment) -> bool:
        raise NotImplementedError

    def fire(self, at: Moment) -> None:
        """The trigger has made a pane."""
        self.finished = True

    def waits_for_watermark(self) -> bool:
        """Whether an after_watermark that has not fired is among the current parts."""
        return False

    def rewound(self) -> bool:
        """Whether merging took an after_watermark back to before its end."""
        return False


class CountNode(Node):
    def __init__(self, count: int) -> None:
        self.count, self.seen = count, 0

    def add(self, record: Record, now_us: int) -> None:
        self.seen += 1

    def ready(self, at: Moment) -> bool:
        return self.seen >= self.count


class ProcessingTimeNode(Node):
    def __init__(self, delay_us: int) -> None:
        self.delay_us = delay_us
        self.first_us: int | None = None

    def add(self, record: Record, now_us: int) -> None:
        if self.first_us is None:
            self.first_us = now_us

    def ready(self, at: Moment) -> bool:
        return self.first_us is not None and at.now_us >= self.first_us + self.delay_us


class DeltaNode(Node):
    def __init__(self, column: str, threshold: float) -> None:
        self.column, self.threshold = column, threshold
        self.values: list[float] = []

    def add(self, record: Record, now_us: int) -> None:
        if record.columns[self.column] is not None:
            self.values.append(record.columns[self.column])

    def ready(self, at: Moment) -> bool:
        return any(abs(value - self.values[0]) >= self.threshold for value in self.values)


class PunctuationNode(Node):
    def __init__(self, condition: str) -> None:
        self.condition, self.seen = condition, False

    def add(self, record: Record, now_us: int) -> None:
        self.seen = self.seen or holds(self.condition, record)

    def ready(self, at: Moment) -> bool:
        return self.seen


class WatermarkNode(Node):
    def __init__(self, trigger: AfterWatermark) -> None:
        self.trigger = trigger
        self.early = node(trigger.early) if trigger.early else None
        self.late = node(trigger.late) if trigger.late else None
        self.past = False  # has made the pane that closes the window on time
        self.was_rewound = False

    def add(self, record: Record, now_us: int) -> None:
        part = self.late if self.past else self.early
        if part:
            part.add(record, now_us)

    def ready(self, at: Moment) -> bool:
        if self.past:
            return bool(self.late and self.late.ready(at))
        return at.past_end or bool(self.early and self.early.ready(at))

    def fire(self, at: Moment) -> None:
        if self.past:
            assert self.late is not None
            assert self.trigger.late is not None
            self.late.fire(at)
            if self.late.finished:
                self.late = node(self.trigger.late)
        elif at.past_end:
            self.past = True
            self.early = node(self.trigger.early) if self.trigger.early else None
            self.late = node(self.trigger.late) if self.trigger.late else None
            self.finished = self.late is None
        else:
            assert self.early is not None
            assert self.trigger.early is not None
            self.early.fire(at)
            if self.early.finished:
                self.early = node(self.trigger.early)

    def waits_for_watermark(self) -> bool:
        return not self.past

    def rewound(self) -> bool:
        return self.was_rewound


class RepeatedlyNode(Node):
    def __init__(self, trigger: Trigger) -> None:
        self.trigger, self.part = trigger, node(trigger)

    def add(self, record: Record, now_us: int) -> None:
        self.part.add(record, now_us)

    def ready(self, at: Moment) -> bool:
        return self.part.ready(at)

    def fire(self, at: Moment) -> None:
        self.part.fire(at)
        if self.part.finished:
            self.part = node(self.trigger)

    def waits_for_watermark(self) -> bool:
        return self.part.waits_for_watermark()


class PartsNode(Node):
    """after_any and after_all: both finish when they fire."""

    def __init__(self, parts: Sequence[Trigger], *, need_all: bool) -> None:
        self.parts, self.need_all = [node(each) for each in parts], need_all

    def add(self, record: Record, now_us: int) -> None:
        for part in self.parts:
            part.add(record, now_us)

    def ready(self, at: Moment) -> bool:
        each = [part.ready(at) for part in self.parts]
        return all(each) if self.need_all else any(each)

    def fire(self, at: Moment) -> None:
        for part in self.parts:
            if part.ready(at):
                part.fire(at)
        self.finished = True

    def waits_for_watermark(self) -> bool:
        return any(part.waits_for_watermark() for part in self.parts)

    def rewound(self) -> bool:
        return any(part.rewound() for part in self.parts)


class NothingNode(Node):
    """What is left of an after_each that is through."""

    def ready(self, at: Moment) -> bool:
        return False


class EachNode(Node):
    def __init__(self, parts: Sequence[Trigger]) -> None:
        self.parts, self.step = [node(each) for each in parts], 0

    @property
    def current(self) -> Node:
        return self.parts[self.step] if self.step < len(self.parts) else NothingNode()

    def add(self, record: Record, now_us: int) -> None:
        self.current.add(record, now_us)

    def ready(self, at: Moment) -> bool:
        return self.current.ready(at)

    def fire(self, at: Moment) -> None:
        self.current.fire(at)
        if self.current.finished:
            self.step += 1
            self.finished = self.step == len(self.parts)

    def waits_for_watermark(self) -> bool:
        return self.current.waits_for_watermark()


class FinallyNode(Node):
    def __init__(self, trigger: OrFinally) -> None:
        self.part, self.until = node(trigger.trigger), node(trigger.until)

    def add(self, record: Record, now_us: int) -> None:
        self.part.add(record, now_us)
        self.until.add(record, now_us)

    def ready(self, at: Moment) -> bool:
        return self.part.ready(at) or self.until.ready(at)

    def fire(self, at: Moment) -> None:
        if self.until.ready(at):
            self.until.fire(at)
            self.finished = True
        if self.part.ready(at):
            self.part.fire(at)
            self.finished = self.finished or self.part.finished

    def waits_for_watermark(self) -> bool:
        return self.part.waits_for_watermark() or self.until.waits_for_watermark()

    def rewound(self) -> bool:
        return self.part.rewound() or self.until.rewound()


def node(trigger: Trigger) -> Node:
    match trigger:
        case AfterWatermark():
            return WatermarkNode(trigger)
        case AfterCount(count):
            return CountNode(count)
        case AfterProcessingTime(delay_us):
            return ProcessingTimeNode(delay_us)
        case AfterDelta(column, threshold):
            return DeltaNode(column, threshold)
        case AfterPunctuation(condition):
            return PunctuationNode(condition)
        case Repeatedly(part):
            return RepeatedlyNode(part)
        case AfterAny(parts):
            return PartsNode(parts, need_all=False)
        case AfterAll(parts):
            return PartsNode(parts, need_all=True)
        case AfterEach(parts):
            return EachNode(parts)
        case OrFinally():
            return FinallyNode(trigger)
    raise AssertionError(f"no node for {trigger}")


def merged(trigger: Trigger, nodes: Sequence[Any], past_end: bool) -> Node:
    """The trigger of a merged session: its parts' counts added, the earliest delay, the furthest step."""
    new: Any = node(trigger)
    new.finished = any(each.finished for each in nodes)
    match trigger:
        case AfterCount():
            new.seen = sum(each.seen for each in nodes)
        case AfterProcessingTime():
            new.first_us = min((each.first_us for each in nodes if each.first_us is not None), default=None)
        case AfterDelta():
            new.values = [value for each in nodes for value in each.values]
        case AfterPunctuation():
            new.seen = any(each.seen for each in nodes)
        case AfterWatermark(early, late):
            was_past = any(each.past for each in nodes)
            new.past = was_past and past_end
            new.was_rewound = was_past and not past_end
            new.finished = new.past and late is None
            if new.past and late:
                new.late = merged(late, [each.late for each in nodes if each.past], past_end)
            if not new.past and early:
                new.early = merged(early, [each.early for each in nodes], past_end)
        case Repeatedly(part):
            new.part = merged(part, [each.part for each in nodes], past_end)
            new.finished = False
        case AfterAny(parts) | AfterAll(parts):
            new.parts = [merged(part, [each.parts[place] for each in nodes], past_end) for place, part in enumerate(parts)]
            new.finished = new.finished and not new.rewound()
        case AfterEach(parts):
            new.step = max(each.step for each in nodes)
            if new.step < len(parts):
                at_step = [each.current for each in nodes if each.step == new.step]
                new.parts[new.step] = merged(parts[new.step], at_step, past_end)
        case OrFinally(part, until):
            new.part = merged(part, [each.part for each in nodes], past_end)
            new.until = merged(until, [each.until for each in nodes], past_end)
            new.finished = new.finished and not new.rewound()
    return new


# ── One window of one key ────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Cell:
    key: Any
    bounds: Bounds | None  # None: no bounds to show (global, count, delta, punctuation)
    end_us: int
    trigger: Node
    shown: list[Record] = field(default_factory=list)
    unshown: list[Record] = field(default_factory=list)
    index: int = 0
    on_time_index: int = 0
    had_on_time: bool = False
    previous: Pane | None = None
    to_retract: list[Pane] = field(default_factory=list)  # last panes of the sessions it has swallowed


class Aggregation:
    """One windowed aggregation: `batch` takes what comes and returns panes; `late` collects what no window takes."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.watermark_us = BEGINNING_US
        self.cells: list[Cell] = []
        self.late: list[Record] = []
        self.arrived: dict[Any, list[Record]] = {}  # per key, for count windows

    def gone(self, end_us: int, watermark_us: int) -> bool:
        """A window that ends never, or is kept forever, goes when the watermark says that nothing can come any more."""
        return min(end_us + self.stage.allowed_lateness_us, FOREVER_US) <= watermark_us

    def batch(self, records: Sequence[Record], watermark_us: int, now_us: int) -> list[Pane]:
        panes: list[Pane] = []
        for record in records:
            if isinstance(self.stage.window, Count | Delta | Punctuation):
                panes += self.add_by_arrival(record, now_us)
            elif record.at_us is None and not isinstance(self.stage.window, Global):
                self.late.append(record)
            elif isinstance(self.stage.window, Session):
                continue
            else:
                self.add_to_windows(record, now_us)
        if isinstance(self.stage.window, Session):
            by_key: dict[Any, list[Record]] = {}
            for record in records:
                if record.at_us is not None:
                    by_key.setdefault(record.key, []).append(record)
            for mine in by_key.values():
                self.add_to_sessions(mine, self.stage.window.gap_us or 0, now_us)
        before_us, self.watermark_us = self.watermark_us, max(self.watermark_us, watermark_us)
        for cell in list(self.cells):
            panes += self.examine(cell, before_us, now_us)
        return panes

    # ── adding a record ──

    def cell(self, key: Any, bounds: Bounds | None, end_us: int) -> Cell:
        for cell in self.cells:
            if cell.key == key and cell.bounds == bounds:
                return cell
        self.cells.append(Cell(key, bounds, end_us, node(self.stage.trigger)))
        return self.cells[-1]

    def add_to_windows(self, record: Record, now_us: int) -> None:
        own = list(windows_of(self.stage.window, record.at_us or 0))
        taken = not own  # between windows that leave gaps: not late, in none
        for bounds in own:
            end_us = bounds[1] if bounds else FOREVER_US
            if self.gone(end_us, self.watermark_us):
                continue
            cell = self.cell(record.key, bounds, end_us)
            if not cell.trigger.finished:
                taken = True
                cell.unshown.append(record)
                cell.trigger.add(record, now_us)
        if not taken:
            self.late.append(record)

    def add_to_sessions(self, records: list[Record], gap_us: int, now_us: int) -> None:
        """All records of a batch for one key: what overlaps becomes one session, whatever the order inside the batch."""
        taken = []
        for record in records:
            assert record.at_us is not None
            if self.gone(record.at_us + gap_us, self.watermark_us):
                self.late.append(record)
            else:
                taken.append(record)
        refused = [record for parts, bounds, mine in self.clusters(taken, gap_us) for record in self.refused(parts, bounds, mine, gap_us)]
        self.late += refused
        taken = [record for record in taken if not any(record is each for each in refused)]
        for parts, bounds, mine in self.clusters(taken, gap_us):
            target = self.merge(mine[0].key, parts, bounds)
            assert not target.trigger.finished
            self.cells = [cell for cell in self.cells if not any(cell is part for part in parts)] + [target]
            for record in mine:
                target.unshown.append(record)
                target.trigger.add(record, now_us)

    def clusters(self, records: list[Record], gap_us: int) -> list[tuple[list[Cell], Bounds, list[Record]]]:
        """The sessions and records of a key that overlap, directly or through others; only those with a record."""
        if not records:
            return []
        items: list[tuple[Bounds, Cell | Record]] = [((each.at_us or 0, (each.at_us or 0) + gap_us), each) for each in records]
        items += [(cell.bounds, cell) for cell in self.cells if cell.key == records[0].key and cell.bounds]
        found: list[tuple[list[Cell], Bounds, list[Record]]] = []
        for bounds, item in sorted(items, key=lambda each: each[0]):
            if not found or bounds[0] >= found[-1][1][1]:  # those that only touch do not merge
                found.append(([], bounds, []))
            parts, so_far, mine = found[-1]
            found[-1] = parts, (so_far[0], max(so_far[1], bounds[1])), mine
            if isinstance(item, Cell):
                parts.append(item)
            else:
                mine.append(item)
        for _, _, mine in found:
            mine.sort(key=lambda record: next(place for place, each in enumerate(records) if each is record))  # as they arrived
        return [each for each in found if each[2]]

    def refused(self, parts: list[Cell], bounds: Bounds, records: list[Record], gap_us: int) -> list[Record]:
        """Records that meet a session whose trigger has finished, and stays so."""
        if not self.merge(records[0].key, parts, bounds).trigger.finished:
            return []
        closed = [part.bounds for part in parts if part.trigger.finished and part.bounds]
        return [each for each in records if any(start < (each.at_us or 0) + gap_us and (each.at_us or 0) < end for start, end in closed)]

    def merge(self, key: Any, parts: list[Cell], bounds: Bounds) -> Cell:
        if not parts:
            return Cell(key, bounds, bounds[1], node(self.stage.trigger))
        trigger = merged(self.stage.trigger, [part.trigger for part in parts], bounds[1] <= self.watermark_us)
        new = Cell(key, bounds, bounds[1], trigger)
        for part in parts:
            if part.bounds == bounds:
                new.index, new.on_time_index, new.had_on_time, new.previous = (
                    part.index,
                    part.on_time_index,
                    part.had_on_time,
                    part.previous,
                )
                new.to_retract += part.to_retract
            else:
                new.to_retract += [part.previous] if part.previous else part.to_retract
            new.shown += part.shown
            new.unshown += part.unshown
        return new

    def add_by_arrival(self, record: Record, now_us: int) -> list[Pane]:
        """Count, delta and punctuation windows go by order of arrival; a complete one makes its pane at once."""
        window, key = self.stage.window, record.key
        if isinstance(window, Count):
            return self.add_counted(record, window, now_us)
        mine = [cell for cell in self.cells if cell.key == key]
        panes: list[Pane] = []
        if isinstance(window, Delta) and mine:
            begun = next(
                (each.columns[window.column] for each in mine[0].shown + mine[0].unshown if each.columns[window.column] is not None), None
            )
            value = record.columns[window.column]
            if begun is not None and value is not None and abs(value - begun) >= window.threshold:
                panes += self.complete(mine[0], now_us)
                mine = []
        if mine and mine[0].trigger.finished:
            self.late.append(record)
        else:
            cell = mine[0] if mine else self.cell(key, None, FOREVER_US)
            cell.unshown.append(record)
            cell.trigger.add(record, now_us)
            mine = [cell]
        if isinstance(window, Punctuation) and holds(window.condition, record):
            panes += self.complete(mine[0], now_us)
        return panes

    def add_counted(self, record: Record, window: Count, now_us: int) -> list[Pane]:
        """Window number n holds the last `size` of the first (n + 1) * every records of the key."""
        before = self.arrived.setdefault(record.key, [])
        place = len(before)
        before.append(record)
        panes, taken = [], False
        for number in range(place // window.every, (place + window.size - 1) // window.every + 1):
            last = (number + 1) * window.every  # exclusive
            if not last - window.size <= place < last:
                continue
            cell = next((c for c in self.cells if c.key == record.key and c.bounds == (number, number)), None)
            if cell is None:
                cell = Cell(record.key, (number, number), FOREVER_US, node(self.stage.trigger))
                self.cells.append(cell)
            if not cell.trigger.finished:
                taken = True
                cell.unshown.append(record)
                cell.trigger.add(record, now_us)
            if place == last - 1:
                panes += self.complete(cell, now_us)
        if not taken and window.every <= window.size:
            self.late.append(record)
        return panes

    def complete(self, cell: Cell, now_us: int) -> list[Pane]:
        """A window that is full: its pane is on time and its last."""
        self.cells.remove(cell)
        ended = Moment(end_us=0, watermark_us=0, now_us=now_us)
        if cell.trigger.finished or (not cell.unshown and not (cell.trigger.waits_for_watermark() and cell.trigger.ready(ended))):
            return []
        return self.show(cell, "on_time", last=True)

    # ── the end of a batch ──

    def examine(self, cell: Cell, before_us: int, now_us: int) -> list[Pane]:
        at = Moment(cell.end_us, self.watermark_us, now_us)
        ended_now = before_us < cell.end_us <= self.watermark_us
        dropped = self.gone(cell.end_us, self.watermark_us)
        panes: list[Pane] = []
        if dropped:
            self.cells.remove(cell)
        if cell.trigger.finished:
            return []
        on_time = ended_now and cell.trigger.waits_for_watermark()
        if cell.trigger.ready(at) and (cell.unshown or on_time):
            cell.trigger.fire(at)
            timing = "early" if not at.past_end else "on_time" if on_time else "late"
            panes = self.show(cell, timing, last=dropped or cell.trigger.finished)
        elif dropped and cell.unshown:
            panes = self.show(cell, "on_time" if ended_now and not cell.had_on_time else "late", last=True)
        return panes

    def show(self, cell: Cell, timing: str, *, last: bool) -> list[Pane]:
        records = cell.unshown if self.stage.accumulate == "discarding" else cell.shown + cell.unshown
        values = tuple(each.value for each in records)
        not_early = timing != "early"
        bounds = None if isinstance(self.stage.window, Count) else cell.bounds
        pane = Pane(cell.key, bounds, values, timing, cell.index, cell.on_time_index if not_early else -1, cell.index == 0, last)
        retractions: list[Pane] = []
        if self.stage.accumulate == "retracting":
            retractions = [replace(each, sign="-") for each in [*cell.to_retract, *([cell.previous] if cell.previous else [])]]
        cell.index += 1
        cell.on_time_index += not_early
        cell.had_on_time = cell.had_on_time or timing == "on_time"
        cell.previous, cell.to_retract = pane, []
        cell.shown, cell.unshown = cell.shown + cell.unshown, []
        return [*retractions, pane]

    def held(self) -> Held:
        live = [cell for cell in self.cells if not cell.trigger.finished]
        shown = (None if isinstance(self.stage.window, Count) else cell.bounds for cell in live)
        return Held(tuple(shown), len({cell.key for cell in live}))


def windows_of(window: object, at_us: int) -> Iterator[Bounds | None]:
    match window:
        case Global():
            yield None
        case Tumbling(size_us, offset_us):
            start_us = math.floor((at_us - offset_us) / size_us) * size_us + offset_us
            yield start_us, start_us + size_us
        case Sliding(size_us, every_us, offset_us):
            start_us = math.floor((at_us - offset_us) / every_us) * every_us + offset_us
            while start_us + size_us > at_us:
                yield start_us, start_us + size_us
                start_us -= every_us
        case _:
            raise AssertionError(f"no windows for {window}")


# ── The host ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class OracleHost:
    """Runs transcripts on the oracle."""

    name = "oracle"

    def run(self, transcripts: Iterable[Transcript]) -> Iterator[list[Happened]]:
        for transcript in transcripts:
            yield list(self.one(transcript))

    def one(self, transcript: Transcript) -> Iterator[Happened]:
        chain = [Aggregation(stage) for stage in transcript.stages]
        watermark_us, now_us = BEGINNING_US, 0
        partitions: dict[str, tuple[int, bool]] = {}
        for action in transcript.actions:
            records: tuple[Record, ...] = ()
            match action:
                case Input(records):
                    for record in records:
                        if record.partition is not None:
                            partitions[record.partition] = partitions.get(record.partition, (BEGINNING_US, True))[0], True
                case Watermark(to_us):
                    watermark_us = max(watermark_us, to_us)
                case Clock(now_us):
                    pass
                case Partitions(moves):
                    for partition, to_us in moves:
                        partitions[partition] = max(to_us, partitions.get(partition, (BEGINNING_US, True))[0]), True
                case Idle(partition):
                    partitions[partition] = partitions.get(partition, (BEGINNING_US, True))[0], False
                case Restart():
                    yield Happened(held=chain[-1].held())
                    continue
            active = [each_us for each_us, is_active in partitions.values() if is_active]
            watermark_us = max(watermark_us, min(active, default=BEGINNING_US))
            yield self.through(chain, records, watermark_us, now_us)

    def through(self, chain: list[Aggregation], records: Sequence[Record], watermark_us: int, now_us: int) -> Happened:
        late: list[Record] = []
        for place, step in enumerate(chain):
            step.late = []
            panes = step.batch(records, watermark_us, now_us)
            late += step.late
            if place + 1 < len(chain):
                records = [as_record(pane, chain[place + 1].stage.value) for pane in panes]
        return Happened(tuple(panes), tuple(replace_partition(each) for each in late), chain[-1].held())


def as_record(pane: Pane, value: str) -> Record:
    assert pane.sign == "+", "a chain of retracting aggregations is not a transcript"
    worth: Any = {"count": len, "sum": sum, "min": min, "max": max}[value](pane.values)  # type: ignore[operator]
    return Record(pane.key, FOREVER_US if pane.window is None else pane.window[1] - 1, worth)


def replace_partition(record: Record) -> Record:
    return record._replace(partition=None)


__all__ = ["Aggregation", "OracleHost"]
