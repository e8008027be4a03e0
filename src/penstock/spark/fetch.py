"""Reading ranges of offsets of many partitions: the loop of a reader task.

One request per broker asks for all partitions that it leads; while its answer is decoded, the next one is already under way (the headers of
the batches tell where to go on). Connections stay open from task to task. Invariant: every visible record of a slice is given exactly
once, in order of offset within a partition; a slice that cannot be read to its end is an error, never a shorter result."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from penstock.errors import PenstockError
from penstock.protocol.client import EARLIEST, BrokerError, Client, Fetched, Pending, Place, Unreachable, Wanted
from penstock.protocol.error import RETRIABLE, Error
from penstock.spark.decode import Records, decode, read_batches
from penstock.spark.offsets import Slice, client_of

FETCH_BYTES_MAX = 32 << 20
PARTITION_BYTES_MIN = 1 << 20
STALL_S_MAX = 60.0
WAIT_MS_MAX = 500

OnLost = Literal["fail", "resume"]


class LostOffsets(PenstockError):
    """Records that were to be read are gone: retention, or a topic that was made anew."""

    def __init__(self, place: Place, offset: int, start: int) -> None:
        super().__init__(
            f"{place[0]}/{place[1]}: offset {offset} is gone, the first one is now {start}",
            remedy="keep records longer, or set on_lost=resume to go on with what is there",
        )


@dataclass(slots=True)
class _Progress:
    """Where the reader is in one slice."""

    slice: Slice
    offset: int

    @property
    def done(self) -> bool:
        return self.offset >= self.slice.end


def read_slices(address: str, slices: Sequence[Slice], *, on_lost: OnLost = "fail", check: bool = True) -> Iterator[tuple[Slice, Records]]:
    """The visible records of the slices, in chunks of one partition each."""
    reader = _Reader(client_of(address), slices, on_lost, check)
    try:
        yield from reader.chunks()
    finally:
        reader.close()


class _Reader:
    """The state of one `read_slices`: positions, and at most one request under way per node."""

    def __init__(self, client: Client, slices: Sequence[Slice], on_lost: OnLost, check: bool) -> None:
        self._client = client
        self._on_lost = on_lost
        self._check = check
        self._todo = {(each.topic, each.partition): _Progress(each, each.start) for each in slices if each.start < each.end}
        assert len(self._todo) == sum(each.start < each.end for each in slices), "a task reads one slice of a partition"
        self._pending: dict[int, Pending] = {}
        self._moved_s = time.monotonic()

    def close(self) -> None:
        """An answer that nobody will read makes its connection useless."""
        for node in self._pending:
            self._client.forget(node)
        self._pending.clear()

    def chunks(self) -> Iterator[tuple[Slice, Records]]:
        while self._todo:
            self._send()
            for node in list(self._pending):
                try:
                    frame, parts = self._client.receive_fetch(self._pending.pop(node), allocate=_allocate)
                except Unreachable as error:
                    self._client.forget(node)
                    self._stalled(str(error))
                    continue
                ready = [each for part in parts if (each := self._take(frame, part)) is not None]
                self._send()
                for progress, batches, start, aborted in ready:
                    records = decode(batches, start=start, end=progress.slice.end, aborted=aborted, check=self._check)
                    if len(records):
                        yield progress.slice, records

    def _send(self) -> None:
        """Ask every node that is not busy for all unfinished partitions that it leads."""
        by_node: dict[int, list[_Progress]] = {}
        for place, progress in self._todo.items():
            try:
                node = self._client.leader(place)
            except Unreachable as error:
                self._stalled(str(error))
                return
            if node not in self._pending:
                by_node.setdefault(node, []).append(progress)
        for node, wanted in by_node.items():
            bytes_max = max(PARTITION_BYTES_MIN, FETCH_BYTES_MAX // len(wanted))
            parts = [Wanted(each.slice.topic, each.slice.partition, each.offset, bytes_max) for each in wanted]
            try:
                self._pending[node] = self._client.send_fetch(node, parts, wait_ms_max=WAIT_MS_MAX, bytes_max=FETCH_BYTES_MAX)
            except Unreachable as error:
                self._client.forget(node)
                self._stalled(str(error))

    def _take(self, frame: Any, part: Fetched) -> tuple[_Progress, Any, int, list[tuple[int, int]]] | None:
        """Move a partition's position over what has arrived: (progress, batches, from which offset, aborted transactions)."""
        place = (part.topic, part.partition)
        progress = self._todo.get(place)
        if progress is None:
            return None
        if part.error:
            self._refused(place, progress, part.error)
            return None
        batches = read_batches(frame, start=part.start, end=part.end, place=f"{part.topic}/{part.partition}")
        next_offset = batches.next_offset
        if next_offset is None or next_offset <= progress.offset:
            self._stalled(f"{part.topic}/{part.partition}: nothing comes at offset {progress.offset} of {progress.slice.end}")
            return None
        self._moved_s = time.monotonic()
        start, progress.offset = progress.offset, next_offset
        if progress.done:
            del self._todo[place]
        return progress, batches, start, part.aborted

    def _refused(self, place: Place, progress: _Progress, code: int) -> None:
        if code == Error.OFFSET_OUT_OF_RANGE:
            start = self._client.list_offsets({place: EARLIEST})[place]
            if self._on_lost != "resume":
                raise LostOffsets(place, progress.offset, start)
            progress.offset = max(progress.offset, start) if start > progress.offset else progress.slice.end
            if progress.done:
                del self._todo[place]
        elif code in RETRIABLE:
            self._stalled(f"{place[0]}/{place[1]}: {Error(code).name}")
            with contextlib.suppress(Unreachable):  # asked again before the next request
                self._client.leader(place, fresh=True)
        else:
            raise BrokerError(f"reading {place[0]}/{place[1]} at offset {progress.offset}", code)

    def _stalled(self, what: str) -> None:
        if time.monotonic() - self._moved_s > STALL_S_MAX:
            raise PenstockError(
                f"reading stands still for {STALL_S_MAX:.0f} s: {what}", remedy="check the broker and that the topic was not cut short"
            )
        time.sleep(0.02)


def _allocate(size: int) -> Any:
    return np.empty(size, np.uint8)
