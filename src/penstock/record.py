"""One record of a stream, as the log stores it and clients exchange it."""

from __future__ import annotations

from typing import NamedTuple


class Record(NamedTuple):
    """Key and value are bytes or absent; the timestamp is milliseconds since 1970, as in Kafka."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[str, bytes | None], ...] = ()
