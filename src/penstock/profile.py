"""Where a pipeline runs: a profile, from `penstock.toml`, the environment and command-line flags.

A profile is frozen data. `local` is built in: the embedded broker, Spark on all cores of this machine, everything under one
data directory of the user. Later sources win: built-in, file, environment, flags. No profile knows what a pipeline does."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError

FILE = "penstock.toml"
CONNECTORS = ("python", "jvm")
# Environment variable → field. A flag of the same name on the command line wins over both.
ENVIRONMENT = {
    "PENSTOCK_BROKER": "broker",
    "PENSTOCK_SPARK": "spark",
    "PENSTOCK_DATA": "data",
    "PENSTOCK_CHECKPOINT": "checkpoint",
    "PENSTOCK_CONNECTOR": "connector",
}


def default_data() -> Path:
    """The user's own data directory, as the desktop convention has it."""
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "penstock"


@dataclass(frozen=True, slots=True)
class Profile:
    """A place to run. `broker` is a bootstrap address, or None for the embedded broker."""

    name: str = "local"
    broker: str | None = None
    security: Mapping[str, str] = field(default_factory=dict)  # client settings in librdkafka's spelling
    spark: str = "local[*]"
    data: Path = field(default_factory=default_data)
    checkpoint: str | None = None  # a location that all machines see; default: below `data`
    connector: str = "python"
    conf: Mapping[str, str] = field(default_factory=dict)  # further Spark settings

    @property
    def checkpoints(self) -> str:
        return self.checkpoint or str(self.data / "checkpoints")

    @property
    def is_local(self) -> bool:
        return self.spark.startswith("local")


def load(name: str | None = None, *, file: Path | None = None, **flags: str | None) -> Profile:
    """The profile called `name` (default: $PENSTOCK_PROFILE, then `local`), with flags that are not None on top."""
    name = name or os.environ.get("PENSTOCK_PROFILE") or "local"
    sections = _sections(file)
    if name not in sections and name != "local":
        known = sorted({"local", *sections})
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean '{close[0]}'?" if close else f"add a section [profile.{name}] to {FILE}; known: {', '.join(known)}"
        raise ConfigError(f"there is no profile '{name}'", remedy=hint)
    profile = _apply(Profile(name=name), sections.get(name, {}), place=f"[profile.{name}] in {FILE}")
    environment = {key: os.environ[variable] for variable, key in ENVIRONMENT.items() if os.environ.get(variable)}
    profile = _apply(profile, environment, place="the environment")
    profile = _apply(profile, {key: value for key, value in flags.items() if value is not None}, place="the command line")
    if not profile.is_local and profile.checkpoint is None:
        raise ConfigError(
            f"profile '{name}' runs on {profile.spark} but names no checkpoint location",
            remedy='add checkpoint = "…", a place that every machine of the cluster can read and write',
        )
    return profile


def _sections(file: Path | None) -> dict[str, dict[str, Any]]:
    path = file or Path(FILE)
    if not path.is_file():
        if file is not None:
            raise ConfigError(f"there is no file {file}", remedy="check the path given with --config")
        return {}
    try:
        parsed = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}", remedy="mend that line") from None
    sections = parsed.get("profile", {})
    if not isinstance(sections, dict) or not all(isinstance(section, dict) for section in sections.values()):
        raise ConfigError(f"'profile' in {path} is not a table", remedy="write sections such as [profile.cluster]")
    return sections


def _apply(profile: Profile, values: Mapping[str, Any], *, place: str) -> Profile:
    known = {spec.name for spec in fields(Profile)} - {"name"}
    for key, value in values.items():
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            remedy = f"did you mean '{close[0]}'?" if close else f"known: {', '.join(sorted(known))}"
            raise ConfigError(f"{place} has no setting '{key}'", remedy=remedy)
        if key in ("security", "conf"):
            if not isinstance(value, dict):
                raise ConfigError(f"'{key}' in {place} is not a table", remedy=f"write a section [profile.{profile.name}.{key}]")
            value = {name: str(setting).lower() if isinstance(setting, bool) else str(setting) for name, setting in value.items()}
        elif not isinstance(value, str):
            raise ConfigError(f"'{key}' in {place} is {value!r}", remedy="give text in quotes")
        elif key == "data":
            value = Path(value).expanduser()
        elif key == "connector" and value not in CONNECTORS:
            raise ConfigError(f"connector '{value}' in {place} is unknown", remedy=f"use one of {', '.join(CONNECTORS)}")
        profile = replace(profile, **{key: value})
    return profile
