"""Laws of windows: what the final result may not depend on, and how the refinements relate."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.dataflow import trigger as triggers
from penstock.dataflow import window as windows
from tests.kernels.windowed import Step

Record = tuple[float, str, int]
RECORDS = st.lists(st.tuples(st.integers(-20, 40), st.sampled_from("kla"), st.integers(-5, 5)), max_size=25)
WINDOWS = st.sampled_from([
    windows.tumbling(10), windows.tumbling(7, offset=3), windows.sliding(10, every=5), windows.sliding(9, every=2, offset=1), windows.session(4),
])  # fmt: skip
NEVER_FINISHING = st.sampled_from([
    triggers.DEFAULT,
    triggers.after_watermark(early=triggers.after_count(2), late=triggers.after_count(1)),
    triggers.repeatedly(triggers.after_count(3)),
    triggers.repeatedly(triggers.after_any(triggers.after_count(4), triggers.after_watermark())),
    triggers.every(2),
])  # fmt: skip
SLOW = settings(deadline=None, max_examples=40, print_blob=True)


def _batches(records: list[Record], cuts: list[int]) -> list[list[Record]]:
    edges = sorted({0, len(records), *(cut % (len(records) + 1) for cut in cuts)})
    return [records[a:b] for a, b in itertools.pairwise(edges)]


def _run(step: Step, batches: list[list[Record]], watermarks: list[int]) -> None:
    """Batches with watermarks that make nothing late, then the end."""
    for number, batch in enumerate(batches):
        later = [record[0] for rest in batches[number + 1 :] for record in rest]
        bound = min(later, default=100)
        step.batch(
            batch,
            watermark=max(step.watermark_us / 1e6, min(bound, watermarks[number % len(watermarks)])) if watermarks else None,
            now=number,
        )
    step.batch(watermark=1_000)


def _final(panes: list[dict[str, Any]]) -> dict[Any, list[int]]:
    """The last pane of each key and window, retracted ones left out."""
    live: dict[Any, list[int]] = {}
    for pane in panes:
        place = pane["key"], pane["window_start"], pane["window_end"]
        if pane.get("sign", 1) < 0:
            live.pop(place, None)
        else:
            live[place] = sorted(pane["values"])
    return live


@SLOW
@given(RECORDS, st.lists(st.integers(0, 30)), st.lists(st.integers(-20, 40)), WINDOWS, NEVER_FINISHING)
def test_the_result_does_not_depend_on_batches_restarts_or_combining(
    records: Any, cuts: Any, watermarks: Any, window: Any, trigger: Any
) -> None:
    whole = Step(window, trigger=trigger, refinement="retracting")
    _run(whole, [records], [])
    for way in ({}, {"restarts": True}, {"combined": whole.kernel.combinable}):
        step = Step(window, trigger=trigger, refinement="retracting", **way)  # type: ignore[arg-type]
        _run(step, _batches(records, cuts), watermarks)
        assert _final(step.panes) == _final(whole.panes)
        assert not step.late
        assert step.instance.held() == []
        assert step.counts["keys"] == 0


@SLOW
@given(RECORDS, st.lists(st.integers(0, 30)), st.lists(st.integers(-20, 40)), WINDOWS, NEVER_FINISHING)
def test_retractions_sum_to_the_accumulated_and_discarding_panes_add_up(
    records: Any, cuts: Any, watermarks: Any, window: Any, trigger: Any
) -> None:
    steps = {name: Step(window, trigger=trigger, refinement=name) for name in ("accumulating", "retracting", "discarding")}
    for step in steps.values():
        _run(step, _batches(records, cuts), watermarks)
    signed: dict[Any, Counter[int]] = defaultdict(Counter)
    for pane in steps["retracting"].panes:
        place = pane["key"], pane["window_start"], pane["window_end"]
        for value in pane["values"]:
            signed[place][value] += pane["sign"]
    retracted = {place: sorted(values.elements()) for place, values in signed.items() if any(values.values())}
    assert retracted == {place: values for place, values in _final(steps["retracting"].panes).items() if values}
    if isinstance(window, windows.Session):
        by_key: dict[str, list[int]] = defaultdict(list)
        for pane in steps["discarding"].panes:
            by_key[pane["key"]] += pane["values"]
        assert {key: sorted(values) for key, values in by_key.items()} == _by_key(records)
        return
    assert retracted == _final(steps["accumulating"].panes)
    added: dict[Any, list[int]] = defaultdict(list)
    for pane in steps["discarding"].panes:
        added[pane["key"], pane["window_start"], pane["window_end"]] += pane["values"]
    assert {place: sorted(values) for place, values in added.items()} == retracted


def _by_key(records: list[Record]) -> dict[str, list[int]]:
    by_key: dict[str, list[int]] = defaultdict(list)
    for _, key, value in records:
        by_key[key].append(value)
    return {key: sorted(values) for key, values in by_key.items()}


@SLOW
@given(RECORDS, st.lists(st.integers(0, 30)), st.sampled_from([
    windows.count(3), windows.count(4, every=2), windows.count(5, every=3), windows.count(2, every=3), windows.delta("value", 3), windows.punctuation("stop"),
    windows.Last(range_count=3, every_count=2), windows.Last(range_us=5_000_000, every_count=2), windows.Last(range_delta=("value", 3.0), every_delta=("value", 2.0)),
    windows.Last(range_count=2, every_delta=("value", 3.0)),
]))  # fmt: skip
def test_windows_by_order_are_exact_whatever_the_batches(records: Any, cuts: Any, window: Any) -> None:
    schema = "key STRING, value BIGINT, stop BOOLEAN"
    records = [(at, key, value, value == 0) for at, key, value in records]
    shown = []
    for cut, restarts in (([], False), (cuts, True)):
        step = Step(window, schema=_schema(schema), restarts=restarts)
        for batch in _batches(records, cut):
            step.batch(batch)
        step.batch(watermark=(1 << 62) / 1e6)
        shown.append(Counter((pane["key"], tuple(pane["values"]), pane["pane_timing"], pane["is_last"]) for pane in step.panes))
    assert shown[0] == shown[1]


def _schema(text: str) -> Any:
    from penstock.schema import Schema

    return Schema.of(text)


@SLOW
@given(RECORDS, st.lists(st.integers(-20, 40), min_size=1), st.lists(st.integers(0, 30)))
def test_the_last_records_by_time_are_those_before_each_step(records: Any, watermarks: Any, cuts: Any) -> None:
    step = Step(windows.Last(range_count=3, every_us=10_000_000), restarts=True)
    _run(step, _batches(records, cuts), watermarks)
    expected = Counter()
    for key in "kla":
        mine = sorted(((at, offset, value) for offset, (at, k, value) in enumerate(records) if k == key))
        for end in {at // 10 * 10 + 10 for at, _, _ in mine}:
            expected[key, tuple(value for at, _, value in mine if at < end)[-3:]] += 1
    assert Counter((pane["key"], tuple(pane["values"])) for pane in step.panes) == expected


@SLOW
@given(RECORDS, st.lists(st.integers(0, 30)), st.lists(st.integers(-20, 40), min_size=1), WINDOWS, st.sampled_from([0, 3, 15]))
def test_every_record_is_in_a_pane_or_late(records: Any, cuts: Any, watermarks: Any, window: Any, lateness: Any) -> None:
    step = Step(window, refinement="discarding", lateness=lateness)
    counted = 0
    for number, batch in enumerate(_batches(records, cuts)):
        step.batch(batch, watermark=max(step.watermark_us / 1e6, watermarks[number % len(watermarks)]))
        counted += step.counts["late"]
    step.batch(watermark=1_000)
    assert counted == len(step.late)
    shown = Counter(value for pane in step.panes for value in pane["values"])
    late = Counter(row["value"] for row in step.late)
    if isinstance(window, windows.Sliding):
        assert set(shown) | set(late) == {value for _, _, value in records}
    else:
        assert shown + late == Counter(value for _, _, value in records)


@SLOW
@given(
    RECORDS, st.lists(st.integers(0, 30)), st.lists(st.integers(-20, 40), min_size=1), WINDOWS, NEVER_FINISHING, st.sampled_from([0, 15])
)
def test_a_restored_instance_gives_the_same_rows_in_the_same_order(
    records: Any, cuts: Any, watermarks: Any, window: Any, trigger: Any, lateness: Any
) -> None:
    steps = [Step(window, trigger=trigger, refinement="retracting", lateness=lateness, restarts=restarts) for restarts in (False, True)]
    for number, batch in enumerate(_batches(records, cuts)):
        watermark = max(steps[0].watermark_us / 1e6, watermarks[number % len(watermarks)])
        one, other = (step.batch(batch, watermark=watermark, now=number) for step in steps)
        assert one == other
        assert steps[0].counts == steps[1].counts
