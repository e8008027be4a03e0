"""What was acknowledged is there after a restart, clean or killed: records, groups with their members, offsets, transactions."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.embedded import BrokerFailed, broker
from penstock.log.batch import decode, walk
from penstock.protocol.api import Api
from penstock.protocol.error import Error
from tests.broker.wire import Wire, batch

KILLED = pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])


def end(pid: int, killed: bool) -> None:
    if killed:
        os.kill(pid, signal.SIGKILL)


def values(wire: Wire, topic: str, *, committed: bool = False) -> list[str]:
    """All values of partition 0, aborted ones left out as a consumer would."""
    found = wire.fetch(topic, 0, committed=committed)
    assert found.error == 0
    open_aborts = sorted(found.aborted or (), key=lambda each: each[1])
    aborted: set[int] = set()
    out: list[str] = []
    for data in found.records:
        for header, position in walk(data):
            while open_aborts and open_aborts[0][1] <= header.base_offset:
                aborted.add(open_aborts.pop(0)[0])
            if header.is_control:
                aborted.discard(header.producer_id)
            elif not (committed and header.is_transactional and header.producer_id in aborted):
                out += [(record.value or b"").decode() for record in decode(data[position : position + header.size])]
    return out


def init(wire: Wire, txn_id: str, *, timeout_ms: int = 60_000, producer_id: int = -1, epoch: int = -1) -> Any:
    body = {"transactional_id": txn_id, "transaction_timeout": timeout_ms, "producer_id": producer_id, "producer_epoch": epoch}
    return wire.ask(Api.INIT_PRODUCER_ID, 4, body)


def add(wire: Wire, txn_id: str, who: Any, topic: str, partitions: tuple[int, ...] = (0,)) -> int:
    body = {
        "v3_and_below_transactional_id": txn_id, "v3_and_below_producer_id": who.producer_id, "v3_and_below_producer_epoch": who.producer_epoch,
        "v3_and_below_topics": [{"name": topic, "partitions": list(partitions)}],
    }  # fmt: skip
    answer = wire.ask(Api.ADD_PARTITIONS_TO_TXN, 3, body)
    return int(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)


def end_txn(wire: Wire, txn_id: str, who: Any, *, commit: bool) -> int:
    body = {"transactional_id": txn_id, "producer_id": who.producer_id, "producer_epoch": who.producer_epoch, "committed": commit}
    return int(wire.ask(Api.END_TXN, 3, body).error_code)


def txn_batch(who: Any, sequence: int, *texts: str) -> bytes:
    return batch(*texts, producer_id=who.producer_id, producer_epoch=who.producer_epoch, base_sequence=sequence, transactional=True)


def commit_offset(wire: Wire, group: str, topic: str, offset: int, *, member: str = "", generation: int = -1) -> int:
    parts = [{"partition_index": 0, "committed_offset": offset, "committed_metadata": "m"}]
    body = {
        "group_id": group,
        "generation_id_or_member_epoch": generation,
        "member_id": member,
        "topics": [{"name": topic, "partitions": parts}],
    }
    return int(wire.ask(Api.OFFSET_COMMIT, 8, body).topics[0].partitions[0].error_code)


def committed_offset(wire: Wire, group: str, topic: str, *, stable: bool = False) -> tuple[int, int]:
    body = {"group_id": group, "topics": [{"name": topic, "partition_indexes": [0]}], "require_stable": stable}
    part = wire.ask(Api.OFFSET_FETCH, 7, body).topics[0].partitions[0]
    return int(part.error_code), part.committed_offset


def txn_offset(wire: Wire, txn_id: str, who: Any, group: str, topic: str, offset: int) -> int:
    body = {"transactional_id": txn_id, "producer_id": who.producer_id, "producer_epoch": who.producer_epoch, "group_id": group}
    assert wire.ask(Api.ADD_OFFSETS_TO_TXN, 3, body).error_code == 0
    parts = [{"partition_index": 0, "committed_offset": offset, "committed_metadata": None}]
    answer = wire.ask(Api.TXN_OFFSET_COMMIT, 3, {**body, "topics": [{"name": topic, "partitions": parts}]})
    return int(answer.topics[0].partitions[0].error_code)


def join(wire: Wire, group: str) -> Any:
    body = {
        "group_id": group, "session_timeout": 20_000, "rebalance_timeout": 20_000, "member_id": "", "group_instance_id": None,
        "protocol_type": "consumer", "protocols": [{"name": "range", "metadata": b"meta"}],
    }  # fmt: skip
    told = wire.ask(Api.JOIN_GROUP, 7, body)
    assert told.error_code == Error.MEMBER_ID_REQUIRED
    return wire.ask(Api.JOIN_GROUP, 7, {**body, "member_id": told.member_id})


@KILLED
def test_records_topics_and_configurations_survive(tmp_path: Path, killed: bool) -> None:
    with broker(tmp_path) as running, Wire(running.address) as wire:
        wire.create("kept", partitions=3, configs={"retention.ms": "-1"})
        for number in range(20):
            assert wire.produce("kept", batch(str(number))) == (0, number)
        before = wire.ask(Api.METADATA, 12, {"topics": None, "include_topic_authorized_operations": False})
        end(running.pid, killed)
    with broker(tmp_path) as running, Wire(running.address) as wire:
        assert values(wire, "kept") == [str(number) for number in range(20)]
        after = wire.ask(Api.METADATA, 12, {"topics": None, "include_topic_authorized_operations": False})
        assert (after.cluster_id, [(t.name, t.topic_id, len(t.partitions)) for t in after.topics]) == (
            before.cluster_id,
            [(t.name, t.topic_id, len(t.partitions)) for t in before.topics],
        )
        ask = {"resources": [{"resource_type": 2, "resource_name": "kept", "configuration_keys": ["retention.ms"]}]}
        assert wire.ask(Api.DESCRIBE_CONFIGS, 4, ask).results[0].configs[0].value == "-1"


@KILLED
def test_a_group_goes_on_where_it_was(tmp_path: Path, killed: bool) -> None:
    """Its member needs no rebalance: generation, assignment and offsets are as before."""
    with broker(tmp_path) as running, Wire(running.address) as wire:
        wire.create("read")
        joined = join(wire, "readers")
        assert joined.error_code == 0
        assignments = [{"member_id": joined.member_id, "assignment": b"all"}]
        identity = {"group_id": "readers", "generation_id": joined.generation_id, "member_id": joined.member_id, "group_instance_id": None}
        assert wire.ask(Api.SYNC_GROUP, 4, {**identity, "assignments": assignments}).assignment == b"all"
        assert commit_offset(wire, "readers", "read", 7, member=joined.member_id, generation=joined.generation_id) == 0
        assert commit_offset(wire, "lonely", "read", 3) == 0
        end(running.pid, killed)
    with broker(tmp_path) as running, Wire(running.address) as wire:
        assert wire.ask(Api.HEARTBEAT, 4, identity).error_code == 0
        assert wire.ask(Api.SYNC_GROUP, 4, {**identity, "assignments": []}).assignment == b"all"
        assert committed_offset(wire, "readers", "read") == (0, 7)
        assert committed_offset(wire, "lonely", "read") == (0, 3)
        assert committed_offset(wire, "nobody", "read") == (0, -1)
        described = wire.ask(Api.DESCRIBE_GROUPS, 5, {"groups": ["readers"], "include_authorized_operations": False}).groups[0]
        assert (described.group_state, [m.member_id for m in described.members]) == ("Stable", [joined.member_id])


@KILLED
def test_an_open_transaction_survives_and_can_be_committed(tmp_path: Path, killed: bool) -> None:
    with broker(tmp_path) as running, Wire(running.address) as wire:
        wire.create("out")
        who = init(wire, "tx")
        assert add(wire, "tx", who, "out") == 0
        assert wire.produce("out", txn_batch(who, 0, "a", "b"))[0] == 0
        assert txn_offset(wire, "tx", who, "g", "out", 5) == 0
        end(running.pid, killed)
    with broker(tmp_path) as running, Wire(running.address) as wire:
        assert values(wire, "out", committed=True) == []
        assert committed_offset(wire, "g", "out", stable=True)[0] == Error.UNSTABLE_OFFSET_COMMIT
        assert wire.produce("out", txn_batch(who, 0, "a", "b")) == (0, 0), "a repeat is known"
        assert wire.produce("out", txn_batch(who, 2, "c"))[0] == 0
        assert end_txn(wire, "tx", who, commit=True) == 0
        assert values(wire, "out", committed=True) == ["a", "b", "c"]
        assert committed_offset(wire, "g", "out", stable=True) == (0, 5)


@KILLED
def test_a_producer_that_starts_anew_after_a_restart_aborts_what_was_open(tmp_path: Path, killed: bool) -> None:
    with broker(tmp_path) as running, Wire(running.address) as wire:
        wire.create("out")
        old = init(wire, "tx")
        assert add(wire, "tx", old, "out") == 0
        assert wire.produce("out", txn_batch(old, 0, "lost"))[0] == 0
        end(running.pid, killed)
    with broker(tmp_path) as running, Wire(running.address) as wire:
        new = init(wire, "tx")
        assert new.error_code == 0
        assert new.producer_id == old.producer_id
        assert new.producer_epoch > old.producer_epoch
        assert wire.produce("out", txn_batch(old, 1, "zombie"))[0] == Error.INVALID_PRODUCER_EPOCH
        assert end_txn(wire, "tx", old, commit=True) == Error.PRODUCER_FENCED
        assert add(wire, "tx", new, "out") == 0
        assert wire.produce("out", txn_batch(new, 0, "kept"))[0] == 0
        assert end_txn(wire, "tx", new, commit=True) == 0
        assert values(wire, "out", committed=True) == ["kept"]
        assert values(wire, "out") == ["lost", "kept"]


def test_producer_ids_are_never_given_twice(tmp_path: Path) -> None:
    seen: list[int] = []
    for _ in range(3):
        with broker(tmp_path) as running, Wire(running.address) as wire:
            body = {"transactional_id": None, "transaction_timeout": 0}
            seen += [wire.ask(Api.INIT_PRODUCER_ID, 4, body).producer_id for _ in range(3)]
            end(running.pid, True)
    assert len(set(seen)) == len(seen) == 9


def test_a_second_broker_on_the_same_directory_or_port_says_why_not(tmp_path: Path) -> None:
    with broker(tmp_path / "one") as running:
        with pytest.raises(BrokerFailed, match="another process"), broker(tmp_path / "one"):
            pass
        with pytest.raises(BrokerFailed, match="cannot listen"), broker(tmp_path / "two", port=running.port):
            pass


def test_a_broker_dies_with_its_parent(tmp_path: Path) -> None:
    import subprocess
    import sys

    import psutil

    program = f"from penstock.broker.embedded import broker\nwith broker({str(tmp_path)!r}) as b:\n    print(b.pid, flush=True)\n    import time; time.sleep(60)\n"
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    child.wait(20)
    assert not child.is_running()
