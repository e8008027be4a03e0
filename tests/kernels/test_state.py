"""Tables of slots: what is saved is what comes back, down to the order of free slots."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.kernels.state import Column, Index, Keys, Table, key_values

TEXTS = Column("text", "O", None, lambda values: pa.array(values, pa.string()), lambda array: array.to_pylist())
COLUMNS = (Column("key", "i8"), Column("start", "i8"), Column("end", "i8"), Column("far", "i8"), Column("real", "f8", np.nan), TEXTS)


def _contents(table: Table) -> dict[int, Any]:
    return {int(slot): tuple(repr(table[column.name][slot]) for column in COLUMNS) for slot in table.slots()}


@settings(deadline=None, max_examples=150, print_blob=True)
@given(
    st.lists(st.tuples(st.sampled_from(["add", "drop", "drop all", "change", "save", "save all"]), st.integers(0, 6)), max_size=30),
    st.randoms(use_true_random=False),
)
def test_a_full_save_and_the_changes_after_it_give_the_same_table(actions: Any, source: Any) -> None:
    table = Table(COLUMNS)
    saves = [table.save(full=True)]
    for action, count in [*actions, ("save", 0)]:
        slots = table.slots()
        match action:
            case "add":
                new = table.allocate(count)
                table["far"][new] = [source.choice([0, 1 << 62, -(1 << 62), 300]) for _ in range(count)]
                table["text"][new] = [source.choice([None, "a", ""]) for _ in range(count)]
            case "drop":
                table.release(np.array(source.sample(slots.tolist(), min(count, slots.size)), np.int64))
            case "drop all":
                table.release(slots)
            case "change":
                some = slots[:count]
                table["real"][some] = source.random()
                table.touch(some)
            case "save all":
                saves = [table.save(full=True)]
            case _:
                saves.append(table.save(full=False))
    again = Table(COLUMNS)
    again.load([saved for saved in saves if saved is not None])
    assert _contents(again) == _contents(table)
    assert again.count == table.count
    assert again.allocate(7).tolist() == table.allocate(7).tolist()


def test_the_index_finds_what_is_there_and_nothing_else() -> None:
    table = Table(COLUMNS)
    index = Index(table)
    source = np.random.default_rng(5)
    there: dict[tuple[int, int, int], int] = {}
    for _ in range(30):
        wanted = {tuple(map(int, row)) for row in source.integers(0, 40, (200, 3))} - set(there)
        slots = table.allocate(len(wanted))
        for name, values in zip(("key", "start", "end"), zip(*wanted)):
            table[name][slots] = values
        index.add(slots)
        there |= dict(zip(zip(*(table[name][slots].tolist() for name in ("key", "start", "end"))), slots.tolist()))
        gone = [place for place in there if source.random() < 0.3]
        over = np.array([there.pop(place) for place in gone], np.int64)
        index.remove(over)
        table.release(over)
        asked = source.integers(0, 40, (500, 3))
        found = index.find(*(np.ascontiguousarray(column) for column in asked.T))
        assert found.tolist() == [there.get(tuple(map(int, place)), -1) for place in asked]


def test_keys_are_equal_as_in_sql_and_forgotten_when_nothing_refers_to_them() -> None:
    keys = Keys([pa.float64()])
    column = pa.array([1.0, float("nan"), None, 0.0, -0.0, -float("nan"), 1.0])
    slots = np.concatenate([keys.intern([key]) for key in key_values([column], len(column))])
    assert len(set(slots.tolist())) == 4
    keys.add_refs(slots[:1])
    keys.forget_unused()
    assert len(keys) == 1
    again = Keys([pa.float64()])
    saved = keys.table.save(full=True)
    assert saved is not None
    again.load([saved])
    assert again.intern([1.0]).tolist() == slots[:1].tolist()
