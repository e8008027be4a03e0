"""A broker for a program or its tests: `with broker() as b: b.address`.

The broker is a child process, so that its speed does not depend on the caller's interpreter lock, and it cannot outlive the caller: it
holds one end of a pipe whose other end only the caller has, and stops cleanly when that closes, however the caller ended."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from penstock.errors import PenstockError

READY = "penstock broker ready on "
START_SECONDS_MAX = 60.0  # recovery of a large log after a crash
STOP_SECONDS_MAX = 30.0


@dataclass(frozen=True, slots=True)
class Embedded:
    """A running broker. `address` is what Kafka clients call bootstrap servers."""

    address: str
    data: Path
    pid: int

    @property
    def host(self) -> str:
        return self.address.rsplit(":", 1)[0]

    @property
    def port(self) -> int:
        return int(self.address.rsplit(":", 1)[1])


class BrokerFailed(PenstockError):
    """The broker could not start; the message is its own."""

    exit_code = 2


@contextlib.contextmanager
def broker(
    data: str | Path | None = None, *, port: int = 0, host: str = "127.0.0.1", durability: str = "group", partitions: int = 1
) -> Iterator[Embedded]:
    """A broker while the block runs; without `data` its directory is temporary and removed at the end.

    >>> with broker(durability="os") as running:
    ...     running.address.startswith("127.0.0.1:")
    True
    """
    with contextlib.ExitStack() as stack:
        if data is None:
            data = stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-", ignore_cleanup_errors=True))
        directory = Path(data)
        said = stack.enter_context(tempfile.TemporaryFile("w+"))  # a pipe that nobody reads would stop the broker one day
        process, pipe = _start(directory, said, host=host, port=port, durability=durability, partitions=partitions)
        try:
            yield Embedded(_address(process, said), directory, process.pid)
        finally:
            os.close(pipe)
            _stop(process)


def _start(data: Path, said: IO[str], *, host: str, port: int, durability: str, partitions: int) -> tuple[subprocess.Popen[str], int]:
    child_end, parent_end = os.pipe()
    command = [sys.executable, "-m", "penstock.broker", "--host", host, "--port", str(port), "--data", str(data)]
    command += ["--durability", durability, "--partitions", str(partitions), "--parent-pipe", str(child_end)]
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said, text=True, pass_fds=(child_end,), start_new_session=True
        )
    except BaseException:
        os.close(parent_end)
        raise
    finally:
        os.close(child_end)
    return process, parent_end


def _address(process: subprocess.Popen[str], said: IO[str]) -> str:
    """Wait for the ready line; if the process ends first, say what it said."""
    assert process.stdout is not None
    until = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < until:
        ready, _, _ = select.select([process.stdout], [], [], 0.2)
        if ready:
            line = process.stdout.readline()
            if line.startswith(READY):
                return line.removeprefix(READY).strip()
            status = process.wait()
            said.seek(0)
            reason = said.read().strip().rsplit("\n", 1)[-1].removeprefix("penstock broker: ")
            raise BrokerFailed(reason or f"the broker ended with status {status} before it was ready")
    raise BrokerFailed(f"the broker was not ready after {START_SECONDS_MAX:.0f} s", remedy="look at its data directory and disk")


def _stop(process: subprocess.Popen[str]) -> None:
    try:
        process.wait(STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
