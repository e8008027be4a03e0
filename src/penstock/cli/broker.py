"""`penstock broker`: the embedded broker as a process of its own, one for each data directory.

`start` leaves it in the background and writes its address and process id to `broker.json` in the data directory."""

from __future__ import annotations

import json as json_
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli.options import Data, Json, show_json
from penstock.errors import PenstockError
from penstock.profile import load

app = typer.Typer(help="Start, stop and look at the embedded broker.", no_args_is_help=True)
DEFAULT_PORT = 9092
READY_S, STOP_S = 30.0, 30.0


@app.command(epilog="Example: penstock broker start --port 9092 --data ./data   •   penstock broker start --foreground")
def start(
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes a free one.")] = DEFAULT_PORT,
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
    durability: Annotated[str, typer.Option("--durability", help="What acks=all means: 'group' (on disk) or 'os' (page cache).")] = "group",
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay, until Ctrl-C.")] = False,
    data: Data = None, json: Json = False,
) -> None:  # fmt: skip
    """Start the broker, in the background unless told otherwise."""
    directory = load("local", data=data).data
    if state := running(directory):
        raise PenstockError(f"a broker already runs on {directory} at {state['address']}", remedy="use it, or 'penstock broker stop'")
    writable(directory)
    command = [
        sys.executable,
        "-m",
        "penstock.broker",
        "--port",
        str(port),
        "--host",
        host,
        "--data",
        str(directory / "log"),
        "--durability",
        durability,
    ]
    if foreground:
        os.execv(sys.executable, command)
    log = directory / "broker.log"
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=output, start_new_session=True)
    assert process.stdout is not None
    line = process.stdout.readline().decode().strip()  # one line when ready; end of file if it failed
    if not line:
        process.wait()
        last = log.read_text(errors="replace").strip().splitlines()[-1:] or ["no reason given"]
        raise PenstockError(f"the broker did not start: {last[0].removeprefix('error: ')}")
    address = line.split()[-1]
    (directory / "broker.json").write_text(json_.dumps({"pid": process.pid, "address": address, "data": str(directory)}))
    show_json({"address": address, "pid": process.pid, "data": str(directory)}) if json else print(
        f"broker at {address} (process {process.pid}, data in {directory})"
    )


@app.command(epilog="Example: penstock broker stop")
def stop(data: Data = None, json: Json = False) -> None:
    """Stop the broker of a data directory; everything acknowledged is on disk."""
    directory = load("local", data=data).data
    state = running(directory)
    if state is None:
        raise PenstockError(f"no broker runs on {directory}", remedy="start one with 'penstock broker start'")
    os.kill(state["pid"], signal.SIGTERM)
    deadline_s = time.monotonic() + STOP_S
    while _alive(state["pid"]):
        if time.monotonic() > deadline_s:
            raise PenstockError(f"the broker (process {state['pid']}) does not stop", remedy=f"look at {directory / 'broker.log'}")
        time.sleep(0.02)
    (directory / "broker.json").unlink(missing_ok=True)
    show_json({"stopped": state["address"]}) if json else print(f"stopped the broker at {state['address']}")


@app.command(epilog="Example: penstock broker status --json")
def status(data: Data = None, json: Json = False) -> None:
    """Say whether a broker runs on a data directory. Exit code 1 if none does."""
    directory = load("local", data=data).data
    state = running(directory)
    if json:
        show_json({"running": state is not None, **(state or {})})
    elif state:
        print(f"running at {state['address']} (process {state['pid']}, data in {directory})")
    else:
        print(f"not running (data directory {directory})")
    if state is None:
        raise typer.Exit(1)


def running(directory: Path) -> dict[str, Any] | None:
    """The state of the broker that was started on a data directory, if it is alive."""
    try:
        state: dict[str, Any] = json_.loads((directory / "broker.json").read_text())
    except (OSError, ValueError):
        return None
    return state if _alive(state["pid"]) else None


def writable(directory: Path) -> None:
    """Make the data directory; one line if that cannot be."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe = directory / ".writable"
        probe.write_bytes(b"1")
        probe.unlink()
    except OSError as error:
        raise PenstockError(
            f"cannot write to the data directory {directory} ({error.strerror})", remedy="choose another with --data DIR or PENSTOCK_DATA"
        ) from None


def _alive(pid: int) -> bool:
    """True while the process runs as a broker; a reused process id of another program does not count."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return b"penstock.broker" in file.read()
    except OSError:
        return False
