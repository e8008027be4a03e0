"""Edges that clients rely on and libraries hide: what a raw connection sees."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

import pytest

from penstock.broker.apis import APIS
from penstock.broker.embedded import Embedded
from penstock.broker.subscription import subscribed_topics
from penstock.log.batch import next_offset
from penstock.protocol import codec, raw
from penstock.protocol.api import Api
from penstock.protocol.error import Error
from tests.broker.harness import inside
from tests.broker.wire import Wire, batch

HELLO = {"client_software_name": "test", "client_software_version": "1"}


def fresh(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex[:8]}"


def test_api_versions_lists_what_is_served_and_nothing_else(wire: Wire) -> None:
    for version in range(5):
        answer = wire.ask(Api.API_VERSIONS, version, HELLO)
        listed = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
        assert listed.keys() == set(APIS)
        assert listed[Api.PRODUCE] == (0, 11), "older librdkafka looks for version 0"
        assert listed[Api.FETCH] == (4, 16)


def test_an_unknown_version_of_api_versions_gets_the_list_in_version_0(wire: Wire) -> None:
    wire.send_bytes(bytes.fromhex("0000000a") + (18).to_bytes(2) + (77).to_bytes(2) + (5).to_bytes(4) + b"\xff\xff")
    correlation_id, answer = codec.decode_response(Api.API_VERSIONS, 0, wire.frame())
    assert (correlation_id, answer.error_code) == (5, Error.UNSUPPORTED_VERSION)
    assert len(answer.api_keys) == len(APIS)
    assert wire.ask(Api.API_VERSIONS, 3, HELLO).error_code == 0, "the connection stays open"


def test_every_advertised_version_of_every_api_is_answered(wire: Wire) -> None:
    """The emptiest request of each version gets an answer that its schema reads."""
    empty = {
        "topics": [], "groups": [], "groups_names": [], "resources": [], "topic_names": [], "coordinator_keys": ["k"], "key": "k", "group_id": "", "member_id": "",
        "generation_id": -1, "session_timeout": 6000, "protocol_type": "consumer", "protocols": [], "assignments": [], "members": [], "isolation_level": 0, "replica_id": -1,
        "include_topic_authorized_operations": False, "include_cluster_authorized_operations": False, "include_authorized_operations": False, "transactional_id": "x",
        "transaction_timeout": 1000, "producer_id": 1, "producer_epoch": 0, "committed": True, "v3_and_below_transactional_id": "x", "v3_and_below_producer_id": 1,
        "v3_and_below_producer_epoch": 0, "v3_and_below_topics": [], "timeout": 100, "validate_only": False, "transactional_ids": [], "state_filters": [],
        "producer_id_filters": [], "retention_time": 0, **HELLO,
    }  # fmt: skip
    for api, served in APIS.items():
        if api in (Api.PRODUCE, Api.FETCH):
            continue
        for version in served.versions:
            wire.ask(api, version, empty)


def test_acks_zero_gets_no_answer_and_the_next_request_its_own(wire: Wire) -> None:
    topic = fresh("silent")
    wire.create(topic)
    wire.produce(topic, batch("a"), acks=0)
    assert wire.produce(topic, batch("b"), acks=1) == (0, 1)
    assert wire.produce(topic, batch("c"), acks=2) == (Error.INVALID_REQUIRED_ACKS, -1)
    assert next_offset(wire.fetch(topic, 0).records) == 2


def test_a_fetch_returns_one_batch_however_small_the_limit(wire: Wire) -> None:
    topic = fresh("large")
    wire.create(topic)
    for text in ("a" * 5_000, "b" * 5_000):
        assert wire.produce(topic, batch(text))[0] == 0
    for offset in (0, 1):
        found = wire.fetch(topic, offset, bytes_max=1)
        assert next_offset(found.records) == offset + 1
    assert not wire.fetch(topic, 2).records
    assert wire.fetch(topic, 3).error == Error.OFFSET_OUT_OF_RANGE
    assert wire.fetch(topic, -1).error == Error.OFFSET_OUT_OF_RANGE


def test_a_fetch_may_begin_before_the_offset_asked_for(wire: Wire) -> None:
    topic = fresh("batch")
    wire.create(topic)
    assert wire.produce(topic, batch("a", "b", "c")) == (0, 0)
    assert int.from_bytes(bytes(wire.fetch(topic, 2).records[0])[:8]) == 0


def test_a_waiting_fetch_is_answered_by_a_produce(penstock_broker: Embedded, wire: Wire) -> None:
    topic = fresh("wait")
    wire.create(topic)
    with Wire(penstock_broker.address) as reader:
        part = raw.FetchPart(topic, 0, -1, 0, 1 << 20)
        ask = raw.pack_fetch(
            [part], version=12, correlation_id=1, client_id="r", wait_ms_max=30_000, bytes_min=1, bytes_max=1 << 20, isolation_level=0
        )
        began = time.monotonic()
        reader.send_bytes(bytes(ask))
        assert wire.produce(topic, batch("now"))[0] == 0
        _, parts = raw.read_fetched(memoryview(reader.frame()), version=12)
        assert next_offset(parts[0].records) == 1
        assert time.monotonic() - began < 30


def test_a_fetch_session_that_is_not_there_is_refused(wire: Wire) -> None:
    body = {"max_wait": 0, "min_bytes": 0, "session_id": 77, "session_epoch": 1, "topics": [], "forgotten_topics_data": []}
    assert wire.ask(Api.FETCH, 12, body).error_code == Error.FETCH_SESSION_ID_NOT_FOUND


def test_a_topic_made_anew_has_another_id(wire: Wire) -> None:
    topic = fresh("again")

    def topic_id() -> uuid.UUID:
        body = {"topics": [{"topic_id": None, "name": topic}], "include_topic_authorized_operations": False}
        return wire.ask(Api.METADATA, 12, body).topics[0].topic_id

    wire.create(topic)
    first = topic_id()
    assert wire.ask(Api.DELETE_TOPICS, 6, {"topics": [{"name": None, "topic_id": first}], "timeout": 1000}).responses[0].error_code == 0
    wire.create(topic)
    assert topic_id() != first
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
    body = {"max_wait": 0, "min_bytes": 0, "topics": [{"topic_id": first, "partitions": [part]}], "forgotten_topics_data": []}
    assert wire.ask(Api.FETCH, 16, body).responses[0].partitions[0].error_code == Error.UNKNOWN_TOPIC_ID


def test_more_than_one_copy_is_refused_with_a_way_out(wire: Wire) -> None:
    body = {"name": fresh("copies"), "num_partitions": 1, "replication_factor": 3, "assignments": [], "configs": []}
    topic = wire.ask(Api.CREATE_TOPICS, 7, {"topics": [body], "timeout": 1000}).topics[0]
    assert topic.error_code == Error.INVALID_REPLICATION_FACTOR
    assert "Kafka cluster" in topic.error_message
    assert topic.configs == (), "the Java client fails on null"


def test_list_offsets_in_all_forms(wire: Wire) -> None:
    topic = fresh("offsets")
    wire.create(topic)
    for text in "abc":
        assert wire.produce(topic, batch(text))[0] == 0

    def offset(timestamp: int, partition: int = 0) -> tuple[int, int]:
        asked = [{"name": topic, "partitions": [{"partition_index": partition, "timestamp": timestamp}]}]
        part = wire.ask(Api.LIST_OFFSETS, 9, {"replica_id": -1, "isolation_level": 0, "topics": asked}).topics[0].partitions[0]
        return int(part.error_code), part.offset

    assert [offset(form) for form in (-1, -2, -3, -4, -5, 0, 1 << 60)] == [(0, 3), (0, 0), (0, 0), (0, 0), (0, -1), (0, 0), (0, -1)]
    assert offset(-1, partition=9)[0] == Error.UNKNOWN_TOPIC_OR_PARTITION
    epoch = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
    ended = wire.ask(Api.OFFSET_FOR_LEADER_EPOCH, 4, {"topics": [{"topic": topic, "partitions": [epoch]}]}).topics[0].partitions[0]
    assert (ended.error_code, ended.end_offset) == (0, 3)


def test_internal_topics_are_the_brokers_own(wire: Wire) -> None:
    assert wire.produce("__consumer_offsets", batch("x"))[0] == Error.INVALID_TOPIC_EXCEPTION
    gone = wire.ask(Api.DELETE_TOPICS, 5, {"topic_names": ["__transaction_state"], "timeout": 1000}).responses[0]
    assert gone.error_code == Error.INVALID_TOPIC_EXCEPTION


def test_a_fetch_of_many_partitions_stays_within_its_limit(tmp_path: Path) -> None:
    with inside(tmp_path) as running, Wire(running.address) as wire:
        wire.create("many", partitions=10)
        for partition in range(10):
            assert wire.produce("many", batch("x" * 10_000), partition=partition)[0] == 0
        parts = [raw.FetchPart("many", partition, -1, 0, 1 << 20) for partition in range(10)]
        wire.send_bytes(
            bytes(
                raw.pack_fetch(
                    parts, version=12, correlation_id=1, client_id="m", wait_ms_max=0, bytes_min=1, bytes_max=25_000, isolation_level=0
                )
            )
        )
        _, found = raw.read_fetched(memoryview(wire.frame()), version=12)
        assert len(found) == 10
        assert 2 <= sum(bool(part.records) for part in found) <= 3


def test_subscriptions_name_their_topics() -> None:
    assert subscribed_topics([b"\0\1\0\0\0\2\0\1a\0\2bc\xff\xff\xff\xff", b"junk", b""]) == {"a", "bc"}


@pytest.mark.parametrize("size", [4_096, 4_097])
def test_offset_metadata_has_a_limit(wire: Wire, size: int) -> None:
    topic = fresh("noted")
    wire.create(topic)
    parts = [{"partition_index": 0, "committed_offset": 1, "committed_metadata": "m" * size}]
    body = {"group_id": fresh("g"), "generation_id_or_member_epoch": -1, "member_id": "", "topics": [{"name": topic, "partitions": parts}]}
    expected = Error.NONE if size <= 4_096 else Error.OFFSET_METADATA_TOO_LARGE
    assert wire.ask(Api.OFFSET_COMMIT, 8, body).topics[0].partitions[0].error_code == expected
