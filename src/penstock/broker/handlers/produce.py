"""Produce: records into the log, an answer when they are as durable as the producer asked.

    acks  0   no answer at all; an error closes the connection, for the client has no other way to learn of it
          1   answered from the page cache (level `os`)
         -1   answered at the log's durability level (`group` by default)

The append happens before the next request of the connection is looked at, so a producer's order is the log's order;
the answers of several requests may wait for the same sync."""

from __future__ import annotations

import struct

from penstock.broker.connection import Connection, Slot
from penstock.broker.node import INTERNAL_TOPICS, Node
from penstock.log.errors import LogError
from penstock.protocol.codec import RequestHeader
from penstock.protocol.error import Error
from penstock.protocol.raw import Produced, ProducePart, pack_produced, read_produce

_ATTRIBUTES = struct.Struct(">h")
_PRODUCER = struct.Struct(">qh")
ATTRIBUTES_AT, PRODUCER_AT, HEADER_BYTES = 21, 43, 61
TRANSACTIONAL = 0x10


class _Pending:
    """An answer that waits for syncs."""

    __slots__ = ("correlation_id", "left", "parts", "slot", "version")

    def __init__(self, slot: Slot, header: RequestHeader, parts: list[Produced]) -> None:
        self.slot, self.version, self.correlation_id, self.parts = slot, header.version, header.correlation_id, parts
        self.left = 1  # held until all parts are appended

    def release(self) -> None:
        self.left -= 1
        if not self.left:
            self.slot.fill([pack_produced(self.parts, version=self.version, correlation_id=self.correlation_id)])


def produce(node: Node, connection: Connection, slot: Slot, header: RequestHeader, frame: memoryview) -> None:
    request = read_produce(frame, header.body_at, header.version)
    slot.lets_next = True
    results: list[Produced] = []
    pending = _Pending(slot, header, results)
    now_us = node.now_us()
    if request.acks not in (-1, 0, 1):
        results.extend(Produced(part.topic, part.partition, Error.INVALID_REQUIRED_ACKS) for part in request.parts)
        return pending.release()
    wait_for_level = request.acks == -1
    for part in request.parts:
        _append(node, part, pending, wait_for_level, now_us)
    if request.acks == 0:
        if any(result.error for result in results):
            connection.close(f"produce without answers failed: {next(result.message for result in results if result.error)}")
        return slot.fill(())
    return pending.release()


def _append(node: Node, part: ProducePart, pending: _Pending, wait_for_level: bool, now_us: int) -> None:
    """Append one partition's batch and note the result, which is corrected later should the sync fail."""
    topic, index, records = part
    results, number = pending.parts, len(pending.parts)
    try:
        partition = node.log.partition(topic, index)
        if (refused := _refused(node, part)) is not None:
            results.append(refused)
            return
        assert records is not None
        appended = partition.append(records, now_us=now_us)
    except LogError as problem:
        results.append(Produced(topic, index, node.report(problem), message=str(problem)))
        return
    results.append(Produced(topic, index, Error.NONE, appended.base_offset, appended.log_append_time_ms, partition.start_offset))
    if wait_for_level:
        pending.left += 1

    def on_durable(error: LogError | None) -> None:
        node.wake(partition)
        if wait_for_level:
            if error is not None:
                results[number] = Produced(topic, index, node.report(error), message=str(error))
            pending.release()

    node.log.commits.when_durable(partition, appended.next_offset, on_durable)


def _refused(node: Node, part: ProducePart) -> Produced | None:
    """Why these records may not be appended, whatever is in them."""
    topic, index, records = part
    if records is None or not len(records):
        return Produced(topic, index, Error.INVALID_RECORD, message="no records")
    if topic in INTERNAL_TOPICS:
        return Produced(topic, index, Error.INVALID_TOPIC_EXCEPTION, message=f"'{topic}' is internal; the broker alone writes it")
    if len(records) >= HEADER_BYTES and _ATTRIBUTES.unpack_from(records, ATTRIBUTES_AT)[0] & TRANSACTIONAL:
        producer_id, epoch = _PRODUCER.unpack_from(records, PRODUCER_AT)
        if (error := node.transactions.check_write(producer_id, epoch, topic, index)) is not Error.NONE:
            return Produced(topic, index, error, message=f"producer {producer_id} has no open transaction that includes {topic}-{index}")
    return None
