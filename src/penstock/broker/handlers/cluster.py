"""Who is here and what they serve: ApiVersions, Metadata, DescribeCluster, FindCoordinator. One node is all of it."""

from __future__ import annotations

import uuid
from typing import Any

from penstock.broker.node import INTERNAL_TOPICS, Node
from penstock.broker.server import Request
from penstock.log import Topic
from penstock.log.errors import LogError
from penstock.protocol.error import Error

COORDINATOR_KEY_TYPES = (0, 1)  # group, transaction


async def api_versions(node: Node, request: Request) -> dict[str, Any]:
    return {"error_code": Error.NONE, "api_keys": node.server.advertised(), "throttle_time": 0}


def _broker(node: Node, id_name: str = "node_id") -> dict[str, Any]:
    return {id_name: node.id, "host": node.host, "port": node.port}


async def metadata(node: Node, request: Request) -> dict[str, Any]:
    asked = request.body.topics
    if asked is None or (request.version == 0 and not asked):
        topics = [_topic(node, topic) for topic in list(node.log.topics.values())]
    else:
        may_create = getattr(request.body, "allow_auto_topic_creation", True) and node.auto_create
        topics = [await _asked_topic(node, topic.name, getattr(topic, "topic_id", None), may_create) for topic in asked]
    return {"throttle_time": 0, "brokers": [_broker(node)], "cluster_id": node.cluster_id, "controller_id": node.id, "topics": topics}


async def _asked_topic(node: Node, name: str | None, topic_id: uuid.UUID | None, may_create: bool) -> dict[str, Any]:
    if name is None:
        try:
            return _topic(node, node.log.topic_by_id(topic_id.bytes if topic_id else bytes(16)))
        except LogError:
            return {"error_code": Error.UNKNOWN_TOPIC_ID, "name": None, "topic_id": topic_id, "partitions": []}
    try:
        if name not in node.log.topics and may_create and len(node.log.topics) < node.limits.topics_max:
            return _topic(node, await node.find_or_create_topic(name))
        return _topic(node, node.log.topic(name))
    except LogError as error:
        return {"error_code": error.kafka_code, "name": name, "topic_id": None, "partitions": []}


def _topic(node: Node, topic: Topic) -> dict[str, Any]:
    nodes = [node.id]
    return {
        "error_code": Error.NONE,
        "name": topic.name,
        "topic_id": topic.id,
        "is_internal": topic.name in INTERNAL_TOPICS,
        "partitions": [
            {
                "error_code": Error.NONE,
                "partition_index": partition.index,
                "leader_id": node.id,
                "leader_epoch": partition.leader_epoch,
                "replica_nodes": nodes,
                "isr_nodes": nodes,
            }
            for partition in topic.partitions
        ],
    }


async def describe_cluster(node: Node, request: Request) -> dict[str, Any]:
    if getattr(request.body, "endpoint_type", 1) != 1:
        body = {"error_code": Error.INVALID_REQUEST, "error_message": "controllers have no endpoint of their own here; ask for brokers"}
        return {"throttle_time": 0, "cluster_id": node.cluster_id, "brokers": [], **body}
    return {
        "throttle_time": 0,
        "error_code": Error.NONE,
        "cluster_id": node.cluster_id,
        "controller_id": node.id,
        "brokers": [_broker(node, "broker_id")],
    }


async def find_coordinator(node: Node, request: Request) -> dict[str, Any]:
    kind = getattr(request.body, "key_type", 0)
    keys = request.body.coordinator_keys if request.version >= 4 else [request.body.key]
    answers = [_coordinator(node, kind, key) for key in keys]
    if request.version >= 4:
        return {"throttle_time": 0, "coordinators": answers}
    return {"throttle_time": 0, **answers[0]}


def _coordinator(node: Node, kind: int, key: str) -> dict[str, Any]:
    error, message = Error.NONE, None
    if kind not in COORDINATOR_KEY_TYPES:
        error, message = Error.INVALID_REQUEST, f"there is no coordinator of kind {kind} here; groups are 0, transactions are 1"
    where = _broker(node) if error is Error.NONE else {"node_id": -1, "host": "", "port": -1}
    return {"key": key, "error_code": error, "error_message": message, **where}
