"""Deduplicate: of records with the same id less than `within` of event time apart, the first that arrives passes.

    forgotten ◀── 2 * within ──▶ judged by what is remembered ◀── within ──▶ watermark

Exact: every record whose time is later than the watermark - `within` is judged against all records it could repeat, because those
are remembered for twice that time; an older one cannot be judged and goes to the late output. Duplicates are counted, not kept. State is
the ids that passed and their times; a change save holds those that are new. Ids are compared as values, never by hash."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import PenstockError
from penstock.kernels.columns import framed, from_ipc, one_nan, to_ipc, unframed, unique_keys
from penstock.kernels.kernel import FOREVER_US, NEVER_US, TIME, Context, Output
from penstock.schema import Schema

FORMAT = 1
BUCKETS = 16  # per `within`: how finely the past is forgotten
Times = int | tuple[int, ...]  # when an id passed; several times if they were far apart


@dataclass(frozen=True, slots=True)
class DeduplicateKernel:
    """`columns` are the id; `keys` place it on a group and are part of it."""

    columns: tuple[str, ...]
    within_us: int
    keys: tuple[str, ...]
    schema: Schema

    @property
    def state_version(self) -> int:
        return 1

    @property
    def output(self) -> Schema:
        return self.schema

    @property
    def id_columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.keys, *self.columns)))

    def start(self) -> DeduplicateInstance:
        return DeduplicateInstance(self)

    def restore(self, saved: Sequence[bytes]) -> DeduplicateInstance:
        instance = DeduplicateInstance(self)
        for piece in saved:
            instance.load(piece)
        instance.forget()
        return instance


class DeduplicateInstance:
    """The ids that have passed, for one key group."""

    def __init__(self, kernel: DeduplicateKernel) -> None:
        assert kernel.within_us > 0, "the plan checks it"
        self.kernel = kernel
        self._passed: dict[Any, Times] = {}
        self._buckets: dict[int, list[Any]] = {}  # end of the bucket's time → ids that passed in it
        self._bucket_us = max(1, kernel.within_us // BUCKETS)
        self._watermark_us = NEVER_US
        self._new: list[tuple[Any, int]] = []
        self._saved_watermark_us = NEVER_US

    def on_batch(self, inputs: Sequence[pa.Table | None], at: Context) -> Output:
        rows = inputs[0]
        late, passed, counts = None, None, {}
        if rows is not None and rows.num_rows:
            judged = rows[TIME].is_valid().to_numpy() & (_times(rows) > at.watermark_us - self.kernel.within_us)
            if not judged.all():
                late = rows.filter(pa.array(~judged))
                rows = rows.filter(pa.array(judged))
                counts["late"] = late.num_rows
            keep = self._judge(rows) if rows.num_rows else np.zeros(0, np.bool_)
            passed = rows if keep.all() else rows.filter(pa.array(keep))
            counts["duplicates"] = rows.num_rows - passed.num_rows
        self._watermark_us = max(self._watermark_us, at.next_watermark_us)
        self.forget()
        counts["ids"] = len(self._passed)
        return Output(passed if passed is not None and passed.num_rows else None, late, counts=counts)

    def _judge(self, rows: pa.Table) -> Any:
        """Which rows pass. Ids that come once, or again close to the time at which they passed, are judged in bulk."""
        ids, codes = unique_keys(rows, self.kernel.id_columns)
        times, within_us = _times(rows), self.kernel.within_us
        order = np.argsort(codes, kind="stable")  # rows of an id together, in order of arrival
        starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
        firsts = order[starts]
        known = list(map(self._passed.get, ids))
        simple = np.fromiter((not isinstance(each, tuple) for each in known), np.bool_, len(ids))
        had = np.fromiter((each is not None for each in known), np.bool_, len(ids))
        before_us = np.fromiter((each if isinstance(each, int) else 0 for each in known), np.int64, len(ids))
        # `starts` rises with the code, so row `firsts[code]` is the first of id number `code`.
        first_us = times[firsts]
        repeats = had & (np.abs(first_us - before_us) < within_us)
        reference_us = np.where(repeats, before_us, first_us)
        near = np.abs(times - reference_us[codes]) < within_us
        near_all = np.ones(len(ids), np.bool_)
        np.logical_and.at(near_all, codes[~near], False)
        bulk = simple & near_all & ~(had & ~repeats)  # an id that passes again is kept with both times: the slow way
        keep = np.zeros(rows.num_rows, np.bool_)
        fresh = np.flatnonzero(bulk & ~repeats)
        keep[firsts[fresh]] = True
        self._remember([ids[code] for code in fresh.tolist()], first_us[fresh].tolist())
        ends = np.append(starts[1:], order.size)
        for code in np.flatnonzero(~bulk).tolist():
            for row in order[starts[code] : ends[code]].tolist():
                keep[row] = self._passes(ids[code], int(times[row]))
        return keep

    def _passes(self, id_: Any, time_us: int) -> bool:
        known = self._passed.get(id_)
        before = () if known is None else (known,) if isinstance(known, int) else known
        if any(abs(time_us - each_us) < self.kernel.within_us for each_us in before):
            return False
        self._remember([id_], [time_us])
        return True

    def _remember(self, ids: list[Any], times_us: list[int]) -> None:
        passed, width_us = self._passed, self._bucket_us
        for id_, time_us in zip(ids, times_us):
            known = passed.get(id_)
            passed[id_] = time_us if known is None else (*((known,) if isinstance(known, int) else known), time_us)
            self._buckets.setdefault((time_us // width_us + 1) * width_us, []).append(id_)
        self._new.extend(zip(ids, times_us))

    def forget(self) -> None:
        """Lets go of the buckets that no record which is still judged can repeat."""
        horizon_us = self._watermark_us - 2 * self.kernel.within_us
        for end_us in [end_us for end_us in self._buckets if end_us <= horizon_us]:
            for id_ in self._buckets.pop(end_us):
                known = self._passed.get(id_)
                kept = [each for each in ((known,) if isinstance(known, int) else known or ()) if each >= end_us]
                if len(kept) > 1:
                    self._passed[id_] = tuple(kept)
                elif kept:
                    self._passed[id_] = kept[0]
                else:
                    self._passed.pop(id_, None)

    def save(self, *, full: bool) -> bytes | None:
        """| JSON head | ids and their times (Arrow) |"""
        if not full and not self._new and self._watermark_us == self._saved_watermark_us:
            return None
        if full:
            entries = [(id_, each) for id_, known in self._passed.items() for each in ((known,) if isinstance(known, int) else known)]
        else:
            entries = self._new
        names = self.kernel.id_columns
        arrays: dict[str, Any] = {}
        for place, name in enumerate(names):
            values = [id_ if len(names) == 1 else id_[place] for id_, _ in entries]
            arrays[f"id {name}"] = pa.array(values, self.kernel.schema.to_arrow().field(name).type)
        arrays[TIME] = pa.array([time_us for _, time_us in entries], pa.int64())
        head = {"format": FORMAT, "within_us": self.kernel.within_us, "watermark_us": self._watermark_us}
        self._new, self._saved_watermark_us = [], self._watermark_us
        return framed(json.dumps(head).encode(), to_ipc(pa.table(arrays)))

    def load(self, piece: bytes) -> None:
        head_bytes, entries = unframed(piece)
        head = json.loads(head_bytes)
        if head["format"] != FORMAT or head["within_us"] != self.kernel.within_us:
            raise PenstockError(
                f"deduplicate remembers {head['within_us']} µs in the saved state and {self.kernel.within_us} µs in the plan",
                remedy="a changed plan needs a savepoint or a new checkpoint",
            )
        table = from_ipc(entries)
        names = self.kernel.id_columns
        columns = [list(map(one_nan, table[f"id {name}"].to_pylist())) for name in names]
        self._remember(columns[0] if len(names) == 1 else list(zip(*columns)), table[TIME].to_pylist())
        self._new = []
        self._watermark_us = self._saved_watermark_us = head["watermark_us"]


def _times(rows: pa.Table) -> Any:
    return rows[TIME].fill_null(-FOREVER_US).to_numpy()
