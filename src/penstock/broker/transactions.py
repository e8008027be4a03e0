"""The transaction coordinator: producer ids and epochs, which partitions a transaction touched, and how it ends.

    EMPTY ──add──▶ ONGOING ──end──▶ PREPARE_COMMIT | PREPARE_ABORT ──markers──▶ COMPLETE_COMMIT | COMPLETE_ABORT ──add──▶ ONGOING …
                      └── too old, or its producer was started anew: epoch + 1, then PREPARE_ABORT

Invariants, in the order in which things become durable (level of the log):
  1. a transaction is known to touch a partition before records of it are accepted there;
  2. the decision (PREPARE_*) is durable before any marker is written, so a crash in between ends it the same way everywhere;
  3. the next transaction of the id begins after all markers of this one are durable.
A decided transaction is finished on restart. Markers carry the coordinator's epoch, so a producer fenced by an abort cannot add to it.
Not here: the markers' format (log), offsets of groups (offsets.py), the sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NamedTuple

from penstock.broker.limits import Limits
from penstock.broker.state_log import StateLog
from penstock.clock import Clock
from penstock.protocol.error import Error

EPOCH_MAX = 32_766  # the last one is kept for fencing
IDS_PER_BLOCK = 1_000
TopicPartition = tuple[str, int]


class TxnState(Enum):
    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


PREPARED = (TxnState.PREPARE_COMMIT, TxnState.PREPARE_ABORT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Txn:
    """What is stored of one transactional id."""

    id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    state: TxnState = TxnState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    groups: frozenset[str] = frozenset()
    started_ms: int = -1
    updated_ms: int = 0
    fenced_epoch: int = -1  # the epoch that the coordinator took away by an abort; its producer may still ask for a new one

    def row(self) -> dict[str, Any]:
        return {
            "producer": self.producer_id, "epoch": self.epoch, "timeout_ms": self.timeout_ms, "state": self.state.value,
            "partitions": sorted(map(list, self.partitions)), "groups": sorted(self.groups), "started_ms": self.started_ms, "updated_ms": self.updated_ms,
            "fenced": self.fenced_epoch,
        }  # fmt: skip

    @staticmethod
    def of(txn_id: str, row: Mapping[str, Any]) -> Txn:
        return Txn(
            id=txn_id, producer_id=row["producer"], epoch=row["epoch"], timeout_ms=row["timeout_ms"], state=TxnState(row["state"]),
            partitions=frozenset((topic, partition) for topic, partition in row["partitions"]), groups=frozenset(row["groups"]),
            started_ms=row["started_ms"], updated_ms=row.get("updated_ms", 0), fenced_epoch=row["fenced"],
        )  # fmt: skip


class Identity(NamedTuple):
    error: Error
    producer_id: int = -1
    epoch: int = -1


# Writes the markers of a decided transaction and settles its offsets; done when they are durable.
WriteMarkers = Callable[[Txn, bool], Awaitable[None]]


@dataclass(slots=True)
class _Entry:
    txn: Txn
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    is_ending: bool = False  # from before the decision is durable: nothing may be added any more


class Transactions:
    def __init__(self, state: StateLog, *, write_markers: WriteMarkers, limits: Limits, clock: Clock) -> None:
        self.state = state
        self.write_markers = write_markers
        self.limits = limits
        self.clock = clock
        self._entries: dict[str, _Entry] = {}
        self._by_producer: dict[int, _Entry] = {}
        self._next_id = 0
        self._ids_end = 0
        self._block_lock = asyncio.Lock()

    def now_ms(self) -> int:
        return self.clock.now_us() // 1000

    def all(self) -> Iterable[Txn]:
        return [entry.txn for entry in self._entries.values()]

    def find(self, txn_id: str) -> Txn | None:
        entry = self._entries.get(txn_id)
        return entry.txn if entry else None

    # --- start-up and time --------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Read the stored state and finish what was decided."""
        for key, row in self.state.rows():
            match key:
                case ("ids",) if row is not None:
                    self._next_id = self._ids_end = row["end"]
                case ("txn", txn_id):
                    if row is None:
                        self._entries.pop(txn_id, None)
                    else:
                        self._entries[txn_id] = _Entry(Txn.of(txn_id, row))
        for entry in self._entries.values():
            self._by_producer[entry.txn.producer_id] = entry
        for entry in self._entries.values():
            if entry.txn.state in PREPARED:
                async with entry.lock:
                    await self._finish(entry)

    async def abort_overdue(self) -> None:
        """Abort what has been open for longer than its producer allowed, and fence the producer."""
        now_ms = self.now_ms()
        for entry in list(self._entries.values()):
            txn = entry.txn
            if txn.state is TxnState.ONGOING and txn.started_ms + txn.timeout_ms < now_ms and not entry.lock.locked():
                async with entry.lock:
                    if entry.txn is txn:
                        await self._fence_and_abort(entry)

    async def forget_unused(self, *, older_than_ms: int) -> None:
        """Forget ids that have had no transaction for so long. A producer that comes back later starts with a new producer id."""
        before_ms = self.now_ms() - older_than_ms
        unused = [
            e
            for e in self._entries.values()
            if e.txn.state is not TxnState.ONGOING and e.txn.state not in PREPARED and e.txn.updated_ms < before_ms
        ]
        for entry in unused:
            if not entry.lock.locked():
                self._entries.pop(entry.txn.id, None)
                self._by_producer.pop(entry.txn.producer_id, None)
                await self.state.put([(("txn", entry.txn.id), None)])

    # --- producers ----------------------------------------------------------------------------------------------------

    async def new_producer(self) -> Identity:
        """A fresh producer id. Ids are reserved in durable blocks, so none is given twice after a crash."""
        async with self._block_lock:
            if self._next_id == self._ids_end:
                end = self._ids_end + IDS_PER_BLOCK
                await self.state.put([(("ids",), {"end": end})])
                self._ids_end = end
            self._next_id += 1
            return Identity(Error.NONE, self._next_id - 1, 0)

    async def init(self, txn_id: str, *, timeout_ms: int, producer_id: int, epoch: int) -> Identity:
        """A producer with a transactional id starts (or recovers): whoever used the id before is fenced."""
        if not 0 < timeout_ms <= self.limits.transaction_ms_max:
            return Identity(Error.INVALID_TRANSACTION_TIMEOUT)
        entry = self._entries.get(txn_id)
        if entry is None:
            if len(self._entries) >= self.limits.transactional_ids_max:
                return Identity(Error.COORDINATOR_NOT_AVAILABLE)
            fresh = await self.new_producer()
            entry = self._entries.setdefault(txn_id, _Entry(Txn(id=txn_id, producer_id=fresh.producer_id, epoch=-1, timeout_ms=timeout_ms)))
        async with entry.lock:
            txn = entry.txn
            if producer_id >= 0 and (producer_id != txn.producer_id or epoch not in (txn.epoch, txn.fenced_epoch)):
                return Identity(Error.PRODUCER_FENCED)
            if txn.state is TxnState.ONGOING:
                await self._fence_and_abort(entry)
                txn = entry.txn
            elif txn.state in PREPARED:
                await self._finish(entry)
                txn = entry.txn
            if txn.epoch >= EPOCH_MAX:
                self._by_producer.pop(txn.producer_id, None)
                txn = replace(txn, producer_id=(await self.new_producer()).producer_id, epoch=-1)
            txn = replace(
                txn,
                epoch=txn.epoch + 1,
                timeout_ms=timeout_ms,
                state=TxnState.EMPTY,
                partitions=frozenset(),
                groups=frozenset(),
                fenced_epoch=-1,
            )
            await self._store(entry, txn)
            self._by_producer[txn.producer_id] = entry
            return Identity(Error.NONE, txn.producer_id, txn.epoch)

    async def add(
        self, txn_id: str, producer_id: int, epoch: int, *, partitions: Iterable[TopicPartition] = (), groups: Iterable[str] = ()
    ) -> Error:
        """The transaction is going to touch these; it begins with the first."""
        entry = self._entries.get(txn_id)
        if entry is None:
            return Error.INVALID_PRODUCER_ID_MAPPING
        async with entry.lock:
            txn = entry.txn
            if (error := _identity(txn, producer_id, epoch)) is not Error.NONE:
                return error
            if txn.state in PREPARED:
                return Error.CONCURRENT_TRANSACTIONS
            is_open = txn.state is TxnState.ONGOING
            more = replace(
                txn,
                state=TxnState.ONGOING,
                partitions=(txn.partitions if is_open else frozenset()) | frozenset(partitions),
                groups=(txn.groups if is_open else frozenset()) | frozenset(groups),
                started_ms=txn.started_ms if is_open else self.now_ms(),
                fenced_epoch=-1,
            )
            if more != txn:
                await self._store(entry, more)
            return Error.NONE

    async def end(self, txn_id: str, producer_id: int, epoch: int, *, commit: bool) -> Error:
        entry = self._entries.get(txn_id)
        if entry is None:
            return Error.INVALID_PRODUCER_ID_MAPPING
        async with entry.lock:
            txn = entry.txn
            if (error := _identity(txn, producer_id, epoch)) is not Error.NONE:
                return error
            match txn.state:
                case TxnState.ONGOING:
                    await self._decide(entry, txn, commit=commit)
                    return Error.NONE
                case TxnState.PREPARE_COMMIT | TxnState.PREPARE_ABORT:
                    if commit != (txn.state is TxnState.PREPARE_COMMIT):
                        return Error.INVALID_TXN_STATE
                    await self._finish(entry)
                    return Error.NONE
                case TxnState.COMPLETE_COMMIT | TxnState.COMPLETE_ABORT:  # the answer was lost and the client asks again
                    return Error.NONE if commit == (txn.state is TxnState.COMPLETE_COMMIT) else Error.INVALID_TXN_STATE
                case _:
                    return Error.INVALID_TXN_STATE

    def check_write(self, producer_id: int, epoch: int, topic: str, partition: int) -> Error:
        """Whether records of this producer may be added to its transaction in this partition now."""
        entry = self._by_producer.get(producer_id)
        if entry is None:
            return Error.INVALID_PRODUCER_ID_MAPPING
        txn = entry.txn
        if epoch != txn.epoch:
            return Error.INVALID_PRODUCER_EPOCH
        is_open = txn.state is TxnState.ONGOING and not entry.is_ending
        return Error.NONE if is_open and (topic, partition) in txn.partitions else Error.INVALID_TXN_STATE

    def check_offsets(self, txn_id: str, producer_id: int, epoch: int, group: str) -> Error:
        """Whether offsets of this group may be added to the transaction now."""
        entry = self._entries.get(txn_id)
        if entry is None or entry.txn.producer_id != producer_id:
            return Error.INVALID_PRODUCER_ID_MAPPING
        if entry.txn.epoch != epoch:
            return Error.INVALID_PRODUCER_EPOCH
        is_open = entry.txn.state is TxnState.ONGOING and not entry.is_ending
        return Error.NONE if is_open and group in entry.txn.groups else Error.INVALID_TXN_STATE

    # --- the end ------------------------------------------------------------------------------------------------------

    async def _fence_and_abort(self, entry: _Entry) -> None:
        txn = entry.txn
        await self._decide(entry, replace(txn, epoch=txn.epoch + 1, fenced_epoch=txn.epoch), commit=False)

    async def _decide(self, entry: _Entry, txn: Txn, *, commit: bool) -> None:
        entry.is_ending = True
        try:
            await self._store(entry, replace(txn, state=TxnState.PREPARE_COMMIT if commit else TxnState.PREPARE_ABORT))
        finally:
            entry.is_ending = False
        await self._finish(entry)

    async def _finish(self, entry: _Entry) -> None:
        """Write what a decided transaction owes: markers, offsets, and that it is over."""
        txn = entry.txn
        commit = txn.state is TxnState.PREPARE_COMMIT
        await self.write_markers(txn, commit)
        done = TxnState.COMPLETE_COMMIT if commit else TxnState.COMPLETE_ABORT
        # Not waited for: if it is lost, the markers are written once more, which changes nothing.
        over = replace(txn, state=done, partitions=frozenset(), groups=frozenset())
        self.state.write([(("txn", txn.id), over.row())])
        entry.txn = over

    async def _store(self, entry: _Entry, txn: Txn) -> None:
        """Durable first, then in force."""
        txn = replace(txn, updated_ms=self.now_ms())
        await self.state.put([(("txn", txn.id), txn.row())])
        entry.txn = txn


def _identity(txn: Txn, producer_id: int, epoch: int) -> Error:
    if producer_id != txn.producer_id:
        return Error.INVALID_PRODUCER_ID_MAPPING
    return Error.NONE if epoch == txn.epoch else Error.PRODUCER_FENCED
