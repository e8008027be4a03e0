"""Small files that must be whole: a line with a checksum, then JSON.

    # penstock <kind> v<version> crc32c=<8 hex digits>\\n{...}\\n

Invariant: `write` replaces the file in one step and returns after it is on disk; `read` gives exactly what some `write` stored,
or `None` (no file), or raises `CheckpointDamaged`. A reader that can rebuild its content treats damage as absence, loudly."""

from __future__ import annotations

import json
import posixpath
import re
from typing import Any

import google_crc32c

from penstock.log.errors import LogError
from penstock.log.storage import Storage

_FIRST_LINE = re.compile(rb"# penstock ([a-z-]+) v(\d+) crc32c=([0-9a-f]{8})")
CHECKPOINT_BYTES_MAX = 1 << 30


class CheckpointDamaged(LogError):
    """A small file of the log that is not what was written."""

    kafka_code = 56


def write(storage: Storage, path: str, kind: str, content: dict[str, Any], *, version: int = 1) -> None:
    body = json.dumps(content, separators=(",", ":"), sort_keys=True).encode() + b"\n"
    line = f"# penstock {kind} v{version} crc32c={google_crc32c.value(body):08x}\n".encode()
    temporary = path + ".tmp"
    if storage.exists(temporary):
        storage.unlink(temporary)
    file = storage.open(temporary, create=True)
    try:
        file.append([line, body])
        file.fdatasync()
    finally:
        file.close()
    storage.rename(temporary, path)
    storage.sync_dir(posixpath.dirname(path))


def read(storage: Storage, path: str, kind: str, *, version: int = 1) -> dict[str, Any] | None:
    if not storage.exists(path):
        return None
    file = storage.open(path)
    try:
        data = file.pread(min(file.size(), CHECKPOINT_BYTES_MAX), 0)
    finally:
        file.close()
    line, _, body = data.partition(b"\n")
    match = _FIRST_LINE.fullmatch(line)
    if match is None or match[1] != kind.encode() or int(match[3], 16) != google_crc32c.value(body):
        raise CheckpointDamaged(f"{path}: not a whole {kind} file", remedy="restore it from a backup")
    if int(match[2]) > version:
        raise CheckpointDamaged(f"{path}: written by a newer Penstock (v{int(match[2])})", remedy="upgrade Penstock")
    content: dict[str, Any] = json.loads(body)
    return content
