"""An acknowledgement never precedes its level, and a failed sync is told to everyone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.log.batch import next_offset
from penstock.log.storage import DiskFile, DiskStorage
from penstock.protocol import codec
from penstock.protocol.api import Api
from penstock.protocol.error import Error
from tests.broker.harness import inside
from tests.broker.wire import Wire, batch


class Disk(DiskStorage):
    """A disk on which syncing a file of one topic does what the test wants, once it says so."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.on_sync: Callable[[], None] = lambda: None

    def open(self, path: str, *, create: bool = False) -> DiskFile:
        disk = self

        class File(DiskFile):
            def fdatasync(self) -> None:
                if f"/{disk.topic}." in path and path.endswith(".log"):
                    disk.on_sync()
                super().fdatasync()

        return File(path, create=create)


def assert_set(event: threading.Event) -> None:
    assert event.wait(20)


def test_acks_all_waits_for_the_sync_and_acks_1_does_not(tmp_path: Path) -> None:
    may_sync = threading.Event()
    disk = Disk("out")
    with (
        inside(tmp_path, durability="group", storage=disk) as running,
        Wire(running.address) as wire,
        Wire(running.address) as other,
        Wire(running.address) as reader,
    ):
        wire.create("out")
        disk.on_sync = lambda: assert_set(may_sync)
        parts = [{"index": 0, "records": batch("a")}]
        body = {"transactional_id": None, "acks": -1, "timeout": 1000, "topic_data": [{"name": "out", "partition_data": parts}]}
        for _ in range(3):
            wire.send(Api.PRODUCE, 9, body)
        while running.call(lambda: running.node.log.partition("out", 0).next_offset) < 3:
            pass
        assert other.produce("out", batch("b"), acks=1) == (0, 3), "answered from the page cache"
        assert not reader.fetch("out", 0).records, "nobody sees what is not durable"
        wire.socket.settimeout(0.3)
        with pytest.raises(TimeoutError):
            wire.frame()
        may_sync.set()
        wire.socket.settimeout(20)
        offsets = [codec.decode_response(Api.PRODUCE, 9, wire.frame())[1].responses[0].partition_responses[0].base_offset for _ in range(3)]
        assert offsets == [0, 1, 2]
        assert next_offset(reader.fetch("out", 0, wait_ms=5_000).records) is not None


def test_a_failed_sync_is_told_and_stops_the_partition_alone(tmp_path: Path) -> None:
    def fails() -> None:
        raise OSError(5, "Input/output error")

    disk = Disk("bad")
    with inside(tmp_path, durability="group", storage=disk) as running, Wire(running.address) as wire:
        wire.create("bad")
        wire.create("good")
        disk.on_sync = fails
        assert wire.produce("bad", batch("lost?"))[0] == Error.KAFKA_STORAGE_ERROR
        assert wire.produce("bad", batch("refused"))[0] == Error.KAFKA_STORAGE_ERROR
        assert wire.produce("good", batch("kept")) == (0, 0)
        assert next_offset(wire.fetch("good", 0).records) == 1


def test_damage_is_answered_with_an_error_and_named_in_the_brokers_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with inside(tmp_path) as running, Wire(running.address) as wire:
        wire.create("hurt")
        for text in "abc":
            assert wire.produce("hurt", batch(text * 100))[0] == 0
        (path,) = tmp_path.glob("topics/hurt.*/0/*.log")
        with path.open("r+b") as file:
            file.seek(path.stat().st_size // 2)
            file.write(b"\xff")
        assert next_offset(wire.fetch("hurt", 0).records) == 1, "what is good is served"
        for _ in range(3):
            assert wire.fetch("hurt", 1).error == Error.CORRUPT_MESSAGE
    named = [record.getMessage() for record in caplog.records if "hurt-0" in record.getMessage() and "offset 1" in record.getMessage()]
    assert len(named) == 1
