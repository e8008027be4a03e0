"""The archive of Spark's loaded classes, from which a JVM starts in half the time.

Made once per Java runtime and class path, by the first session that ends in good order: the JVM writes it when it exits (Java 25:
an AOT cache, older: a class-data archive). It lies in the cache, where it can be deleted at any time. A JVM that cannot
use it ignores it. Invariant: the file appears by one rename and is complete. `PENSTOCK_ARCHIVE=off` leaves it out."""

from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from penstock.spark.jars import cache_directory
from penstock.spark.java import Java

AOT_MAJOR_MIN = 25
WRITE_S_MAX = 90.0  # writing it costs the first session some seconds at its end


@dataclass(frozen=True, slots=True)
class Archive:
    """One archive: used if it is there, else written by the JVM that is started with these options."""

    path: Path
    aot: bool
    writing: Path | None  # the file the JVM writes; None: it is there, or switched off

    @property
    def options(self) -> list[str]:
        if self.writing is not None:
            return (
                [f"-XX:AOTCacheOutput={self.writing}", *_QUIET_AOT]
                if self.aot
                else [f"-XX:ArchiveClassesAtExit={self.writing}", *_QUIET_CDS]
            )
        if not self.path.is_file():
            return []
        return (
            [f"-XX:AOTCache={self.path}", *_QUIET_AOT] if self.aot else [f"-XX:SharedArchiveFile={self.path}", "-Xshare:auto", *_QUIET_CDS]
        )

    def keep(self, *, exit_code: int) -> None:
        """After the JVM has ended: take the file over if it ended well."""
        if self.writing is None:
            return
        with contextlib.suppress(OSError):
            if exit_code == 0 and self.writing.stat().st_size > 0:
                os.replace(self.writing, self.path)
        for left in self.path.parent.glob(f"{self.writing.name}*"):
            left.unlink(missing_ok=True)


_QUIET_AOT = ("-Xlog:aot*=off", "-Xlog:cds*=off")
_QUIET_CDS = ("-Xlog:cds*=off", "-Xlog:class+path=off")


def archive_for(java: Java, class_path: str, *, wanted: bool = True) -> Archive:
    """The archive that fits this Java and these jars."""
    aot = java.major >= AOT_MAJOR_MIN
    fingerprint = hashlib.sha256(f"{java.program} {java.version} {class_path}".encode()).hexdigest()[:12]
    folder = cache_directory() / "classes"
    path = folder / f"java-{java.version}-{fingerprint}.{'aot' if aot else 'jsa'}"
    off = not wanted or os.environ.get("PENSTOCK_ARCHIVE") == "off"
    if off:
        return Archive(folder / "off", aot, None)
    if path.is_file():
        return Archive(path, aot, None)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:  # a home that cannot be written: start without
        return Archive(path, aot, None)
    _clear(folder, path.name)
    return Archive(path, aot, folder / f"{path.name}.{os.getpid()}")


def _clear(folder: Path, name: str) -> None:
    """Remove what processes left behind that were killed while they wrote."""
    for part in folder.glob(f"{name}.*"):
        pid = part.name.removeprefix(f"{name}.").split(".")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            part.unlink(missing_ok=True)
