"""Topics by administrators: CreateTopics, DeleteTopics, CreatePartitions, DeleteRecords."""

from __future__ import annotations

from collections import Counter
from typing import Any

from penstock.broker.handlers.configs import config_rows
from penstock.broker.node import INTERNAL_TOPICS, Node
from penstock.broker.server import Request
from penstock.errors import PenstockError
from penstock.log import TopicConfig
from penstock.log.errors import LogError
from penstock.log.topics import check_name
from penstock.protocol.error import Error

END_OF_PARTITION = -1


class Refused(PenstockError):
    """A wish that cannot be granted, with its error code."""

    def __init__(self, error: Error | int, message: str, *, remedy: str | None = None) -> None:
        self.error = error
        super().__init__(message, remedy=remedy)


def _check_replicas(replicas: int) -> None:
    if replicas not in (-1, 1):
        raise Refused(
            Error.INVALID_REPLICATION_FACTOR,
            f"replication factor {replicas}: this broker is one node and keeps one copy",
            remedy="ask for 1, or use a Kafka cluster (the same clients and pipelines work there)",
        )


async def create_topics(node: Node, request: Request) -> dict[str, Any]:
    names = Counter(topic.name for topic in request.body.topics)
    topics = []
    for topic in request.body.topics:
        try:
            if names[topic.name] > 1:
                raise Refused(Error.INVALID_REQUEST, f"topic '{topic.name}' is asked for twice")
            topics.append(await _create(node, topic, request.body.validate_only))
        except Refused as refused:
            topics.append(_not_created(topic.name, refused.error, str(refused)))
        except LogError as problem:
            topics.append(_not_created(topic.name, problem.kafka_code, str(problem)))
    return {"throttle_time": 0, "topics": topics}


def _not_created(name: str, error: int, message: str) -> dict[str, Any]:
    return {"name": name, "topic_id": None, "error_code": error, "error_message": message, "configs": []}


async def _create(node: Node, topic: Any, validate_only: bool) -> dict[str, Any]:
    partitions, replicas = topic.num_partitions, topic.replication_factor
    if topic.assignments:
        partitions = len(topic.assignments)
        replicas = max(len(assignment.broker_ids) for assignment in topic.assignments)
        if {assignment.partition_index for assignment in topic.assignments} != set(range(partitions)):
            raise Refused(Error.INVALID_REPLICA_ASSIGNMENT, "partitions must be numbered from 0 without gaps")
        if any(broker != node.id for assignment in topic.assignments for broker in assignment.broker_ids):
            raise Refused(Error.INVALID_REPLICA_ASSIGNMENT, f"the only broker here is {node.id}")
    _check_replicas(replicas)
    partitions = node.default_partitions if partitions == -1 else partitions
    _check_partitions(node, partitions, more=partitions)
    configs = {config.name: config.value for config in topic.configs if config.value is not None}
    if validate_only:
        check_name(topic.name)
        if topic.name in node.log.topics:
            raise Refused(Error.TOPIC_ALREADY_EXISTS, f"topic '{topic.name}' exists")
        config, topic_id = TopicConfig.of(configs), None
    else:
        if len(node.log.topics) >= node.limits.topics_max:
            raise Refused(Error.POLICY_VIOLATION, f"there are {node.limits.topics_max} topics already", remedy="delete some")
        created = await node.create_topic(topic.name, partitions=partitions, configs=configs)
        config, topic_id = created.config, created.id
    return {
        "name": topic.name,
        "topic_id": topic_id,
        "error_code": Error.NONE,
        "error_message": None,
        "num_partitions": partitions,
        "replication_factor": 1,
        "configs": config_rows(config),
    }


def _check_partitions(node: Node, partitions: int, *, more: int) -> None:
    if partitions < 1:
        raise Refused(Error.INVALID_PARTITIONS, f"{partitions} partitions", remedy="ask for one at least")
    limits = node.limits
    held = sum(len(topic.partitions) for topic in list(node.log.topics.values()))
    if partitions > limits.topic_partitions_max or held + more > limits.partitions_max:
        message = f"{partitions} partitions: a topic has at most {limits.topic_partitions_max}, the broker {limits.partitions_max}"
        raise Refused(Error.INVALID_PARTITIONS, message, remedy="use fewer, or a Kafka cluster")


async def delete_topics(node: Node, request: Request) -> dict[str, Any]:
    if request.version >= 6:
        asked = [(topic.name, topic.topic_id) for topic in request.body.topics]
    else:
        asked = [(name, None) for name in request.body.topic_names]
    responses = []
    for name, topic_id in asked:
        error, message = Error.NONE, None
        try:
            if name is None:
                name = node.log.topic_by_id(topic_id.bytes if topic_id else bytes(16)).name
            topic_id = node.log.topic(name).id
            if name in INTERNAL_TOPICS:
                raise Refused(Error.INVALID_TOPIC_EXCEPTION, f"'{name}' is internal")
            await node.delete_topic(name)
        except Refused as refused:
            error, message = Error(refused.error), str(refused)
        except LogError as problem:
            error, message = Error(problem.kafka_code), str(problem)
            if name is None:
                error = Error.UNKNOWN_TOPIC_ID
        responses.append({"name": name, "topic_id": topic_id, "error_code": error, "error_message": message})
    return {"throttle_time": 0, "responses": responses}


async def create_partitions(node: Node, request: Request) -> dict[str, Any]:
    results = []
    for topic in request.body.topics:
        error, message = Error.NONE, None
        try:
            present = len(node.log.topic(topic.name).partitions)
            for assignment in topic.assignments or ():
                _check_replicas(len(assignment.broker_ids))
            if topic.count <= present:
                raise Refused(Error.INVALID_PARTITIONS, f"topic '{topic.name}' has {present} partitions; their number can only grow")
            _check_partitions(node, topic.count, more=topic.count - present)
            if topic.name in INTERNAL_TOPICS:
                raise Refused(Error.INVALID_TOPIC_EXCEPTION, f"'{topic.name}' is internal")
            if not request.body.validate_only:
                await node.add_partitions(topic.name, total=topic.count)
        except Refused as refused:
            error, message = Error(refused.error), str(refused)
        except LogError as problem:
            error, message = Error(problem.kafka_code), str(problem)
        results.append({"name": topic.name, "error_code": error, "error_message": message})
    return {"throttle_time": 0, "results": results}


async def delete_records(node: Node, request: Request) -> dict[str, Any]:
    topics = [
        {"name": topic.name, "partitions": [_delete_before(node, topic.name, asked) for asked in topic.partitions]}
        for topic in request.body.topics
    ]
    return {"throttle_time": 0, "topics": topics}


def _delete_before(node: Node, topic: str, asked: Any) -> dict[str, Any]:
    error, start = Error.NONE, -1
    try:
        partition = node.log.partition(topic, asked.partition_index)
        if topic in INTERNAL_TOPICS:
            error = Error.INVALID_TOPIC_EXCEPTION
        elif not partition.config.is_deleted:
            error = Error.POLICY_VIOLATION
        else:
            start = partition.delete_before(partition.high_watermark if asked.offset == END_OF_PARTITION else asked.offset)
    except LogError as problem:
        error = Error(problem.kafka_code)
    return {"partition_index": asked.partition_index, "low_watermark": start, "error_code": error}
