"""`penstock log`: look into stored topics without a broker. Reads only."""

from __future__ import annotations

import json as json_
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.options import Data, Json, show, show_json
from penstock.cli.records import text_of
from penstock.errors import PenstockError
from penstock.profile import load

app = typer.Typer(help="Check and print stored topics. Reads only; stop the broker first for a quiet view.", no_args_is_help=True)
Topic = Annotated[str | None, typer.Option("--topic", help="Only this topic.")]


@app.command(epilog="Example: penstock log verify --data ./data")
def verify(topic: Topic = None, data: Data = None, json: Json = False) -> None:
    """Read every stored byte and check it. Exit code 1 if something is damaged; a torn tail alone is no damage."""
    from penstock.log import inspect

    found = list(inspect.verify(_directory(data), topic=topic))
    rows: list[dict[str, object]] = [
        {
            "topic": each.topic, "partition": each.partition, "from": each.base_offset, "to": each.next_offset, "records": each.records,
            "bytes": each.bytes, "state": ("torn tail: " if each.is_torn_tail else "DAMAGED: ") + each.problem if each.problem else "good",
        }
        for each in found
    ]  # fmt: skip
    show(rows, columns=("topic", "partition", "from", "to", "records", "bytes", "state"), empty="nothing is stored here", as_json=json)
    if any(each.problem and not each.is_torn_tail for each in found):
        raise typer.Exit(1)


@app.command(epilog="Example: penstock log dump --topic alarms --from-offset 10")
def dump(
    topic: Topic = None,
    partition: Annotated[int | None, typer.Option("--partition", help="Only this partition.")] = None,
    from_offset: Annotated[int, typer.Option("--from-offset", help="From this offset on.")] = 0,
    batches: Annotated[bool, typer.Option("--batches", help="Headers of record batches instead of records.")] = False,
    data: Data = None, json: Json = False,
) -> None:  # fmt: skip
    """Print stored records, or the headers of their batches."""
    from penstock.log import inspect

    directory = _directory(data)
    if batches:
        for found in inspect.dump_batches(directory, topic=topic, partition=partition):
            row = {
                "topic": found.topic,
                "partition": found.partition,
                "file": found.file,
                "position": found.position,
                **found.header._asdict(),
            }
            show_json(row) if json else print(" ".join(f"{name}={value}" for name, value in row.items()))
        return
    for each in inspect.dump_records(directory, topic=topic, partition=partition, start=from_offset):
        record = each.record
        line = {
            "topic": each.topic, "partition": each.partition, "offset": record.offset, "timestamp_ms": record.timestamp_ms,
            "key": text_of(record.key), "value": text_of(record.value), "headers": {name: text_of(value) for name, value in record.headers or ()},
            "control": each.is_control,
        }  # fmt: skip
        print(
            json_.dumps(line)
            if json
            else "\t".join(str(line[name]) for name in ("topic", "partition", "offset", "timestamp_ms", "key", "value"))
        )


def _directory(data: str | None) -> Path:
    directory = load("local", data=data).data / "log"
    if not directory.is_dir():
        raise PenstockError(f"there is no log in {directory.parent}", remedy="name the broker's data directory with --data DIR")
    return directory
