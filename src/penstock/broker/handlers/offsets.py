"""Offsets of consumer groups: OffsetCommit, OffsetFetch, OffsetDelete."""

from __future__ import annotations

import asyncio
from typing import Any

from penstock.broker.node import Node
from penstock.broker.offsets import Committed, TopicPartition
from penstock.broker.server import Request
from penstock.broker.subscription import subscribed_topics
from penstock.log.errors import LogError
from penstock.protocol.error import Error

Results = dict[TopicPartition, Error]


async def offset_commit(node: Node, request: Request) -> dict[str, Any]:
    body = request.body
    generation = getattr(body, "generation_id_or_member_epoch", -1)
    if not body.group_id:
        error = Error.INVALID_GROUP_ID
    else:
        error = node.groups.check_commit(
            body.group_id, body.member_id, getattr(body, "group_instance_id", None), generation, transactional=False
        )
    offsets, results = accepted(node, body.topics, error)
    if offsets:
        try:
            await node.offsets.commit(body.group_id, offsets)
        except LogError as problem:
            results.update(dict.fromkeys(offsets, Error(problem.kafka_code)))
    return {"throttle_time": 0, "topics": by_topic(body.topics, results)}


def accepted(node: Node, topics: Any, error: Error) -> tuple[dict[TopicPartition, Committed], Results]:
    """The offsets of a commit that may be stored, and a result for each of them."""
    offsets: dict[TopicPartition, Committed] = {}
    results: Results = {}
    now_ms = node.now_us() // 1000
    for topic in topics:
        known = node.log.topics.get(topic.name)
        for asked in topic.partitions:
            place = (topic.name, asked.partition_index)
            metadata = asked.committed_metadata
            if error is not Error.NONE:
                results[place] = error
            elif known is None or not 0 <= asked.partition_index < len(known.partitions):
                results[place] = Error.UNKNOWN_TOPIC_OR_PARTITION
            elif metadata is not None and len(metadata.encode()) > node.limits.offset_metadata_bytes_max:
                results[place] = Error.OFFSET_METADATA_TOO_LARGE
            else:
                offsets[place] = Committed(asked.committed_offset, getattr(asked, "committed_leader_epoch", -1), metadata, now_ms)
                results[place] = Error.NONE
    return offsets, results


def by_topic(topics: Any, results: Results) -> list[dict[str, Any]]:
    return [
        {
            "name": topic.name,
            "partitions": [
                {"partition_index": asked.partition_index, "error_code": results[topic.name, asked.partition_index]}
                for asked in topic.partitions
            ],
        }
        for topic in topics
    ]


async def offset_fetch(node: Node, request: Request) -> dict[str, Any]:
    body = request.body
    stable = getattr(body, "require_stable", False)
    if request.version >= 8:
        groups = [{"group_id": group.group_id, **_fetched(node, group.group_id, group.topics, stable)} for group in body.groups]
        return {"throttle_time": 0, "groups": groups}
    topics = body.topics
    if request.version < 2 and topics is None:
        topics = ()
    return {"throttle_time": 0, **_fetched(node, body.group_id, topics, stable)}


def _fetched(node: Node, group_id: str, topics: Any, stable: bool) -> dict[str, Any]:
    """An unknown group has no offsets; that is no error, for clients ask before they commit."""
    committed = node.offsets.committed.get(group_id, {})
    if topics is None:
        wanted: dict[str, list[int]] = {}
        for topic, index in sorted(committed):
            wanted.setdefault(topic, []).append(index)
    else:
        wanted = {topic.name: list(topic.partition_indexes) for topic in topics}
    answer = [
        {"name": topic, "partitions": [_one(node, group_id, topic, index, committed.get((topic, index)), stable) for index in indexes]}
        for topic, indexes in wanted.items()
    ]
    return {"topics": answer, "error_code": Error.NONE}


def _one(node: Node, group_id: str, topic: str, index: int, found: Committed | None, stable: bool) -> dict[str, Any]:
    if stable and node.offsets.is_unstable(group_id, topic, index):
        # The consumer asks again until the transaction has ended (KIP-447).
        return {"partition_index": index, "committed_offset": -1, "metadata": "", "error_code": Error.UNSTABLE_OFFSET_COMMIT}
    if found is None:
        return {"partition_index": index, "committed_offset": -1, "metadata": "", "error_code": Error.NONE}
    return {
        "partition_index": index,
        "committed_offset": found.offset,
        "committed_leader_epoch": found.leader_epoch,
        "metadata": found.metadata or "",
        "error_code": Error.NONE,
    }


async def offset_delete(node: Node, request: Request) -> dict[str, Any]:
    body = request.body
    group = node.groups.find(body.group_id)
    if group is None and not node.offsets.has(body.group_id):
        return {"error_code": Error.GROUP_ID_NOT_FOUND, "throttle_time": 0, "topics": []}
    in_use: set[str] = set()
    if group is not None and group.members:
        if group.protocol_type != "consumer":
            return {"error_code": Error.NON_EMPTY_GROUP, "throttle_time": 0, "topics": []}
        in_use = subscribed_topics(member.metadata(group.protocol) for member in group.members.values())
    results: Results = {}
    gone: list[TopicPartition] = []
    for topic in body.topics:
        for asked in topic.partitions:
            place = (topic.name, asked.partition_index)
            known = node.log.topics.get(topic.name)
            if topic.name in in_use:
                results[place] = Error.GROUP_SUBSCRIBED_TO_TOPIC
            elif known is None or not 0 <= asked.partition_index < len(known.partitions):
                results[place] = Error.UNKNOWN_TOPIC_OR_PARTITION
            else:
                results[place] = Error.NONE
                gone.append(place)
    await asyncio.shield(node.offsets.delete(body.group_id, gone))
    return {"error_code": Error.NONE, "throttle_time": 0, "topics": by_topic(body.topics, results)}
