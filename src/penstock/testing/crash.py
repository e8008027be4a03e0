"""Kill a broker again and again under load from foreign clients, and judge what they saw.

A round makes a topic, starts producers (idempotent and transactional), a reader and a committing group on librdkafka, kills the
broker with SIGKILL at random moments, starts it again on the same data and port, and in the end reads everything back with a new
client. `history.check` judges the whole. With `torn` set, random bytes are added to the newest segments of a dead broker, as a torn
write would leave them. Invariant: a round's clients are closed and its threads ended when it returns.
Not here: power loss, where written data can vanish (the simulated storage), and what the log does about any of it."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition

from penstock.testing.contract.frame import Subject, closing, done, wait_until
from penstock.testing.history import Anomaly, Assign, Event, Outcome, Poll, Send, check

START_S_MAX = 60.0
SETTLE_S_MAX = 60.0
# Clients must come back quickly: the time without a broker is not what is tested here.
_EAGER: dict[str, Any] = {"reconnect_backoff_ms": 20, "reconnect_backoff_max_ms": 100, "retry_backoff_ms": 20}


class Victim:
    """A broker process on a fixed port and directory, made to be killed. Ends with `close`."""

    def __init__(self, data: Path, *, durability: str = "group") -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.data = data
        self._command = [
            sys.executable,
            "-m",
            "penstock.broker",
            "--port",
            str(self.port),
            "--data",
            str(data / "log"),
            "--durability",
            durability,
        ]
        self._process: subprocess.Popen[str] | None = None
        data.mkdir(parents=True, exist_ok=True)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> float:
        """Start it and return the seconds until it was ready."""
        assert self._process is None, "one process at a time"
        begin = time.monotonic()
        with (self.data / "broker.err").open("ab") as errors:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            words = (self.data / "broker.err").read_text(errors="replace").strip()[-2000:]
            raise AssertionError(f"the broker did not start again, status {self._process.wait(10)}: {words}")
        return time.monotonic() - begin

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._process = None

    close = kill

    def tear_tails(self, rng: random.Random) -> int:
        """Add a torn write to some of the newest segments; returns to how many."""
        assert self._process is None, "only a dead broker's files are touched"
        torn = 0
        for directory in sorted({path.parent for path in (self.data / "log").rglob("*.log")}):
            newest = max(directory.glob("*.log"))
            if rng.random() < 0.5:
                continue
            # Either noise, or the beginning of a batch that was there before: the harder of the two to tell from data.
            content = newest.read_bytes()[:4096]
            tail = (
                content[: rng.randrange(1, len(content))]
                if len(content) > 1 and rng.random() < 0.5
                else rng.randbytes(rng.randrange(1, 300))
            )
            with newest.open("ab") as file:
                file.write(tail)
            torn += 1
        return torn


@dataclass(frozen=True, slots=True)
class Load:
    """How a round is run."""

    cycles: int
    partitions: int = 3
    producers: int = 2
    transactional: int = 1
    running_s: tuple[float, float] = (0.02, 0.4)
    queued_max: int = 2000
    torn: bool = True


@dataclass(slots=True)
class Report:
    """What a round saw."""

    acknowledged: int = 0
    read: int = 0
    transactions: int = 0
    restarts_s: list[float] = field(default_factory=list)
    torn: int = 0
    anomalies: list[Anomaly] = field(default_factory=list)
    rolled_back: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Sent:
    """A send as it happens; becomes a `Send` of the history when the round is over."""

    producer: str
    partition: int
    value: bytes
    transaction: str | None
    offset: int | None = None


class _Round:
    """The threads of one round and what they write down. Each list has one writer."""

    def __init__(self, subject: Subject, topic: str, load: Load) -> None:
        self.subject, self.topic, self.load = subject, topic, load
        self.over = threading.Event()
        self.progress = 0  # a sign of life, not a count: several threads add to it
        self.failures: list[BaseException] = []
        self.sent: list[list[_Sent]] = []
        self.outcomes: list[Outcome] = []
        self.polled: list[Event] = []
        self.committed: dict[int, int] = {}
        self.group = subject.fresh("group")
        self.threads: list[threading.Thread] = []

    def spawn(self, function: Callable[..., None], *arguments: Any) -> None:
        def guarded() -> None:
            try:
                function(*arguments)
            except BaseException as error:  # a thread's failure must reach the caller of the round
                self.failures.append(error)

        self.threads.append(threading.Thread(target=guarded, daemon=True))
        self.threads[-1].start()

    def produce(self, name: str, rng: random.Random) -> None:
        sent: list[_Sent] = []
        self.sent.append(sent)
        producer = self._producer(enable_idempotence=True, message_timeout_ms=0)
        while not self.over.is_set():
            self._send(producer, sent, name, rng, None)
            producer.poll(0)
        left = producer.flush(SETTLE_S_MAX)
        assert left == 0, f"{left} records of {name} had no answer {SETTLE_S_MAX:.0f} s after the last restart"

    def transact(self, name: str, rng: random.Random) -> None:
        sent: list[_Sent] = []
        self.sent.append(sent)
        transactional_id = self.subject.fresh("txn")
        producer: Producer | None = None
        number = 0
        while not self.over.is_set():
            transaction = f"{name}.{number}"
            number += 1
            commit = rng.random() < 0.7
            outcome: bool | None = None
            try:
                if producer is None:
                    producer = self._producer(transactional_id=transactional_id, transaction_timeout_ms=30_000, message_timeout_ms=30_000)
                    _insist(lambda producer=producer: producer.init_transactions(5))  # type: ignore[misc]
                producer.begin_transaction()
                for _ in range(rng.randrange(1, 20)):
                    self._send(producer, sent, name, rng, transaction)
                if not commit:
                    producer.flush(2)  # otherwise an abort throws away what was not sent yet, and nothing is stored to be hidden
                end = producer.commit_transaction if commit else producer.abort_transaction
                _insist(lambda end=end: end(5))  # type: ignore[misc]
                outcome = commit
            except KafkaException as error:
                if producer is not None and error.args[0].txn_requires_abort():
                    with contextlib.suppress(KafkaException):
                        _insist(lambda producer=producer: producer.abort_transaction(5))  # type: ignore[misc]
                        outcome = False
                if outcome is None:
                    producer = None  # the next one takes the id up again, which ends the old transaction one way or the other
            self.outcomes.append(Outcome(transaction, outcome))
        if producer is None:
            producer = self._producer(transactional_id=transactional_id)
            _insist(lambda: producer.init_transactions(5))

    def _producer(self, **config: Any) -> Producer:
        limits = {"queue_buffering_max_messages": self.load.queued_max, "linger_ms": 1}
        return self.subject.producer(**{**_EAGER, **limits, **config})

    def _send(self, producer: Producer, sent: list[_Sent], name: str, rng: random.Random, transaction: str | None) -> None:
        entry = _Sent(name, rng.randrange(self.load.partitions), b"%s %d " % (name.encode(), len(sent)), transaction)

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                entry.offset = message.offset()
                self.progress += 1

        while not self.over.is_set() or transaction is not None:
            try:
                # Padding makes batches of all sizes; the identity of a record is its beginning.
                producer.produce(
                    self.topic, value=entry.value + b"." * rng.randrange(200), partition=entry.partition, on_delivery=delivered
                )
                sent.append(entry)
                return
            except BufferError:
                producer.poll(0.05)

    def follow(self, name: str) -> None:
        """Reads on over every crash, as a consumer would that never stops."""
        with closing(self.subject.consumer(**_EAGER, isolation_level="read_committed", enable_partition_eof=False)) as consumer:
            consumer.assign([TopicPartition(self.topic, partition, 0) for partition in range(self.load.partitions)])
            self.polled += [Assign(name, (self.topic, partition)) for partition in range(self.load.partitions)]
            while not self.over.is_set():
                for message in consumer.consume(1000, 0.1):
                    if message.error() is None:
                        self.polled.append(_polled(name, message))

    def commit(self) -> None:
        """A group that commits as it reads; an answered commit must survive."""
        with closing(self.subject.consumer(self.group, **_EAGER, enable_partition_eof=False)) as consumer:
            consumer.assign([TopicPartition(self.topic, partition, 0) for partition in range(self.load.partitions)])
            while not self.over.is_set():
                messages = [message for message in consumer.consume(500, 0.1) if message.error() is None]
                ends = {message.partition(): message.offset() + 1 for message in messages}
                with contextlib.suppress(KafkaException):
                    offsets = [TopicPartition(self.topic, partition, offset) for partition, offset in ends.items()]
                    for answer in consumer.commit(offsets=offsets, asynchronous=False) if offsets else ():
                        if answer.error is None:
                            self.committed[answer.partition] = answer.offset


def run_round(victim: Victim, load: Load, rng: random.Random) -> Report:
    """One round on a running broker: crash it `load.cycles` times, and judge."""
    subject, report = Subject("victim", victim.address), Report()
    topic = subject.topic(partitions=load.partitions)
    running = _Round(subject, topic, load)
    for n in range(load.producers):
        running.spawn(running.produce, f"producer {n}", random.Random(rng.random()))
    for n in range(load.transactional):
        running.spawn(running.transact, f"transactional {n}", random.Random(rng.random()))
    running.spawn(running.follow, "follower")
    running.spawn(running.commit)
    try:
        for _ in range(load.cycles):
            _wait_for_load(running, rng)
            running.over.wait(rng.uniform(*load.running_s))
            victim.kill()
            report.torn += victim.tear_tails(rng) if load.torn else 0
            report.restarts_s.append(victim.start())
        running.over.wait(load.running_s[1])
    finally:
        running.over.set()
        for thread in running.threads:
            thread.join(2 * SETTLE_S_MAX)
    if running.failures:
        raise running.failures[0]
    assert not any(thread.is_alive() for thread in running.threads), "a client does not come to an end"
    _judge(running, subject, report)
    done(subject.admin.delete_topics([topic]))
    return report


def _wait_for_load(running: _Round, rng: random.Random) -> None:
    """Until records flow, and sometimes until transactions do: clients take longer to come back than the broker does."""
    sends, transactions = running.progress, len(running.outcomes)
    transactions -= 0 if running.load.transactional and rng.random() < 0.3 else 1

    def flows() -> bool:
        return bool(running.failures) or (running.progress > sends and len(running.outcomes) > transactions)

    wait_until(flows, "records flow again", seconds=SETTLE_S_MAX)


def _judge(running: _Round, subject: Subject, report: Report) -> None:
    topic, events = running.topic, list(running.polled)
    ends: dict[tuple[str, int], int] = {}
    for partition in range(running.load.partitions):
        final = f"final {partition}"
        events.append(Assign(final, (topic, partition)))
        _, ends[topic, partition] = subject.ends(topic, partition)
        messages = _read_settled(subject, topic, partition, ends[topic, partition])
        events += [_polled(final, message) for message in messages]
        report.read += len(messages)
    sends = [Send(s.producer, (topic, s.partition), s.value, s.offset, s.transaction) for sent in running.sent for s in sent]
    report.acknowledged += sum(send.offset is not None for send in sends)
    report.transactions += len(running.outcomes)
    report.anomalies += check([*sends, *running.outcomes, *events], ends=ends)
    for partition, offset in running.committed.items():
        kept = subject.committed(running.group, topic, partition=partition)
        if kept < offset:
            report.rolled_back.append(f"{topic}/{partition}: commit of {offset} was answered, but {kept} is stored")


def _read_settled(subject: Subject, topic: str, partition: int, end: int) -> list[Message]:
    """The whole partition under read_committed, once no transaction holds it back."""

    def settled() -> bool:
        return bool(subject.ends(topic, partition, isolation_level="read_committed")[1] >= end)

    with contextlib.suppress(AssertionError):  # the reading itself then shows what is held back
        wait_until(settled, "no open transaction", seconds=5)
    return subject.read(topic, partition=partition, isolation_level="read_committed")


def _polled(consumer: str, message: Message) -> Poll:
    value = message.value()
    return Poll(consumer, (message.topic(), message.partition()), message.offset(), value[: value.rindex(b" ") + 1])


def _insist(action: Callable[[], None]) -> None:
    """Repeat a transactional call while its error says that it may be repeated."""
    deadline = time.monotonic() + SETTLE_S_MAX
    while True:
        try:
            action()
            return
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise


def summary(reports: list[Report], *, seconds: float) -> str:
    """One paragraph of figures."""
    restarts = sorted(s for report in reports for s in report.restarts_s) or [0.0]
    lines = [
        f"{len(restarts)} kills in {seconds:.0f} s, torn tails {sum(r.torn for r in reports)}",
        f"acknowledged {sum(r.acknowledged for r in reports):,} records, {sum(r.transactions for r in reports):,} transactions, read back {sum(r.read for r in reports):,}",
        f"restart p50 {restarts[len(restarts) // 2]:.2f} s, max {restarts[-1]:.2f} s",
        f"broken laws {sum(len(r.anomalies) for r in reports)}, commits rolled back {sum(len(r.rolled_back) for r in reports)}",
    ]
    return "\n".join(lines)


def scratch_root() -> Path:
    """Where victims keep their data: a real disk where there is one, never a memory file system by accident."""
    return Path(os.environ.get("TMPDIR", "/var/tmp"))
