"""Where executors of a cluster keep compiled loops: by the content of our archive, not by its path.

An executor finds our package in a zip in its working directory, which is another one for every application; numba files compiled
code under the source's path, so every application would compile everything again (ten seconds and more before the first batch). numba
asks the classes that NUMBA_CACHE_LOCATOR_CLASSES names. Invariant: another content of any file in the archive is another folder, since a
loop may have another file's loop compiled into it. Not here: the local cache, which is numba's own (`warm.py`)."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import zipfile
from pathlib import Path
from typing import Any

from numba.core.caching import ZipCacheLocator

ARCHIVE = "penstock.zip"


class ByContent(ZipCacheLocator):  # type: ignore[misc]
    """A place for the loops of one archive: in the user's cache (XDG_CACHE_HOME, or ~/.cache), else in the working directory."""

    def __init__(self, py_func: Any, py_file: str) -> None:
        super().__init__(py_func, py_file)  # type: ignore[no-untyped-call]
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        for place in (root / "penstock" / "loops", Path("loops")):
            self._cache_path = str(place / content(self._zip_path))
            with contextlib.suppress(OSError):
                self.ensure_cache_path()  # type: ignore[no-untyped-call]
                break

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> ByContent | None:
        return cls(py_func, py_file) if f"{ARCHIVE}{os.sep}" in py_file else None


@functools.cache
def content(archive: str) -> str:
    """A name for everything in an archive."""
    with zipfile.ZipFile(archive) as opened:
        told = sorted((entry.filename, entry.CRC, entry.file_size) for entry in opened.infolist())
    return hashlib.sha256(repr(told).encode()).hexdigest()[:20]
