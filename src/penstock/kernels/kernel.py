"""What a kernel is: a pure state machine over columnar batches of one key group.

A kernel is frozen data that travels to the worker. `start` or `restore` gives an instance, which lives as long as the
group's state is in memory; `save` gives the bytes from which `restore` makes an equal instance. No kernel reads a clock, a
file or a random source: time comes in the context, so a replay gives the same rows.

Rows are Arrow tables with the user's columns and these of ours:
    _time INT64 (event time, µs, null if the record has none) | _source INT32 | _partition INT32 | _offset INT64
A group's rows of one batch come sorted by (_source, _partition, _offset)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

TIME, SOURCE, PARTITION, OFFSET = "_time", "_source", "_partition", "_offset"
NEVER_US = -(1 << 62)  # the watermark before anything is known
FOREVER_US = 1 << 62  # the watermark after the last record, and the end of the global window


@dataclass(frozen=True, slots=True)
class Context:
    """Time during one batch."""

    watermark_us: int  # at the start of the batch: what was too late is judged by it
    next_watermark_us: int  # at its end: what is complete is judged by it
    now_us: int  # processing time, as the clock source recorded it


@dataclass(frozen=True, slots=True)
class Output:
    """What one batch of one group gives."""

    rows: pa.Table | None = None
    late: pa.Table | None = None  # input rows whose windows are gone
    side: Mapping[str, pa.Table] = field(default_factory=dict)  # named further outputs
    counts: Mapping[str, int] = field(default_factory=dict)  # late, duplicates, open windows, …


class Instance(Protocol):
    """A kernel at work on one key group."""

    def on_batch(self, inputs: Sequence[pa.Table | None], at: Context) -> Output:
        """One table (or None) per input of the step; connected streams have two."""
        ...

    def save(self, *, full: bool) -> bytes | None:
        """Everything (full), or what has changed since the last save; None if nothing has."""
        ...


class Kernel(Protocol):
    """A step of the plan, ready to run on any group."""

    @property
    def state_version(self) -> int: ...
    def start(self) -> Instance: ...
    def restore(self, saved: Sequence[bytes]) -> Instance:
        """From one full save and the changes after it, oldest first."""
        ...
