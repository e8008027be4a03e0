"""`penstock kafka`: a real Apache Kafka on this machine, for development and for trying what only a cluster can do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.options import Data, Json, need_spark, show, show_json
from penstock.errors import PenstockError
from penstock.profile import load

app = typer.Typer(help="Run Apache Kafka here, one node or three, from jars fetched by coordinates.", no_args_is_help=True)


@app.command(epilog="Example: penstock kafka start --nodes 3")
def start(
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="1, or 3 for replication.")] = 1,
    fresh: Annotated[bool, typer.Option("--fresh", help="Throw earlier data away.")] = False,
    data: Data = None, json: Json = False,
) -> None:  # fmt: skip
    """Start a Kafka cluster in the background (the first time this fetches about 40 MB of jars)."""
    need_spark()
    import shutil

    from penstock.testing.apache_kafka import ApacheKafka, status

    directory = _directory(data)
    if (directory / "cluster.json").exists() and status(directory).running:
        raise PenstockError(f"Apache Kafka already runs on {directory}", remedy="use it, or 'penstock kafka stop'")
    if fresh:
        shutil.rmtree(directory, ignore_errors=True)
    address = ApacheKafka(nodes=nodes, data=directory, detached=True).start()
    show_json({"address": address, "nodes": nodes, "data": str(directory)}) if json else print(
        f"Apache Kafka at {address} ({nodes} node(s), data in {directory})"
    )


@app.command(epilog="Example: penstock kafka stop")
def stop(data: Data = None, json: Json = False) -> None:
    """Stop the cluster; its data stays."""
    from penstock.testing import apache_kafka

    directory = _directory(data)
    if not apache_kafka.status(directory).running:
        raise PenstockError(f"no Apache Kafka runs on {directory}", remedy="start one with 'penstock kafka start'")
    before = apache_kafka.stop(directory)
    show_json({"stopped": len(before.nodes)}) if json else print(f"stopped {len(before.nodes)} node(s)")


@app.command(epilog="Example: penstock kafka status --json")
def status(data: Data = None, json: Json = False) -> None:
    """Show the nodes. Exit code 1 if none runs."""
    from penstock.testing import apache_kafka

    found = apache_kafka.status(_directory(data))
    rows: list[dict[str, object]] = [
        {"node": node.id, "address": f"127.0.0.1:{node.port}", "process": node.pid if node.running else None, "running": node.running}
        for node in found.nodes
    ]
    show(rows, columns=("node", "address", "process", "running"), empty="no cluster here", as_json=json)
    if not found.running:
        raise typer.Exit(1)


def _directory(data: str | None) -> Path:
    return load("local", data=data).data / "kafka"
