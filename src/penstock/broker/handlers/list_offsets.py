"""Where offsets are: ListOffsets by place or time, and OffsetForLeaderEpoch. One node has one leader epoch."""

from __future__ import annotations

from typing import Any

from penstock.broker.node import Node
from penstock.broker.server import Request
from penstock.log import Partition
from penstock.log.errors import LogError
from penstock.protocol.error import Error

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
READ_COMMITTED = 1


async def list_offsets(node: Node, request: Request) -> dict[str, Any]:
    committed = getattr(request.body, "isolation_level", 0) == READ_COMMITTED
    topics = [
        {"name": topic.name, "partitions": [_offset(node, topic.name, asked, committed) for asked in topic.partitions]}
        for topic in request.body.topics
    ]
    return {"throttle_time": 0, "topics": topics}


def _offset(node: Node, topic: str, asked: Any, committed: bool) -> dict[str, Any]:
    try:
        partition = node.log.partition(topic, asked.partition_index)
        if (error := epoch_error(partition, getattr(asked, "current_leader_epoch", -1))) is not Error.NONE:
            return {"partition_index": asked.partition_index, "error_code": error}
        offset, timestamp_ms = _find(partition, asked.timestamp, committed)
    except LogError as problem:
        return {"partition_index": asked.partition_index, "error_code": node.report(problem)}
    return {
        "partition_index": asked.partition_index,
        "error_code": Error.NONE,
        "timestamp": timestamp_ms,
        "offset": offset,
        "leader_epoch": partition.leader_epoch if offset >= 0 else -1,
    }


def _find(partition: Partition, timestamp_ms: int, committed: bool) -> tuple[int, int]:
    end = partition.last_stable_offset if committed else partition.high_watermark
    match timestamp_ms:
        case -1:
            return end, -1
        case -2 | -4:
            return partition.start_offset, -1
        case -3:
            return partition.offset_of_max_timestamp() or (-1, -1)
        case -5:
            return -1, -1  # nothing is tiered away
        case _:
            found = partition.offset_for_time(timestamp_ms)
            return found if found is not None and found[0] < end else (-1, -1)


def epoch_error(partition: Partition, current_leader_epoch: int) -> Error:
    if current_leader_epoch < 0 or current_leader_epoch == partition.leader_epoch:
        return Error.NONE
    return Error.FENCED_LEADER_EPOCH if current_leader_epoch < partition.leader_epoch else Error.UNKNOWN_LEADER_EPOCH


async def offset_for_leader_epoch(node: Node, request: Request) -> dict[str, Any]:
    topics = [
        {"topic": topic.topic, "partitions": [_epoch_end(node, topic.topic, asked) for asked in topic.partitions]}
        for topic in request.body.topics
    ]
    return {"throttle_time": 0, "topics": topics}


def _epoch_end(node: Node, topic: str, asked: Any) -> dict[str, Any]:
    try:
        partition = node.log.partition(topic, asked.partition)
    except LogError as problem:
        return {"partition": asked.partition, "error_code": problem.kafka_code}
    if (error := epoch_error(partition, asked.current_leader_epoch)) is not Error.NONE:
        return {"partition": asked.partition, "error_code": error}
    is_known = asked.leader_epoch == partition.leader_epoch
    return {
        "partition": asked.partition,
        "error_code": Error.NONE,
        "leader_epoch": partition.leader_epoch if is_known else -1,
        "end_offset": partition.high_watermark if is_known else -1,
    }
