"""Durability levels, and the group commit that keeps the stronger one.

    os      an append is acknowledged from the page cache: it survives a killed process, not a power loss (Kafka on one node)
    group   an append is acknowledged after an fdatasync that began after it; appends that wait together share one

Invariant: a callback with None never runs before the level it was promised. Each partition is synced by one thread at a time; while a sync
runs, later appends gather for the next, so the group is as large as the disk is slow and nobody waits for a timer. A failed fsync says
nothing about which pages were lost, so the partition stops for good: every waiter and every later append gets the error."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Literal, Protocol

from penstock.log.errors import LogError, StorageFailed

Durability = Literal["os", "group"]
Callback = Callable[[LogError | None], None]
THREADS_MAX = 4


class Syncable(Protocol):
    """What the committer needs of a partition."""

    waiters: deque[tuple[int, Callback]]
    in_commit: bool

    @property
    def durable_offset(self) -> int: ...
    @property
    def failed(self) -> LogError | None: ...
    def flush(self) -> None: ...


def run_now(run: Callable[[], None]) -> None:
    run()


class Committer:
    def __init__(self, *, durability: Durability = "group", threads: int = THREADS_MAX) -> None:
        self.durability = durability
        self.notify: Callable[[Callable[[], None]], object] = run_now  # how finished callbacks get to their thread
        self.rounds = 0  # fdatasync rounds so far, for metrics
        self._threads_max = threads
        self._ready = threading.Condition(threading.Lock())
        self._queue: deque[Syncable] = deque()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._closed = False

    def submit(self, partition: Syncable) -> None:
        """Have the partition synced soon. With no threads (`threads=0`) the caller runs `run_pending` itself."""
        if partition.in_commit:
            return  # queued or being synced: the thread looks again before it lets go
        with self._ready:
            if partition.in_commit or self._closed:
                return
            partition.in_commit = True
            self._queue.append(partition)
            if self._idle:
                self._ready.notify()
            elif len(self._threads) < self._threads_max:
                thread = threading.Thread(target=self._work, name=f"penstock-commit-{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()

    def when_durable(self, partition: Syncable, next_offset: int, callback: Callback) -> None:
        """Run `callback` once everything before `next_offset` has reached the durability level; with the error if it cannot."""
        if partition.failed is not None:
            callback(partition.failed)
        elif self.durability == "os" or partition.durable_offset >= next_offset:
            callback(None)
        else:
            with self._ready:
                waiting = partition.failed is None and partition.durable_offset < next_offset
                if waiting:
                    partition.waiters.append((next_offset, callback))
            if waiting:
                self.submit(partition)
            else:
                callback(partition.failed)

    def _work(self) -> None:
        while True:
            with self._ready:
                while not self._queue:
                    if self._closed:
                        return
                    self._idle += 1
                    self._ready.wait()
                    self._idle -= 1
                partition = self._queue.popleft()
            self._sync(partition)

    def run_pending(self) -> None:
        """Sync what is queued on the calling thread: for simulations and for closing."""
        while True:
            with self._ready:
                if not self._queue:
                    return
                partition = self._queue.popleft()
            self._sync(partition)

    def _sync(self, partition: Syncable) -> None:
        with contextlib.suppress(LogError):  # the partition keeps it, and every waiter gets it
            partition.in_commit = False  # an append from here on queues the partition again
            partition.flush()
        self.rounds += 1
        self.release(partition)

    def release(self, partition: Syncable) -> None:
        """Run the callbacks that are due."""
        failed = partition.failed
        with self._ready:
            durable, waiters = partition.durable_offset, partition.waiters
            due = [waiter for waiter in waiters if failed is not None or waiter[0] <= durable]
            if due:
                kept = [waiter for waiter in waiters if failed is None and waiter[0] > durable]
                waiters.clear()
                waiters.extend(kept)
        if due:

            def run() -> None:
                for _, callback in due:
                    callback(failed)

            self.notify(run)

    def close(self) -> None:
        """Finish what is queued and end the threads."""
        with self._ready:
            self._closed = True
            self._ready.notify_all()
        for thread in self._threads:
            thread.join()
        self.run_pending()


def storage_failed(place: str, what: str, error: OSError) -> StorageFailed:
    return StorageFailed(f"{place}: {what}: {error}", remedy="free disk space or replace the disk, then restart the broker")
