"""Transcripts are parsed, not evaluated; what is malformed is told with file, document and step."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.dataflow import trigger as t
from penstock.dataflow import window as w
from penstock.errors import ConfigError
from penstock.testing.transcript import (
    FOREVER_US,
    Input,
    MalformedTranscript,
    Record,
    Stage,
    Watermark,
    parse_trigger,
    parse_window,
    read,
    reads,
)  # fmt: skip

SECOND = 1_000_000


@pytest.mark.parametrize(
    ("text", "window"),
    [
        ("tumbling(10)", w.Tumbling(10 * SECOND)),
        ("tumbling(size=10, offset=2.5)", w.Tumbling(10 * SECOND, 2_500_000)),
        (" tumbling( 10 , 2 ) ", w.Tumbling(10 * SECOND, 2 * SECOND)),
        ("sliding(60, every=5)", w.Sliding(60 * SECOND, 5 * SECOND)),
        ("sliding(60, 5, offset=1)", w.Sliding(60 * SECOND, 5 * SECOND, SECOND)),
        ("session(0.5)", w.Session(500_000)),
        ("global_window()", w.Global()),
        ("count(3)", w.Count(3, 3)),
        ("count(100, every=10)", w.Count(100, 10)),
        ("delta(value, 2.5)", w.Delta("value", 2.5)),
        ("delta('value', 2)", w.Delta("value", 2.0)),
        ("punctuation(value = 0)", w.Punctuation("value = 0")),
        ("punctuation(\"kind IN ('a', 'b')\")", w.Punctuation("kind IN ('a', 'b')")),
        ("punctuation(greatest(value, 3) > 3)", w.Punctuation("greatest(value, 3) > 3")),
    ],
)
def test_windows(text: str, window: w.Window) -> None:
    assert parse_window(text) == window


@pytest.mark.parametrize(
    ("text", "trigger"),
    [
        ("after_watermark()", t.AfterWatermark()),
        ("after_watermark(late=after_count(1), early=every(5))", t.AfterWatermark(t.every(5), t.AfterCount(1))),
        ("every(2)", t.Repeatedly(t.AfterProcessingTime(2 * SECOND))),
        ("after_delta(value, 3)", t.AfterDelta("value", 3.0)),
        ("repeatedly(after_punctuation(value = 0))", t.Repeatedly(t.AfterPunctuation("value = 0"))),
        ("after_any(after_count(2), after_all(after_count(1), every(3)))", t.after_any(t.AfterCount(2), t.after_all(t.AfterCount(1), t.every(3)))),
        ("after_each(after_count(1), after_watermark())", t.after_each(t.AfterCount(1), t.AfterWatermark())),
        ("or_finally(every(1), until=after_count(5))", t.OrFinally(t.every(1), t.AfterCount(5))),
    ],
)  # fmt: skip
def test_triggers(text: str, trigger: t.Trigger) -> None:
    assert parse_trigger(text) == trigger


@pytest.mark.parametrize(
    "text",
    ["tumbling", "tumbling(", "tumbling()", "tumbling(x)", "tumbling(0)", "tumbling(-1)", "tumbling(1e400)", "tumbling(10, 2, 3)", "tumbling(10, size=3)",
     "tumbling(10, every=3)", "tumbling(__import__('os'))", "sliding(10)", "session()", "session(5))", "count(1.5)", "count(0)", "delta(value)",
     "punctuation()", "weekly(1)", "tumbling(10); session(3)", "", "tumbling(10,)", "global_window(3)"],
)  # fmt: skip
def test_what_is_no_window_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_window(text)


@pytest.mark.parametrize(
    "text",
    ["after_count", "after_count()", "after_count(0)", "after_count(two)", "after_watermark(after_count(1))", "after_watermark(early=5)", "after_any()",
     "repeatedly(tumbling(10))", "or_finally(after_count(1))", "every(0)", "after_processing_time(-1)", "after_watermark(earlier=after_count(1))"],
)  # fmt: skip
def test_what_is_no_trigger_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_trigger(text)


def test_what_is_left_out() -> None:
    (transcript,) = reads("window: tumbling(10)\nsteps: []")
    assert transcript.stages == (Stage(w.Tumbling(10 * SECOND), t.AfterWatermark(late=t.AfterCount(1)), "accumulating", 0),)


def test_short_forms_of_records() -> None:
    (transcript,) = reads(
        "window: tumbling(10)\nsteps:\n  - input: [1, 2.5, {at: 3}, {key: a, at: 4, value: 7}, {at: 5, value: x, kind: end}]"
    )
    (action,) = transcript.actions
    assert action == Input(
        (
            Record("k", SECOND, 1),
            Record("k", 2_500_000, 2.5),
            Record("k", 3 * SECOND, 3),
            Record("a", 4 * SECOND, 7),
            Record("k", 5 * SECOND, "x", (("kind", "end"),)),
        )
    )


def test_forever() -> None:
    (transcript,) = reads("window: tumbling(10)\nallowed_lateness: forever\nsteps:\n  - watermark: forever")
    assert transcript.stages[0].allowed_lateness_us == FOREVER_US
    assert list(transcript.actions) == [Watermark(FOREVER_US)]


def test_several_documents_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "many.yaml"
    path.write_text("---\nname: one\nwindow: tumbling(10)\nsteps: []\n---\nwindow: session(3)\nsteps: []\n---\n")
    first, second = read(path)
    assert (first.name, second.name, second.document, second.line) == ("one", "transcript 2", 2, 6)


GOOD = "name: first\nwindow: tumbling(10)\nsteps: []\n---\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("steps: []", "`window` is missing"),
        ("window: tumbling(10)", "`steps` is missing"),
        ("[1, 2]", "a transcript is a mapping"),
        ("window: tumbling(10)\nwindows: 3\nsteps: []", "has no `windows`"),
        ("window: tumbling(ten)\nsteps: []", "'ten' is not a number"),
        ("window: tumbling(10)\ntrigger: sometimes()\nsteps: []", "there is no trigger 'sometimes'"),
        ("window: tumbling(10)\naccumulate: maybe\nsteps: []", "`accumulate` is 'maybe'"),
        ("window: tumbling(10)\nallowed_lateness: -1\nsteps: []", "negative"),
        ("window: tumbling(10)\nallowed_lateness: soon\nsteps: []", "`allowed_lateness` is 'soon'"),
        ("window: tumbling(10)\nsteps: {input: [1]}", "`steps` is not a list"),
        ("window: tumbling(10)\nsteps:\n  - input: [1]\n  - sleep: 3", "step 2: there is no step `sleep`"),
        ("window: tumbling(10)\nsteps:\n  - {input: [1], watermark: 3}", "step 1"),
        ("window: tumbling(10)\nsteps:\n  - input: 1", "`input` is not a list"),
        ("window: tumbling(10)\nsteps:\n  - input: [a]", "'a' is not a record"),
        ("window: tumbling(10)\nsteps:\n  - input: [{at: noon}]", "`at` is 'noon'"),
        ("window: tumbling(10)\nsteps:\n  - input: [{at: 1, value: [1]}]", "`value` of a record"),
        ("window: tumbling(10)\nsteps:\n  - watermark: true", "`watermark` is True"),
        ("window: tumbling(10)\nsteps:\n  - clock: 5\n  - clock: 4", "step 2: `clock` goes back"),
        ("window: tumbling(10)\nsteps:\n  - expect: [{pane: 1}]", "a pane has no `pane`"),
        ("window: tumbling(10)\nsteps:\n  - expect: [{window: [1]}]", "is not a window"),
        ("window: tumbling(10)\nsteps:\n  - expect: [{values: 3}]", "`values` is not a list"),
        ("window: tumbling(10)\nsteps:\n  - expect: [{timing: soon}]", "`timing` is 'soon'"),
        ("window: tumbling(10)\nsteps:\n  - expect: [{index: one}]", "`index` is 'one'"),
        ("window: tumbling(10)\nsteps:\n  - expect: [{last: 1}]", "`last` is 1"),
        ("window: tumbling(10)\nsteps:\n  - expect: [{sign: plus}]", "`sign` is 'plus'"),
        ("window: tumbling(10)\nsteps:\n  - state: {windows: 3}", "`state` has no `windows`"),
        ("window: tumbling(10)\nsteps:\n  - restart: 1", "`restart` is 1"),
        ("window: tumbling(10)\nsteps:\n  - partition: 3", "`partition` is not a mapping"),
        ("window: tumbling(10)\nsteps:\n  - idle: [a]", "`idle` is"),
        ("window: tumbling(10)\nthen: [tumbling(60)]\nsteps: []", "`then` lists further aggregations"),
        ("window: [", "not YAML"),
    ],
)
def test_malformed_documents_name_file_document_and_step(text: str, says: str) -> None:
    with pytest.raises(MalformedTranscript) as caught:
        reads(GOOD + text, file="some.yaml")
    assert says in str(caught.value)
    assert "some.yaml" in str(caught.value)
    assert "document 2" in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(MalformedTranscript, match="cannot be read"):
        read(tmp_path / "none.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(MalformedTranscript, match="is not text"):
        read(tmp_path / "bytes.yaml")
    (tmp_path / "empty.yaml").write_text("")
    with pytest.raises(MalformedTranscript, match="has no transcript"):
        read(tmp_path / "empty.yaml")
