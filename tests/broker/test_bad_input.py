"""Whatever a client sends, it gets an error or a closed connection; memory stays bounded and other clients notice nothing."""

from __future__ import annotations

import logging
import os
import random
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import kio.index
import psutil
import pytest

from penstock.broker.apis import APIS
from penstock.broker.embedded import Embedded, broker
from penstock.broker.limits import Limits
from penstock.log.batch import next_offset
from penstock.protocol import codec, raw
from penstock.protocol.api import Api
from penstock.protocol.error import Error
from tests.broker.harness import Inside, inside
from tests.broker.wire import Closed, Wire, batch
from tests.protocol.test_codec import some

MIB = 1 << 20
SEED = 20261116
SEEDS = int(os.environ.get("PENSTOCK_FUZZ_SEEDS", "3"))  # more of them in a long run


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    """A broker of its own, so that its memory is what these tests made of it."""
    with broker(tmp_path_factory.mktemp("victim"), durability="os") as running:
        yield running


def memory_bytes(running: Embedded) -> int:
    return int(psutil.Process(running.pid).memory_info().rss)


def is_closed(wire: Wire) -> bool:
    """Whether the broker hangs up instead of answering."""
    try:
        wire.frame()
    except Closed:
        return True
    return False


def assert_alive(address: str) -> None:
    with Wire(address) as other:
        assert other.ask(Api.METADATA, 12, {"topics": [], "include_topic_authorized_operations": False}).brokers


def test_random_bytes_close_their_connection_only(victim: Embedded) -> None:
    print("seed", SEED)
    rng = random.Random(SEED)
    with Wire(victim.address) as witness:
        for _ in range(200):
            with Wire(victim.address) as wire:
                size = rng.randrange(1, 300)
                junk = rng.randbytes(size)
                wire.send_bytes(struct.pack(">i", size) + junk if rng.random() < 0.7 else junk)
                wire.socket.shutdown(socket.SHUT_WR)
                try:
                    while True:
                        wire.frame()  # some junk is a request; it is answered, then the connection ends
                except Closed:
                    pass
        assert witness.ask(Api.API_VERSIONS, 3, {"client_software_name": "w", "client_software_version": "1"}).error_code == 0


@pytest.mark.parametrize("size", [-1, 0, -(1 << 31), (1 << 31) - 1, 101 * MIB])
def test_a_length_that_cannot_be_closes_the_connection(victim: Embedded, size: int) -> None:
    before = memory_bytes(victim)
    with Wire(victim.address) as wire:
        wire.send_bytes(struct.pack(">i", size) + bytes(100))
        assert is_closed(wire)
    assert memory_bytes(victim) - before < 20 * MIB
    assert_alive(victim.address)


def test_every_prefix_of_a_request_is_refused(victim: Embedded) -> None:
    body = {"topics": [{"topic_id": None, "name": "cut"}], "allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
    whole = codec.encode_request(Api.METADATA, 12, body, correlation_id=1, client_id="wire")[4:]
    for size in range(1, len(whole)):
        with Wire(victim.address) as wire:
            wire.send_bytes(struct.pack(">i", size) + whole[:size])
            assert is_closed(wire), f"a prefix of {size} of {len(whole)} bytes was answered"
    assert_alive(victim.address)


def test_versions_that_are_not_advertised_close_the_connection(victim: Embedded) -> None:
    for api, served in APIS.items():
        if api == Api.API_VERSIONS:
            continue
        for version in (served.versions.start - 1, served.versions.stop, 99):
            if version < 0:
                continue
            with Wire(victim.address) as wire:
                wire.send_bytes(struct.pack(">ihhih", 10, api, version, 1, -1))
                assert is_closed(wire), f"{api.name} {version}"
    with Wire(victim.address) as wire:
        wire.send_bytes(struct.pack(">ihhih", 10, 999, 0, 1, -1))
        assert is_closed(wire)


def test_a_wrong_checksum_stores_nothing_and_keeps_the_connection(victim: Embedded) -> None:
    with Wire(victim.address) as wire:
        wire.create("checked")
        good = batch("a", "b")
        for at in range(16, len(good)):
            bad = bytearray(good)
            bad[at] ^= 0x40
            error, offset = wire.produce("checked", bytes(bad))
            assert error in (Error.CORRUPT_MESSAGE, Error.INVALID_RECORD), f"byte {at}: {error}"
            assert offset == -1
        assert wire.produce("checked", good) == (0, 0)
        assert wire.produce("checked", b"") == (Error.INVALID_RECORD, -1)
        assert wire.produce("checked", good[:40])[0] == Error.CORRUPT_MESSAGE


def test_a_thousand_idle_connections_cost_little(victim: Embedded) -> None:
    before = memory_bytes(victim)
    idle = []
    try:
        for _ in range(1_000):
            idle.append(Wire(victim.address))
        for wire in idle[::100]:
            wire.send_bytes(b"\0\0")  # and some have begun to speak
        assert_alive(victim.address)
        assert memory_bytes(victim) - before < 40 * MIB
    finally:
        for wire in idle:
            wire.socket.close()
    assert_alive(victim.address)


def test_clients_that_do_not_read_cannot_fill_the_memory(victim: Embedded) -> None:
    """Ten clients ask for eight megabytes again and again and read nothing; one that reads gets all it asks for."""
    with Wire(victim.address) as good:
        good.create("unread", configs={"max.message.bytes": str(2 * MIB)})
        for _ in range(8):
            assert good.produce("unread", batch("x" * MIB))[0] == 0
        before = memory_bytes(victim)
        deaf = [Wire(victim.address) for _ in range(10)]
        try:
            ask = bytes(
                raw.pack_fetch(
                    [raw.FetchPart("unread", 0, -1, 0, 8 * MIB)], version=12, correlation_id=1, client_id="deaf", wait_ms_max=100, bytes_min=1,
                    bytes_max=8 * MIB, isolation_level=0,
                )
            )  # fmt: skip
            for wire in deaf:
                for _ in range(5):
                    wire.send_bytes(ask)
            seen = 0
            for _ in range(20):
                got = good.fetch("unread", 0, bytes_max=4 * MIB, wait_ms=100)
                seen += sum(map(len, got.records))
            assert seen >= 20 * MIB
            assert memory_bytes(victim) - before < 100 * MIB, "400 MiB were asked for"
        finally:
            for wire in deaf:
                wire.socket.close()
    assert_alive(victim.address)


def test_a_client_that_stalls_is_cut_off(tmp_path: Path) -> None:
    limits = Limits(stall_seconds_max=0.2)
    with inside(tmp_path, limits=limits) as running, Wire(running.address) as wire, Wire(running.address) as fine:
        wire.send_bytes(struct.pack(">i", 1000) + bytes(10))
        assert is_closed(wire)
        assert fine.ask(Api.LIST_GROUPS, 4, {"states_filter": []}).error_code == 0, "an idle connection is not stalled"


def test_large_requests_share_a_budget(tmp_path: Path) -> None:
    """Four clients send 3 MiB each into a budget of 4 MiB: they take turns, and all are served."""
    limits = Limits(request_bytes_max=4 * MIB, request_bytes_total_max=4 * MIB)
    with inside(tmp_path, limits=limits) as running:
        with Wire(running.address) as admin:
            admin.create("big", configs={"max.message.bytes": str(8 * MIB)})
        parts = [{"index": 0, "records": batch("x" * 3 * MIB)}]
        body = {"acks": -1, "timeout": 1000, "topic_data": [{"name": "big", "partition_data": parts}], "transactional_id": None}
        frame = codec.encode_request(Api.PRODUCE, 9, body, correlation_id=1, client_id="big")
        wires = [Wire(running.address) for _ in range(4)]
        for wire in wires:
            wire.send_bytes(frame[: MIB // 2])
        assert running.call(lambda: running.server.request_budget.used) <= 4 * MIB
        for wire in wires:
            wire.send_bytes(frame[MIB // 2 : MIB])
        for wire in reversed(wires):
            wire.socket.settimeout(None)
        senders = [threading.Thread(target=wire.send_bytes, args=(frame[MIB:],)) for wire in wires]
        for sender in senders:
            sender.start()
        offsets = sorted(
            codec.decode_response(Api.PRODUCE, 9, wire.frame())[1].responses[0].partition_responses[0].base_offset for wire in wires
        )
        for sender in senders:
            sender.join()
        assert offsets == [0, 1, 2, 3]
        assert running.call(lambda: running.server.request_budget.used) == 0
        for wire in wires:
            wire.socket.close()


def test_more_connections_than_allowed_are_refused(tmp_path: Path) -> None:
    with inside(tmp_path, limits=Limits(connections_max=3)) as running:
        held = [Wire(running.address) for _ in range(3)]
        for wire in held:
            wire.ask(Api.LIST_GROUPS, 4, {"states_filter": []})
        with Wire(running.address) as extra:
            assert is_closed(extra)
        for wire in held:
            assert wire.ask(Api.LIST_GROUPS, 4, {"states_filter": []}).error_code == 0
            wire.socket.close()


def test_a_pipelining_client_is_answered_in_order_within_its_limit(tmp_path: Path) -> None:
    with inside(tmp_path, limits=Limits(in_flight_max=4)) as running, Wire(running.address) as wire:
        sent = [wire.send(Api.LIST_GROUPS, 4, {"states_filter": []}) for _ in range(200)]
        got = [codec.decode_response(Api.LIST_GROUPS, 4, wire.frame())[0] for _ in sent]
        assert got == sent


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_requests_never_break_a_handler(tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture) -> None:
    """Well-formed requests with random contents, for every API and version, and the same with flipped bits."""
    print("seed", seed)
    rng = random.Random(seed)
    limits = Limits(topics_max=40, partitions_max=200, topic_partitions_max=5, fetch_wait_ms_max=5)
    with caplog.at_level(logging.ERROR), inside(tmp_path, limits=limits) as running:
        for api, served in APIS.items():
            for version in served.versions:
                _ask_anything(running, api, version, rng)
        assert_alive(running.address)
        assert running.call(lambda: running.server.request_budget.used) == 0
        assert running.call(lambda: running.server.fetch_budget.used) == 0
    assert [record.getMessage() for record in caplog.records] == []


def _ask_anything(running: Inside, api: Api, version: int, rng: random.Random) -> None:
    with Wire(running.address) as wire:
        body = some(kio.index.load_request_schema(api, version), None, rng)
        frame = bytearray(codec.encode_request(api, version, body, correlation_id=1, client_id="fuzz"))
        if rng.random() < 0.5:
            frame[rng.randrange(12, len(frame)) if len(frame) > 12 else -1] ^= 1 << rng.randrange(8)
        try:
            wire.send_bytes(bytes(frame))
            if api in (Api.JOIN_GROUP, Api.SYNC_GROUP):
                return  # these may wait for other members
            if api == Api.PRODUCE and body["acks"] == 0:
                return
            wire.frame()
        except (Closed, TimeoutError):
            return


def test_what_was_stored_is_what_is_read(victim: Embedded) -> None:
    """After all of the above the broker still does its work."""
    with Wire(victim.address) as wire:
        wire.create("after")
        for number in range(5):
            assert wire.produce("after", batch(str(number))) == (0, number)
        assert next_offset(wire.fetch("after", 0).records) == 5
