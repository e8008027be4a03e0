"""The watermark of a stage: how far event time has come on all of its inputs, as pure state.

    partition  max(greatest event time - lateness, what its sender says itself)
    stage      the minimum over the active partitions of all senders; FOREVER_US when all have ended

Active is: not ended, not called idle by its sender, and not silent for `idle_us` of processing time. A partition counts again
with its next record. Invariants: the watermark never goes back; a declared sender that has not spoken holds it at NEVER_US (unless
it is idle); equal calls after `restore` give equal watermarks. Who hears what, and when, is the host's work."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from penstock.kernels.envelope import ACTIVE, ENDED, IDLE, Times
from penstock.kernels.kernel import FOREVER_US, NEVER_US

VERSION = 1
_HEAD = struct.Struct("<BqqI")  # | version u8 | watermark_us i64 | since_us i64 | partitions u32 |
_PARTITION = struct.Struct("<HqqqqB")  # | sender u16 | partition i64 | greatest_us i64 | watermark_us i64 | heard_us i64 | state u8 |
_UNKNOWN_US = NEVER_US  # processing time before the first advance


@dataclass(frozen=True, slots=True)
class TimeInput:
    """A sender whose time an input of the stage waits for."""

    source: int | str  # who: a scan or a stage
    input: int = 0
    lateness_us: int = 0
    idle_us: int | None = None  # None: a silent partition holds the watermark for as long as it is silent


@dataclass(slots=True)
class _Partition:
    greatest_us: int
    watermark_us: int
    heard_us: int  # processing time of its last record, or of its first mention
    state: int


class Tracker:
    """Event time per partition of every sender, and the watermark that follows from it.

    >>> tracker = Tracker.start((TimeInput(1, lateness_us=2),))
    >>> tracker.hear(1, [Times(0, 10), Times(1, 7)], now_us=0)
    >>> tracker.advance(now_us=0)
    5
    """

    __slots__ = ("_inputs", "_partitions", "_since_us", "watermark_us")

    def __init__(self, inputs: Sequence[TimeInput]) -> None:
        self._inputs = tuple(inputs)
        self._partitions: dict[int | str, dict[int, _Partition]] = {each.source: {} for each in inputs}
        self._since_us = _UNKNOWN_US
        self.watermark_us = NEVER_US

    @staticmethod
    def start(inputs: Sequence[TimeInput]) -> Tracker:
        return Tracker(inputs)

    def hear(self, source: int | str, times: Iterable[Times], now_us: int) -> None:
        """What a sender says of its partitions in this batch. `greatest_us` is of this batch's records: NEVER_US if there were none."""
        known = self._partitions.get(source)
        if known is None:  # a sender of another input's plan: its time does not concern this stage
            return
        for partition, greatest_us, state, watermark_us in times:
            each = known.get(partition)
            if each is None:
                each = known[partition] = _Partition(NEVER_US, NEVER_US, now_us, state)
            has_data = greatest_us != NEVER_US or watermark_us > each.watermark_us
            each.greatest_us = max(each.greatest_us, greatest_us)
            each.watermark_us = max(each.watermark_us, watermark_us)
            if has_data:
                each.heard_us = max(each.heard_us, now_us)
            # An idle partition stays idle until it has data, and one that has ended has ended: of two that speak for it in one
            # batch (the reader, and the packing step after it) only one may know.
            if each.state != ENDED and (state != ACTIVE or has_data):
                each.state = state

    def advance(self, now_us: int) -> int:
        """The watermark at the end of a batch."""
        if self._since_us == _UNKNOWN_US:
            self._since_us = now_us
        least_us: int | None = None
        ended = bool(self._inputs)
        for sender in self._inputs:
            partitions = self._partitions[sender.source]
            if not partitions:
                ended = False
                if not self._silent(sender, self._since_us, now_us):
                    return self.watermark_us
            for each in partitions.values():
                if each.state == ENDED:
                    continue
                ended = False
                if each.state == IDLE or self._silent(sender, each.heard_us, now_us):
                    continue
                own_us = each.watermark_us
                if each.greatest_us != NEVER_US:
                    own_us = max(own_us, each.greatest_us - sender.lateness_us)
                least_us = own_us if least_us is None else min(least_us, own_us)
        if ended:
            least_us = FOREVER_US
        if least_us is not None:
            self.watermark_us = max(self.watermark_us, least_us)
        return self.watermark_us

    @staticmethod
    def _silent(sender: TimeInput, heard_us: int, now_us: int) -> bool:
        return sender.idle_us is not None and now_us - heard_us >= sender.idle_us

    def save(self) -> bytes:
        """Everything, in a few bytes per partition; senders are numbered in the order in which they are declared."""
        names = list(self._partitions)
        rows = [
            _PARTITION.pack(names.index(source), partition, each.greatest_us, each.watermark_us, each.heard_us, each.state)
            for source, partitions in self._partitions.items()
            for partition, each in partitions.items()
        ]
        return _HEAD.pack(VERSION, self.watermark_us, self._since_us, len(rows)) + b"".join(rows)

    @staticmethod
    def restore(inputs: Sequence[TimeInput], saved: bytes) -> Tracker:
        tracker = Tracker(inputs)
        version, tracker.watermark_us, tracker._since_us, count = _HEAD.unpack_from(saved)
        assert version == VERSION, f"watermark state of version {version}; this code reads {VERSION}"
        assert len(saved) == _HEAD.size + count * _PARTITION.size, "watermark state is cut short"
        names = list(tracker._partitions)
        for place in range(count):
            sender, partition, *values = _PARTITION.unpack_from(saved, _HEAD.size + place * _PARTITION.size)
            tracker._partitions[names[sender]][partition] = _Partition(*values)
        return tracker
