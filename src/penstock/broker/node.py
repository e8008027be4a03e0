"""One broker: the log, the coordinators on top of it, and who waits for new records. What handlers work on.

Invariant: everything runs on the event loop's thread but the log's own commit threads, upkeep, and changes of topics, which call back
through the loop. Internal topics begin with `__`. Not here: sockets (server.py), requests (handlers/)."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from penstock.broker.groups import Groups, load_rows
from penstock.broker.limits import Limits
from penstock.broker.offsets import Offsets
from penstock.broker.state_log import StateLog, durable
from penstock.broker.transactions import Transactions, Txn
from penstock.clock import Clock, SystemClock
from penstock.log import Log, LogConfig, Partition, Storage, Topic
from penstock.log.errors import Damaged, LogError, StorageFailed, TopicExists

if TYPE_CHECKING:
    from penstock.broker.server import Server

logger = logging.getLogger("penstock.broker")

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})
UPKEEP_SECONDS = 5.0
OVERDUE_SECONDS = 0.5
REPORTS_MAX = 10_000
OFFSETS_KEPT_MS = 7 * 86_400_000
EMPTY_GROUPS_KEPT_MS = 600_000
TRANSACTIONAL_IDS_KEPT_MS = 7 * 86_400_000
T = TypeVar("T")


class Node:
    id = 1
    leader_epoch = 0

    def __init__(self, log: Log, *, limits: Limits, clock: Clock, default_partitions: int, auto_create: bool) -> None:
        self.log = log
        self.limits = limits
        self.clock = clock
        self.default_partitions = default_partitions
        self.auto_create = auto_create
        self.loop = asyncio.get_running_loop()
        self.host, self.port = "", 0
        self.server: Server  # set by who listens for this node
        self.watchers: dict[Partition, dict[Callable[[], None], None]] = {}
        log.commits.notify = self._from_commit_thread
        offsets_log = StateLog(log, OFFSETS_TOPIC, clock=clock)
        self.offsets = Offsets(offsets_log)
        self.groups = Groups(offsets_log, self.offsets, limits=limits, clock=clock)
        self.transactions = Transactions(
            StateLog(log, TRANSACTIONS_TOPIC, clock=clock), write_markers=self._write_markers, limits=limits, clock=clock
        )
        self._reported: set[str] = set()
        self._upkeep = ThreadPoolExecutor(1, thread_name_prefix="penstock-upkeep")
        self._topic_changes = ThreadPoolExecutor(1, thread_name_prefix="penstock-topics")
        self._tasks: list[asyncio.Task[None]] = []

    @staticmethod
    async def open(
        data: Path,
        *,
        durability: str = "group",
        limits: Limits | None = None,
        clock: Clock | None = None,
        storage: Storage | None = None,
        default_partitions: int = 1,
        auto_create: bool = True,
    ) -> Node:
        """A node on a data directory: recovers the log, then the coordinators, then finishes decided transactions."""
        clock = clock or SystemClock()
        log = Log.open(data, storage=storage, clock=clock, config=LogConfig(durability=durability))  # type: ignore[arg-type]
        node = Node(log, limits=limits or Limits(), clock=clock, default_partitions=default_partitions, auto_create=auto_create)
        load_rows(node.offsets, node.groups)
        await node.transactions.load()
        node._tasks = [node.loop.create_task(node._keep_up()), node.loop.create_task(node._abort_overdue())]
        return node

    async def close(self) -> None:
        """A clean stop: everything synced, nothing to recover at the next start."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.groups.close()
        self._upkeep.shutdown(wait=True)
        self._topic_changes.shutdown(wait=True)
        self.log.commits.notify = lambda run: run()
        self.log.close()

    @property
    def cluster_id(self) -> str:
        """Stable for a data directory: the id of its oldest internal topic."""
        return base64.urlsafe_b64encode(self.log.topic(OFFSETS_TOPIC).id).decode().rstrip("=")

    def now_us(self) -> int:
        return self.clock.now_us()

    # --- topics -------------------------------------------------------------------------------------------------------

    # Files and directories are synced one by one, which takes seconds for a thousand partitions: not on the event loop.

    async def create_topic(self, name: str, *, partitions: int, configs: dict[str, str]) -> Topic:
        return await self._aside(self._topic_changes, lambda: self.log.create_topic(name, partitions=partitions, configs=configs))

    async def find_or_create_topic(self, name: str) -> Topic:
        try:
            return await self.create_topic(name, partitions=self.default_partitions, configs={})
        except TopicExists:  # another client was faster
            return self.log.topic(name)

    async def add_partitions(self, name: str, *, total: int) -> None:
        await self._aside(self._topic_changes, lambda: self.log.add_partitions(name, total=total))

    async def delete_topic(self, name: str) -> None:
        partitions = list(self.log.topic(name).partitions)
        await self._aside(self._topic_changes, lambda: self.log.delete_topic(name))
        await self.offsets.delete_topic(name)
        for partition in partitions:
            self.wake(partition)

    def report(self, error: LogError) -> int:
        """The error code to answer with. What an operator must see is logged, once: a fetch answer has no room for the place of a damage."""
        if isinstance(error, Damaged | StorageFailed) and str(error) not in self._reported and len(self._reported) < REPORTS_MAX:
            self._reported.add(str(error))
            logger.error("%s", error)
        return error.kafka_code

    # --- waiting for records ------------------------------------------------------------------------------------------

    def _from_commit_thread(self, run: Callable[[], None]) -> None:
        try:
            self.loop.call_soon_threadsafe(run)
        except RuntimeError:
            logger.debug("a sync finished after the event loop was closed")

    def watch(self, partition: Partition, on_more: Callable[[], None]) -> None:
        self.watchers.setdefault(partition, {})[on_more] = None

    def unwatch(self, partition: Partition, on_more: Callable[[], None]) -> None:
        if (watching := self.watchers.get(partition)) is not None:
            watching.pop(on_more, None)
            if not watching:
                del self.watchers[partition]

    def wake(self, partition: Partition) -> None:
        """More of the partition is visible."""
        if (watching := self.watchers.get(partition)) is not None:
            for on_more in list(watching):
                on_more()

    # --- transactions -------------------------------------------------------------------------------------------------

    async def _write_markers(self, txn: Txn, commit: bool) -> None:
        """Markers in every partition the transaction touched, its offsets settled; done when all of it is durable."""
        waits = []
        touched = []
        for topic, index in txn.partitions:
            try:
                partition = self.log.partition(topic, index)
            except LogError:
                continue  # deleted since: nothing is left to mark
            appended = partition.append_marker(producer_id=txn.producer_id, producer_epoch=txn.epoch, commit=commit, now_us=self.now_us())
            waits.append(durable(self.log, partition, appended.next_offset))
            touched.append(partition)
        if (next_offset := self.offsets.end_transaction(txn.producer_id, commit=commit)) is not None:
            waits.append(durable(self.log, self.offsets.state.partition, next_offset))
        await asyncio.gather(*waits)
        for partition in touched:
            self.wake(partition)

    # --- upkeep -------------------------------------------------------------------------------------------------------

    async def _aside(self, thread: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        """Run slow work of the log on a thread of its own."""
        return await self.loop.run_in_executor(thread, work)

    async def _keep_up(self) -> None:
        while True:
            await asyncio.sleep(UPKEEP_SECONDS)
            try:
                for line in await self._aside(self._upkeep, lambda: self.log.maintain(now_us=self.now_us())):
                    logger.info("%s", line)
                await self.groups.expire_offsets(older_than_ms=OFFSETS_KEPT_MS)
                await self.groups.forget_empty(older_than_ms=EMPTY_GROUPS_KEPT_MS)
                await self.transactions.forget_unused(older_than_ms=TRANSACTIONAL_IDS_KEPT_MS)
            except LogError as error:
                logger.error("%s", error)

    async def _abort_overdue(self) -> None:
        while True:
            await asyncio.sleep(OVERDUE_SECONDS)
            try:
                await self.transactions.abort_overdue()
            except LogError as error:
                logger.error("%s", error)
