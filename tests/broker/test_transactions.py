"""The transaction coordinator: a decision once durable is carried out, whatever happens in between; time-outs fence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.broker.transactions import EPOCH_MAX, Txn, TxnState
from penstock.log.errors import StorageFailed
from penstock.protocol.api import Api
from penstock.protocol.error import Error
from tests.broker.harness import inside
from tests.broker.test_restart import add, committed_offset, end_txn, init, join, txn_batch, txn_offset, values
from tests.broker.wire import Wire


@pytest.mark.parametrize("commit", [True, False])
def test_a_decided_transaction_is_finished_after_a_crash(tmp_path: Path, commit: bool) -> None:
    """The broker dies after the decision is durable and before any marker or offset is written."""

    async def dies(txn: Txn, committed: bool) -> None:
        raise StorageFailed("the machine died here")

    with inside(tmp_path, durability="group") as running, Wire(running.address) as wire:
        wire.create("out", partitions=2)
        who = init(wire, "tx")
        assert add(wire, "tx", who, "out", (0, 1)) == 0
        for partition in (0, 1):
            assert wire.produce("out", txn_batch(who, 0, "x"), partition=partition)[0] == 0
        assert txn_offset(wire, "tx", who, "g", "out", 9) == 0
        running.node.transactions.write_markers = dies
        assert end_txn(wire, "tx", who, commit=commit) == Error.KAFKA_STORAGE_ERROR
        assert wire.fetch("out", 0, committed=True).last_stable_offset == 0
    with inside(tmp_path, durability="group") as running, Wire(running.address) as wire:
        for partition in (0, 1):
            assert wire.fetch("out", 0, partition=partition, committed=True).last_stable_offset == 2, "the record and its marker"
        assert values(wire, "out", committed=True) == (["x"] if commit else [])
        assert committed_offset(wire, "g", "out", stable=True) == (0, 9 if commit else -1)
        assert end_txn(wire, "tx", who, commit=commit) == 0, "the client asks again and hears that it is done"
        assert end_txn(wire, "tx", who, commit=not commit) == Error.INVALID_TXN_STATE


def test_a_transaction_that_takes_too_long_is_aborted_and_its_producer_fenced(tmp_path: Path) -> None:
    with inside(tmp_path) as running, Wire(running.address) as wire:
        wire.create("out")
        who = init(wire, "tx", timeout_ms=100)
        assert add(wire, "tx", who, "out") == 0
        assert wire.produce("out", txn_batch(who, 0, "late"))[0] == 0
        found = wire.fetch("out", 1, committed=True, wait_ms=20_000)  # returns when the last stable offset moves: the abort marker
        assert found.last_stable_offset == 2
        assert end_txn(wire, "tx", who, commit=True) == Error.PRODUCER_FENCED
        assert wire.produce("out", txn_batch(who, 1, "zombie"))[0] == Error.INVALID_PRODUCER_EPOCH
        assert values(wire, "out", committed=True) == []
        again = init(wire, "tx", producer_id=who.producer_id, epoch=who.producer_epoch)
        assert again.error_code == 0, "the producer that was timed out may go on with a new epoch (KIP-360)"
        assert again.producer_epoch > who.producer_epoch + 1
        stranger = init(wire, "tx", producer_id=who.producer_id, epoch=who.producer_epoch)
        assert stranger.error_code == Error.PRODUCER_FENCED


def test_records_need_an_open_transaction_that_includes_their_partition(tmp_path: Path) -> None:
    with inside(tmp_path) as running, Wire(running.address) as wire:
        wire.create("out", partitions=2)
        who = init(wire, "tx")
        assert wire.produce("out", txn_batch(who, 0, "x"))[0] == Error.INVALID_TXN_STATE
        assert add(wire, "tx", who, "out", (1,)) == 0
        assert wire.produce("out", txn_batch(who, 0, "x"))[0] == Error.INVALID_TXN_STATE
        assert wire.produce("out", txn_batch(who, 0, "x"), partition=1)[0] == 0
        assert end_txn(wire, "tx", who, commit=True) == 0
        assert wire.produce("out", txn_batch(who, 1, "after the end"), partition=1)[0] == Error.INVALID_TXN_STATE
        assert add(wire, "other", who, "out") == Error.INVALID_PRODUCER_ID_MAPPING
        assert add(wire, "tx", who, "nowhere") == Error.UNKNOWN_TOPIC_OR_PARTITION
        assert end_txn(wire, "never", who, commit=True) == Error.INVALID_PRODUCER_ID_MAPPING
        fresh = init(wire, "fresh")
        assert end_txn(wire, "fresh", fresh, commit=True) == Error.INVALID_TXN_STATE
        assert init(wire, "tx", timeout_ms=10_000_000).error_code == Error.INVALID_TRANSACTION_TIMEOUT
        assert init(wire, "").error_code == Error.INVALID_REQUEST


def test_a_worn_out_epoch_takes_a_new_producer_id(tmp_path: Path) -> None:
    with inside(tmp_path) as running, Wire(running.address) as wire:
        who = init(wire, "tx")

        def wear_out() -> None:
            entry = running.node.transactions._entries["tx"]
            entry.txn = Txn(id="tx", producer_id=who.producer_id, epoch=EPOCH_MAX, timeout_ms=1_000)

        running.call(wear_out)
        fresh = init(wire, "tx")
        assert (fresh.error_code, fresh.producer_epoch) == (0, 0)
        assert fresh.producer_id != who.producer_id


def test_transactions_can_be_looked_at(tmp_path: Path) -> None:
    with inside(tmp_path) as running, Wire(running.address) as wire:
        wire.create("out")
        who = init(wire, "tx")
        assert add(wire, "tx", who, "out") == 0
        listed: Any = wire.ask(Api.LIST_TRANSACTIONS, 1, {"state_filters": ["Ongoing"], "producer_id_filters": [], "duration_filter": -1})
        assert [(each.transactional_id, each.producer_id) for each in listed.transaction_states] == [("tx", who.producer_id)]
        described = wire.ask(Api.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": ["tx", "none"]}).transaction_states
        assert [int(each.error_code) for each in described] == [0, Error.TRANSACTIONAL_ID_NOT_FOUND]
        assert [(topic.topic, topic.partitions) for topic in described[0].topics] == [("out", (0,))]


def test_rows_of_the_state_log_say_all_of_a_transaction() -> None:
    txn = Txn(
        id="tx", producer_id=5, epoch=3, timeout_ms=7, state=TxnState.PREPARE_ABORT, partitions=frozenset({("a", 1), ("b", 0)}),
        groups=frozenset({"g"}), started_ms=99, fenced_epoch=2,
    )  # fmt: skip
    assert Txn.of("tx", txn.row()) == txn


def test_ids_and_groups_that_nobody_uses_are_forgotten(tmp_path: Path) -> None:
    with inside(tmp_path) as running, Wire(running.address) as wire:
        wire.create("out")
        used, unused = init(wire, "used"), init(wire, "unused")
        assert add(wire, "used", used, "out") == 0
        joined = join(wire, "fleeting")
        assert (
            wire.ask(Api.LEAVE_GROUP, 4, {"group_id": "fleeting", "members": [{"member_id": joined.member_id}]}).members[0].error_code == 0
        )
        running.run(running.node.groups.forget_empty(older_than_ms=-1))
        running.run(running.node.transactions.forget_unused(older_than_ms=-1))
    with inside(tmp_path) as running, Wire(running.address) as wire:
        assert [txn.id for txn in running.node.transactions.all()] == ["used"]
        assert running.node.groups.groups == {}
        assert init(wire, "unused").producer_id > unused.producer_id
        assert end_txn(wire, "used", used, commit=True) == 0
