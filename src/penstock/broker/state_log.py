"""A table that survives: keys and JSON values in a compacted internal topic, the newest value of a key wins, null deletes it.

    record key    ["offset", "group-7", "orders", 3]         JSON array; the first item says what kind of row it is
    record value  {"v": 1, "offset": 42, …} or null

Invariant: `put` resolves when the rows are as durable as the log's level promises, never before. Rows that a reader does
not know (a later version wrote them) are kept. Not here: what the rows mean."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from penstock.clock import Clock
from penstock.log import Log, Partition
from penstock.log.batch import Record, encode
from penstock.log.errors import LogError

Key = tuple[Any, ...]
VERSION = 1
ROWS_PER_BATCH_MAX = 1_000
CONFIGS = {"cleanup.policy": "compact", "segment.bytes": str(64 << 20)}


class StateLog:
    def __init__(self, log: Log, topic: str, *, clock: Clock) -> None:
        if topic not in log.topics:
            log.create_topic(topic, partitions=1, configs=CONFIGS)
        self.log = log
        self.clock = clock
        self.partition: Partition = log.partition(topic, 0)

    def rows(self) -> Iterator[tuple[Key, Mapping[str, Any] | None]]:
        """All rows in the order they were written; a later row of the same key replaces the earlier one."""
        for record in self.partition.records():
            if record.key is not None:
                yield tuple(json.loads(record.key)), json.loads(record.value) if record.value is not None else None

    def write(self, rows: Iterable[tuple[Key, Mapping[str, Any] | None]]) -> int:
        """Append rows; the offset up to which the log must be durable for them."""
        now_us = self.clock.now_us()
        records = [
            Record(0, now_us // 1000, _json(list(key)), _json({"v": VERSION, **value}) if value is not None else None)
            for key, value in rows
        ]
        next_offset = self.partition.next_offset
        for start in range(0, len(records), ROWS_PER_BATCH_MAX):
            next_offset = self.partition.append(encode(records[start : start + ROWS_PER_BATCH_MAX]), now_us=now_us).next_offset
        return next_offset

    async def put(self, rows: Iterable[tuple[Key, Mapping[str, Any] | None]]) -> None:
        await durable(self.log, self.partition, self.write(rows))


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def durable(log: Log, partition: Partition, next_offset: int) -> asyncio.Future[None]:
    """Done when everything before `next_offset` is as durable as the log's level promises."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settle(error: LogError | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    log.commits.when_durable(partition, next_offset, settle)
    return future
