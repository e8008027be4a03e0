"""The log: all topics of one data directory.

    DIR/lock                 held by the process that has the directory open
    DIR/recovery-points      what is known to be on disk (points.py)
    DIR/topics/              see topics.py

Invariant: one process has the directory open. What a method here has done when it returns survives a power loss, except records, which have
durability levels (commit.py). Thread-safe: topics change under one lock, partitions have their own. Not here: the network, groups and
transactions (they are records in topics), waiting for data."""

from __future__ import annotations

import logging
import os
import posixpath
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from penstock.clock import Clock, SystemClock
from penstock.log import topics as on_disk
from penstock.log.commit import THREADS_MAX, Committer, Durability, storage_failed
from penstock.log.compaction import compact
from penstock.log.config import TopicConfig
from penstock.log.errors import DirectoryLocked, InvalidPartitions, LogError, TopicExists, UnknownTopic
from penstock.log.partition import Partition
from penstock.log.points import RecoveryPoints
from penstock.log.storage import DiskStorage, Storage
from penstock.log.topics import Topic, TopicMeta

CHECKPOINT_BYTES = 16 << 20  # a recovery reads at most about this much more than what came after the last upkeep
logger = logging.getLogger("penstock.log")


@dataclass(frozen=True, slots=True)
class LogConfig:
    durability: Durability = "group"
    topic_defaults: Mapping[str, str] = field(default_factory=dict)  # topic configurations under Kafka's names
    commit_threads: int = THREADS_MAX  # 0: the caller runs commits.run_pending(), for simulations


class Log:
    """Open with `Log.open`. Usable as a context manager.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory, Log.open(directory) as log:
    ...     log.create_topic("words", partitions=2).name
    'words'
    """

    def __init__(self, directory: str, *, storage: Storage, clock: Clock, config: LogConfig) -> None:
        self.directory, self.config, self.clock = directory, config, clock
        self.commits = Committer(durability=config.durability, threads=config.commit_threads)
        self.report: list[str] = []  # what recovery found, for people
        self._storage = storage
        self._root = posixpath.join(directory, "topics")
        self._lock = threading.RLock()
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[bytes, Topic] = {}
        self._closed = False
        TopicConfig.of(config.topic_defaults)  # refuse wrong defaults before anything is touched
        _make_directory(storage, directory)
        try:
            self._directory_lock = storage.lock(posixpath.join(directory, "lock"))
        except BlockingIOError:
            raise DirectoryLocked(
                f"{directory} is open in another process", remedy="stop that broker or use another data directory"
            ) from None
        try:
            self._load()
        except BaseException:
            self._directory_lock.release()
            raise

    @classmethod
    def open(
        cls, directory: str | Path, *, storage: Storage | None = None, clock: Clock | None = None, config: LogConfig | None = None
    ) -> Log:
        path = os.fspath(directory) if storage is not None else os.path.abspath(directory)
        return cls(path, storage=storage or DiskStorage(), clock=clock or SystemClock(), config=config or LogConfig())

    def _load(self) -> None:
        storage = self._storage
        storage.mkdir(self._root)
        self._points = RecoveryPoints(storage, posixpath.join(self.directory, "recovery-points"))
        storage.sync_dir(self.directory)
        if self._points.damaged_slots:
            self.report.append(
                f"{self.directory}/recovery-points: {self._points.damaged_slots} damaged slots; their partitions are checked from the start"
            )
        for directory, meta in on_disk.list_topics(storage, self._root).items():
            topic = Topic(meta.name, meta.id, directory, TopicConfig.of(meta.configs, defaults=self.config.topic_defaults))
            topic.partitions = [self._open_partition(topic, number) for number in range(meta.partitions)]
            self._add(topic)
        for topic_id in self._points.topic_ids() - self._by_id.keys():
            self._points.forget(topic_id)
        self._points.sync()
        for line in self.report:
            logger.warning(line)

    def _open_partition(self, topic: Topic, number: int) -> Partition:
        try:
            partition = Partition.open(
                storage=self._storage,
                directory=posixpath.join(topic.directory, str(number)),
                topic=topic.name,
                topic_id=topic.id,
                index=number,
                config=topic.config,
                commits=self.commits,
                points=self._points,
            )
        except OSError as error:
            raise storage_failed(f"{topic.name}-{number}", "open", error) from error
        self.report += partition.recovered.report
        return partition

    def _add(self, topic: Topic) -> None:
        self._by_name[topic.name] = self._by_id[topic.id] = topic

    # --- topics ------------------------------------------------------------------------------------------------------

    @property
    def topics(self) -> Mapping[str, Topic]:
        return self._by_name

    def topic(self, name: str) -> Topic:
        topic = self._by_name.get(name)
        if topic is None:
            raise UnknownTopic(f"no topic '{name}'", remedy="create it, or check the name")
        return topic

    def topic_by_id(self, topic_id: bytes) -> Topic:
        topic = self._by_id.get(topic_id)
        if topic is None:
            raise UnknownTopic(f"no topic with id {topic_id.hex()}", remedy="ask for the topic's id again: it may have been created anew")
        return topic

    def partition(self, name: str, index: int) -> Partition:
        partitions = self.topic(name).partitions
        if not 0 <= index < len(partitions):
            raise UnknownTopic(f"topic '{name}' has no partition {index}", remedy=f"it has partitions 0 to {len(partitions) - 1}")
        return partitions[index]

    def create_topic(self, name: str, *, partitions: int, configs: Mapping[str, str] | None = None) -> Topic:
        on_disk.check_name(name)
        on_disk.check_partitions(partitions)
        config = TopicConfig.of(configs or {}, defaults=self.config.topic_defaults)
        with self._lock:
            if name in self._by_name:
                raise TopicExists(f"topic '{name}' exists", remedy="choose another name or delete it first")
            meta = TopicMeta(name, on_disk.new_topic_id(), partitions, dict(config.overrides))
            try:
                directory = on_disk.create_files(self._storage, self._root, meta)
            except OSError as error:
                raise storage_failed(name, "create topic", error) from error
            topic = Topic(name, meta.id, directory, config)
            topic.partitions = [self._open_partition(topic, number) for number in range(partitions)]
            self._add(topic)
            return topic

    def delete_topic(self, name: str) -> None:
        with self._lock:
            topic = self.topic(name)
            for partition in topic.partitions:
                partition.abandon(UnknownTopic(f"{partition.place}: the topic was deleted"))
            del self._by_name[name], self._by_id[topic.id]
            try:
                deleted = on_disk.mark_deleted(self._storage, self._root, topic.directory)
                on_disk.remove_tree(self._storage, deleted)
            except OSError as error:
                raise storage_failed(name, "delete topic", error) from error
            self._points.forget(topic.id)

    def add_partitions(self, name: str, *, total: int) -> Topic:
        on_disk.check_partitions(total)
        with self._lock:
            topic = self.topic(name)
            count = len(topic.partitions)
            if total <= count:
                raise InvalidPartitions(f"topic '{name}' has {count} partitions already", remedy="partitions can only be added")
            try:
                on_disk.add_partition_files(self._storage, topic.directory, range(count, total))
                on_disk.write_meta(self._storage, topic.directory, TopicMeta(name, topic.id, total, topic.config.overrides))
            except OSError as error:
                raise storage_failed(name, "add partitions", error) from error
            topic.partitions += [self._open_partition(topic, number) for number in range(count, total)]
            return topic

    def alter_configs(self, name: str, *, set: Mapping[str, str] | None = None, delete: Iterable[str] = ()) -> TopicConfig:
        with self._lock:
            topic = self.topic(name)
            gone = frozenset(delete)
            overrides = {key: value for key, value in topic.config.overrides.items() if key not in gone} | dict(set or {})
            config = TopicConfig.of(overrides, defaults=self.config.topic_defaults)
            on_disk.write_meta(self._storage, topic.directory, TopicMeta(name, topic.id, len(topic.partitions), overrides))
            topic.config = config
            for partition in topic.partitions:
                partition.config = config
            return config

    # --- upkeep ------------------------------------------------------------------------------------------------------

    def maintain(self, *, now_us: int) -> list[str]:
        """Retention, compaction and checkpoints of every partition; call it every few seconds, on a thread that may block. Returns
        what was done and what went wrong, one line each; trouble with one partition does not keep the others waiting."""
        done: list[str] = []
        with self._lock:
            partitions = [partition for topic in self._by_name.values() for partition in topic.partitions]
        for partition in partitions:
            if partition.failed is not None:
                continue
            try:
                if removed := partition.enforce_retention(now_us=now_us):
                    done.append(f"{partition.place}: retention removed {removed} segments, start offset is {partition.start_offset}")
                if partition.config.is_compacted and (compacted := compact(partition, now_us=now_us)) is not None:
                    done.append(f"{partition.place}: {compacted}")
                partition.producers_expire(now_us=now_us)
                partition.checkpoint_index(bytes_min=CHECKPOINT_BYTES)
            except (LogError, OSError) as error:
                if partition.failed is None or isinstance(error, LogError):
                    done.append(f"{partition.place}: upkeep failed: {error}")
        self._points.sync()
        return done

    def sync_points(self) -> None:
        """Bring the recovery points to disk, so that the next recovery has less to check."""
        self._points.sync()

    def close(self) -> None:
        """Bring everything to disk and let go of the directory."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self.commits.close()
            failures = []
            for topic in self._by_name.values():
                for partition in topic.partitions:
                    try:
                        partition.close()
                    except (LogError, OSError) as error:
                        failures.append(error)
            self._points.close()
            self._directory_lock.release()
        if failures:
            raise failures[0]

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _make_directory(storage: Storage, directory: str) -> None:
    """The directory and what is missing above it; on disk when it returns."""
    missing = []
    path = directory
    while path not in ("", "/") and not storage.exists(path):
        missing.append(path)
        path = posixpath.dirname(path)
    storage.mkdir(directory)
    for made in missing:
        storage.sync_dir(posixpath.dirname(made) or ".")
