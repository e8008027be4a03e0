"""What clients never show: bad frames, repeated batches, stale epochs, wrong generations. Seen on Apache Kafka 4.3, relied on by clients.

The frames are made by `penstock.protocol` and the batches by `penstock.log`; Apache Kafka is the judge of both."""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from penstock.log import batch
from penstock.protocol.api import Api
from penstock.protocol.codec import decode_response, encode_request
from penstock.protocol.error import Error
from penstock.testing.contract.frame import WAIT_S, Subject, case, wait_until

_PRODUCE_VERSION = 9
_LENGTH = struct.Struct(">i")


class Closed(Exception):
    """The server closed the connection instead of answering."""


class Wire:
    """One connection that sends frames and reads answers."""

    def __init__(self, address: str) -> None:
        host, _, port = address.split(",")[0].rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=WAIT_S)
        self._ids = itertools.count(1)

    def call(self, api: Api, version: int, body: Mapping[str, Any]) -> Any:
        number = next(self._ids)
        self.write(encode_request(api, version, body, correlation_id=number, client_id="contract"))
        answered, entity = decode_response(api, version, self.read())
        assert answered == number, "answers come in the order of the requests"
        return entity

    def write(self, data: bytes) -> None:
        self._socket.sendall(data)

    def read(self) -> bytes:
        (size,) = _LENGTH.unpack(self._exactly(4))
        return self._exactly(size)

    def closed_by_server(self) -> bool:
        """True once the server has closed; an answer means it has not."""
        try:
            return self._socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self._socket.close()

    def _exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            try:
                part = self._socket.recv(count - len(data))
            except ConnectionResetError:
                part = b""
            if not part:
                raise Closed
            data += part
        return bytes(data)


@contextlib.contextmanager
def connected(subject: Subject) -> Iterator[Wire]:
    wire = Wire(subject.address)
    try:
        yield wire
    finally:
        wire.close()


def _batch(*values: bytes, sequence: int = -1, producer: tuple[int, int] = (-1, -1), transactional: bool = False) -> bytes:
    records = [batch.Record(n, 1_700_000_000_000 + n, b"k", value) for n, value in enumerate(values)]
    return batch.encode(records, producer_id=producer[0], producer_epoch=producer[1], base_sequence=sequence, transactional=transactional)


def _produce(wire: Wire, topic: str, records: bytes, *, transactional_id: str | None = None) -> tuple[int, int]:
    """Error code and base offset."""
    answer = (
        wire.call(Api.PRODUCE, _PRODUCE_VERSION, _body(topic, records, transactional_id=transactional_id))
        .responses[0]
        .partition_responses[0]
    )
    return int(answer.error_code), answer.base_offset


def _new_producer(wire: Wire, transactional_id: str | None = None, *, timeout_ms: int = 20_000) -> tuple[int, int]:
    """Producer id and epoch; a coordinator that is still loading is asked again."""

    def ask() -> Any:
        body = {"transactional_id": transactional_id, "transaction_timeout": timeout_ms, "producer_id": -1, "producer_epoch": -1}
        answer = wire.call(Api.INIT_PRODUCER_ID, 4, body)
        return answer if int(answer.error_code) == 0 else None

    if transactional_id is not None:
        find_coordinator(wire, transactional_id, kind=1)
    answer = wait_until(ask, "a producer id is given")
    return answer.producer_id, answer.producer_epoch


def find_coordinator(wire: Wire, key: str, *, kind: int) -> None:
    """Until the server names a coordinator: the first use of groups or transactions may create an internal topic."""
    wait_until(lambda: int(wire.call(Api.FIND_COORDINATOR, 2, {"key": key, "key_type": kind}).error_code) == 0, f"{key} has a coordinator")


@case
def an_unknown_version_of_api_versions_is_answered_in_version_0(subject: Subject) -> None:
    """KIP-511: error 35, the list of versions, and the connection stays open."""
    with connected(subject) as wire:
        body = struct.pack(">hhihB", Api.API_VERSIONS, 99, 7, -1, 0)
        wire.write(_LENGTH.pack(len(body)) + body)
        number, answer = decode_response(Api.API_VERSIONS, 0, wire.read())
        assert (number, int(answer.error_code)) == (7, 35)
        assert {entry.api_key for entry in answer.api_keys} >= {Api.API_VERSIONS}
        assert int(wire.call(Api.API_VERSIONS, 0, {}).error_code) == 0


@case
def the_versions_that_clients_need_are_advertised(subject: Subject) -> None:
    """What librdkafka, the Java clients, kafka-python, aiokafka and kafkajs were seen to send."""
    needed = {
        Api.PRODUCE: (3, 9), Api.FETCH: (4, 12), Api.LIST_OFFSETS: (1, 7), Api.METADATA: (4, 12), Api.OFFSET_COMMIT: (2, 8), Api.OFFSET_FETCH: (1, 8),
        Api.FIND_COORDINATOR: (0, 4), Api.JOIN_GROUP: (2, 7), Api.SYNC_GROUP: (1, 5), Api.HEARTBEAT: (1, 4), Api.LEAVE_GROUP: (1, 4),
        Api.API_VERSIONS: (0, 3), Api.INIT_PRODUCER_ID: (0, 4), Api.ADD_PARTITIONS_TO_TXN: (0, 3), Api.ADD_OFFSETS_TO_TXN: (0, 3), Api.END_TXN: (0, 3),
        Api.TXN_OFFSET_COMMIT: (0, 3), Api.CREATE_TOPICS: (2, 5), Api.DELETE_TOPICS: (1, 4), Api.DELETE_RECORDS: (0, 2), Api.CREATE_PARTITIONS: (0, 2),
        Api.DESCRIBE_CONFIGS: (1, 2), Api.INCREMENTAL_ALTER_CONFIGS: (0, 1), Api.DESCRIBE_GROUPS: (0, 5), Api.LIST_GROUPS: (0, 4),
        Api.DELETE_GROUPS: (0, 2), Api.OFFSET_DELETE: (0, 0), Api.DESCRIBE_CLUSTER: (0, 0), Api.OFFSET_FOR_LEADER_EPOCH: (2, 4),
    }  # fmt: skip
    with connected(subject) as wire:
        offered = {entry.api_key: (entry.min_version, entry.max_version) for entry in wire.call(Api.API_VERSIONS, 3, _LIBRARY).api_keys}
    missing = {api.name: (offered.get(api), wanted) for api, wanted in needed.items() if not _covers(offered.get(api), wanted)}
    assert not missing, f"offered, wanted: {missing}"


_LIBRARY = {"client_software_name": "contract", "client_software_version": "1"}


def _covers(offered: tuple[int, int] | None, wanted: tuple[int, int]) -> bool:
    return offered is not None and offered[0] <= wanted[0] and wanted[1] <= offered[1]


@case
def bad_frames_close_only_their_own_connection(subject: Subject) -> None:
    header = struct.pack(">hhih", Api.METADATA, 1, 1, -1)
    frames = {
        "unknown api": _framed(struct.pack(">hhih", 999, 0, 1, -1)),
        "unsupported version": _framed(struct.pack(">hhih", Api.METADATA, 99, 1, -1)),
        "produce of an old version": _framed(struct.pack(">hhih", Api.PRODUCE, 2, 1, -1) + struct.pack(">hii", 1, 1000, 0)),
        "truncated body": _framed(header + b"\x00\x00"),
        "negative length": _LENGTH.pack(-5),
        "huge length": _LENGTH.pack(0x7FFFFFFF) + b"x",
        "array longer than the frame": _framed(header + struct.pack(">i", 0x7FFFFFF0)),
        "not Kafka at all": b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    }
    with connected(subject) as bystander:
        for name, frame in frames.items():
            with connected(subject) as wire:
                wire.write(frame)
                assert wire.closed_by_server(), f"{name}: answered instead of closed"
            assert int(bystander.call(Api.API_VERSIONS, 0, {}).error_code) == 0, f"after {name}"


def _framed(body: bytes) -> bytes:
    return _LENGTH.pack(len(body)) + body


@case
def answers_keep_the_order_of_the_requests(subject: Subject) -> None:
    topic = subject.topic()
    with connected(subject) as wire:
        for number in range(20):
            body = _body(topic, _batch(b"%d" % number))
            api, version, content = (Api.PRODUCE, _PRODUCE_VERSION, body) if number % 2 else (Api.METADATA, 9, _metadata(topic))
            wire.write(encode_request(api, version, content, correlation_id=number, client_id=None))
        numbers = [_LENGTH.unpack_from(wire.read())[0] for _ in range(20)]
    assert numbers == list(range(20))
    assert subject.values(topic) == [b"%d" % n for n in range(1, 20, 2)]


@case
def many_small_requests_at_once_are_all_answered(subject: Subject) -> None:
    """More than a server is willing to hold for one connection, written in one piece: it must go on by itself when it has answered some."""
    topic, count = subject.topic(), 300
    with connected(subject) as wire:
        frames = [
            encode_request(Api.PRODUCE, _PRODUCE_VERSION, _body(topic, _batch(b"%d" % n), acks=1), correlation_id=n, client_id=None)
            for n in range(count)
        ]
        wire.write(b"".join(frames))
        assert [_LENGTH.unpack_from(wire.read())[0] for _ in range(count)] == list(range(count))
    assert subject.values(topic) == [b"%d" % n for n in range(count)]


def _body(topic: str, records: bytes, *, acks: int = -1, transactional_id: str | None = None) -> dict[str, Any]:
    partition = {"index": 0, "records": records}
    return {
        "transactional_id": transactional_id,
        "acks": acks,
        "timeout": 10_000,
        "topic_data": [{"name": topic, "partition_data": [partition]}],
    }


def _metadata(topic: str) -> dict[str, Any]:
    off = {"include_cluster_authorized_operations": False, "include_topic_authorized_operations": False, "allow_auto_topic_creation": False}
    return {"topics": [{"name": topic}], **off}


@case
def an_unknown_topic_is_not_created_by_asking(subject: Subject) -> None:
    with connected(subject) as wire:
        for _ in range(2):
            [topic] = wire.call(Api.METADATA, 9, _metadata(subject.fresh("absent"))).topics
            assert int(topic.error_code) == Error.UNKNOWN_TOPIC_OR_PARTITION


@case
def a_damaged_batch_is_refused_and_nothing_is_stored(subject: Subject) -> None:
    topic = subject.topic()
    good = _batch(b"a", b"b")
    with connected(subject) as wire:
        damaged = bytearray(good)
        damaged[-1] ^= 1
        assert _produce(wire, topic, bytes(damaged))[0] == Error.CORRUPT_MESSAGE
        assert _produce(wire, topic, good) == (0, 0)
    assert subject.values(topic) == [b"a", b"b"]


@case
def one_batch_of_the_new_format_per_partition(subject: Subject) -> None:
    topic = subject.topic()
    with connected(subject) as wire:
        assert _produce(wire, topic, _batch(b"a") + _batch(b"b"))[0] == Error.INVALID_RECORD
        assert _produce(wire, topic, _old_message(b"old"))[0] == Error.INVALID_RECORD
        assert _produce(wire, topic, _batch(b"c")) == (0, 0)


def _old_message(value: bytes) -> bytes:
    """A message set of format 1, as clients before 0.11 sent."""
    body = struct.pack(">bbq", 1, 0, 1_700_000_000_000) + struct.pack(">i", -1) + struct.pack(">i", len(value)) + value
    message = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", 0, len(message)) + message


@case
def a_repeated_batch_gets_its_old_offset(subject: Subject) -> None:
    """Any of the last five, without error and without being stored again."""
    topic = subject.topic()
    with connected(subject) as wire:
        producer = _new_producer(wire)
        batches = [_batch(b"%d" % n, b"%d again" % n, sequence=2 * n, producer=producer) for n in range(6)]
        assert [_produce(wire, topic, data) for data in batches] == [(0, 2 * n) for n in range(6)]
        for n in (5, 1, 3, 2, 4):
            assert _produce(wire, topic, batches[n]) == (0, 2 * n)
    assert subject.ends(topic) == (0, 12)


@case
def a_gap_in_the_sequence_is_refused(subject: Subject) -> None:
    topic = subject.topic()
    with connected(subject) as wire:
        producer = _new_producer(wire)
        assert _produce(wire, topic, _batch(b"a", sequence=0, producer=producer)) == (0, 0)
        assert _produce(wire, topic, _batch(b"c", sequence=2, producer=producer))[0] == Error.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert _produce(wire, topic, _batch(b"b", sequence=1, producer=producer)) == (0, 1)
    assert subject.values(topic) == [b"a", b"b"]


@case
def a_newer_epoch_starts_at_zero_and_an_older_one_is_refused(subject: Subject) -> None:
    topic = subject.topic()
    with connected(subject) as wire:
        number, epoch = _new_producer(wire)
        assert _produce(wire, topic, _batch(b"a", sequence=0, producer=(number, epoch))) == (0, 0)
        assert _produce(wire, topic, _batch(b"x", sequence=1, producer=(number, epoch + 1)))[0] == Error.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert _produce(wire, topic, _batch(b"b", sequence=0, producer=(number, epoch + 1))) == (0, 1)
        stale = _produce(wire, topic, _batch(b"x", sequence=1, producer=(number, epoch)))[0]
        assert stale in (Error.INVALID_PRODUCER_EPOCH, Error.PRODUCER_FENCED)
    assert subject.values(topic) == [b"a", b"b"]


@case
def taking_up_a_transactional_id_again_raises_its_epoch(subject: Subject) -> None:
    name = subject.fresh("txn")
    with connected(subject) as wire:
        first, second = _new_producer(wire, name), _new_producer(wire, name)
        assert second == (first[0], first[1] + 1)


@case
def pending_offsets_are_shown_only_when_they_are_stable(subject: Subject) -> None:
    """While a transaction with offsets is open, a plain fetch shows the old value and a stable one is told to wait."""
    topic, name, group = subject.topic(), subject.fresh("txn"), subject.fresh("group")
    with connected(subject) as wire:
        find_coordinator(wire, group, kind=0)
        _commit(wire, group, topic, 1)
        producer_id, epoch = _new_producer(wire, name)
        identity = {"transactional_id": name, "producer_id": producer_id, "producer_epoch": epoch, "group_id": group}
        wait_until(lambda: int(wire.call(Api.ADD_OFFSETS_TO_TXN, 3, identity).error_code) == 0, "the transaction takes the group")
        partition = {"partition_index": 0, "committed_offset": 5, "committed_leader_epoch": -1, "committed_metadata": None}
        body = {**identity, "generation_id": -1, "member_id": "", "topics": [{"name": topic, "partitions": [partition]}]}
        assert int(wire.call(Api.TXN_OFFSET_COMMIT, 3, body).topics[0].partitions[0].error_code) == 0
        assert _fetch_offset(wire, group, topic, stable=False) == (0, 1)
        assert _fetch_offset(wire, group, topic, stable=True)[0] == Error.UNSTABLE_OFFSET_COMMIT
        end = {"transactional_id": name, "producer_id": producer_id, "producer_epoch": epoch, "committed": True}
        assert int(wire.call(Api.END_TXN, 3, end).error_code) == 0
        wait_until(lambda: _fetch_offset(wire, group, topic, stable=True) == (0, 5), "the committed offset is shown")


def _fetch_offset(wire: Wire, group: str, topic: str, *, stable: bool) -> tuple[int, int]:
    body = {"group_id": group, "topics": [{"name": topic, "partition_indexes": [0]}], "require_stable": stable}
    answer = wire.call(Api.OFFSET_FETCH, 7, body)
    found = answer.topics[0].partitions[0]
    return int(found.error_code) or int(answer.error_code), found.committed_offset


def _commit(wire: Wire, group: str, topic: str, offset: int, *, generation: int = -1, member: str = "") -> int:
    partition = {"partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1, "committed_metadata": None}
    body = {"group_id": group, "generation_id_or_member_epoch": generation, "generation_id": generation, "member_id": member}
    body |= {"group_instance_id": None, "topics": [{"name": topic, "partitions": [partition]}]}
    code: list[int] = []

    def answered() -> bool:
        code[:] = [int(wire.call(Api.OFFSET_COMMIT, 7, body).topics[0].partitions[0].error_code)]
        return code[0] not in (Error.COORDINATOR_LOAD_IN_PROGRESS, Error.NOT_COORDINATOR, Error.COORDINATOR_NOT_AVAILABLE)

    wait_until(answered, "the coordinator answers the commit")
    return code[0]


@case
def a_member_must_show_its_generation(subject: Subject) -> None:
    topic, group = subject.topic(), subject.fresh("group")
    with connected(subject) as wire:
        find_coordinator(wire, group, kind=0)
        generation, member = _join(wire, group, topic)
        assert _commit(wire, group, topic, 3, generation=generation, member=member) == 0
        assert _commit(wire, group, topic, 4, generation=generation + 1, member=member) == Error.ILLEGAL_GENERATION
        assert _commit(wire, group, topic, 4, generation=generation, member="nobody") == Error.UNKNOWN_MEMBER_ID
        beat = {"group_id": group, "generation_id": generation + 1, "member_id": member, "group_instance_id": None}
        assert int(wire.call(Api.HEARTBEAT, 3, beat).error_code) == Error.ILLEGAL_GENERATION
        offsets = {"group_id": group, "topics": [{"name": topic, "partitions": [{"partition_index": 0}]}]}
        refused = wire.call(Api.OFFSET_DELETE, 0, offsets).topics[0].partitions[0]
        assert int(refused.error_code) == Error.GROUP_SUBSCRIBED_TO_TOPIC
        assert _fetch_offset(wire, group, topic, stable=False) == (0, 3)


def _join(wire: Wire, group: str, topic: str) -> tuple[int, str]:
    """Join as the only member with a real subscription, and sync; generation and member id."""
    name = topic.encode()
    subscription = struct.pack(">hi", 0, 1) + struct.pack(">h", len(name)) + name + struct.pack(">i", -1)
    body = {"group_id": group, "session_timeout": 10_000, "rebalance_timeout": 10_000, "member_id": "", "group_instance_id": None}
    body |= {"protocol_type": "consumer", "protocols": [{"name": "range", "metadata": subscription}]}
    first = wire.call(Api.JOIN_GROUP, 5, body)
    assert int(first.error_code) == Error.MEMBER_ID_REQUIRED
    joined = wire.call(Api.JOIN_GROUP, 5, {**body, "member_id": first.member_id})
    assert int(joined.error_code) == 0
    assert joined.leader == joined.member_id
    mine = {"member_id": joined.member_id, "assignment": b""}
    sync = {
        "group_id": group,
        "generation_id": joined.generation_id,
        "member_id": joined.member_id,
        "group_instance_id": None,
        "assignments": [mine],
    }
    assert int(wire.call(Api.SYNC_GROUP, 3, sync).error_code) == 0
    return joined.generation_id, joined.member_id
