"""Opening a partition after whatever happened to it.

What a crash can leave behind lies behind the recovery point (points.py): a torn last batch, unsynced batches of which any part is missing, a
segment without its predecessor's end. From the first batch there that is not whole, everything is cut; if whole batches are among it, they are saved
in a file that ends in `.cut`. In front of the recovery point everything was on disk; if it is not as it was, that is damage: nothing is cut, the error
names topic, partition and offset, and the rest is served. If the recovery point is lost, only a tail without a whole batch is cut.

Invariant: what `recover` returns is on disk, and recovering it again changes nothing. A compacted file replaces, by its name alone, the segments whose
offsets it covers; so the rename that gives it its name is the moment compaction happens, and leftovers of either side are removed here."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field

from penstock.log import batch as rb
from penstock.log import checkpoint
from penstock.log.checkpoint import CheckpointDamaged
from penstock.log.errors import Damaged
from penstock.log.producers import Producers
from penstock.log.segment import Segment, parse_name, segment_name
from penstock.log.storage import Storage

LEFTOVERS = (".tmp", ".cleaned")


@dataclass(slots=True)
class Recovered:
    segments: list[Segment]
    producers: Producers
    start_offset: int
    damage: Damaged | None = None  # the end of the log cannot be trusted: no appends
    report: list[str] = field(default_factory=list)  # what was found and done, for people
    bytes_cut: int = 0


def snapshot_path(directory: str, offset: int) -> str:
    return posixpath.join(directory, f"{offset:020d}.snapshot")


def recover(storage: Storage, directory: str, *, place: str, recovery_point: int | None, index_interval_bytes: int = 4096) -> Recovered:
    report: list[str] = []
    start_offset = _read_start(storage, directory)
    segments = _list_segments(storage, directory, place, start_offset, index_interval_bytes)
    if not segments:
        if recovery_point is not None and recovery_point > start_offset:
            damage = Damaged(
                place, start_offset, file=directory, position=0, why=f"no segment file, but offsets up to {recovery_point} were on disk"
            )
            segments = [_fresh(storage, directory, place, recovery_point, index_interval_bytes)]
            return Recovered(segments, Producers(), recovery_point, damage, [str(damage)])
        segments = [_fresh(storage, directory, place, start_offset, index_interval_bytes)]
    recovered = Recovered(segments, Producers(), start_offset, report=report)
    _check_segments(storage, directory, place, recovery_point, recovered)
    last = recovered.segments[-1]
    if recovered.damage is None:
        if last.next_offset < start_offset:  # deleted up to an offset whose records were never synced
            for segment in recovered.segments:
                segment.remove()
            recovered.segments = [_fresh(storage, directory, place, start_offset, index_interval_bytes)]
        elif last.is_compacted:
            recovered.segments.append(_fresh(storage, directory, place, last.end_offset or last.next_offset, index_interval_bytes))
        end = recovered.segments[-1].next_offset
        if recovery_point is not None and end < recovery_point:
            recovered.damage = Damaged(
                place, end, file=last.path, position=last.size, why=f"the log ends here, but offsets up to {recovery_point} were on disk"
            )
            report.append(str(recovered.damage))
    recovered.start_offset = max(start_offset, recovered.segments[0].base_offset)
    recovered.producers = load_producers(storage, directory, place=place, segments=recovered.segments, report=report)
    recovered.producers.forget_before(recovered.start_offset)
    return recovered


def _read_start(storage: Storage, directory: str) -> int:
    content = checkpoint.read(storage, posixpath.join(directory, "start"), "start")
    return int(content["start_offset"]) if content else 0


def _fresh(storage: Storage, directory: str, place: str, base_offset: int, interval: int) -> Segment:
    path = posixpath.join(directory, segment_name(base_offset))
    segment = Segment.create(storage, path, place=place, base_offset=base_offset, index_interval_bytes=interval)
    segment.file.fdatasync()
    storage.sync_dir(directory)
    return segment


def _list_segments(storage: Storage, directory: str, place: str, start_offset: int, interval: int) -> list[Segment]:
    """The segments that count, in order; superseded files and leftovers are removed."""
    names: dict[tuple[int, int | None], str] = {}
    for name in storage.listdir(directory):
        if name.endswith(LEFTOVERS):
            storage.unlink(posixpath.join(directory, name))
        elif (parsed := parse_name(name)) is not None:
            names[parsed] = name
    ranges = [(base, end) for base, end in names if end is not None]
    keep: list[tuple[int, int | None]] = []
    removed = False
    for base, end in sorted(names, key=lambda item: (item[0], item[1] or item[0])):
        superseded = any(low <= base < high and (end is None or (end <= high and (low, high) != (base, end))) for low, high in ranges)
        if superseded or (end is not None and end <= start_offset):
            _remove(storage, directory, names[base, end])
            removed = True
        else:
            keep.append((base, end))
    followers = [*keep[1:], None]
    segments = []
    for (base, end), follower in zip(keep, followers):
        if follower is not None and follower[0] <= start_offset:
            _remove(storage, directory, names[base, end])
            removed = True
            continue
        path = posixpath.join(directory, names[base, end])
        segments.append(Segment(storage, path, place=place, base_offset=base, end_offset=end, index_interval_bytes=interval))
    if removed:
        storage.sync_dir(directory)
    return segments


def _remove(storage: Storage, directory: str, name: str) -> None:
    path = posixpath.join(directory, name)
    index = path.removesuffix(".log") + ".index"
    if storage.exists(index):
        storage.unlink(index)
    storage.unlink(path)


def _check_segments(storage: Storage, directory: str, place: str, recovery_point: int | None, recovered: Recovered) -> None:
    """Load what was on disk, check what may be torn, cut at the first thing that is."""
    segments = recovered.segments
    point = recovery_point or 0
    for number, segment in enumerate(segments):
        follower = segments[number + 1] if number + 1 < len(segments) else None
        end = segment.end_offset if segment.is_compacted else follower.base_offset if follower else None
        if end is not None and (segment.is_compacted or end <= point):
            _load_settled(segment, end, recovered)
            if follower is not None and follower.base_offset != end:
                damage = Damaged(
                    place, end, file=segment.path, position=segment.size, why=f"the segment that begins at offset {end} is missing"
                )
                recovered.report.append(str(damage))
            continue
        torn = segment.rebuild(strict=False, trust_until=point)
        if torn is None and follower is not None and segment.next_offset != follower.base_offset:
            torn = Damaged(
                place, segment.next_offset, file=segment.path, position=segment.size, why="the file ends before its follower begins"
            )
        if torn is None:
            if segment.next_offset > point:
                segment.file.fdatasync()  # it may have come from the page cache: from here on it counts as on disk
            continue
        saved = _whole_batches_after(storage, segments, number)
        if segment.next_offset < point or (recovery_point is None and saved):
            recovered.damage = segment.damage = torn
            recovered.report.append(str(torn))
            for later in segments[number + 1 :]:
                _load_settled(later, None, recovered)
            return
        _cut(storage, directory, recovered, number, save=saved)
        return


def _load_settled(segment: Segment, end: int | None, recovered: Recovered) -> None:
    """A segment that was on disk: its index, or a scan. Damage is reported and stays where it is."""
    if segment.load_index() and (end is None or segment.next_offset == end or (segment.is_compacted and segment.next_offset <= end)):
        return
    damage = segment.rebuild(strict=False)
    if damage is None and end is not None and not segment.is_compacted and segment.next_offset != end:
        damage = Damaged(
            segment.place, segment.next_offset, file=segment.path, position=segment.size, why=f"the file ends before offset {end}"
        )
    if damage is None:
        segment.write_index()
    else:
        recovered.report.append(str(damage))
        segment.damage = damage


def _whole_batches_after(storage: Storage, segments: list[Segment], number: int) -> bool:
    """Whether anything whole lies behind the first bad batch."""
    segment = segments[number]
    return segment.has_batch_after(segment.size) or any(other.has_batch_after(0) for other in segments[number + 1 :])


def _cut(storage: Storage, directory: str, recovered: Recovered, number: int, *, save: bool) -> None:
    """End the log in front of the first bad batch. Later files go first: a crash in between must not find them behind a gap that looks settled."""
    segments = recovered.segments
    segment, later = segments[number], segments[number + 1 :]
    tail = segment.file.size() - segment.size
    lost = tail + sum(storage.size(other.path) for other in later)
    recovered.bytes_cut = lost
    note = " and saved whole batches of it in *.cut files" if save else ""
    recovered.report.append(
        f"{segment.place}: cut {lost} bytes after offset {segment.next_offset} that a crash left behind{note} ({segment.path})"
    )
    if save and tail:
        copy = storage.open(f"{segment.path}.{segment.next_offset}.cut", create=True)
        copy.truncate(0)
        copy.append([segment.file.pread(tail, segment.size)])
        copy.fdatasync()
        copy.close()
    for other in reversed(later):
        if save and storage.size(other.path):
            other.close()
            storage.rename(other.path, f"{other.path}.{segment.next_offset}.cut")
        other.remove()
    if storage.exists(segment.index_path):
        storage.unlink(segment.index_path)
    storage.sync_dir(directory)
    segment.file.truncate(segment.size)
    segment.file.fdatasync()
    del segments[number + 1 :]


def load_producers(storage: Storage, directory: str, *, place: str, segments: list[Segment], report: list[str] | None = None) -> Producers:
    """The newest snapshot that the log reaches, brought up to date from the log."""
    next_offset = segments[-1].next_offset
    producers, done = Producers(), -1
    names = [name for name in storage.listdir(directory) if name.endswith(".snapshot")]
    removed = False
    for name in sorted(names, reverse=True):
        offset, path = int(name.removesuffix(".snapshot")), posixpath.join(directory, name)
        if offset > next_offset:  # of a future that a crash took back
            storage.unlink(path)
            removed = True
            continue
        try:
            content = checkpoint.read(storage, path, "producers")
        except CheckpointDamaged as error:
            if report is not None:
                report.append(f"{place}: {error}; the producers are read from the log instead")
            storage.unlink(path)
            removed = True
            continue
        if content is not None:
            producers, done = Producers.from_json(content), offset
            break
    if removed:
        storage.sync_dir(directory)
    for segment in segments:
        if segment.next_offset <= done or not segment.size or segment.damage is not None:
            continue
        position = segment.position_after(done)[0] if done > segment.base_offset else 0
        for header, _, data in segment.scan(position, crc=False):
            if header.producer_id >= 0 and header.base_offset >= done:
                commits = rb.marker_commits(data, header) if header.is_control else None
                producers.apply(header, base_offset=header.base_offset, commits=commits)
    return producers
