"""The README shows the code that runs, and links to what is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_fire_alarm_in_the_readme_is_the_example() -> None:
    shown = re.search(r"<!-- examples/fire_alarm\.py -->\n```python\n(.*?)```", README, re.DOTALL)
    assert shown
    assert shown.group(1) in (ROOT / "examples" / "fire_alarm.py").read_text()


def test_links_lead_somewhere() -> None:
    targets = [target for target in re.findall(r"\]\(([^)#]+)", README) if not target.startswith("http")]
    assert targets
    assert not [target for target in targets if not (ROOT / target).exists()]


def test_every_make_target_in_the_readme_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"make ([a-z-]+)", README)) - {"run", "test"} <= targets
    assert {"run", "test"} <= targets
