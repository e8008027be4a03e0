"""A log on a simulated disk, and the few words that the tests of the log speak."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from penstock.clock import ManualClock
from penstock.log import Log, LogConfig, Partition
from penstock.log import batch as rb
from penstock.log.batch import Record
from penstock.testing.storage import SimulatedStorage

NOW_US = 1_700_000_000_000_000
NOW_MS = NOW_US // 1_000
CONFIG = LogConfig(durability="group", commit_threads=0)


class World:
    """A disk, a clock and a log on them; commits run when the test says so."""

    def __init__(self, disk: SimulatedStorage, *, durability: str = "group") -> None:
        self.disk, self.clock = disk, ManualClock(NOW_US)
        self.config = LogConfig(durability=durability, commit_threads=0)  # type: ignore[arg-type]
        self.log = Log.open("/data", storage=disk, clock=self.clock, config=self.config)

    def topic(self, name: str = "words", *, partitions: int = 1, **configs: object) -> Partition:
        """Create a topic (configurations with _ for .) and return its first partition."""
        texts = {key.replace("_", "."): str(value) for key, value in configs.items()}
        return self.log.create_topic(name, partitions=partitions, configs=texts).partitions[0]

    def reopen(self, disk: SimulatedStorage | None = None) -> Log:
        """Open again what is on the disk, without closing first: as after a kill, or on the disk that a power loss left."""
        self.disk = disk or self.disk.after_kill()
        self.log = Log.open("/data", storage=self.disk, clock=self.clock, config=self.config)
        return self.log

    def sync(self) -> None:
        self.log.commits.run_pending()

    def files(self, partition: Partition, suffix: str = ".log") -> list[str]:
        return [f"{partition.directory}/{name}" for name in self.disk.listdir(partition.directory) if name.endswith(suffix)]


@pytest.fixture
def world() -> World:
    return World(SimulatedStorage())


@pytest.fixture
def os_world() -> World:
    return World(SimulatedStorage(), durability="os")


def batch(*values: bytes | None, key: bytes | None = None, at_ms: int = NOW_MS, **fields: object) -> bytes:
    return rb.encode([Record(0, at_ms, key, value) for value in values], **fields)  # type: ignore[arg-type]


def put(partition: Partition, *values: bytes | None, now_us: int = NOW_US, **fields: object) -> int:
    """Append one batch of values; the base offset."""
    return partition.append(batch(*values, **fields), now_us=now_us).base_offset  # type: ignore[arg-type]


def values(partition: Partition, start: int | None = None, *, committed: bool = False, bytes_max: int = 1 << 20) -> list[bytes | None]:
    """Everything visible from `start` on, as a consumer would see it (without filtering aborted records)."""
    return [record.value for record in consume(partition, start, committed=committed, bytes_max=bytes_max)]


def consume(partition: Partition, start: int | None = None, *, committed: bool = False, bytes_max: int = 1 << 20) -> Iterator[Record]:
    offset = partition.start_offset if start is None else start
    while buffers := partition.read(offset, bytes_max=bytes_max, committed=committed):
        for buffer in buffers:
            for header, at in rb.walk(buffer):
                if not header.is_control:
                    yield from (record for record in rb.decode(buffer[at : at + header.size], header) if record.offset >= offset)
                offset = header.next_offset


Put = Callable[..., int]
