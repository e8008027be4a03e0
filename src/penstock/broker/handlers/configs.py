"""Configurations: DescribeConfigs, AlterConfigs, IncrementalAlterConfigs. Topics' are Kafka's names (log/config.py); the broker's own are for reading."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from penstock.broker.node import INTERNAL_TOPICS, Node
from penstock.broker.server import Request
from penstock.log import TopicConfig
from penstock.log.errors import InvalidConfig, LogError
from penstock.protocol.error import Error

TOPIC, BROKER, BROKER_LOGGER = 2, 4, 8
# Where a value comes from, as the protocol numbers it.
FROM_TOPIC, FROM_STATIC_BROKER, FROM_DEFAULT = 1, 4, 5
TYPES = {"UNKNOWN": 0, "BOOLEAN": 1, "STRING": 2, "INT": 3, "SHORT": 4, "LONG": 5, "DOUBLE": 6, "LIST": 7, "CLASS": 8, "PASSWORD": 9}
SET, DELETE, APPEND, SUBTRACT = range(4)


def config_rows(config: TopicConfig, *, names: Iterable[str] | None = None, synonyms: bool = False) -> list[dict[str, Any]]:
    wanted = set(names) if names is not None else None
    rows = []
    for entry in config.entries():
        if wanted is not None and entry.name not in wanted:
            continue
        source = FROM_DEFAULT if entry.is_default else FROM_TOPIC
        rows.append({
            "name": entry.name,
            "value": entry.value,
            "read_only": False,
            "config_source": source,
            "is_sensitive": False,
            "synonyms": [{"name": entry.name, "value": entry.value, "source": source}] if synonyms else [],
            "config_type": TYPES.get(entry.type, 0),
            "documentation": None,
        })  # fmt: skip
    return rows


def _broker_rows(node: Node) -> list[dict[str, Any]]:
    limits = node.limits
    values: dict[str, tuple[str, str]] = {
        "broker.id": (str(node.id), "INT"),
        "node.id": (str(node.id), "INT"),
        "auto.create.topics.enable": (str(node.auto_create).lower(), "BOOLEAN"),
        "num.partitions": (str(node.default_partitions), "INT"),
        "default.replication.factor": ("1", "INT"),
        "offsets.topic.replication.factor": ("1", "SHORT"),
        "offsets.topic.num.partitions": ("1", "INT"),
        "transaction.state.log.num.partitions": ("1", "INT"),
        "min.insync.replicas": ("1", "INT"),
        "socket.request.max.bytes": (str(limits.request_bytes_max), "INT"),
        "max.connections": (str(limits.connections_max), "INT"),
        "fetch.max.bytes": (str(limits.fetch_bytes_max), "INT"),
        "group.min.session.timeout.ms": (str(limits.group.session_ms_min), "INT"),
        "group.max.session.timeout.ms": (str(limits.group.session_ms_max), "INT"),
        "group.initial.rebalance.delay.ms": (str(limits.group.initial_delay_ms), "INT"),
        "transaction.max.timeout.ms": (str(limits.transaction_ms_max), "INT"),
        "offset.metadata.max.bytes": (str(limits.offset_metadata_bytes_max), "INT"),
        "penstock.durability": (node.log.commits.durability, "STRING"),
    }
    return [
        {
            "name": name, "value": value, "read_only": True, "config_source": FROM_STATIC_BROKER, "is_sensitive": False,
            "synonyms": [], "config_type": TYPES[kind], "documentation": None,
        }
        for name, (value, kind) in values.items()
    ]  # fmt: skip


async def describe_configs(node: Node, request: Request) -> dict[str, Any]:
    synonyms = getattr(request.body, "include_synonyms", False)
    return {"throttle_time": 0, "results": [_described(node, resource, synonyms) for resource in request.body.resources]}


def _described(node: Node, resource: Any, synonyms: bool) -> dict[str, Any]:
    names = resource.configuration_keys
    error, message, rows = Error.NONE, None, []
    match resource.resource_type:
        case 2:
            try:
                rows = config_rows(node.log.topic(resource.resource_name).config, names=names, synonyms=synonyms)
            except LogError as problem:
                error, message = Error(problem.kafka_code), str(problem)
        case 4:
            if resource.resource_name not in ("", str(node.id)):
                error, message = Error.INVALID_REQUEST, f"there is no broker {resource.resource_name}; the only one is {node.id}"
            else:
                rows = [row for row in _broker_rows(node) if names is None or row["name"] in names]
        case 8:
            rows = []
        case kind:
            error, message = Error.INVALID_REQUEST, f"resources of type {kind} have no configurations here"
    head = {"error_code": error, "error_message": message, "resource_type": resource.resource_type, "resource_name": resource.resource_name}
    return {**head, "configs": rows}


async def alter_configs(node: Node, request: Request) -> dict[str, Any]:
    """The old form: what is given replaces all of a topic's configurations."""

    def change(resource: Any) -> tuple[dict[str, str], list[str]]:
        given = {config.name: config.value for config in resource.configs if config.value is not None}
        present = node.log.topic(resource.resource_name).config.overrides
        return given, [name for name in present if name not in given]

    return _altered(node, request, change)


async def incremental_alter_configs(node: Node, request: Request) -> dict[str, Any]:
    def change(resource: Any) -> tuple[dict[str, str], list[str]]:
        config = node.log.topic(resource.resource_name).config
        present = {entry.name: entry.value for entry in config.entries()}
        names = [each.name for each in resource.configs]
        if len(set(names)) < len(names):
            raise InvalidConfig(f"topic '{resource.resource_name}': a configuration is named twice: {json.dumps(names)}")
        changed: dict[str, str] = {}
        for each in resource.configs:
            if each.config_operation != DELETE:
                changed[each.name] = _operated(each, present)
        return changed, [each.name for each in resource.configs if each.config_operation == DELETE]

    return _altered(node, request, change)


def _operated(each: Any, present: Mapping[str, str]) -> str:
    items = [item for item in present.get(each.name, "").split(",") if item]
    more = (each.value or "").split(",")
    match each.config_operation:
        case 0:
            return each.value or ""
        case 2 | 3 if each.name != "cleanup.policy":
            raise InvalidConfig(f"{each.name} is no list", remedy="set it as a whole")
        case 2:
            return ",".join(items + [item for item in more if item not in items])
        case 3:
            return ",".join(item for item in items if item not in more)
        case operation:
            raise InvalidConfig(f"{each.name}: operation {operation} is not known")


def _altered(node: Node, request: Request, change: Callable[[Any], tuple[dict[str, str], list[str]]]) -> dict[str, Any]:
    responses = []
    for resource in request.body.resources:
        error, message = Error.NONE, None
        try:
            if resource.resource_type != TOPIC:
                error, message = Error.INVALID_REQUEST, "only topics' configurations can be changed; the broker's are set when it starts"
            elif resource.resource_name in INTERNAL_TOPICS:
                error, message = Error.INVALID_REQUEST, f"'{resource.resource_name}' is internal"
            else:
                changed, deleted = change(resource)
                present = node.log.topic(resource.resource_name).config.overrides
                TopicConfig.of({**{name: value for name, value in present.items() if name not in deleted}, **changed})
                if not request.body.validate_only:
                    node.log.alter_configs(resource.resource_name, set=changed, delete=deleted)
        except LogError as problem:
            error, message = Error(problem.kafka_code), str(problem)
        responses.append({
            "error_code": error, "error_message": message, "resource_type": resource.resource_type, "resource_name": resource.resource_name,
        })  # fmt: skip
    return {"throttle_time": 0, "responses": responses}
