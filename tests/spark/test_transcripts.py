"""Transcripts on Spark: a part of the corpus in `make test`, all of it in the long run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.testing.judge import Report, run_transcripts
from penstock.testing.on_spark import SparkHost
from penstock.testing.transcript import read, reads

pytestmark = pytest.mark.spark
CORPUS = Path(__file__).parents[1] / "transcripts"

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


def told(report: Report) -> str:
    return "\n".join(report.lines())


def test_restarts_chains_and_time_hold_on_spark(spark: Any) -> None:
    transcripts = [each for name in ("restart", "chains", "time") for each in read(CORPUS / f"{name}.yaml")] + reads(MIXED) + reads(WRONG)
    report = Report("spark", tuple(run_transcripts(transcripts, SparkHost(spark=spark))))
    assert [each.transcript.name for each in report.verdicts if not each.passed] == ["this one is wrong"], told(report)
    assert not any(each.notes for each in report.verdicts)


@pytest.mark.chaos
def test_the_whole_corpus_holds_on_spark(spark: Any) -> None:
    transcripts = [each for file in sorted(CORPUS.glob("*.yaml")) for each in read(file)]
    report = Report("spark", tuple(run_transcripts(transcripts, SparkHost(spark=spark))))
    print(told(report))
    assert report.ok
    assert not report.refused
