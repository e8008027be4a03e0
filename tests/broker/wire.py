"""A blocking connection for tests that must say things no client library says."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Mapping
from typing import Any

from penstock.log.batch import Record, encode
from penstock.protocol import codec, raw
from penstock.protocol.api import Api

NOW_MS = time.time_ns() // 1_000_000  # retention goes by the records' own times


class Closed(Exception):
    """The broker closed the connection."""


class Wire:
    def __init__(self, address: str, *, timeout_s: float = 20.0) -> None:
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=timeout_s)
        self.correlation_id = 0

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send_bytes(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise Closed from error

    def send(self, api: Api, version: int, body: Mapping[str, Any]) -> int:
        self.correlation_id += 1
        self.send_bytes(codec.encode_request(api, version, body, correlation_id=self.correlation_id, client_id="wire"))
        return self.correlation_id

    def frame(self) -> bytes:
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                part = self.socket.recv(size - len(data))
            except ConnectionResetError as error:
                raise Closed from error
            if not part:
                raise Closed
            data += part
        return bytes(data)

    def ask(self, api: Api, version: int, body: Mapping[str, Any]) -> Any:
        correlation_id = self.send(api, version, body)
        got, entity = codec.decode_response(api, version, self.frame())
        assert got == correlation_id
        return entity

    def create(self, topic: str, *, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        wanted = [{"name": name, "value": value} for name, value in (configs or {}).items()]
        body = {"name": topic, "num_partitions": partitions, "replication_factor": 1, "assignments": [], "configs": wanted}
        answer = self.ask(Api.CREATE_TOPICS, 7, {"topics": [body], "timeout": 1000})
        assert answer.topics[0].error_code == 0, answer

    def produce(
        self, topic: str, records: bytes, *, partition: int = 0, acks: int = -1, version: int = 9, transactional_id: str | None = None
    ) -> Any:
        """Error code and base offset of one partition's batch; None where no answer is due."""
        parts = [{"index": partition, "records": records}]
        body = {
            "transactional_id": transactional_id,
            "acks": acks,
            "timeout": 1000,
            "topic_data": [{"name": topic, "partition_data": parts}],
        }
        if acks == 0:
            return self.send(Api.PRODUCE, version, body) and None
        part = self.ask(Api.PRODUCE, version, body).responses[0].partition_responses[0]
        return int(part.error_code), part.base_offset

    def fetch(
        self, topic: str, offset: int, *, partition: int = 0, bytes_max: int = 1 << 20, wait_ms: int = 0, committed: bool = False
    ) -> raw.Fetched:
        part = raw.FetchPart(topic, partition, -1, offset, bytes_max)
        self.correlation_id += 1
        self.send_bytes(
            raw.pack_fetch(
                [part], version=12, correlation_id=self.correlation_id, client_id="wire", wait_ms_max=wait_ms, bytes_min=1,
                bytes_max=bytes_max, isolation_level=int(committed),
            )
        )  # fmt: skip
        correlation_id, parts = raw.read_fetched(memoryview(self.frame()), version=12)
        assert correlation_id == self.correlation_id
        return parts[0]


def batch(*values: str | None, key: bytes | None = b"k", **fields: Any) -> bytes:
    """A record batch of these values."""
    return encode([Record(0, NOW_MS, key, value.encode() if value is not None else None) for value in values], **fields)
