"""Jars by coordinates, through Spark's own resolver, into a cache per user.

A `JarSet` is a name and a list of combinations of coordinates; the first combination that resolves is taken and remembered, so
the second call touches no network. Layout of the cache (`PENSTOCK_CACHE`, else `XDG_CACHE_HOME/penstock`, else `~/.cache/penstock`):

    jars/ivy/              what the resolver downloaded
    jars/<set>/*.jar       one resolved set
    jars/<set>/jars.json   {"taken": [coordinates], "jars": {file: size}}

Invariant: a directory `jars/<set>` appears by one rename and is complete. Not here: any address of a repository; the resolver
has its own, and reads `DEFAULT_ARTIFACT_REPOSITORY` like every Spark."""

from __future__ import annotations

import fcntl
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import MissingPart
from penstock.spark.java import Java, find_java

KAFKA_VERSION = "4.3.0"
_RESOLVE_TIMEOUT_S = 600


@dataclass(frozen=True, slots=True)
class Request:
    """One call of the resolver: coordinates, and `group:artifact` patterns that are left out (of the coordinates, too)."""

    packages: tuple[str, ...]
    excludes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JarSet:
    """A set of jars under one name. `combinations` are tried in order; each is a tuple of requests."""

    name: str
    purpose: str
    combinations: tuple[tuple[Request, ...], ...]


@dataclass(frozen=True, slots=True)
class Jars:
    """Resolved jars, and the coordinates that were taken."""

    directory: Path
    paths: tuple[Path, ...]
    taken: tuple[str, ...]

    @property
    def class_path(self) -> str:
        return str(self.directory / "*")


# Kafka's tools ask for Kafka Connect with its web server; the load tools and the topic tool run without them.
_TOOLS_WITHOUT = ("org.apache.kafka:connect-*", "org.glassfish*:*", "org.eclipse*:*", "jakarta*:*", "javax*:*", "io.swagger*:*")

APACHE_KAFKA = JarSet(
    name=f"apache-kafka-{KAFKA_VERSION}",
    purpose=f"Apache Kafka {KAFKA_VERSION}",
    combinations=(
        (Request((f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}", f"org.apache.kafka:kafka-tools:{KAFKA_VERSION}"), _TOOLS_WITHOUT),),
    ),
)

# Everything the connector asks for that pyspark brings already, in the versions it was built with.
_CONNECTOR_WITHOUT = (
    "org.apache.hadoop:*",
    "org.scala-lang*:*",
    "com.google*:*",
    "org.slf4j:*",
    "*lz4*:*",
    "org.xerial.snappy:*",
    "com.github.luben:*",
    "org.apache.spark:spark-tags_*",
)


def kafka_connector(spark_version: str) -> JarSet:
    """Spark's own Kafka connector: the matching version, else combinations that are known to work with Spark 4.3.

    Where a registry has only parts of a release, the dependencies are named one by one, each without its own."""
    prefix = "org.apache.spark:spark-sql-kafka-0-10_2.13"
    return JarSet(
        name=f"spark-kafka-connector-{spark_version}",
        purpose=f"Spark's Kafka connector for Spark {spark_version}",
        combinations=(
            (Request((f"{prefix}:{spark_version}",), _CONNECTOR_WITHOUT),),
            (
                Request(
                    (f"{prefix}:4.2.0", "org.apache.kafka:kafka-clients:3.9.2"),
                    (*_CONNECTOR_WITHOUT, "org.apache.spark:spark-token-provider*"),
                ),
                Request(("org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",), (*_CONNECTOR_WITHOUT, "org.apache.kafka:*")),
            ),
        ),
    )


def spark_version() -> str:
    """The version of the installed pyspark, without importing it."""
    try:
        return importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        raise MissingPart("pyspark is not installed", remedy="run: pip install 'penstock[spark]'") from None


def spark_jar(name: str) -> Path:
    """A jar that pyspark brings, by its name without the version: the resolver never fetches what Spark has (`scala-library`)."""
    found = sorted((_spark_home() / "jars").glob(f"{name}-[0-9]*.jar"))
    if not found:
        raise MissingPart(f"pyspark has no jar {name}", remedy="reinstall it: pip install --force-reinstall pyspark")
    return found[-1]


def cache_directory() -> Path:
    """Where Penstock keeps what can be had again."""
    if named := os.environ.get("PENSTOCK_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"


def resolve(jar_set: JarSet, *, cache: Path | None = None, java: Java | None = None) -> Jars:
    """The jars of the set: from the cache, else by the resolver; `MissingPart` in one line where they cannot be had."""
    root = (cache or cache_directory()) / "jars"
    if found := _cached(root, jar_set):
        return found
    root.mkdir(parents=True, exist_ok=True)
    with _lock(root / ".lock"):
        if found := _cached(root, jar_set):  # another process was faster
            return found
        java = java or find_java()
        reasons = []
        for combination in jar_set.combinations:
            reason = _resolve_combination(root, jar_set, combination, java)
            if reason is None:
                found = _cached(root, jar_set)
                assert found is not None, "a resolved set is complete"
                return found
            reasons.append(reason)
    raise MissingPart(
        f"the jars of {jar_set.purpose} cannot be had: {'; then '.join(reasons)}",
        remedy="connect to a network with a Maven repository, or set DEFAULT_ARTIFACT_REPOSITORY to one that you reach",
    )


def _spark_home() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise MissingPart("pyspark is not installed, and its resolver is needed to fetch jars", remedy="run: pip install 'penstock[spark]'")
    return Path(spec.origin).parent


def _cached(root: Path, jar_set: JarSet) -> Jars | None:
    directory = root / jar_set.name
    try:
        listing = json.loads((directory / "jars.json").read_text())
        sizes: dict[str, int] = listing["jars"]
        whole = all((directory / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError):
        return None
    if not whole:
        return None
    return Jars(directory=directory, paths=tuple(directory / name for name in sorted(sizes)), taken=tuple(listing["taken"]))


def _resolve_combination(root: Path, jar_set: JarSet, combination: tuple[Request, ...], java: Java) -> str | None:
    """Resolve into a scratch directory and put it in place by a rename. Returns why not, in a few words, or None."""
    scratch = Path(tempfile.mkdtemp(prefix=".resolving-", dir=root))
    try:
        (root / "ivy").mkdir(exist_ok=True)
        (scratch / "cache").symlink_to(root / "ivy", target_is_directory=True)
        for request in combination:
            if reason := _run_resolver(request, directory=scratch, java=java):
                return reason
        jars = scratch / "jars"
        sizes = {path.name: path.stat().st_size for path in sorted(jars.glob("*.jar"))}
        taken = [package for request in combination for package in request.packages]
        (jars / "jars.json").write_text(json.dumps({"taken": taken, "jars": sizes}, indent=1))
        target = root / jar_set.name
        if target.exists():  # left incomplete by someone who deleted jars by hand
            shutil.rmtree(target)
        jars.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return None


def _run_resolver(request: Request, *, directory: Path, java: Java) -> str | None:
    """Start SparkSubmit itself with `--packages`: it resolves first and only then finds that there is nothing to run."""
    spark_home = _spark_home()
    command = [str(java.program), "-Xmx512m", *java.network_options(), "-cp", str(spark_home / "jars" / "*")]
    command += ["org.apache.spark.deploy.SparkSubmit", "--conf", f"spark.jars.ivy={directory}", "--packages", ",".join(request.packages)]
    if request.excludes:
        command += ["--exclude-packages", ",".join(request.excludes)]
    command += ["--class", "none", "none.jar"]
    environment = {**os.environ, "SPARK_HOME": str(spark_home), "SPARK_LOCAL_IP": "127.0.0.1"}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_RESOLVE_TIMEOUT_S,
            check=False,
            cwd=directory,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        return f"{request.packages[0]} did not arrive in {_RESOLVE_TIMEOUT_S} s"
    output = done.stdout + done.stderr
    names = {package.split(":")[1] for package in request.packages}
    if all(any(f"_{name}-" in path.name for path in (directory / "jars").glob("*.jar")) for name in names):
        return None
    return _reason(output, request)


def _reason(output: str, request: Request) -> str:
    """The one line of the resolver's output that says what is wrong."""
    missing = sorted(set(re.findall(r"unresolved dependency: ([^\s:]+): not found", output)))
    what = ", ".join(text.replace("#", ":").replace(";", ":") for text in missing) or request.packages[0]
    if "SSLHandshakeException" in output:
        return f"{what} not fetched (the repository's certificate is not trusted by this Java)"
    # A host that is unknown leaves no other trace, so tell it apart from a repository that lacks the version.
    unreachable = re.search(r"(UnknownHostException|Connection refused|ConnectException|timed out|Host repo\S* not found)", output)
    return f"{what} not found" + (" (no repository reached)" if unreachable and not missing else "")


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """One resolver at a time per cache: its own cache is not made for two."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
