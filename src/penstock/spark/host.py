"""The one stateful operator: kernels hosted on the key groups of one or more stages, inside Spark's `transformWithState`.

Spark's key is the group, so a batch calls the kernel once per group however many keys there are. Envelopes addressed to a stage are
opened and given to its kernel; all others pass unchanged, so a chain of stages needs no branch. Stages of one operator follow each other inside
it: what one sends the next stays in its group, so it is not shuffled.

State of a group (three variables, few calls, since each call is a round trip to the JVM):
    head    token, format version, processing time, watermark, size of base and deltas; and the whole state while it is small
    base    one full save
    deltas  the changes since, oldest first; folded into a new base when they outgrow it, at a different size in each group
Invariant: head.token names exactly this state. A worker keeps the live instance under its token, so a cached instance is used
only if the committed state is the one it had saved: a failed task, a retry or another worker cannot leave a wrong one behind.

Not here: where envelopes come from (`source.py`, `scripted.py`), the order of stages (`compile.py`)."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from penstock.errors import PenstockError
from penstock.kernels.envelope import (
    COLUMNS,
    Envelope,
    counts_envelope,
    open_table,
    open_times,
    rows_to_sink,
    rows_to_stage,
    watermark_to_stage,
)
from penstock.kernels.kernel import OFFSET, PARTITION, SOURCE, TIME, Context, Instance, Output
from penstock.kernels.watermark import TimeInput, Tracker
from penstock.planner.physical import LATE, ROWS, Feed, PhysicalPlan, Stage

if TYPE_CHECKING:
    import pyarrow as pa

HEAD_BYTES_MAX = 16 << 10  # a state up to this size is written whole, inside the head: one call
DELTAS_MAX = 200  # folded at the latest after so many batches
CACHED_MAX = 512  # instances a worker keeps alive
VERSION = 1


class Head(NamedTuple):
    """The first thing a group reads, and the last it writes."""

    token: int
    version: int  # of the kernel's state
    now_us: int
    times: bytes  # the tracker
    deltas: int
    delta_bytes: int
    base_bytes: int
    inline: bytes | None  # the full save, while it is small


class Store(Protocol):
    """The three state variables of one group."""

    def head(self) -> Head | None: ...
    def saved(self) -> list[bytes]: ...  # base and deltas
    def put_head(self, head: Head) -> None: ...
    def put_base(self, base: bytes | None) -> None: ...  # and no deltas
    def add_delta(self, delta: bytes) -> None: ...


@dataclass(slots=True)
class Alive:
    """A group in memory."""

    token: int
    now_us: int
    instance: Instance
    tracker: Tracker


_cache: OrderedDict[tuple[str, int, int], Alive] = OrderedDict()


class Host:
    """Runs one stage's kernel on a group. Pure but for the store it is given: tests run it without Spark."""

    def __init__(self, stage: Stage, *, job: str, after: Sequence[tuple[int, int, int]], beside: Sequence[tuple[int, int]] = ()) -> None:
        """The stages fed by this one get its watermark: `after`, as (id, input, groups), those of later operators, and `beside`,
        as (id, input), those of the same operator, whose groups are this one's."""
        self.stage = stage
        self.job = job
        self.after = tuple(after)
        self.beside = tuple(beside)
        self._receivers = frozenset([to for to, _, _ in self.after] + [to for to, _ in self.beside])
        self.times = tuple(
            TimeInput(sender.id, input=place, lateness_us=sender.lateness_us, idle_us=sender.idle_us)
            for place, each in enumerate(stage.inputs)
            for sender in each.senders
        )

    def on_batch(self, group: int, envelopes: Iterable[Envelope], store: Store) -> Iterator[Envelope]:
        """One batch of one group: forwards what is not addressed here, answers what is."""
        mine: list[Envelope] = []
        for envelope in envelopes:
            if envelope[1] == self.stage.id:
                mine.append(Envelope(*envelope))
            else:
                yield envelope
        if mine:
            yield from self._work(group, mine, store)

    def _work(self, group: int, envelopes: list[Envelope], store: Store) -> Iterator[Envelope]:
        head = store.head()
        alive = self._alive(group, head, store)
        before_us, times_before = alive.tracker.watermark_us, head.times if head else b""
        alive.now_us = max([alive.now_us, *(each.tick_us for each in envelopes if each.tick_us is not None)])
        for each in envelopes:
            if each.times is not None:
                alive.tracker.hear(each.source, open_times(each.times), now_us=alive.now_us)
        after_us = alive.tracker.advance(now_us=alive.now_us)
        tables = [
            _ordered(each.payload for each in envelopes if each.payload is not None and each.input == place)
            for place in range(len(self.stage.inputs))
        ]
        at = Context(watermark_us=before_us, next_watermark_us=after_us, now_us=alive.now_us)
        try:
            output = alive.instance.on_batch(tables, at)
        except PenstockError:
            raise
        except Exception as error:
            raise PenstockError(f"step '{self.stage.name}' failed in key group {group}: {type(error).__name__}: {error}") from error
        self._save(group, alive, head, store, times_before)
        if group == 0 and after_us > before_us:
            for to, place, groups in self.after:
                yield from watermark_to_stage(after_us, to=to, source=self.stage.id, groups=groups, input=place)
        if after_us > before_us:
            for to, place in self.beside:
                every = watermark_to_stage(after_us, to=to, source=self.stage.id, groups=group + 1, input=place)
                yield from (mine for mine in every if mine.group == group)
        yield from self._send(group, output)
        yield self._counts(group, tables, output, after_us)

    def _alive(self, group: int, head: Head | None, store: Store) -> Alive:
        cached = _cache.pop((self.job, self.stage.id, group), None)
        if head is None:
            return Alive(0, 0, self.stage.kernel.start(), Tracker.start(self.times))
        if cached is not None and cached.token == head.token:
            return cached
        if head.version != self.stage.kernel.state_version:
            raise PenstockError(
                f"step '{self.stage.name}': the checkpoint holds state of version {head.version}, the pipeline has {self.stage.kernel.state_version}",
                remedy="start with a fresh checkpoint, or run the pipeline that wrote it",
            )
        saved = [head.inline] if head.inline is not None else store.saved()
        return Alive(head.token, head.now_us, self.stage.kernel.restore(saved), Tracker.restore(self.times, head.times))

    def _save(self, group: int, alive: Alive, head: Head | None, store: Store, times_before: bytes) -> None:
        times = alive.tracker.save()
        deltas, delta_bytes, base_bytes = (head.deltas, head.delta_bytes, head.base_bytes) if head else (0, 0, 0)
        inline = head.inline if head else None
        size = len(inline) if inline is not None else base_bytes + delta_bytes
        if size <= HEAD_BYTES_MAX:
            whole = alive.instance.save(full=True)
            assert whole is not None, "a full save is never nothing"
            if head is not None and whole == inline and times == times_before and alive.now_us == head.now_us:
                self._keep(group, alive)
                return
            if len(whole) <= HEAD_BYTES_MAX:
                if base_bytes:
                    store.put_base(None)
                inline, deltas, delta_bytes, base_bytes = whole, 0, 0, 0
            else:
                store.put_base(whole)
                inline, deltas, delta_bytes, base_bytes = None, 0, 0, len(whole)
        else:
            delta = alive.instance.save(full=False)
            if delta is None and head is not None and times == times_before and alive.now_us == head.now_us:
                self._keep(group, alive)
                return
            if delta is not None:
                # Groups fold at different sizes, so that no batch folds them all.
                room = base_bytes * (4 + group % 8) // 8
                if deltas >= DELTAS_MAX - group % 64 or delta_bytes + len(delta) > room:
                    whole = alive.instance.save(full=True)
                    assert whole is not None, "a full save is never nothing"
                    store.put_base(whole)
                    deltas, delta_bytes, base_bytes = 0, 0, len(whole)
                else:
                    store.add_delta(delta)
                    deltas, delta_bytes = deltas + 1, delta_bytes + len(delta)
        alive.token = secrets.randbits(62)
        store.put_head(Head(alive.token, self.stage.kernel.state_version, alive.now_us, times, deltas, delta_bytes, base_bytes, inline))
        self._keep(group, alive)

    def _keep(self, group: int, alive: Alive) -> None:
        _cache[(self.job, self.stage.id, group)] = alive
        while len(_cache) > CACHED_MAX:
            _cache.popitem(last=False)

    def _send(self, group: int, output: Output) -> Iterator[Envelope]:
        for feed in self.stage.feeds:
            table = {ROWS: output.rows, LATE: output.late}.get(feed.output) if feed.output in (ROWS, LATE) else output.side.get(feed.output)
            if table is not None and table.num_rows:
                placed = table if feed.output == LATE else self._placed(table, group)
                sent = send(placed, feed, source=self.stage.id, group=group, is_stage=feed.to in self._receivers)
                if any(feed.to == to for to, _ in self.beside):
                    sent = _staying(sent, group)
                yield from sent

    def _placed(self, table: pa.Table, group: int) -> pa.Table:
        """The order of a row among those of its batch: its stage, its group, its place in the output."""
        import numpy as np
        import pyarrow as pa

        count = table.num_rows
        columns = {
            SOURCE: pa.array(np.full(count, self.stage.id, dtype=np.int32)),
            PARTITION: pa.array(np.full(count, group, dtype=np.int32)),
            OFFSET: pa.array(np.arange(count, dtype=np.int64)),
        }
        if TIME not in table.column_names:
            columns[TIME] = pa.nulls(count, pa.int64())
        for name, column in columns.items():
            place = table.schema.get_field_index(name)
            table = table.append_column(name, column) if place < 0 else table.set_column(place, name, column)
        return table

    def _counts(self, group: int, tables: Sequence[pa.Table | None], output: Output, watermark_us: int) -> Envelope:
        counts = dict(output.counts)
        counts["rows_in"] = sum(table.num_rows for table in tables if table is not None)
        counts["rows_out"] = output.rows.num_rows if output.rows is not None else 0
        counts["late"] = counts.get("late", output.late.num_rows if output.late is not None else 0)
        if group == 0:
            counts["watermark_us"] = watermark_us
        return counts_envelope({name: value for name, value in counts.items() if value}, source=self.stage.id, group=group)


def send(table: pa.Table, feed: Feed, *, source: int, is_stage: bool, group: int = 0) -> Iterator[Envelope]:
    """Rows on their way along an edge: stateless steps, combining, packing."""
    for step in feed.steps:
        table = step.apply(table)
    if table.num_rows == 0:
        return
    if feed.combine is not None:
        table = feed.combine(table)
    if is_stage:
        yield from rows_to_stage(table, to=feed.to, source=source, keys=feed.keys, groups=feed.groups, input=feed.input)
    else:
        yield from rows_to_sink(table, to=feed.to, source=source, group=group)


def _staying(envelopes: Iterable[Envelope], group: int) -> Iterator[Envelope]:
    for envelope in envelopes:
        assert envelope.group == group, "the planner puts stages into one operator only if rows keep their group"
        yield envelope


def _ordered(payloads: Iterable[bytes]) -> pa.Table | None:
    """The rows of several payloads, by (source, partition, offset) where they carry them."""
    import pyarrow as pa

    tables = [open_table(payload) for payload in payloads]
    if not tables:
        return None
    table = pa.concat_tables(tables, promote_options="permissive") if len(tables) > 1 else tables[0]
    if OFFSET not in table.column_names or table.num_rows < 2:
        return table
    return _sorted(table)


def _sorted(table: pa.Table) -> pa.Table:
    import numpy as np
    import pyarrow as pa

    source, partition, offset = (table.column(name).to_numpy() for name in (SOURCE, PARTITION, OFFSET))
    same = (source[1:] == source[:-1]) & (partition[1:] == partition[:-1])
    rising = (
        (source[1:] > source[:-1]) | ((source[1:] == source[:-1]) & (partition[1:] > partition[:-1])) | (same & (offset[1:] >= offset[:-1]))
    )
    if rising.all():
        return table
    return table.take(pa.array(np.lexsort((offset, partition, source))))


def hosts(plan: PhysicalPlan, stages: Sequence[Stage], *, job: str) -> list[Host]:
    """The hosts of one operator's stages, in the order in which they follow each other."""
    inside, groups = {stage.id for stage in stages}, {stage.id: stage.groups for stage in plan.stages}
    made = []
    for stage in stages:
        fed = sorted({(feed.to, feed.input) for feed in stage.feeds if feed.to in groups})
        after = [(to, place, groups[to]) for to, place in fed if to not in inside]
        made.append(Host(stage, job=job, after=after, beside=[(to, place) for to, place in fed if to in inside]))
    return made


def processor(plan: PhysicalPlan, stages: Sequence[Stage], *, job: str) -> Any:
    """An operator's hosts as a stateful processor of Spark's. Made in a function because its base class needs PySpark."""
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor
    from pyspark.sql.types import BinaryType, IntegerType, LongType, StructField, StructType

    blob = StructType([StructField("saved", BinaryType())])
    head = StructType(
        [StructField("token", LongType()), StructField("version", IntegerType()), StructField("now_us", LongType()), StructField("times", BinaryType()),
         StructField("deltas", IntegerType()), StructField("delta_bytes", LongType()), StructField("base_bytes", LongType()), StructField("inline", BinaryType())]
    )  # fmt: skip
    made = hosts(plan, stages, job=job)

    class KernelProcessor(StatefulProcessor):
        def init(self, handle: Any) -> None:
            # Schemas as objects, not text: text costs a round trip each to be parsed.
            self.hosted = [
                (
                    host,
                    SparkStore(
                        handle.getValueState(f"head{host.stage.id}", head),
                        handle.getValueState(f"base{host.stage.id}", blob),
                        handle.getListState(f"deltas{host.stage.id}", blob),
                    ),
                )
                for host in made
            ]

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            envelopes: Iterable[Any] = map(_without_key, rows)
            for host, store in self.hosted:
                envelopes = host.on_batch(key[0], envelopes, store)
            return map(_Answer._make, envelopes)

        def close(self) -> None:
            pass

    return KernelProcessor()


class _Answer(Envelope):
    """An envelope that Spark's worker takes for a row: all it asks of one is `asDict`."""

    def asDict(self, recursive: bool = False) -> dict[str, Any]:
        return dict(zip(COLUMNS, self))


def _without_key(row: Any) -> Any:
    """The row's own columns: Spark puts the grouping key before them a second time."""
    return row[-len(COLUMNS) :]


class SparkStore:
    """A group's state in Spark's state store. Which group is implied by Spark's current key."""

    __slots__ = ("_base", "_deltas", "_head")

    def __init__(self, head: Any, base: Any, deltas: Any) -> None:
        self._head, self._base, self._deltas = head, base, deltas

    def head(self) -> Head | None:
        value = self._head.get()
        return None if value is None else Head(*value)

    def saved(self) -> list[bytes]:
        return [bytes(self._base.get()[0]), *(bytes(delta) for (delta,) in self._deltas.get())]

    def put_head(self, head: Head) -> None:
        self._head.update(tuple(head))

    def put_base(self, base: bytes | None) -> None:
        self._deltas.clear()
        if base is None:
            self._base.clear()
        else:
            self._base.update((base,))

    def add_delta(self, delta: bytes) -> None:
        self._deltas.appendValue((delta,))
