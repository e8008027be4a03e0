"""Options that several commands share, and how they become a profile and a connection."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.errors import ConfigError, MissingPart, PenstockError
from penstock.profile import Profile, load

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

TIMEOUT_S = 15.0

ProfileName = Annotated[str | None, typer.Option("--profile", "-p", help="A section of penstock.toml; 'local' is built in.")]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="The profile file (default: ./penstock.toml).")]
Address = Annotated[str | None, typer.Option("--broker", "-b", help="Bootstrap address, e.g. 127.0.0.1:9092.")]
Data = Annotated[str | None, typer.Option("--data", help="Data directory of the local profile.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def connect(profile_name: str | None, config: Path | None, address: str | None) -> tuple[str, Mapping[str, str]]:
    """The address of the broker that a client command talks to, and the client's security settings."""
    profile = load(profile_name, file=config, broker=address)
    return broker_address(profile), profile.security


def broker_address(profile: Profile) -> str:
    if profile.broker:
        return profile.broker
    from penstock.cli.broker import running

    if state := running(profile.data):
        return str(state["address"])
    raise PenstockError("no broker is running here", remedy="start one with 'penstock broker start', or name one with --broker HOST:PORT")


def admin(address: str, security: Mapping[str, str]) -> AdminClient:
    from confluent_kafka.admin import AdminClient

    client = AdminClient({"bootstrap.servers": address, "log_level": 0, "socket.timeout.ms": 10_000, **security})
    reach(client, address)
    return client


def reach(client: Any, address: str) -> None:
    """Fail with one line when nobody answers at the address."""
    from confluent_kafka import KafkaException

    try:
        client.list_topics(timeout=TIMEOUT_S)
    except KafkaException as error:
        raise PenstockError(
            f"no broker answers at {address} ({error.args[0].str()})", remedy="check the address and the security settings"
        ) from None


def settle(futures: Mapping[Any, Any], doing: str) -> dict[Any, Any]:
    """Wait for an admin call's futures; the broker's refusal becomes one line."""
    from confluent_kafka import KafkaException

    results = {}
    for subject, future in futures.items():
        try:
            results[subject] = future.result(timeout=TIMEOUT_S)
        except KafkaException as error:
            name = getattr(subject, "name", subject)
            raise PenstockError(f"cannot {doing} '{name}': {error.args[0].str()}") from None
    return results


def settings(pairs: Iterable[str]) -> dict[str, str]:
    """`name=value` arguments as a dictionary."""
    parsed = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ConfigError(f"'{pair}' is not a setting", remedy="write name=value, for example retention.ms=3600000")
        parsed[name] = value
    return parsed


def show_json(value: object) -> None:
    print(json.dumps(value, default=str))


def show_table(rows: list[dict[str, object]], *, columns: Iterable[str], empty: str) -> None:
    """Rows for people: a table on a terminal, aligned plain text elsewhere."""
    if not rows:
        print(empty)
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, header_style="bold")
    for column in columns:
        numeric = all(isinstance(row.get(column), int | float) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*("" if row.get(column) is None else str(row[column]) for column in columns))
    Console().print(table)


def show(rows: list[dict[str, object]], *, columns: Iterable[str], empty: str, as_json: bool) -> None:
    if as_json:
        show_json(rows)
    else:
        show_table(rows, columns=columns, empty=empty)


def need_spark() -> None:
    """Commands that run pipelines need the `spark` extra; say so before anything starts."""
    import importlib.util

    missing = [name for name in ("pyspark", "pyarrow", "polars", "numba", "duckdb", "sqlglot") if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingPart(f"this needs {', '.join(missing)}", remedy="pip install 'penstock[spark]'")
