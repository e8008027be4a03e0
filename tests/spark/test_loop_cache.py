"""Compiled loops of an archive are found again by an application that has the same archive elsewhere, and not by one with another."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from penstock.spark.loop_cache import ARCHIVE, ByContent
from penstock.spark.session import LOCATORS

SOURCE = "import numba\n@numba.njit(cache=True)\ndef twice(n):\n    return 2 * n\n"
ASK = "from loops_of_test import twice; twice(3); print(sum(twice.stats.cache_hits.values()), sum(twice.stats.cache_misses.values()), twice(3))"


def archive(folder: Path, *, comment: str = "") -> Path:
    folder.mkdir()
    with zipfile.ZipFile(folder / ARCHIVE, "w") as made:
        made.writestr("loops_of_test.py", SOURCE)
        made.writestr("another.py", comment)
    return folder


def answer(folder: Path, cache: Path) -> str:
    settings = {"PYTHONPATH": ARCHIVE, "NUMBA_CACHE_LOCATOR_CLASSES": LOCATORS, "XDG_CACHE_HOME": str(cache)}
    done = subprocess.run([sys.executable, "-c", ASK], cwd=folder, env=os.environ | settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def place(folder: Path) -> str:
    locator = ByContent.from_function(place, str(folder / ARCHIVE / "loops_of_test.py"))
    assert locator is not None
    return str(locator.get_cache_path())


def test_the_second_application_compiles_nothing(tmp_path: Path) -> None:
    first, second = archive(tmp_path / "first"), archive(tmp_path / "second")
    assert [answer(first, tmp_path / "cache"), answer(second, tmp_path / "cache")] == ["0 1 6", "1 0 6"]


def test_another_content_of_any_file_is_another_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    same = {place(archive(tmp_path / "first")), place(archive(tmp_path / "second"))}
    assert len(same) == 1
    assert place(archive(tmp_path / "changed", comment="# new")) not in same
    assert ByContent.from_function(place, __file__) is None, "only our archive"


def test_a_cache_that_cannot_be_written_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.chdir(tmp_path)
    assert Path(place(archive(tmp_path / "first"))).resolve().parent == tmp_path / "loops"
