"""The host without Spark: what it keeps, what it forwards, what it trusts."""

from __future__ import annotations

from collections import defaultdict

import pytest

from penstock.kernels.envelope import COUNTS, Envelope, open_table
from penstock.spark import host as hosts
from penstock.spark.host import Head, Host

from .toy import chain, step


class MemoryStore:
    """A group's state in a dict, and what was done to it."""

    def __init__(self) -> None:
        self.value: Head | None = None
        self.base: bytes | None = None
        self.deltas: list[bytes] = []
        self.calls: list[str] = []

    def head(self) -> Head | None:
        return self.value

    def saved(self) -> list[bytes]:
        self.calls.append("saved")
        assert self.base is not None
        return [self.base, *self.deltas]

    def put_head(self, head: Head) -> None:
        self.calls.append("head")
        self.value = head

    def put_base(self, base: bytes | None) -> None:
        self.calls.append("base")
        self.base, self.deltas = base, []

    def add_delta(self, delta: bytes) -> None:
        self.calls.append("delta")
        self.deltas.append(delta)


class Chain:
    """Both stages of the toy plan, run group by group as Spark would."""

    def __init__(self, *, groups: int = 4, on_tick: bool = False) -> None:
        plan = chain(groups=groups, on_tick=on_tick)
        self.hosts = [Host(plan.stages[0], job="t", after=[(2, 0, groups)]), Host(plan.stages[1], job="t", after=[])]
        self.stores: dict[tuple[int, int], MemoryStore] = defaultdict(MemoryStore)

    def play(self, envelopes: list[Envelope]) -> list[tuple[int, str, int]]:
        for host in self.hosts:
            by_group: dict[int, list[Envelope]] = defaultdict(list)
            for envelope in envelopes:
                by_group[envelope[0]].append(envelope)
            envelopes = [
                answer
                for group in sorted(by_group)
                for answer in host.on_batch(group, by_group[group], self.stores[(host.stage.id, group)])
            ]
        self.counts = [each for each in envelopes if each.to == COUNTS]
        return sorted(
            (each.source, row["k"], row["n"])
            for each in envelopes
            if each.to == 3 and each.payload
            for row in open_table(each.payload).to_pylist()
        )


@pytest.fixture(autouse=True)
def _empty_cache() -> None:
    hosts._cache.clear()


def test_rows_and_watermark_go_through_both_stages_in_one_batch() -> None:
    chain = Chain()
    assert chain.play(step([("a", 5), ("b", 9), ("a", 10)])) == [(1, "a", 2), (1, "b", 1), (2, "a", 2), (2, "b", 1)]


def test_a_batch_that_does_not_move_the_watermark_gives_nothing() -> None:
    chain = Chain()
    chain.play(step([("a", 10)]))
    assert chain.play(step([("a", 9)])) == []


def test_late_is_judged_by_the_watermark_at_the_start_of_the_batch() -> None:
    chain = Chain()
    chain.play(step([("a", 10)]))  # watermark 8
    assert chain.play(step([("a", 8), ("a", 7), ("a", 20)]))[0] == (1, "a", 3)
    assert sum(1 for each in chain.counts if '"late": 1' in (each.counts or "")) == 1


def test_a_tick_reaches_the_kernel_and_is_kept() -> None:
    chain = Chain(on_tick=True)
    chain.play(step([("a", 10)]))
    assert chain.play(step(tick_us=7)) == [(1, "a", 1)]  # the second stage has no tick, and its watermark stands
    assert {store.value.now_us for (stage, _), store in chain.stores.items() if stage == 1 and store.value} == {7}


def test_restored_state_equals_the_cached_instance() -> None:
    cached, restored = Chain(), Chain()
    for index in range(6):
        batch = step([(f"k{index % 3}", 10 * index), ("a", 10 * index)])
        expected = cached.play(batch)
        hosts._cache.clear()
        assert restored.play(batch) == expected
        hosts._cache.clear()


def test_a_cached_instance_whose_batch_was_not_committed_is_not_used() -> None:
    chain = Chain(groups=1)
    chain.play(step([("a", 10)], groups=1))
    store = chain.stores[(1, 0)]
    committed = store.value
    chain.play(step([("a", 20)], groups=1))
    store.value = committed  # the task failed after it had saved: Spark rolls its state back
    assert chain.play(step([("a", 20)], groups=1))[0] == (1, "a", 2)


def test_a_large_state_is_written_as_changes_and_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "HEAD_BYTES_MAX", 200)
    chain = Chain(groups=1)
    chain.play(step([(f"key-{index}", 10) for index in range(100)], groups=1))
    store = chain.stores[(1, 0)]
    assert store.calls == ["base", "head"]
    for index in range(100):
        store.calls.clear()
        chain.play(step([("key-1", 20 + index)], groups=1))
        assert store.calls in (["delta", "head"], ["base", "head"])
        assert sum(map(len, store.deltas)) <= len(store.base or b"")
    hosts._cache.clear()
    assert {key: count for source, key, count in chain.play(step([("key-1", 500)], groups=1)) if source == 1}["key-1"] == 102
    assert "saved" in store.calls


def test_state_of_another_version_is_refused() -> None:
    chain = Chain(groups=1)
    chain.play(step([("a", 10)], groups=1))
    hosts._cache.clear()
    store = chain.stores[(1, 0)]
    assert store.value is not None
    store.value = store.value._replace(version=9)
    with pytest.raises(Exception, match="step 'first': the checkpoint holds state of version 9"):
        chain.play(step([("a", 10)], groups=1))
