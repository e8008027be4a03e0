"""The runner tells what differs: panes nobody claimed, panes that did not come, order of retractions, late records, state."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.testing.host import Simulator
from penstock.testing.judge import Refused, Report, Verdict, run_files, run_transcripts
from penstock.testing.transcript import reads

HEAD = "window: tumbling(10)\ntrigger: after_watermark(early=repeatedly(after_count(1)))\naccumulate: retracting\nsteps:\n"


def verdict(steps: str) -> Verdict:
    (only,) = run_transcripts(reads(HEAD + steps), Simulator())
    return only


PANE = "{window: [0, 10], values: [1], timing: early, index: 0}"


def test_a_pane_that_no_expect_claims_is_an_error_at_the_end() -> None:
    (text,) = verdict("  - input: [1]\n").differences
    assert "no `expect` claims" in text
    assert "values: [1]" in text


def test_a_pane_that_no_expect_claims_is_an_error_at_the_next_expect() -> None:
    (text,) = verdict("  - input: [1]\n  - expect: []\n").differences
    assert "came, not expected" in text


def test_an_expected_pane_that_does_not_come_is_an_error() -> None:
    (text,) = verdict(f"  - input: [1]\n  - expect: [{PANE}]\n  - expect: [{PANE}]\n").differences
    assert "step 3 (line 7)" in text
    assert "expected, did not come" in text


def test_an_expected_pane_is_claimed_once() -> None:
    assert verdict(f"  - input: [1]\n  - expect: [{PANE}, {PANE}]\n").differences


@pytest.mark.parametrize(
    "wrong",
    ["key: a", "window: [0, 11]", "window: null", "values: [2]", "values: [1, 1]", "values: []", "timing: late", "index: 1",
     "on_time_index: 0", "first: false", "last: true", 'sign: "-"'],
)  # fmt: skip
def test_every_attribute_that_is_given_is_compared(wrong: str) -> None:
    name = wrong.split(":")[0]
    (text,) = verdict(f"  - input: [1]\n  - expect: [{{{wrong}}}]\n").differences
    assert "expected, did not come" in text
    assert name in text


@pytest.mark.parametrize("left_out", ["{}", "{values: [1]}", "{key: k}", "{first: true, last: false}", "{values: [1.0]}", '{sign: "+"}'])
def test_attributes_that_are_left_out_are_not_compared(left_out: str) -> None:
    assert verdict(f"  - input: [1]\n  - expect: [{left_out}]\n").passed


def test_panes_are_matched_as_well_as_they_can_be() -> None:
    loose_first = "  - input: [1, {key: a, at: 2}]\n  - expect: [{timing: early}, {key: k}]\n"
    assert verdict(loose_first).passed, "the loose one takes what the exact one leaves"


def test_a_retraction_is_expected_before_the_pane_that_replaces_it() -> None:
    before = '{values: [1], index: 0, sign: "-"}, {values: [1, 2], index: 1}'
    after = '{values: [1, 2], index: 1}, {values: [1], index: 0, sign: "-"}'
    start = f"  - input: [1]\n  - expect: [{PANE}]\n  - input: [2]\n"
    assert verdict(start + f"  - expect: [{before}]\n").passed
    (text,) = verdict(start + f"  - expect: [{after}]\n").differences
    assert "comes before" in text


def test_a_pane_is_not_a_retraction() -> None:
    assert verdict('  - input: [1]\n  - expect: [{values: [1], sign: "-"}]\n').differences


def test_late_records_are_a_multiset() -> None:
    start = "  - watermark: 20\n  - input: [1, 1, {key: a, at: 2, value: 5}]\n"
    assert verdict(start + "  - late: [{key: a, at: 2, value: 5}, 1, 1]\n").passed
    for wrong in ("[1, {key: a, at: 2, value: 5}]", "[1, 1, 1, {key: a, at: 2, value: 5}]", "[1, 1, {key: a, at: 2, value: 6}]", "[]"):
        assert verdict(start + f"  - late: {wrong}\n").differences, wrong
    assert verdict(start + "  - late: [1, 1, {key: a, at: 2, value: 5}]\n  - late: [1]\n").differences, "each is told once"


def test_state_is_compared() -> None:
    start = f"  - input: [1]\n  - expect: [{PANE}]\n"
    assert verdict(start + "  - state: {open: [[0, 10]], keys: 1}\n").passed
    assert verdict(start + "  - state: {open: [], keys: 1}\n").differences
    assert verdict(start + "  - state: {keys: 2}\n").differences


def test_a_report_counts_and_prints(tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text(HEAD + f"  - input: [1]\n  - expect: [{PANE}]\n")
    (tmp_path / "bad.yaml").write_text(HEAD + "  - input: [1]\n")
    (tmp_path / "broken.yaml").write_text("window: tumbling(ten)\nsteps: []\n")
    report = run_files([tmp_path], Simulator)
    assert not report.ok
    lines = "\n".join(report.lines())
    assert "2 transcripts on simulator: 1 passed, 1 failed, 0 not run; 1 files cannot be read" in lines
    assert "broken.yaml:1, document 1" in lines
    told = json.loads(json.dumps(report.to_json()))
    assert (told["passed"], told["failed"], len(told["malformed"])) == (1, 1, 1)


def test_what_a_host_refuses_is_told_and_is_no_failure() -> None:
    class Refusing:
        name = "elsewhere"

        def run(self, transcripts: object) -> list[Refused]:
            return [Refused("no clock here")]

    report = Report("elsewhere", tuple(run_transcripts(reads(HEAD + "  - input: [1]\n"), Refusing())))
    assert report.ok
    assert "does not run on elsewhere: no clock here" in "\n".join(report.lines())
