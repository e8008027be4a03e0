"""A partition against a list: whatever is done to it, it holds what a list of batches would hold."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.log import batch as rb
from penstock.log.batch import Record
from penstock.log.errors import InvalidProducerEpoch, OutOfOrderSequence
from penstock.testing.storage import SimulatedStorage
from tests.log.conftest import NOW_MS, NOW_US, World, consume

PRODUCERS = st.integers(1, 3)


class PartitionModel(RuleBasedStateMachine):
    """`records` and `batches` are all that was ever appended; `start` is where reading may begin."""

    @initialize(segment_bytes=st.sampled_from([150, 400, 5_000]), interval=st.sampled_from([0, 100, 4_096]))
    def create(self, segment_bytes: int, interval: int) -> None:
        self.world = World(SimulatedStorage())
        self.partition = self.world.topic(segment_bytes=segment_bytes, index_interval_bytes=interval, retention_ms=-1)
        self.records: list[Record | None] = []  # None is a marker
        self.batches: list[int] = []  # base offsets
        self.start = self.synced = 0
        self.sequences: dict[int, tuple[int, int]] = {}  # producer -> (epoch, next sequence)
        self.sent: dict[int, list[tuple[int, bytes]]] = {}  # producer -> (base offset, batch), newest epoch only
        self.open: dict[int, int] = {}
        self.aborted: list[tuple[int, int, int]] = []

    def _add(self, data: bytes, base_offset: int) -> None:
        assert base_offset == len(self.records)
        self.batches.append(base_offset)
        self.records += [record._replace(offset=base_offset + record.offset) for record in rb.decode(data)]

    @rule(sizes=st.lists(st.integers(0, 60), min_size=1, max_size=4), codec=st.sampled_from([0, 4]), time=st.integers(-50, 50))
    def append(self, sizes: list[int], codec: int, time: int) -> None:
        records = [Record(0, NOW_MS + time + number, None, bytes(size)) for number, size in enumerate(sizes)]
        data = rb.encode(records, codec=codec)
        self._add(data, self.partition.append(data, now_us=NOW_US).base_offset)

    @rule(producer=PRODUCERS, count=st.integers(1, 3), transactional=st.booleans())
    def append_idempotent(self, producer: int, count: int, transactional: bool) -> None:
        epoch, sequence = self.sequences.get(producer, (0, 0))
        transactional = transactional or producer in self.open
        records = [Record(0, NOW_MS, None, b"%d" % (sequence + number)) for number in range(count)]
        data = rb.encode(records, producer_id=producer, producer_epoch=epoch, base_sequence=sequence, transactional=transactional)
        appended = self.partition.append(data, now_us=NOW_US)
        assert not appended.duplicate
        self._add(data, appended.base_offset)
        self.sequences[producer] = (epoch, sequence + count)
        self.sent.setdefault(producer, []).append((appended.base_offset, data))
        if transactional:
            self.open.setdefault(producer, appended.base_offset)

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        producer = data.draw(st.sampled_from(sorted(self.sent)))
        known = self.sent[producer][-5:]
        if known:
            base_offset, sent = data.draw(st.sampled_from(known))
            appended = self.partition.append(sent, now_us=NOW_US)
            assert (appended.base_offset, appended.duplicate) == (base_offset, True)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), gap=st.integers(1, 5))
    def skip(self, data: st.DataObject, gap: int) -> None:
        producer = data.draw(st.sampled_from(sorted(self.sequences)))
        epoch, sequence = self.sequences[producer]
        batch = rb.encode(
            [Record(0, NOW_MS, None, b"")], producer_id=producer, producer_epoch=epoch, base_sequence=sequence + gap, transactional=True
        )
        try:
            self.partition.append(batch, now_us=NOW_US)
        except OutOfOrderSequence:
            return
        raise AssertionError("a gap was accepted")

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def fence(self, data: st.DataObject) -> None:
        """The coordinator aborts with the next epoch: the old producer is out."""
        producer = data.draw(st.sampled_from(sorted(self.sequences)))
        epoch, sequence = self.sequences[producer]
        self._mark(producer, epoch + 1, commit=False)
        self.sequences[producer] = (epoch + 1, 0)
        self.sent[producer] = []
        batch = rb.encode([Record(0, NOW_MS, None, b"")], producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
        try:
            self.partition.append(batch, now_us=NOW_US)
        except InvalidProducerEpoch:
            return
        raise AssertionError("a fenced producer wrote")

    @precondition(lambda self: self.open)
    @rule(data=st.data(), commit=st.booleans())
    def end_transaction(self, data: st.DataObject, commit: bool) -> None:
        producer = data.draw(st.sampled_from(sorted(self.open)))
        self._mark(producer, self.sequences[producer][0], commit=commit)

    def _mark(self, producer: int, epoch: int, *, commit: bool) -> None:
        base = self.partition.append_marker(producer_id=producer, producer_epoch=epoch, commit=commit, now_us=NOW_US).base_offset
        assert base == len(self.records)
        self.batches.append(base)
        self.records.append(None)
        first = self.open.pop(producer, None)
        if first is not None and not commit:
            self.aborted.append((producer, first, base + 1))

    @rule()
    def sync(self) -> None:
        self.world.sync()
        self.synced = len(self.records)

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        if clean:
            self.world.log.close()
        self.partition = self.world.reopen().partition("words", 0)
        self.synced = len(self.records)
        assert self.partition.failed is None
        assert self.world.log.report == []

    @rule(share=st.floats(0, 1))
    def delete_before(self, share: float) -> None:
        offset = int(share * self.synced)
        self.start = max(self.start, offset)
        assert self.partition.delete_before(offset) == self.start

    @rule()
    def roll(self) -> None:
        if self.partition.active.size:
            self.partition.roll()

    @rule(time=st.integers(-60, 60))
    def look_up_time(self, time: int) -> None:
        wanted = NOW_MS + time
        visible = [record for record in self.records[self.start : self.synced] if record is not None]
        found = next(((record.offset, record.timestamp_ms) for record in visible if record.timestamp_ms >= wanted), None)
        answer = self.partition.offset_for_time(wanted)
        if answer is not None and self.records[answer[0]] is None:
            return  # a marker has a time too
        assert answer == found or (found is not None and answer is not None and answer[0] < found[0])

    @rule(share=st.floats(0, 1), bytes_max=st.sampled_from([1, 200, 100_000]))
    def read(self, share: float, bytes_max: int) -> None:
        start = self.start + int(share * (self.synced - self.start))
        expected = [record for record in self.records[start : self.synced] if record is not None]
        assert list(consume(self.partition, start, bytes_max=bytes_max)) == expected

    @invariant()
    def offsets_agree(self) -> None:
        if not hasattr(self, "partition"):
            return
        partition = self.partition
        assert (partition.start_offset, partition.high_watermark, partition.next_offset) == (self.start, self.synced, len(self.records))
        assert partition.last_stable_offset <= min([self.synced, *self.open.values()])
        if self.synced == len(self.records):
            assert partition.last_stable_offset == min([self.synced, *self.open.values()])
        aborted = [(producer, first) for producer, first, end in self.aborted if end > self.start]
        assert partition.aborted(self.start, len(self.records)) == aborted


TestPartitionModel = PartitionModel.TestCase
TestPartitionModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
