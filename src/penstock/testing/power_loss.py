"""Power losses by the thousand: a random workload on a simulated disk, cut off at any step, opened again and judged.

The workload appends (plain, idempotent, transactional, with keys), syncs, rolls, compacts, deletes records, creates, grows and deletes topics, restarts.
At every step of the disk the dice say whether to look at a crash there: one of the disks that a power loss could leave is opened with the real recovery
and compared with what the workload knows. The laws:

    kept      every batch acknowledged at level `group`, or synced at level `os`, is there, at its offset, with its bytes
    prefix    what is there beyond that is a prefix of what was appended: no gap, no reordering, nothing invented
    latest    a compacted partition has the last committed record of every key, and no record that was not appended
    known     producers, last stable offset and aborted transactions are those of that prefix
    topics    a created topic exists with its id, a deleted one does not come back
    quiet     recovery reports cuts, never damage: nothing was damaged
    again     what recovery made survives the next power loss

Invariant: a run is a function of its seed. Used by the tests with small numbers and by `python -m chaos.power_loss` with large ones."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from penstock.clock import ManualClock
from penstock.log import Log, LogConfig, Partition
from penstock.log import batch as rb
from penstock.log.batch import BatchHeader, Record
from penstock.log.commit import Durability
from penstock.log.compaction import compact
from penstock.log.errors import LogError
from penstock.log.producers import Producers
from penstock.testing.storage import SimulatedStorage

DIRECTORY = "/data"
START_US = 1_700_000_000_000_000
PLAIN = {"segment.bytes": "700", "index.interval.bytes": "200", "retention.bytes": "4000", "retention.ms": "-1"}
COMPACT = {"segment.bytes": "500", "cleanup.policy": "compact", "delete.retention.ms": "50", "min.cleanable.dirty.ratio": "0"}


class LawBroken(AssertionError):
    """A crash state that recovery did not bring back as promised."""


@dataclass(slots=True)
class PartitionTruth:
    """What the workload did to one partition."""

    batches: list[tuple[BatchHeader, bytes]] = field(default_factory=list)  # as stored, in order; acknowledged or not
    acked: int = 0  # every offset before it was acknowledged
    start_asked: int = 0  # deletion up to here was asked for
    start_acked: int = 0  # and confirmed

    @property
    def next_offset(self) -> int:
        return self.batches[-1][0].next_offset if self.batches else 0


@dataclass(slots=True)
class TopicTruth:
    id: bytes | None  # None while it is being created
    compacted: bool
    partitions: list[PartitionTruth]
    partitions_asked: int
    doomed: bool = False  # deletion was asked for


@dataclass(slots=True)
class Stats:
    states: int = 0
    steps: int = 0
    cut: int = 0
    by_step: dict[str, int] = field(default_factory=dict)


class Workload:
    def __init__(
        self, seed: int, *, actions: int = 60, share: float = 0.15, states_max: int = 1 << 60, durability: Durability = "group"
    ) -> None:
        self.config = LogConfig(durability=durability, commit_threads=0)
        self.rng, self.seed = random.Random(seed), seed
        self.dice = random.Random(seed + 1)  # for the crashes, so that the workload does not depend on how many are taken
        self.share, self.actions, self.states_max = share, actions, states_max
        self.disk, self.clock = SimulatedStorage(), ManualClock(START_US)
        self.truth: dict[str, TopicTruth] = {}
        self.gone: set[bytes] = set()  # ids of topics whose deletion was confirmed
        self.stats = Stats()
        self.sequences: dict[tuple[str, int, int], int] = {}
        self.in_transaction: set[tuple[str, int, int]] = set()
        self.value = 0
        self.opened = False
        self.log: Log

    # --- the workload ------------------------------------------------------------------------------------------------

    def run(self) -> Stats:
        self.disk.on_change = self._maybe_crash
        self._open()
        self._create("plain", dict(PLAIN))
        self._create("table", dict(COMPACT))
        steps = [
            (self._append, 40),
            (self._sync, 14),
            (self._end_transaction, 6),
            (self._compact, 5),
            (self._retain, 2),
            (self._delete_records, 2),
            (self._roll, 3),
            (self._create_or_delete, 3),
            (self._grow, 1),
            (self._restart, 2),
            (self._checkpoint, 2),
        ]
        for step in self.rng.choices([step for step, _ in steps], [weight for _, weight in steps], k=self.actions):
            if self.stats.states >= self.states_max:
                break
            self.clock.move_to(self.clock.now_us() + self.rng.randrange(40_000))
            step()
            if self.config.durability == "os":
                self._note_synced()
        self.disk.on_change = None
        return self.stats

    def _note_synced(self) -> None:
        """At level os an acknowledgement promises nothing; what must be there is what a sync has covered."""
        for name, topic in self.truth.items():
            for partition, truth in zip(self.log.topic(name).partitions, topic.partitions):
                truth.acked = partition.durable_offset

    def _open(self) -> None:
        self.log = Log.open(DIRECTORY, storage=self.disk, clock=self.clock, config=self.config)
        self.opened = True

    def _create(self, name: str, configs: dict[str, str]) -> None:
        count = self.rng.randint(1, 2)
        truth = TopicTruth(None, "cleanup.policy" in configs, [PartitionTruth() for _ in range(count)], count)
        self.truth[name] = truth
        truth.id = self.log.create_topic(name, partitions=count, configs=configs).id

    def _any(self) -> tuple[str, int, Partition, PartitionTruth]:
        name = self.rng.choice(sorted(self.truth))
        number = self.rng.randrange(len(self.truth[name].partitions))
        return name, number, self.log.partition(name, number), self.truth[name].partitions[number]

    def _append(self) -> None:
        name, number, partition, truth = self._any()
        producer_id = self.rng.choice([-1, 1, 2, 3])
        who = (name, number, producer_id)
        transactional = producer_id == 3 or who in self.in_transaction
        records = []
        for _ in range(self.rng.randint(1, 3)):
            self.value += 1
            key = b"k%d" % self.rng.randrange(5)
            value = None if self.rng.random() < 0.15 and self.truth[name].compacted else b"%d" % self.value + b"." * self.rng.randrange(120)
            records.append(Record(0, self.clock.now_us() // 1_000, key, value))
        sequence = self.sequences.get(who, 0)
        data = rb.encode(
            records,
            codec=self.rng.choice([0, 0, 0, 4]),
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=sequence if producer_id >= 0 else -1,
            transactional=transactional,
        )
        stored = b"".join(rb.placed(data, base_offset=partition.next_offset, leader_epoch=0))
        truth.batches.append((rb.parse(stored), stored))
        appended = partition.append(data, now_us=self.clock.now_us())
        assert not appended.duplicate
        self.sequences[who] = sequence + len(records)
        if transactional:
            self.in_transaction.add(who)
        self._ack_later(partition, truth, appended.next_offset)

    def _ack_later(self, partition: Partition, truth: PartitionTruth, next_offset: int) -> None:
        def acked(error: LogError | None) -> None:
            if error is None:  # else its topic was deleted meanwhile
                truth.acked = max(truth.acked, next_offset)

        if self.config.durability == "group":
            self.log.commits.when_durable(partition, next_offset, acked)

    def _end_transaction(self) -> None:
        if not self.in_transaction:
            return
        who = self.rng.choice(sorted(self.in_transaction))
        self.in_transaction.discard(who)
        name, number, producer_id = who
        partition, truth = self.log.partition(name, number), self.truth[name].partitions[number]
        commit, now_us = self.rng.random() < 0.5, self.clock.now_us()
        data = rb.encode_marker(producer_id=producer_id, producer_epoch=0, commit=commit, coordinator_epoch=0, timestamp_ms=now_us // 1_000)
        stored = b"".join(rb.placed(data, base_offset=partition.next_offset, leader_epoch=0))
        truth.batches.append((rb.parse(stored), stored))
        appended = partition.append_marker(producer_id=producer_id, producer_epoch=0, commit=commit, now_us=now_us)
        self._ack_later(partition, truth, appended.next_offset)

    def _sync(self) -> None:
        self.log.commits.run_pending()

    def _compact(self) -> None:
        for name, topic in self.truth.items():
            if topic.compacted:
                for partition in self.log.topic(name).partitions:
                    compact(partition, now_us=self.clock.now_us(), force=True)

    def _retain(self) -> None:
        partition, truth = self._any()[2:]
        before = partition.start_offset
        truth.start_asked = max(truth.start_asked, partition.next_offset)
        partition.enforce_retention(now_us=self.clock.now_us())
        truth.start_asked = truth.start_acked = max(before, partition.start_offset)

    def _delete_records(self) -> None:
        partition, truth = self._any()[2:]
        offset = self.rng.randint(partition.start_offset, partition.high_watermark)
        truth.start_asked = max(truth.start_asked, offset)
        truth.start_acked = partition.delete_before(offset)

    def _roll(self) -> None:
        partition = self._any()[2]
        if partition.active.size:
            partition.roll()

    def _create_or_delete(self) -> None:
        name = f"other{self.rng.randrange(2)}"
        topic = self.truth.get(name)
        if topic is None:
            self._create(name, dict(self.rng.choice([PLAIN, COMPACT])))
            return
        topic.doomed = True
        self.in_transaction = {who for who in self.in_transaction if who[0] != name}
        self.sequences = {who: sequence for who, sequence in self.sequences.items() if who[0] != name}
        self.log.delete_topic(name)
        assert topic.id is not None
        self.gone.add(topic.id)
        del self.truth[name]

    def _grow(self) -> None:
        topic = self.truth["plain"]
        if len(topic.partitions) < 4:
            topic.partitions_asked += 1
            self.log.add_partitions("plain", total=topic.partitions_asked)
            topic.partitions.append(PartitionTruth())

    def _restart(self) -> None:
        self.log.close()
        self._open()

    def _checkpoint(self) -> None:
        partition = self._any()[2]
        partition.checkpoint_index()
        self.log.sync_points()

    # --- crashes -----------------------------------------------------------------------------------------------------

    def _maybe_crash(self, what: str, path: str) -> None:
        self.stats.steps += 1
        if not self.opened or self.dice.random() >= self.share or self.stats.states >= self.states_max:
            return
        name = path.rsplit("/", 1)[-1]
        kind = f"{what} {_kind(name)}"
        self.stats.by_step[kind] = self.stats.by_step.get(kind, 0) + 1
        disk = self.disk.after_power_loss(self.dice)
        try:
            self._judge(disk, depth=0)
        except Exception as error:
            raise LawBroken(f"seed {self.seed}, disk step {self.disk.steps} ({what} {path}): {error}") from error

    def _judge(self, disk: SimulatedStorage, *, depth: int) -> None:
        self.stats.states += 1
        if depth == 0 and self.dice.random() < 0.2:  # the power fails again while recovery is at work
            self._crash_during_recovery(disk)
        log = Log.open(DIRECTORY, storage=disk, clock=self.clock, config=self.config)
        self.judge_topics(log)
        cut = sum(partition.recovered.bytes_cut for topic in log.topics.values() for partition in topic.partitions)
        self.stats.cut += cut > 0
        for line in log.report:
            if "damage" in line:
                raise LawBroken(f"quiet: {line}")
        for name, topic in log.topics.items():
            for number, partition in enumerate(topic.partitions):
                if number < len(self.truth[name].partitions):
                    Judge(partition, self.truth[name].partitions[number]).check(compacted=self.truth[name].compacted)
        if depth == 0 and self.dice.random() < 0.2:
            ends = {partition.place: partition.next_offset for topic in log.topics.values() for partition in topic.partitions}
            again = Log.open(DIRECTORY, storage=disk.after_power_loss(self.dice), clock=self.clock, config=self.config)
            if ends != {partition.place: partition.next_offset for topic in again.topics.values() for partition in topic.partitions}:
                raise LawBroken("again: a second power loss took more")

    def _crash_during_recovery(self, disk: SimulatedStorage) -> None:
        class Stop(BaseException):
            pass

        steps = self.dice.randint(1, 12)
        left: list[SimulatedStorage] = []

        def count(what: str, path: str) -> None:
            nonlocal steps
            steps -= 1
            if steps == 0:
                left.append(disk.after_power_loss(self.dice))
                raise Stop

        disk.on_change = count
        with suppress(Stop):
            Log.open(DIRECTORY, storage=disk, clock=self.clock, config=self.config)
        disk.on_change = None
        disk._locks.clear()
        if left:
            self._judge(left[0], depth=1)
            disk._root = left[0]._root  # go on from there: opened once more by the caller
            disk._locks.clear()

    def judge_topics(self, log: Log) -> None:
        for name, topic in self.truth.items():
            found = log.topics.get(name)
            if found is None:
                if topic.id is not None and not topic.doomed:
                    raise LawBroken(f"topics: '{name}' is lost")
            elif topic.id is not None and found.id != topic.id:
                raise LawBroken(f"topics: '{name}' has another id")
            elif len(found.partitions) not in (len(topic.partitions), topic.partitions_asked):
                raise LawBroken(f"topics: '{name}' has {len(found.partitions)} partitions")
        for name, found in log.topics.items():
            if name not in self.truth or found.id in self.gone:
                raise LawBroken(f"topics: '{name}' came back")


class Judge:
    """One recovered partition against what was done to it."""

    def __init__(self, partition: Partition, truth: PartitionTruth) -> None:
        self.partition, self.truth = partition, truth
        self.batches = [(header, data) for header, data in truth.batches if header.next_offset <= partition.next_offset]

    def check(self, *, compacted: bool) -> None:
        partition, truth = self.partition, self.truth
        if partition.failed is not None:
            raise LawBroken(f"quiet: {partition.failed}")
        if partition.next_offset < truth.acked:
            raise LawBroken(f"kept: {partition.place} ends at {partition.next_offset}, {truth.acked} were acknowledged")
        end = self.batches[-1][0].next_offset if self.batches else 0
        if partition.next_offset != end and partition.next_offset != truth.start_asked:
            raise LawBroken(f"prefix: {partition.place} ends at {partition.next_offset}, inside or after what was appended")
        if not truth.start_acked <= partition.start_offset <= max(truth.start_asked, truth.start_acked):
            raise LawBroken(
                f"kept: {partition.place} starts at {partition.start_offset}, asked for {truth.start_acked} to {truth.start_asked}"
            )
        producers = self._producers()
        if compacted:
            self._check_latest(producers)
        else:
            self._check_bytes()
            aborted = [one for one in producers.aborted if one.next_offset > partition.start_offset]
            if partition.producers.aborted != aborted:
                raise LawBroken(f"known: {partition.place} aborted {partition.producers.aborted}, not {aborted}")
        self._check_known(producers)

    def _producers(self) -> Producers:
        producers = Producers()
        for header, data in self.batches:
            commits = rb.marker_commits(data, header) if header.is_control else None
            producers.apply(header, base_offset=header.base_offset, commits=commits)
        return producers

    def _read(self) -> Iterator[tuple[BatchHeader, bytes]]:
        offset = self.partition.start_offset
        while buffers := self.partition.read(offset, bytes_max=300):
            for header, at in rb.walk(buffers[0]):
                yield header, bytes(buffers[0][at : at + header.size])
                offset = header.next_offset

    def _check_bytes(self) -> None:
        expected = [data for header, data in self.batches if header.next_offset > self.partition.start_offset]
        found = [data for _, data in self._read()]
        if expected != found:
            raise LawBroken(f"kept: {self.partition.place} has {len(found)} batches that differ from the {len(expected)} appended")

    def _check_latest(self, producers: Producers) -> None:
        aborted = producers.aborted
        appended: dict[int, Record] = {}
        latest: dict[bytes, int] = {}
        for header, data in self.batches:
            if header.is_control:
                continue
            is_aborted = any(
                one.producer_id == header.producer_id and one.first_offset <= header.base_offset < one.next_offset for one in aborted
            )
            for record in rb.decode(data, header):
                appended[record.offset] = record
                if (
                    not is_aborted
                    and record.key is not None
                    and not (header.producer_id in producers.open and producers.open[header.producer_id] <= header.base_offset)
                ):
                    latest[record.key] = record.offset
        found = {record.offset: record for header, data in self._read() if not header.is_control for record in rb.decode(data, header)}
        for offset, record in found.items():
            if appended.get(offset) != record:
                raise LawBroken(f"latest: {self.partition.place} has {record}, appended was {appended.get(offset)}")
        for key, offset in latest.items():
            if offset >= self.partition.start_offset and offset not in found and appended[offset].value is not None:
                raise LawBroken(f"latest: {self.partition.place} lost offset {offset}, the last of key {key!r}")

    def _check_known(self, producers: Producers) -> None:
        partition = self.partition
        if partition.producers.open != producers.open:
            raise LawBroken(f"known: {partition.place} has open transactions {partition.producers.open}, not {producers.open}")
        for producer_id, producer in producers.by_id.items():
            found = partition.producers.by_id.get(producer_id)
            if found is None or found.written != producer.written or found.epoch != producer.epoch:
                raise LawBroken(f"known: {partition.place} producer {producer_id} is {found}, not {producer}")


def _kind(name: str) -> str:
    stem, _, suffix = name.rpartition(".")
    if not stem:
        return "partition" if name.isdigit() else name
    return "topic directory" if len(suffix) == 32 else f"*.{suffix}"


def run_many(*, seed: int, states: int, actions: int = 60, share: float = 0.15, durability: Durability = "group") -> Stats:
    """Workloads with consecutive seeds until so many crash states were judged."""
    total = Stats()
    while total.states < states:
        stats = Workload(seed, actions=actions, share=share, states_max=states - total.states, durability=durability).run()
        total.states += stats.states
        total.steps += stats.steps
        total.cut += stats.cut
        for kind, count in stats.by_step.items():
            total.by_step[kind] = total.by_step.get(kind, 0) + count
        seed += 1
    return total
