"""The pages about the API are run, block by block, and their lists compared with the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.dataflow import functions

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["reference/api.md", "concepts/refinement.md"])
def test_the_examples_of_a_page_run(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = (DOCS / page).read_text()
    names: dict[str, object] = {"__name__": "page"}
    blocks = list(re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    assert blocks
    for block in blocks:
        line = text[: block.start()].count("\n") + 1
        exec(compile("\n" * line + block.group(1), str(DOCS / page), "exec"), names)


def test_the_page_lists_every_function_of_the_subset() -> None:
    text = (DOCS / "reference" / "api.md").read_text()
    listed = re.search(r"<!-- functions -->\n(.*)\n<!-- /functions -->", text)
    assert listed
    known = {row.name for row in functions.FUNCTIONS} | {*functions.ANY_OF, "if", "nullif", "isnull", "isnotnull", "date_trunc"}
    assert listed.group(1) == " ".join(f"`{name}`" for name in sorted(known))
