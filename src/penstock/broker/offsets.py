"""Committed offsets of consumer groups: in memory for answers, in a state log to survive.

    ("offset", group, topic, partition)               → {"offset", "epoch", "metadata", "at"}
    ("pending", producer_id, group, topic, partition) → the same, waiting for the end of a transaction
    ("group", group)                                  → members and assignments of the last generation (see groups.py)

Invariants: a pending offset is visible to nobody until `end_transaction`; ending twice changes nothing.
Not here: who may commit (groups.py, transactions.py)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from penstock.broker.state_log import Key, StateLog

TopicPartition = tuple[str, int]


class Committed(NamedTuple):
    offset: int
    leader_epoch: int
    metadata: str | None
    at_ms: int

    def row(self) -> dict[str, Any]:
        return {"offset": self.offset, "epoch": self.leader_epoch, "metadata": self.metadata, "at": self.at_ms}

    @staticmethod
    def of(row: Mapping[str, Any]) -> Committed:
        return Committed(row["offset"], row["epoch"], row["metadata"], row["at"])


class Offsets:
    def __init__(self, state: StateLog) -> None:
        self.state = state
        self.committed: dict[str, dict[TopicPartition, Committed]] = {}
        self.pending: dict[int, dict[tuple[str, str, int], Committed]] = {}

    def load(self, key: Key, row: Mapping[str, Any] | None) -> None:
        """One row of the state log, in the order they were written."""
        match key:
            case ("offset", group, topic, partition):
                if row is None:
                    self._forget(group, (topic, partition))
                else:
                    self.committed.setdefault(group, {})[topic, partition] = Committed.of(row)
            case ("pending", producer_id, group, topic, partition):
                if row is None:
                    self._settle(producer_id, (group, topic, partition))
                else:
                    self.pending.setdefault(producer_id, {})[group, topic, partition] = Committed.of(row)

    async def commit(self, group: str, offsets: Mapping[TopicPartition, Committed]) -> None:
        """Make offsets durable, then visible."""
        await self.state.put((("offset", group, topic, partition), new.row()) for (topic, partition), new in offsets.items())
        self.committed.setdefault(group, {}).update(offsets)

    async def commit_pending(self, producer_id: int, group: str, offsets: Mapping[TopicPartition, Committed]) -> None:
        """Hold offsets until the producer's transaction ends."""
        held = self.pending.setdefault(producer_id, {})
        for (topic, partition), new in offsets.items():
            held[group, topic, partition] = new
        await self.state.put((("pending", producer_id, group, topic, partition), new.row()) for (topic, partition), new in offsets.items())

    def end_transaction(self, producer_id: int, *, commit: bool) -> int | None:
        """Make the producer's pending offsets visible, or drop them. The offset up to which the state log must be durable, if it wrote."""
        held = self.pending.pop(producer_id, {})
        rows: list[tuple[Key, Mapping[str, Any] | None]] = []
        for (group, topic, partition), new in held.items():
            if commit:
                rows.append((("offset", group, topic, partition), new.row()))
                self.committed.setdefault(group, {})[topic, partition] = new
            rows.append((("pending", producer_id, group, topic, partition), None))
        return self.state.write(rows) if rows else None

    def is_unstable(self, group: str, topic: str, partition: int) -> bool:
        """Whether a transaction still open has an offset for this partition."""
        return any((group, topic, partition) in held for held in self.pending.values())

    def has(self, group: str) -> bool:
        return bool(self.committed.get(group)) or any(group == held for keys in self.pending.values() for held, _, _ in keys)

    async def delete(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        gone = [each for each in partitions if each in self.committed.get(group, {})]
        for each in gone:
            self._forget(group, each)
        if gone:
            await self.state.put((("offset", group, topic, partition), None) for topic, partition in gone)

    async def delete_group(self, group: str) -> None:
        await self.delete(group, list(self.committed.get(group, {})))

    async def delete_topic(self, topic: str) -> None:
        """A topic of the same name created later must not inherit offsets."""
        for group, offsets in list(self.committed.items()):
            await self.delete(group, [each for each in offsets if each[0] == topic])
        rows: list[tuple[Key, Mapping[str, Any] | None]] = []
        for producer_id, held in list(self.pending.items()):
            for key in [key for key in held if key[1] == topic]:
                self._settle(producer_id, key)
                rows.append((("pending", producer_id, *key), None))
        if rows:
            await self.state.put(rows)

    def _forget(self, group: str, each: TopicPartition) -> None:
        offsets = self.committed.get(group, {})
        offsets.pop(each, None)
        if not offsets:
            self.committed.pop(group, None)

    def _settle(self, producer_id: int, key: tuple[str, str, int]) -> None:
        held = self.pending.get(producer_id, {})
        held.pop(key, None)
        if not held:
            self.pending.pop(producer_id, None)
