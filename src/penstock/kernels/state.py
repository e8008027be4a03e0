"""The state of a key group as columns: tables of slots, the keys that own them, and an index of windows.

    Keys     key value ──▶ slot            | slot | key | refs | columns per key …
    Table    slot ──▶ one row of columns   | slot | key | start | end | columns per window …
    Index    (key, start, end) ──▶ slot

Invariant: a slot is live or on the free stack, never both; what a batch costs follows the slots it touches, not the
slots there are. `save` gives Arrow bytes of everything or of the touched slots, and restoring a full save and the changes
after it gives equal tables, down to the order in which free slots are handed out, so that a re-run gives the same rows
in the same order. Nothing here knows what the columns mean."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import PenstockError

Array = Any  # a numpy array; what compiled loops and gathers give has no type that a checker could follow
_CAPACITY_MIN = 64
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its numpy type, what an unused slot holds, and for object columns the way to Arrow and back."""

    name: str
    dtype: str
    neutral: Any = 0
    pack: Callable[[Sequence[Any]], pa.Array] | None = None
    unpack: Callable[[pa.Array], Sequence[Any]] | None = None


_SLOT = Column("slot", "i8")


class Table:
    """Slots with columns."""

    def __init__(self, columns: Iterable[Column]) -> None:
        self.columns = tuple(columns)
        self.data: dict[str, Array] = {column.name: _full(0, column) for column in self.columns}
        self.live: Array = np.zeros(0, np.bool_)
        self.next_slot = 0
        self.count = 0
        self._free: Array = np.zeros(0, np.int64)
        self._free_count = 0
        self._free_low = 0  # how deep the stack has been used since the last save
        self._next_saved = 0
        self._touched: list[Array] = []
        self._dirty: Array = np.zeros(0, np.bool_)  # whether a slot is in `_touched`

    def __getitem__(self, name: str) -> Array:
        return self.data[name]

    def allocate(self, count: int) -> Array:
        """Slots for new rows, with neutral columns."""
        reused = min(count, self._free_count)
        self._free_count -= reused
        self._free_low = min(self._free_low, self._free_count)
        old = self._free[self._free_count : self._free_count + reused][::-1]
        new = np.arange(self.next_slot, self.next_slot + count - reused)
        self.next_slot += count - reused
        self._reserve(self.next_slot)
        slots = np.concatenate([old, new])
        for column in self.columns:
            self.data[column.name][slots] = column.neutral
        self.live[slots] = True
        self.count += count
        self.touch(slots)
        return slots

    def release(self, slots: Array) -> None:
        for column in self.columns:
            if column.dtype == "O":
                self.data[column.name][slots] = None  # lets go of the memory now, not when the slot is used again
        self.live[slots] = False
        self.count -= slots.size
        end = self._free_count + slots.size
        if end > self._free.size:
            self._free = np.resize(self._free, max(end, 2 * self._free.size, _CAPACITY_MIN))
        self._free[self._free_count : end] = slots
        self._free_count = end
        if not self.count:  # a crowd has gone: looking through the table is short again
            self.next_slot = self._free_count = self._free_low = 0

    def touch(self, slots: Array) -> None:
        """These slots have changed since the last save."""
        new = slots[~self._dirty[slots]]
        if new.size:
            self._dirty[new] = True
            self._touched.append(new)

    def slots(self) -> Array:
        """All live slots, rising."""
        return np.flatnonzero(self.live[: self.next_slot])

    def where(self, condition: Array) -> Array:
        """Live slots for which the condition (over all slots) holds, rising."""
        return np.flatnonzero(condition[: self.next_slot] & self.live[: self.next_slot])

    def save(self, *, full: bool) -> bytes | None:
        if full:
            slots = self.slots()
        elif not self._touched and self._free_low == self._free_count and self.next_slot == self._next_saved:
            return None
        else:
            touched = np.concatenate(self._touched) if self._touched else np.zeros(0, np.int64)
            slots = np.unique(touched[self.live[touched]])
        low = 0 if full else self._free_low
        arrays, bases = _to_arrow(_SLOT, slots, {})
        for column in self.columns:
            more, bases = _to_arrow(column, self.data[column.name][slots], bases)
            arrays |= more
        batch = pa.record_batch(list(arrays.values()), names=list(arrays))
        free = self._free[low : self._free_count]
        head = {"next": self.next_slot, "low": low, "bases": bases}
        for touched in self._touched:
            self._dirty[touched] = False
        self._touched = []
        self._free_low, self._next_saved = self._free_count, self.next_slot
        return _frame(json.dumps(head).encode(), free.astype("<i8").tobytes(), _to_ipc(batch))

    def load(self, saved: Sequence[bytes]) -> None:
        """A full save and the changes after it, into an empty table."""
        for piece in saved:
            head_bytes, free_bytes, rows = _unframe(piece)
            head = json.loads(head_bytes)
            self.next_slot = head["next"]
            self._reserve(self.next_slot)
            self._free = np.concatenate([self._free[: head["low"]], np.frombuffer(free_bytes, "<i8").astype(np.int64)])
            batch = _from_ipc(rows)
            slots = _from_arrow(_SLOT, batch, head["bases"])
            for column in self.columns:
                self.data[column.name][slots] = _from_arrow(column, batch, head["bases"])
        self._free_count = self._free_low = self._free.size
        self._next_saved = self.next_slot
        self.live[: self.next_slot] = True
        self.live[self._free] = False
        self.count = self.next_slot - self._free.size
        for column in self.columns:
            if column.dtype == "O":
                self.data[column.name][self._free] = None

    def _reserve(self, size: int) -> None:
        if size <= self.live.size:
            return
        capacity = max(_CAPACITY_MIN, 2 * self.live.size, size)
        more = capacity - self.live.size
        self.live = np.concatenate([self.live, np.zeros(more, np.bool_)])
        self._dirty = np.concatenate([self._dirty, np.zeros(more, np.bool_)])
        for column in self.columns:
            self.data[column.name] = np.concatenate([self.data[column.name], _full(more, column)])


class Keys:
    """The keys of a group. A key's slot is held as long as something refers to it (`refs`)."""

    def __init__(self, types: Sequence[pa.DataType], columns: Iterable[Column] = ()) -> None:
        self._types = tuple(types)
        key = Column("key", "O", None, self._pack, self._unpack)
        self.table = Table([key, Column("refs", "i8"), *columns])
        self._slots: dict[Any, int] = {}
        self._loose: list[Array] = []  # keys that may have lost, or not yet got, what refers to them

    def __getitem__(self, name: str) -> Array:
        return self.table.data[name]

    def __len__(self) -> int:
        return self.table.count

    def intern(self, keys: Sequence[Any]) -> Array:
        """The slot of each of these different keys; new ones get one, and lose it at `forget_unused` if nothing refers to them then."""
        find = self._slots.get
        slots = np.fromiter((find(key, -1) for key in keys), np.int64, len(keys))
        missing = np.flatnonzero(slots < 0)
        if missing.size:
            new = self.table.allocate(missing.size)
            slots[missing] = new
            self._loose.append(new)
            values = self.table["key"]
            for slot, at in zip(new.tolist(), missing.tolist()):
                self._slots[keys[at]] = slot
                values[slot] = keys[at]
        return slots

    def add_refs(self, slots: Array, sign: int = 1) -> None:
        np.add.at(self.table["refs"], slots, sign)
        self.table.touch(slots)
        if sign < 0:
            self._loose.append(slots)

    def forget_unused(self) -> None:
        """Drop the keys to which nothing refers any more."""
        if not self._loose:
            return
        slots = np.unique(np.concatenate(self._loose))
        self._loose = []
        unused = slots[self.table["refs"][slots] == 0]
        for key in self.table["key"][unused]:
            del self._slots[key]
        if unused.size:
            self.table.release(unused)

    def arrays(self, slots: Array) -> list[pa.Array]:
        """The key columns of these slots."""
        return self._columns(self.table["key"][slots].tolist())

    def load(self, saved: Sequence[bytes]) -> None:
        self.table.load(saved)
        slots = self.table.slots()
        self._slots = dict(zip(self.table["key"][slots].tolist(), slots.tolist()))

    def _columns(self, keys: Sequence[Any]) -> list[pa.Array]:
        match len(self._types):
            case 0:
                return []
            case 1:
                return [_key_array(keys, self._types[0])]
            case _:
                return [_key_array([key[i] for key in keys], each) for i, each in enumerate(self._types)]

    def _pack(self, keys: Sequence[Any]) -> pa.Array:
        columns = self._columns(keys) or [pa.nulls(len(keys))]
        return pa.StructArray.from_arrays(columns, names=[str(i) for i in range(len(columns))])

    def _unpack(self, array: pa.Array) -> Sequence[Any]:
        return key_values([array.field(i) for i in range(len(self._types))], len(array))


class Index:
    """From (key, start, end) to the slot of a table that has these three columns. Rebuilt on restore, never saved."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._head: Array = np.full(1024, -1, np.int64)
        self._link: Array = np.full(1024, -1, np.int64)
        self._count = 0

    def find(self, key: Array, start: Array, end: Array) -> Array:
        from penstock.kernels import loops

        table = self._table
        return loops.index_find(self._head, self._link, table["key"], table["start"], table["end"], key, start, end)

    def add(self, slots: Array) -> None:
        from penstock.kernels import loops

        table = self._table
        if table.live.size > self._link.size:
            self._link = np.concatenate([self._link, np.full(table.live.size - self._link.size, -1, np.int64)])
        self._count += slots.size
        if self._count > self._head.size:
            self._head = np.full(1 << (2 * self._count - 1).bit_length(), -1, np.int64)
            slots = table.slots()
            self._count = slots.size
        loops.index_add(self._head, self._link, table["key"], table["start"], table["end"], slots)

    def remove(self, slots: Array) -> None:
        from penstock.kernels import loops

        table = self._table
        loops.index_remove(self._head, self._link, table["key"], table["start"], table["end"], slots)
        self._count -= slots.size


def key_values(columns: Sequence[pa.Array], count: int) -> list[Any]:
    """Keys as Python values that can stand in a dict: one value, or a tuple for several columns. One NaN, one zero."""
    plain = [_key_list(column) for column in columns]
    match len(plain):
        case 0:
            return [()] * count
        case 1:
            return plain[0]
        case _:
            return list(zip(*plain))


_NAN = float("nan")  # one object: dicts find a NaN by identity


def _key_list(column: pa.Array) -> list[Any]:
    values = key_plain(column).to_pylist()
    if pa.types.is_floating(column.type):
        return [value if value is None or value == value else _NAN for value in values]
    return values  # type: ignore[no-any-return]


def key_plain(column: pa.Array) -> pa.Array:
    """A key column in the form in which equal keys have equal bits: times as integers, one zero, one NaN."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        return column.cast(pa.int64())
    if pa.types.is_date32(kind):
        return column.cast(pa.int32())
    if pa.types.is_floating(kind):
        values = column.fill_null(0.0).to_numpy(zero_copy_only=False) + 0.0
        values[values != values] = np.nan
        return pa.array(values, kind, mask=column.is_null().to_numpy(zero_copy_only=False))
    return column


def _key_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).cast(kind)
    if pa.types.is_date32(kind):
        return pa.array(values, pa.int32()).cast(kind)
    return pa.array(values, kind)


def pack_state(parts: Mapping[str, bytes], *, version: int, marks: Mapping[str, int]) -> bytes:
    """Several tables and a few numbers in one value: a head that names them, then the tables' bytes."""
    head = {"format": FORMAT, "version": version, "marks": dict(marks), "parts": list(parts)}
    return _frame(json.dumps(head).encode(), *parts.values())


def unpack_state(saved: bytes, *, version: int) -> tuple[dict[str, bytes], dict[str, int]]:
    head_bytes, *parts = _unframe(saved)
    head = json.loads(head_bytes)
    if head["format"] != FORMAT or head["version"] != version:
        raise PenstockError(
            f"the saved state has format {head['format']} and version {head['version']}, this kernel reads {FORMAT} and {version}",
            remedy="start from a savepoint made for this version, or with a new checkpoint",
        )
    return dict(zip(head["parts"], parts)), head["marks"]


# | count u32 | length u64 … | bytes … |
def _frame(*parts: bytes) -> bytes:
    lengths = np.array([len(part) for part in parts], "<u8").tobytes()
    return b"".join([np.uint32(len(parts)).tobytes(), lengths, *parts])


def _unframe(data: bytes) -> list[bytes]:
    count = int(np.frombuffer(data, "<u4", 1)[0])
    lengths = np.frombuffer(data, "<u8", count, offset=4)
    ends = 4 + 8 * count + np.cumsum(lengths, dtype=np.int64)
    if int(ends[-1] if count else 4) != len(data):
        raise PenstockError("the saved state is damaged: its length is not the one written in it", remedy="restore an older checkpoint")
    return [bytes(data[end - int(length) : end]) for end, length in zip(ends.tolist(), lengths.tolist())]


def _to_ipc(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _from_ipc(data: bytes) -> pa.RecordBatch:
    return pa.ipc.open_stream(data).read_next_batch()


def _full(count: int, column: Column) -> Array:
    return np.full(count, None if column.dtype == "O" else column.neutral, column.dtype)


_WIDTHS = ((1 << 8, np.uint8), (1 << 16, np.uint16), (1 << 32, np.uint32))


def _to_arrow(column: Column, values: Array, bases: dict[str, int]) -> tuple[dict[str, pa.Array], dict[str, int]]:
    """The column as it is written: left out if all is neutral, whole numbers as small distances from their least."""
    if column.dtype == "O":
        assert column.pack is not None, f"object column {column.name} cannot be saved"
        return {column.name: column.pack(values.tolist())}, bases
    if column is not _SLOT and bool((values == column.neutral).all()):
        return {}, bases
    if values.dtype.kind == "i" and values.size:
        base = int(values.min())
        span = int(values.max()) - base
        for limit, narrow in _WIDTHS:
            if span < limit:
                return {column.name: pa.array((values - base).astype(narrow))}, {**bases, column.name: base}
    return {column.name: pa.array(values)}, bases


def _from_arrow(column: Column, batch: pa.RecordBatch, bases: Mapping[str, int]) -> Array:
    at = batch.schema.get_field_index(column.name)
    if at < 0:
        return np.full(batch.num_rows, column.neutral, column.dtype)
    array = batch.column(at)
    if column.dtype == "O":
        assert column.unpack is not None
        return objects(column.unpack(array))
    values: Array = array.to_numpy(zero_copy_only=False).astype(column.dtype)
    return values + bases[column.name] if column.name in bases else values


def objects(values: Sequence[Any]) -> Array:
    """A one-dimensional object array, also of lists and tuples."""
    out = np.empty(len(values), object)
    for i, value in enumerate(values):
        out[i] = value
    return out
