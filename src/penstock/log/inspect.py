"""Looking into a data directory without opening it for writing: what `penstock log verify` and `penstock log dump` print.

Invariant: reads only; never repairs, cuts or locks, so it may run beside a broker (then the last batch of a partition may look torn). Returns rows; the
command line prints them."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from penstock.log import batch as rb
from penstock.log import checkpoint, topics
from penstock.log.checkpoint import CheckpointDamaged
from penstock.log.errors import CorruptBatch, Damaged
from penstock.log.points import read_points
from penstock.log.segment import Segment, parse_name
from penstock.log.storage import DiskStorage, Storage


class Verified(NamedTuple):
    """One segment file, read to its end. `problem` is None if every byte is as it was written."""

    topic: str
    partition: int
    file: str
    base_offset: int
    next_offset: int
    batches: int
    records: int
    bytes: int
    problem: str | None
    is_torn_tail: bool  # behind everything that was on disk: the next start will cut it, nothing acknowledged is lost


class DumpedBatch(NamedTuple):
    topic: str
    partition: int
    file: str
    position: int
    header: rb.BatchHeader


class DumpedRecord(NamedTuple):
    topic: str
    partition: int
    record: rb.Record
    producer_id: int
    is_control: bool


class _Found(NamedTuple):
    topic: str
    id: bytes
    partition: int
    segments: list[Segment]
    trouble: str | None = None


def verify(directory: str | Path, *, topic: str | None = None, storage: Storage | None = None) -> Iterator[Verified]:
    """Read every batch of every segment and check it: structure, CRC, offsets without gaps, records that decode."""
    storage, root = storage or DiskStorage(), os.fspath(directory)
    points = read_points(storage, posixpath.join(root, "recovery-points"))
    for found in _partitions(storage, root, topic):
        if found.trouble is not None:
            yield Verified(found.topic, found.partition, "topic", 0, 0, 0, 0, 0, found.trouble, False)
        expected: int | None = None
        point = points.get((found.id, found.partition), 0)
        for segment in found.segments:
            row = _verify_segment(found, segment, point)
            if row.problem is None and expected is not None and segment.base_offset != expected:
                row = row._replace(problem=f"offsets {expected} to {segment.base_offset} are missing before this file")
            settled = segment.end_offset if segment.end_offset is not None else row.next_offset
            expected = settled if row.problem is None else None  # one damage, one row
            yield row
            segment.close()


def _verify_segment(found: _Found, segment: Segment, point: int) -> Verified:
    batches = records = 0
    next_offset, end, problem, torn = segment.base_offset, 0, None, False
    try:
        for header, position, data in segment.scan(0, until=segment.file.size()):
            for _ in rb.decode(data, header):
                records += 1
            batches, next_offset, end = batches + 1, header.next_offset, position + header.size
    except (Damaged, CorruptBatch) as error:
        problem = f"offset {next_offset}, byte {end}: {error.why if isinstance(error, Damaged) else error.message}"
        torn = segment is found.segments[-1] and next_offset >= point and not segment.has_batch_after(end)
    return Verified(
        found.topic,
        found.partition,
        posixpath.basename(segment.path),
        segment.base_offset,
        next_offset,
        batches,
        records,
        segment.file.size(),
        problem,
        torn,
    )


def dump_batches(
    directory: str | Path, *, topic: str | None = None, partition: int | None = None, storage: Storage | None = None
) -> Iterator[DumpedBatch]:
    """Every batch header, in order. Raises `Damaged` where a file cannot be read any further."""
    for found, segment in _segments(storage or DiskStorage(), os.fspath(directory), topic, partition):
        for header, position, _ in segment.scan(0, until=segment.file.size()):
            yield DumpedBatch(found.topic, found.partition, posixpath.basename(segment.path), position, header)
        segment.close()


def dump_records(
    directory: str | Path, *, topic: str | None = None, partition: int | None = None, start: int = 0, storage: Storage | None = None
) -> Iterator[DumpedRecord]:
    """Every record from offset `start` on, markers included. Raises `Damaged` where a file cannot be read any further."""
    for found, segment in _segments(storage or DiskStorage(), os.fspath(directory), topic, partition):
        for header, _, data in segment.scan(0, until=segment.file.size()):
            for record in rb.decode(data, header):
                if record.offset >= start:
                    yield DumpedRecord(found.topic, found.partition, record, header.producer_id, header.is_control)
        segment.close()


def _segments(storage: Storage, root: str, topic: str | None, partition: int | None) -> Iterator[tuple[_Found, Segment]]:
    for found in _partitions(storage, root, topic):
        if partition is None or found.partition == partition:
            for segment in found.segments:
                yield found, segment


def _partitions(storage: Storage, root: str, topic: str | None) -> Iterator[_Found]:
    folder = posixpath.join(root, "topics")
    for name in storage.listdir(folder) if storage.exists(folder) else []:
        directory = posixpath.join(folder, name)
        if name.endswith(".deleted"):
            continue
        try:
            meta = topics.read_meta(storage, directory)
        except CheckpointDamaged as error:
            yield _Found(name, b"", -1, [], str(error))
            continue
        if meta is None or topic not in (None, meta.name):
            continue
        for number in range(meta.partitions):
            yield _Found(meta.name, meta.id, number, list(_files(storage, posixpath.join(directory, str(number)), f"{meta.name}-{number}")))


def _files(storage: Storage, directory: str, place: str) -> Iterator[Segment]:
    """The segments that count, by the rule of recovery: a compacted range stands for what it covers."""
    start = checkpoint.read(storage, posixpath.join(directory, "start"), "start")
    start_offset = int(start["start_offset"]) if start else 0
    names = sorted(filter(None, map(parse_name, storage.listdir(directory))), key=lambda item: (item[0], -(item[1] or item[0])))
    bases = [base for base, _ in names]
    covered = 0
    for number, (base, end) in enumerate(names):
        following = bases[number + 1] if number + 1 < len(bases) else None
        if base < covered or (end or following or start_offset + 1) <= start_offset:
            continue
        covered = end or covered
        path = posixpath.join(directory, f"{base:020d}-{end:020d}.log" if end is not None else f"{base:020d}.log")
        yield Segment(storage, path, place=place, base_offset=base, end_offset=end)
