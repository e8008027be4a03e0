"""Transcripts in Python."""

from __future__ import annotations

import pytest

import penstock as ps
from penstock.errors import ConfigError
from penstock.testing.host import Scenario


def test_a_story_of_a_window() -> None:
    story = Scenario(ps.tumbling(10), trigger=ps.after_watermark(early=ps.every(5), late=ps.after_count(1)), allowed_lateness="20s")
    story.add(1, 2, {"key": "a", "at": 3, "value": 7})
    story.clock(5)
    story.expect({"key": "k", "values": [1, 2], "timing": "early"}, {"key": "a", "values": [7]})
    story.restart()
    story.watermark(10)
    story.expect({"key": "k", "timing": "on_time", "index": 1}, {"key": "a", "timing": "on_time", "index": 1})
    story.state(open=[[0, 10]], keys=2)
    story.watermark(30)
    story.add(5)
    story.late(5)
    story.end()


def test_partitions_and_idleness() -> None:
    story = Scenario(ps.session(5))
    story.partition(a=100, b=0)
    story.add(1)
    story.expect()
    story.idle("b")
    story.expect({"window": [1, 6], "values": [1], "timing": "on_time"})


def test_what_differs_is_an_assertion() -> None:
    story = Scenario(ps.tumbling(10))
    story.add(1)
    story.watermark(10)
    with pytest.raises(AssertionError, match="expected, did not come"):
        story.expect({"values": [2]})
    story = Scenario(ps.tumbling(10))
    story.add(1)
    story.watermark(10)
    with pytest.raises(AssertionError, match="came, not expected"):
        story.end()
    with pytest.raises(AssertionError, match="late output differs"):
        story.late(1)
    with pytest.raises(AssertionError, match="keys held"):
        story.state(keys=5)


def test_mistakes_in_a_story_are_told() -> None:
    with pytest.raises(ConfigError, match="a pane has no `vals`"):
        Scenario(ps.tumbling(10)).expect({"vals": [1]})
    with pytest.raises(ConfigError, match="is not a record"):
        Scenario(ps.tumbling(10)).add("one")


def test_text_columns_and_conditions() -> None:
    story = Scenario(ps.punctuation("kind = 'end'"), columns=[{"at": 0, "value": "x", "kind": "data"}])
    story.add({"at": 1, "value": "a", "kind": "data"}, {"at": 2, "value": "b", "kind": "end"})
    story.expect({"values": ["a", "b"], "last": True})
