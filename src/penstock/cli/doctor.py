"""`penstock doctor`: what is there, what is missing, how to get it."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import typer

from penstock.cli.options import ConfigFile, Data, Json, ProfileName, show_json
from penstock.errors import PenstockError
from penstock.profile import Profile, load

DISK_FREE_BYTES_MIN = 2 << 30
MEMORY_BYTES_MIN = 2 << 30


@dataclass(frozen=True, slots=True)
class Finding:
    part: str
    state: Literal["ok", "optional", "missing"]
    found: str
    remedy: str = ""


def doctor(profile: ProfileName = None, config: ConfigFile = None, data: Data = None, json: Json = False) -> None:
    """Check Java, Spark, ports, disk and optional parts. Exit code 1 if something needed is missing."""
    settings = load(profile, file=config, data=data)
    findings = [finding for check in CHECKS for finding in check(settings)]
    if json:
        show_json([asdict(finding) for finding in findings])
    else:
        _print(findings)
    if any(finding.state == "missing" for finding in findings):
        raise typer.Exit(1)


def _print(findings: list[Finding]) -> None:
    from rich.console import Console

    console = Console(soft_wrap=True)
    marks = {"ok": "[green]✓[/]", "optional": "[yellow]○[/]", "missing": "[red]✗[/]"}
    for finding in findings:
        console.print(
            f" {marks[finding.state]} [bold]{finding.part:<12}[/] {finding.found}" + (f" → {finding.remedy}" if finding.remedy else ""),
            highlight=False,
        )


def _python(_: Profile) -> Iterator[Finding]:
    yield Finding("python", "ok", f"{sys.version.split()[0]} ({sys.executable})")


def _packages(_: Profile) -> Iterator[Finding]:
    for name in ("pyspark", "pyarrow", "polars", "numba", "duckdb", "sqlglot"):
        try:
            yield Finding(name, "ok", importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            yield Finding(
                name, "missing", "not installed", "pip install 'penstock[spark]' (needed to run pipelines; the broker works without)"
            )


def _java(_: Profile) -> Iterator[Finding]:
    from penstock.spark.java import find_java

    try:
        java = find_java()
        yield Finding("java", "ok", f"{java.version} by {java.found_by} ({java.program})")
    except PenstockError as error:
        yield Finding("java", "missing", error.message, error.remedy or "")


def _disk(profile: Profile) -> Iterator[Finding]:
    place = profile.data
    while not place.exists():
        place = place.parent
    if not os.access(place, os.W_OK):
        yield Finding("data", "missing", f"{profile.data} cannot be written", "choose another with --data DIR or PENSTOCK_DATA")
        return
    free = shutil.disk_usage(place).free
    enough = free >= DISK_FREE_BYTES_MIN
    yield Finding(
        "data", "ok" if enough else "missing", f"{profile.data}, {free / 2**30:.1f} GiB free", "" if enough else "free at least 2 GiB"
    )


def _memory(_: Profile) -> Iterator[Finding]:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    enough = total >= MEMORY_BYTES_MIN
    cores = len(os.sched_getaffinity(0))
    yield Finding(
        "machine",
        "ok" if enough else "missing",
        f"{cores} cores, {total / 2**30:.1f} GiB of memory",
        "" if enough else "Spark needs about 2 GiB",
    )


def _broker(profile: Profile) -> Iterator[Finding]:
    from penstock.cli.broker import DEFAULT_PORT, running

    if profile.broker:
        yield _reachable(profile.broker)
    elif state := running(profile.data):
        yield Finding("broker", "ok", f"running at {state['address']}")
    else:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", DEFAULT_PORT))
                yield Finding("broker", "ok", f"not running; port {DEFAULT_PORT} is free")
            except OSError:
                yield Finding(
                    "broker",
                    "optional",
                    f"not running, and port {DEFAULT_PORT} is taken",
                    "penstock broker start --port 0 takes a free one",
                )


def _reachable(bootstrap: str) -> Finding:
    host, _, port = bootstrap.split(",")[0].rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=3).close()
        return Finding("broker", "ok", f"{bootstrap} answers")
    except (OSError, ValueError) as error:
        return Finding("broker", "missing", f"{bootstrap} does not answer ({error})", "check the profile's broker address")


def _jars(_: Profile) -> Iterator[Finding]:
    cache = Path.home() / ".cache" / "penstock"
    found = len(list(cache.rglob("kafka_2.13-*.jar"))) if cache.is_dir() else 0
    yield Finding(
        "apache kafka",
        "ok" if found else "optional",
        "jars in the cache" if found else "not fetched yet",
        "" if found else "penstock kafka start fetches it",
    )


CHECKS: tuple[Callable[[Profile], Iterator[Finding]], ...] = (_python, _packages, _java, _memory, _disk, _broker, _jars)
