"""Compaction by key."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.log.partition import Partition


def compact(partition: Partition, *, now_us: int) -> str | None:
    return None
