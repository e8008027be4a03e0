"""Group commit on threads: nobody hears "durable" too early, everybody hears it, and many share one sync."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.log import Log, LogConfig
from penstock.log.commit import Callback, Committer
from penstock.log.errors import LogError, StorageFailed
from tests.log.conftest import put

WAIT_S = 30


class SlowPartition:
    """A partition whose sync ends when the test lets it."""

    def __init__(self) -> None:
        self.waiters: deque[tuple[int, Callback]] = deque()
        self.in_commit = False
        self.next_offset = self.durable_offset = self.syncs = 0
        self.failed: LogError | None = None
        self.fail_next = False
        self.entered, self.leave = threading.Semaphore(0), threading.Semaphore(0)

    def flush(self) -> None:
        target = self.next_offset
        self.entered.release()
        assert self.leave.acquire(timeout=WAIT_S)
        self.syncs += 1
        if self.fail_next:
            self.failed = StorageFailed("slow-0: fsync failed")
            raise self.failed
        self.durable_offset = target


@pytest.fixture
def committer() -> Committer:
    return Committer(durability="group", threads=1)


def _waiter(done: dict[int, object], at: int, event: threading.Event | None = None) -> Callback:
    def run(error: LogError | None) -> None:
        done[at] = error
        if event is not None:
            event.set()

    return run


def test_waiters_that_come_during_a_sync_share_the_next(committer: Committer) -> None:
    partition, done, last = SlowPartition(), {}, threading.Event()
    partition.next_offset = 1
    committer.when_durable(partition, 1, _waiter(done, 1))
    assert partition.entered.acquire(timeout=WAIT_S)
    for offset in range(2, 100):
        partition.next_offset = offset
        committer.when_durable(partition, offset, _waiter(done, offset, last if offset == 99 else None))
    assert done == {}
    partition.leave.release()
    assert partition.entered.acquire(timeout=WAIT_S)
    assert done == {1: None}
    partition.leave.release()
    assert last.wait(WAIT_S)
    assert done == dict.fromkeys(range(1, 100))
    assert partition.syncs == 2
    committer.close()


def test_a_failed_sync_reaches_every_waiter_and_everyone_after(committer: Committer) -> None:
    partition, done, last = SlowPartition(), {}, threading.Event()
    partition.fail_next, partition.next_offset = True, 3
    for offset in (1, 2, 3):
        committer.when_durable(partition, offset, _waiter(done, offset, last if offset == 3 else None))
    partition.leave.release(2)
    assert last.wait(WAIT_S)
    committer.when_durable(partition, 1, _waiter(done, 4))
    assert all(isinstance(error, StorageFailed) for error in done.values())
    assert len(done) == 4
    committer.close()


def test_callbacks_of_a_round_are_handed_over_together(committer: Committer) -> None:
    partition, done, rounds = SlowPartition(), {}, []
    arrived = threading.Event()

    def notify(run: Callable[[], None]) -> None:
        rounds.append(run)
        arrived.set()

    committer.notify = notify
    partition.next_offset = 10
    for offset in range(1, 11):
        committer.when_durable(partition, offset, _waiter(done, offset))
    partition.leave.release(2)
    assert arrived.wait(WAIT_S)
    committer.close()
    assert done == {}
    for run in rounds:
        run()
    assert done == dict.fromkeys(range(1, 11))
    assert len(rounds) == 1


def test_level_os_answers_at_once() -> None:
    partition, done = SlowPartition(), {}
    Committer(durability="os").when_durable(partition, 5, _waiter(done, 5))
    assert done == {5: None}


def test_many_threads_append_read_and_sync_together(tmp_path: Path) -> None:
    """Four writers, one reader and upkeep on one log, rolling and retaining all the time: every record is acknowledged and in its place."""
    configs = {"segment.bytes": "3000", "retention.bytes": "1000000"}
    with Log.open(tmp_path, config=LogConfig(commit_threads=4)) as log:
        partitions = log.create_topic("words", partitions=2, configs=configs).partitions
        acked = threading.Semaphore(0)
        errors: list[object] = []

        def write(name: int) -> None:
            for number in range(200):
                partition = partitions[number % 2]
                appended = partition.append(_one(b"%d-%d" % (name, number)), now_us=1_000)
                log.commits.when_durable(partition, appended.next_offset, lambda error: errors.append(error) if error else acked.release())

        stop = threading.Event()

        def look() -> None:
            while not stop.is_set():
                for partition in partitions:
                    end = partition.high_watermark
                    if end:
                        partition.read(max(0, end - 20), bytes_max=10_000)
                log.maintain(now_us=2_000)

        threads = [threading.Thread(target=write, args=(name,)) for name in range(4)]
        looker = threading.Thread(target=look)
        for thread in [*threads, looker]:
            thread.start()
        for thread in threads:
            thread.join()
        for _ in range(800):
            assert acked.acquire(timeout=WAIT_S)
        stop.set()
        looker.join()
        assert errors == []
        found = [record.value for partition in partitions for record in partition.records()]
    assert sorted(found) == sorted(b"%d-%d" % (name, number) for name in range(4) for number in range(200))


def _one(value: bytes) -> bytes:
    from tests.log.conftest import batch

    return batch(value, at_ms=1)


def test_closing_brings_everything_to_disk(tmp_path: Path) -> None:
    with Log.open(tmp_path) as log:
        partition = log.create_topic("words", partitions=1).partitions[0]
        for number in range(50):
            put(partition, b"%d" % number)
    with Log.open(tmp_path) as log:
        assert log.report == []
        assert log.partition("words", 0).high_watermark == 50
