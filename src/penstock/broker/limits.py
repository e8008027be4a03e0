"""Every bound of the broker in one place, so that what a client can make it hold is a number.

Invariant: memory for requests and answers stays below the two `*_total_max` plus `connections_max` small buffers."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.broker.group import GroupLimits

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    connections_max: int = 4_000
    request_bytes_max: int = 100 * MIB  # of one request; a larger one closes its connection
    request_bytes_total_max: int = 128 * MIB  # of requests being received or waiting; beyond it, sockets are not read
    in_flight_max: int = 16  # requests of one connection that wait for an answer or for their turn
    fetch_bytes_max: int = 16 * MIB  # of records in one answer, whatever the client asks for; one batch is always given
    fetch_bytes_total_max: int = 64 * MIB  # of records read and not yet taken by clients; beyond it, fetches wait
    fetch_wait_ms_max: int = 60_000
    write_bytes_high: int = 256 * 1024  # a connection with more unsent bytes gets no further requests served
    stall_seconds_max: float = 30.0  # a client that takes no byte, or sends no byte of a begun request, for so long is cut off
    stall_seconds_others_wait: float = 1.0  # the same for a client that holds fetched bytes which others wait for
    idle_seconds_max: float = 600.0
    topics_max: int = 10_000
    partitions_max: int = 20_000
    topic_partitions_max: int = 1_000
    offset_metadata_bytes_max: int = 4_096
    transaction_ms_max: int = 900_000
    transactional_ids_max: int = 100_000
    groups_max: int = 100_000
    group: GroupLimits = field(default_factory=GroupLimits)
