"""Transcripts on Spark: most of the corpus in one query, and one that is wrong. All of it, with many restarts, is in `chaos/transcripts_on_spark.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.testing.judge import Report, run_transcripts
from penstock.testing.on_spark import SparkHost
from penstock.testing.transcript import Restart, Transcript, read, reads

pytestmark = pytest.mark.spark
CORPUS = Path(__file__).parents[1] / "transcripts"
ACTIONS_MAX, RESTARTS_MAX = 7, 1  # each action is a batch for all, each restart a new query: longer ones are for `make chaos`

MIXED = """
name: watermark and partition in one transcript
window: tumbling(10)
steps:
  - watermark: 5
  - partition: {a: 3, b: 7}
  - input: [6]
  - partition: {a: 12}
  - expect: []
  - idle: b
  - expect: [{window: [0, 10], values: [6], timing: on_time}]
"""
WRONG = """
name: this one is wrong
window: tumbling(10)
steps:
  - input: [1]
  - watermark: 10
  - expect: [{values: [2]}]
"""


def is_short(transcript: Transcript) -> bool:
    actions = list(transcript.actions)
    return len(actions) <= ACTIONS_MAX and sum(isinstance(action, Restart) for action in actions) <= RESTARTS_MAX


def test_most_of_the_corpus_holds_on_spark(spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = [each for file in sorted(CORPUS.glob("*.yaml")) for each in read(file)]
    short = [each for each in corpus if is_short(each)]
    report = Report("spark", tuple(run_transcripts([*short, *reads(MIXED), *reads(WRONG)], SparkHost(spark=spark))))
    refused = [each.transcript.name for each in report.refused]
    left = len(corpus) - len(short)
    with capsys.disabled():  # a figure that is told whenever the tests run
        print(
            f"\n{len(short)} of {len(corpus)} transcripts ran on Spark, {left} are left to make chaos, {len(refused)} do not run: {refused}"
        )
    assert len(short) > len(corpus) * 0.8
    assert not refused
    assert [each.transcript.name for each in report.verdicts if not each.passed] == ["this one is wrong"], "\n".join(report.lines())
