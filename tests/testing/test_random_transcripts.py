"""Random transcripts: the kernels do what the oracle does, and what must not matter does not.

`PENSTOCK_SEEDS=2000 pytest tests/testing/test_random_transcripts.py` is the long run."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace

import pytest

from penstock.clock import MICROS
from penstock.dataflow.trigger import AfterCount, AfterWatermark, Repeatedly
from penstock.testing.host import Simulator
from penstock.testing.judge import Happened
from penstock.testing.transcript import FOREVER_US, Clock, Input, Pane, Restart, Step, Transcript, Watermark

from .oracle import OracleHost
from .random_transcripts import WINDOWS, random_transcript

SEEDS = int(os.environ.get("PENSTOCK_SEEDS", "25"))  # of each kind of window


def seen(happened: Happened, *, bounded: bool) -> tuple[object, ...]:
    panes = Counter(
        (p.key, p.window, tuple(sorted(p.values)), p.timing, p.index, p.on_time_index, p.first, p.last, p.sign) for p in happened.panes
    )
    late = Counter((record.key, record.at_us, record.value) for record in happened.late)
    held = happened.held if bounded else None
    return panes, late, None if held is None else (Counter(held.open), held.keys)


def answers(transcript: Transcript, host: Simulator | OracleHost) -> list[Happened]:
    (given,) = host.run([transcript])
    assert isinstance(given, list)
    return given


@pytest.mark.parametrize("kind", WINDOWS)
def test_kernels_and_oracle_agree(kind: str) -> None:
    bounded = kind in ("tumbling", "sliding", "session", "global")
    for seed in range(SEEDS):
        transcript = random_transcript(seed, kind=kind)
        expected = answers(transcript, OracleHost())
        host = Simulator(groups=1 + seed % 3, always_restart=seed % 5 == 0)
        for place, (want, got) in enumerate(zip(expected, answers(transcript, host), strict=True)):
            assert seen(got, bounded=bounded) == seen(want, bounded=bounded), f"{kind}, {transcript.name}, action {place}"


def undisturbed(seed: int, kind: str, accumulate: str) -> Transcript:
    """Never-finishing triggers and nothing late: the watermark only moves to the end when all records are there."""
    transcript = random_transcript(seed, kind=kind, trigger=AfterWatermark(early=Repeatedly(AfterCount(1 + seed % 3)), late=AfterCount(1)))
    stage = replace(transcript.stages[0], accumulate=accumulate, allowed_lateness_us=0)
    actions = [action for action in transcript.actions if isinstance(action, Input | Clock | Restart)]
    steps = tuple(Step(action, number, number) for number, action in enumerate([*actions, Watermark(10_000 * MICROS)]))
    return replace(transcript, stages=(stage,), steps=steps)


def recut(transcript: Transcript, size: int) -> Transcript:
    """The same records in batches of another size."""
    records = [record for action in transcript.actions if isinstance(action, Input) for record in action.records]
    batches = [Input(tuple(records[start : start + size])) for start in range(0, len(records), size)]
    actions = [*batches, Watermark(10_000 * MICROS)]
    return replace(transcript, steps=tuple(Step(action, number, number) for number, action in enumerate(actions)))


def panes_of(transcript: Transcript, **options: int) -> list[Pane]:
    return [pane for each in answers(transcript, Simulator(**options)) for pane in each.panes]


def final(panes: list[Pane]) -> dict[object, list[object]]:
    """What stands at the end: the last pane of each key and window."""
    return {(pane.key, pane.window): sorted(pane.values) for pane in panes if pane.sign == "+"}


@pytest.mark.parametrize("kind", ["tumbling", "sliding"])
@pytest.mark.parametrize("seed", range(12))
def test_the_final_result_does_not_depend_on_batches_or_groups(kind: str, seed: int) -> None:
    transcript = undisturbed(seed, kind, "accumulating")
    whole = final(panes_of(transcript))
    assert final(panes_of(recut(transcript, 1), groups=1)) == whole
    assert final(panes_of(recut(transcript, 7), groups=7)) == whole


@pytest.mark.parametrize("seed", range(12))
def test_sessions_end_the_same_whatever_the_batches(seed: int) -> None:
    transcript = undisturbed(seed, "session", "accumulating")
    last = {(pane.key, pane.window): sorted(pane.values) for pane in panes_of(transcript) if pane.timing == "on_time"}
    for size in (1, 4):
        other = panes_of(recut(transcript, size), groups=size)
        assert {(pane.key, pane.window): sorted(pane.values) for pane in other if pane.timing == "on_time"} == last


@pytest.mark.parametrize("kind", ["tumbling", "sliding", "session", "global"])
@pytest.mark.parametrize("seed", range(8))
def test_retractions_and_discarded_panes_add_up_to_the_accumulated_ones(kind: str, seed: int) -> None:
    accumulated = final(panes_of(undisturbed(seed, kind, "accumulating")))
    standing: Counter[object] = Counter()
    for pane in panes_of(undisturbed(seed, kind, "retracting")):
        for value in pane.values:
            standing[(pane.key, value)] += 1 if pane.sign == "+" else -1
    assert min(standing.values(), default=0) >= 0
    discarded = Counter((pane.key, value) for pane in panes_of(undisturbed(seed, kind, "discarding")) for value in pane.values)
    assert +standing == discarded, "both count each record once for each of its windows"
    if kind != "session":  # a session that was swallowed has a last pane of its own
        assert sum(map(len, accumulated.values())) == sum(discarded.values())


def test_forever_ends_everything() -> None:
    for seed in range(40):
        transcript = random_transcript(seed, length=10)
        steps = (*transcript.steps, Step(Watermark(FOREVER_US), 99, 99))
        assert answers(replace(transcript, steps=steps), Simulator())[-1].held == ((), 0)
