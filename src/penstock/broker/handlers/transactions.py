"""Idempotent and transactional producers: InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, TxnOffsetCommit, EndTxn, and looking at them.

The rules are in transactions.py. Old versions know no PRODUCER_FENCED and are told INVALID_PRODUCER_EPOCH instead."""

from __future__ import annotations

from typing import Any

from penstock.broker.handlers.offsets import accepted, by_topic
from penstock.broker.node import Node
from penstock.broker.server import Request
from penstock.broker.transactions import Txn
from penstock.log.errors import LogError
from penstock.protocol.codec import millis
from penstock.protocol.error import Error


def _for_version(error: Error, is_new: bool) -> Error:
    return Error.INVALID_PRODUCER_EPOCH if error is Error.PRODUCER_FENCED and not is_new else error


async def init_producer_id(node: Node, request: Request) -> dict[str, Any]:
    body = request.body
    try:
        if body.transactional_id is None:
            identity = await node.transactions.new_producer()
        elif body.transactional_id == "":
            return {"throttle_time": 0, "error_code": Error.INVALID_REQUEST, "producer_epoch": -1}
        else:
            identity = await node.transactions.init(
                body.transactional_id,
                timeout_ms=millis(body.transaction_timeout),
                producer_id=getattr(body, "producer_id", -1),
                epoch=getattr(body, "producer_epoch", -1),
            )
    except LogError as problem:
        return {"throttle_time": 0, "error_code": problem.kafka_code, "producer_epoch": -1}
    return {
        "throttle_time": 0,
        "error_code": _for_version(identity.error, request.version >= 4),
        "producer_id": identity.producer_id,
        "producer_epoch": identity.epoch,
    }


async def add_partitions_to_txn(node: Node, request: Request) -> dict[str, Any]:
    body = request.body
    wanted = [(topic.name, index) for topic in body.v3_and_below_topics for index in topic.partitions]
    unknown = {
        (topic, index) for topic, index in wanted if topic not in node.log.topics or not 0 <= index < len(node.log.topics[topic].partitions)
    }
    if unknown:
        results = {place: Error.UNKNOWN_TOPIC_OR_PARTITION if place in unknown else Error.OPERATION_NOT_ATTEMPTED for place in wanted}
    else:
        try:
            error = await node.transactions.add(
                body.v3_and_below_transactional_id, body.v3_and_below_producer_id, body.v3_and_below_producer_epoch, partitions=wanted
            )
        except LogError as problem:
            error = Error(problem.kafka_code)
        results = dict.fromkeys(wanted, _for_version(error, request.version >= 2))
    answer = [
        {
            "name": topic.name,
            "results_by_partition": [
                {"partition_index": index, "partition_error_code": results[topic.name, index]} for index in topic.partitions
            ],
        }
        for topic in body.v3_and_below_topics
    ]
    return {"throttle_time": 0, "results_by_topic_v3_and_below": answer}


async def add_offsets_to_txn(node: Node, request: Request) -> dict[str, Any]:
    body = request.body
    try:
        error = await node.transactions.add(body.transactional_id, body.producer_id, body.producer_epoch, groups=[body.group_id])
    except LogError as problem:
        error = Error(problem.kafka_code)
    return {"throttle_time": 0, "error_code": _for_version(error, request.version >= 2)}


async def txn_offset_commit(node: Node, request: Request) -> dict[str, Any]:
    body = request.body
    error = node.transactions.check_offsets(body.transactional_id, body.producer_id, body.producer_epoch, body.group_id)
    if error is Error.NONE:
        error = node.groups.check_commit(
            body.group_id,
            getattr(body, "member_id", ""),
            getattr(body, "group_instance_id", None),
            getattr(body, "generation_id", -1),
            transactional=True,
        )
    offsets, results = accepted(node, body.topics, error)
    if offsets:
        try:
            await node.offsets.commit_pending(body.producer_id, body.group_id, offsets)
        except LogError as problem:
            results.update(dict.fromkeys(offsets, Error(problem.kafka_code)))
    return {"throttle_time": 0, "topics": by_topic(body.topics, results)}


async def end_txn(node: Node, request: Request) -> dict[str, Any]:
    body = request.body
    try:
        error = await node.transactions.end(body.transactional_id, body.producer_id, body.producer_epoch, commit=body.committed)
    except LogError as problem:
        error = Error(problem.kafka_code)
    return {"throttle_time": 0, "error_code": _for_version(error, request.version >= 2)}


async def list_transactions(node: Node, request: Request) -> dict[str, Any]:
    body = request.body
    states, producers = set(body.state_filters), set(body.producer_id_filters)
    open_ms = getattr(body, "duration_filter", -1)
    now_ms = node.now_us() // 1000

    def is_wanted(txn: Txn) -> bool:
        long_enough = open_ms < 0 or (txn.started_ms >= 0 and now_ms - txn.started_ms > open_ms)
        return (not states or txn.state.value in states) and (not producers or txn.producer_id in producers) and long_enough

    found = [
        {"transactional_id": txn.id, "producer_id": txn.producer_id, "transaction_state": txn.state.value}
        for txn in node.transactions.all()
        if is_wanted(txn)
    ]
    return {"throttle_time": 0, "error_code": Error.NONE, "transaction_states": found}


async def describe_transactions(node: Node, request: Request) -> dict[str, Any]:
    return {"throttle_time": 0, "transaction_states": [_described(node, txn_id) for txn_id in request.body.transactional_ids]}


def _described(node: Node, txn_id: str) -> dict[str, Any]:
    txn = node.transactions.find(txn_id)
    if txn is None:
        return {
            "error_code": Error.TRANSACTIONAL_ID_NOT_FOUND, "transactional_id": txn_id, "transaction_state": "", "transaction_timeout": 0,
            "transaction_start_time": 0, "producer_id": -1, "producer_epoch": -1, "topics": [],
        }  # fmt: skip
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(txn.partitions):
        topics.setdefault(topic, []).append(index)
    return {
        "error_code": Error.NONE,
        "transactional_id": txn_id,
        "transaction_state": txn.state.value,
        "transaction_timeout": txn.timeout_ms,
        "transaction_start_time": txn.started_ms,
        "producer_id": txn.producer_id,
        "producer_epoch": txn.epoch,
        "topics": [{"topic": topic, "partitions": indexes} for topic, indexes in topics.items()],
    }
