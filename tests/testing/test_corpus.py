"""The corpus holds on the oracle and on the kernels: whatever the number of groups, and with a restart after every step."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.testing.host import Simulator
from penstock.testing.judge import run_transcripts
from penstock.testing.transcript import Transcript, read

from .oracle import OracleHost

CORPUS = Path(__file__).parents[1] / "transcripts"
TRANSCRIPTS = [transcript for file in sorted(CORPUS.glob("*.yaml")) for transcript in read(file)]
HOSTS = {
    "oracle": OracleHost(),
    "one-group": Simulator(groups=1),
    "five-groups": Simulator(groups=5),
    "restarts": Simulator(always_restart=True),
}


def test_the_corpus_is_as_large_as_it_should_be() -> None:
    assert len(TRANSCRIPTS) >= 100
    assert len({transcript.name for transcript in TRANSCRIPTS}) == len(TRANSCRIPTS)


@pytest.mark.parametrize("host", HOSTS.values(), ids=HOSTS.keys())
@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=lambda each: each.name)
def test_it_happens_as_the_transcript_says(transcript: Transcript, host: Simulator) -> None:
    (verdict,) = run_transcripts([transcript], host)
    assert verdict.refused is None
    assert not verdict.notes
    assert not verdict.differences, "\n".join(verdict.differences)
