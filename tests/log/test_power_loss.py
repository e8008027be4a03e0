"""Thousands of power losses, and proof that the judge would notice a mistake. The long run is `python -m chaos.power_loss`."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

import pytest

from penstock.log import partition as partition_module
from penstock.testing.power_loss import LawBroken, Workload, run_many
from penstock.testing.storage import SimulatedFile, SimulatedStorage

STATES = 2_000


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("penstock.log"), "disabled", True)  # every cut tail would be a line


def test_level_os_keeps_what_was_synced_and_a_clean_prefix_of_the_rest() -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    assert run_many(seed=seed, states=STATES // 3, durability="os").cut > STATES / 60


def test_no_power_loss_takes_what_was_acknowledged() -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    stats = run_many(seed=seed, states=STATES)
    assert stats.states >= STATES
    assert stats.cut > STATES / 20, "too few states have a torn tail for the test to mean anything"
    for step in (
        "write *.log",
        "create *.log",
        "rename *.log",
        "unlink *.log",
        "write *.cleaned",
        "rename topic",
        "rename *.snapshot",
        "write recovery-points",
    ):
        assert stats.by_step.get(step), f"no crash was taken at '{step}'"


def _no_data_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    original = SimulatedFile.fdatasync
    monkeypatch.setattr(SimulatedFile, "fdatasync", lambda self: None if self._path.endswith(".log") else original(self))


def _no_directory_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    original = SimulatedStorage.sync_dir
    monkeypatch.setattr(
        SimulatedStorage, "sync_dir", lambda self, path: None if path.rsplit("/", 1)[-1].isdigit() else original(self, path)
    )


def _no_sync_of_compacted_files(monkeypatch: pytest.MonkeyPatch) -> None:
    original = SimulatedFile.fdatasync
    monkeypatch.setattr(SimulatedFile, "fdatasync", lambda self: None if self._path.endswith(".cleaned") else original(self))


def _start_after_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_module.checkpoint, "write", _without(partition_module.checkpoint.write, kind="start"))


def _without(write: Callable[..., None], *, kind: str) -> Callable[..., None]:
    return lambda storage, path, what, content: None if what == kind else write(storage, path, what, content)


@pytest.mark.parametrize("mistake", [_no_data_sync, _no_directory_sync, _no_sync_of_compacted_files, _start_after_the_files])
def test_the_judge_finds_a_mistake_in_the_log(monkeypatch: pytest.MonkeyPatch, mistake: Callable[[pytest.MonkeyPatch], None]) -> None:
    mistake(monkeypatch)
    with pytest.raises((LawBroken, AssertionError, FileNotFoundError)):
        run_many(seed=1, states=20_000, actions=120, share=0.3)


def test_a_run_is_a_function_of_its_seed() -> None:
    first, second = (Workload(42, actions=30).run() for _ in range(2))
    assert (first.states, first.steps, first.cut) == (second.states, second.steps, second.cut)
