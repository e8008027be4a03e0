"""Fetch: whole batches as they lie in the log, or a wait until there are some.

Rules that consumers rely on: at least one batch is returned if there is any, however small the limits (KIP-74); it may begin before the
offset asked for; nothing beyond the high watermark, and for read_committed nothing beyond the last stable offset, together with the
transactions in it that were aborted. There are no fetch sessions: the answer's session id is 0, which every client takes as "ask in full".

Memory: records are taken from the server's fetch budget and given back when the client has received them."""

from __future__ import annotations

import asyncio

from penstock.broker.connection import Connection, Slot
from penstock.broker.node import Node
from penstock.log import Partition
from penstock.log.batch import next_offset
from penstock.log.errors import LogError
from penstock.protocol.codec import RequestHeader
from penstock.protocol.error import Error
from penstock.protocol.raw import Fetched, FetchPart, FetchRequest, pack_fetched, read_fetch

READ_COMMITTED = 1
# A fetch that waits for much reads again when more arrives; not for every batch, or it would read the same bytes over and over.
BYTES_MIN_LARGE = 64 * 1024
GATHER_SECONDS = 0.005


def fetch(node: Node, connection: Connection, slot: Slot, header: RequestHeader, frame: memoryview) -> None:
    request = read_fetch(frame, header.body_at, header.version)
    if request.session_id:
        error = Error.FETCH_SESSION_ID_NOT_FOUND
        return slot.fill(pack_fetched([], version=header.version, correlation_id=header.correlation_id, error=error))
    return Fetch(node, slot, header, request).attempt()


class Fetch:
    """One fetch in progress: tries, waits for more, tries again, answers when there is enough or time is up."""

    __slots__ = ("bytes_min", "deadline", "header", "is_due", "is_scheduled", "node", "request", "slot", "timer", "watched")

    def __init__(self, node: Node, slot: Slot, header: RequestHeader, request: FetchRequest) -> None:
        self.node, self.slot, self.header, self.request = node, slot, header, request
        wait_ms = min(request.wait_ms_max, node.limits.fetch_wait_ms_max)
        self.is_due = wait_ms <= 0
        self.bytes_min = min(request.bytes_min, request.bytes_max, node.limits.fetch_bytes_max // 2)
        self.deadline = node.loop.time() + wait_ms / 1000
        self.timer: asyncio.TimerHandle | None = None
        self.watched: list[Partition] = []
        self.is_scheduled = False

    def attempt(self) -> None:
        """Answer, or arrange to be called again."""
        self.is_scheduled = False
        if self.slot.is_filled:
            return None
        budget = self.node.server.fetch_budget
        if budget.is_spent:
            self.slot.on_gone = self.leave
            return budget.wait(self.attempt)
        parts, size, is_error, partitions = self._read()
        if size >= self.bytes_min or is_error or self.is_due or not partitions:
            budget.take(size)
            self.slot.fetch_bytes = size
            self.stop_waiting()
            return self.slot.fill(pack_fetched(parts, version=self.header.version, correlation_id=self.header.correlation_id))
        if self.timer is None:
            self.slot.on_gone = self.leave
            self.timer = self.node.loop.call_at(self.deadline, self.on_time_up)
            self.watched = partitions
            for partition in partitions:
                self.node.watch(partition, self.on_more)
        return None

    def on_more(self) -> None:
        if not self.is_scheduled:
            self.is_scheduled = True
            if self.bytes_min > BYTES_MIN_LARGE:
                self.node.loop.call_later(GATHER_SECONDS, self.attempt)
            else:
                self.node.loop.call_soon(self.attempt)

    def on_time_up(self) -> None:
        self.is_due = True
        self.attempt()

    def stop_waiting(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        for partition in self.watched:
            self.node.unwatch(partition, self.on_more)
        self.watched = []

    def leave(self) -> None:
        """The client is gone."""
        self.stop_waiting()
        self.slot.is_filled = True
        self.node.server.fetch_budget.leave_line(self.attempt)

    def _read(self) -> tuple[list[Fetched], int, bool, list[Partition]]:
        """Everything that is there, within the limits: answers per partition, bytes of records, whether there is an error."""
        node, request = self.node, self.request
        left = min(request.bytes_max, node.limits.fetch_bytes_max)
        committed = request.isolation_level == READ_COMMITTED
        answers: list[Fetched] = []
        partitions: list[Partition] = []
        size, is_error = 0, False
        for part in request.parts:
            try:
                partition = _find(node, part)
                wanted = min(part.bytes_max, left)
                answer = _fetched(partition, part, wanted, committed, may_read=left > 0)
                partitions.append(partition)
            except _Refused as refused:
                answer = Fetched(part.topic, part.partition, refused.error)
            except LogError as error:
                answer = Fetched(part.topic, part.partition, node.report(error))
            got = sum(map(len, answer.records))
            size += got
            left -= got
            is_error = is_error or answer.error != Error.NONE
            answers.append(answer)
        return answers, size, is_error, partitions


class _Refused(Exception):
    def __init__(self, error: Error) -> None:
        self.error = error


def _find(node: Node, part: FetchPart) -> Partition:
    if isinstance(part.topic, bytes):
        try:
            topic = node.log.topic_by_id(part.topic)
        except LogError:
            raise _Refused(Error.UNKNOWN_TOPIC_ID) from None
        if not 0 <= part.partition < len(topic.partitions):
            raise _Refused(Error.UNKNOWN_TOPIC_OR_PARTITION)
        partition = topic.partitions[part.partition]
    else:
        partition = node.log.partition(part.topic, part.partition)
    if part.leader_epoch >= 0 and part.leader_epoch != partition.leader_epoch:
        raise _Refused(Error.FENCED_LEADER_EPOCH if part.leader_epoch < partition.leader_epoch else Error.UNKNOWN_LEADER_EPOCH)
    return partition


def _fetched(partition: Partition, part: FetchPart, bytes_max: int, committed: bool, *, may_read: bool) -> Fetched:
    records = partition.read(part.offset, bytes_max=bytes_max, committed=committed) if may_read else []
    aborted: list[tuple[int, int]] | None = None
    if committed:
        end = next_offset(records) if records else None
        aborted = partition.aborted(part.offset, end) if end is not None else []
    return Fetched(
        part.topic,
        part.partition,
        Error.NONE,
        partition.high_watermark,
        partition.last_stable_offset,
        partition.start_offset,
        aborted,
        records,
    )
