"""The pages about time and testing are run: their Python, and their transcripts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.testing.host import Simulator
from penstock.testing.judge import run_transcripts
from penstock.testing.transcript import reads

ROOT = Path(__file__).parents[2]
PAGES = ["guides/testing.md", "concepts/windows.md", "concepts/triggers.md", "concepts/time.md"]


def blocks(page: str, language: str) -> list[tuple[int, str]]:
    text = (ROOT / "docs" / page).read_text()
    found = re.finditer(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [(text[: block.start()].count("\n") + 1, block.group(1)) for block in found]


@pytest.mark.parametrize("page", PAGES)
def test_the_python_of_a_page_runs(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    names: dict[str, object] = {"__name__": "page"}
    found = blocks(page, "python")
    assert found
    for line, code in found:
        exec(compile("\n" * line + code, page, "exec"), names)


def test_the_transcripts_of_the_guide_pass() -> None:
    transcripts = [each for _, text in blocks("guides/testing.md", "yaml") for each in reads(text)]
    assert len(transcripts) == 2
    for verdict in run_transcripts(transcripts, Simulator()):
        assert verdict.passed, verdict.differences
