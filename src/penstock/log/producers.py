"""What a partition remembers of its producers: sequences, epochs, open and aborted transactions.

Invariant: the state is a function of the batches in the log up to `next_offset`, in order, and of nothing else; so it can be saved at any
offset and brought up to date by replaying the batches after it. `check` decides without changing anything, `apply` changes
without deciding: a batch that was checked and then not written leaves no trace.

A repeat of one of the last `WINDOW` batches of a producer is a duplicate and gets its first offset again; anything else must follow the
last sequence without a gap. Not here: which producer id belongs to whom (the transaction coordinator knows)."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock.log.batch import BatchHeader, sequence_after
from penstock.log.errors import InvalidProducerEpoch, InvalidTransactionState, OutOfOrderSequence

WINDOW = 5
NO_SEQUENCE = -1
EXPIRATION_MS = 86_400_000  # a producer without an open transaction is forgotten a day after its last batch


class Written(NamedTuple):
    """One batch in the idempotence window."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    next_offset: int


class Aborted(NamedTuple):
    """An aborted transaction: its records are in [first_offset, next_offset), the marker is the last of them."""

    producer_id: int
    first_offset: int
    next_offset: int


@dataclass(slots=True)
class Producer:
    epoch: int
    written: deque[Written] = field(default_factory=lambda: deque(maxlen=WINDOW))
    open_from: int | None = None  # first offset of the open transaction
    seen_ms: int = -1  # when it last wrote, by the broker's clock: the times of its records may be of last year. -1: not since the start
    last_offset: int = -1  # of its last batch; what compaction must keep

    @property
    def last_sequence(self) -> int:
        return self.written[-1].last_sequence if self.written else NO_SEQUENCE


class Producers:
    def __init__(self) -> None:
        self.by_id: dict[int, Producer] = {}
        self.open: dict[int, int] = {}  # producer id -> first offset of its open transaction
        self.aborted: list[Aborted] = []  # in the order of their markers, that is, sorted by next_offset
        self._ending: deque[tuple[int, int]] = deque()  # (first offset, offset after the marker) of those ended last

    # --- append ------------------------------------------------------------------------------------------------------

    def check(self, header: BatchHeader, *, place: str) -> Written | None:
        """Whether a batch may be appended: the earlier one if it is a duplicate, None if it is new; otherwise raises."""
        producer = self.by_id.get(header.producer_id)
        if producer is None:
            return None  # unknown or long forgotten: any sequence may start, as in Kafka
        who = f"{place}: producer {header.producer_id}"
        if header.producer_epoch < producer.epoch:
            raise InvalidProducerEpoch(
                f"{who} epoch {header.producer_epoch} is fenced by epoch {producer.epoch}",
                remedy="close this producer: a newer one took over",
            )
        if header.is_control:
            return None
        if header.producer_epoch == producer.epoch and header.base_sequence >= 0:
            for written in producer.written:
                if written.first_sequence == header.base_sequence and written.last_sequence == header.last_sequence:
                    return written
        if header.base_sequence >= 0:
            last = producer.last_sequence if header.producer_epoch == producer.epoch else NO_SEQUENCE
            expected = sequence_after(last, 1) if last >= 0 else 0
            if header.base_sequence != expected:
                raise OutOfOrderSequence(f"{who} epoch {header.producer_epoch}: sequence {header.base_sequence} where {expected} should be")
        if producer.open_from is not None and not header.is_transactional:
            raise InvalidTransactionState(f"{who}: a batch outside of the transaction it has open")
        return None

    def apply(self, header: BatchHeader, *, base_offset: int, commits: bool | None, now_ms: int = -1) -> None:
        """Take note of a written batch. `commits` says how a control batch ends the transaction; None for data. Without
        `now_ms` it is a replay."""
        if header.producer_id < 0:
            return
        producer = self.by_id.get(header.producer_id)
        if producer is None:
            producer = self.by_id[header.producer_id] = Producer(epoch=header.producer_epoch)
        elif header.producer_epoch > producer.epoch:
            producer.epoch = header.producer_epoch
            producer.written.clear()
        next_offset = base_offset + header.last_offset_delta + 1
        producer.seen_ms = now_ms
        if commits is not None:
            self._end_transaction(header.producer_id, producer, next_offset, commits=commits)
            return
        producer.last_offset = next_offset - 1
        if header.base_sequence >= 0:
            producer.written.append(Written(header.base_sequence, header.last_sequence, base_offset, next_offset))
        if header.is_transactional and producer.open_from is None:
            producer.open_from = self.open[header.producer_id] = base_offset

    def _end_transaction(self, producer_id: int, producer: Producer, next_offset: int, *, commits: bool) -> None:
        first_offset = producer.open_from
        if first_offset is None:
            return  # a repeated marker, or a transaction that wrote nothing here
        if not commits:
            self.aborted.append(Aborted(producer_id, first_offset, next_offset))
        producer.open_from = None
        del self.open[producer_id]
        self._ending.append((first_offset, next_offset))

    # --- transactions ------------------------------------------------------------------------------------------------

    def first_unstable_offset(self, *, high_watermark: int) -> int | None:
        """The first offset of a transaction that is open, or whose marker a crash might still take back."""
        ending = self._ending
        while ending and ending[0][1] <= high_watermark:  # markers are in order
            ending.popleft()
        if not self.open and not ending:
            return None
        return min([*self.open.values(), *(first for first, _ in ending)])

    def aborted_between(self, start: int, end: int) -> list[Aborted]:
        """Aborted transactions with a record in [start, end)."""
        if not self.aborted:
            return []
        first = bisect_left(self.aborted, start + 1, key=lambda aborted: aborted.next_offset)
        return [aborted for aborted in self.aborted[first:] if aborted.first_offset < end]

    # --- forgetting --------------------------------------------------------------------------------------------------

    def forget_before(self, start_offset: int) -> None:
        """Aborted transactions that no longer have a record in the log."""
        if self.aborted and self.aborted[0].next_offset <= start_offset:
            self.aborted = [aborted for aborted in self.aborted if aborted.next_offset > start_offset]

    def expire(self, *, now_ms: int, expiration_ms: int = EXPIRATION_MS) -> None:
        for producer_id, producer in list(self.by_id.items()):
            if producer.seen_ms < 0:
                producer.seen_ms = now_ms  # read from the log after a restart: its time begins now
            elif producer.open_from is None and now_ms - producer.seen_ms > expiration_ms:
                del self.by_id[producer_id]

    # --- snapshots ---------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        return {
            "producers": [
                [pid, p.epoch, p.open_from, p.seen_ms, p.last_offset, [list(written) for written in p.written]]
                for pid, p in sorted(self.by_id.items())
            ],
            "aborted": [list(aborted) for aborted in self.aborted],
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Producers:
        state = cls()
        for pid, epoch, open_from, seen_ms, last_offset, written in content["producers"]:
            window = deque((Written(*fields) for fields in written), maxlen=WINDOW)
            state.by_id[pid] = Producer(epoch, window, open_from, seen_ms, last_offset)
            if open_from is not None:
                state.open[pid] = open_from
        state.aborted = [Aborted(*fields) for fields in content["aborted"]]
        return state
