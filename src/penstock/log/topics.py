"""Topics on disk: names, ids, partition counts and configurations.

    DIR/topics/<name>.<id as 32 hex digits>/
        topic                    | kind "topic": name, id, partitions, configs | (see checkpoint.py)
        0/ 1/ 2/ ...             partitions
    DIR/topics/<...>.deleted/    on its way out

Invariant: a topic exists if and only if its `topic` file does and its directory is not `.deleted`. Creating writes that file last, deleting
renames the directory first; so either is one step, and what a crash leaves of the other steps is removed at the next opening. An id is never
used again."""

from __future__ import annotations

import posixpath
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.log import checkpoint
from penstock.log.config import TopicConfig
from penstock.log.errors import InvalidPartitions, InvalidTopicName
from penstock.log.partition import Partition
from penstock.log.storage import Storage

PARTITIONS_MAX = 10_000
NAME_CHARACTERS_MAX = 249
_NAME = re.compile(r"[a-zA-Z0-9._-]+")


@dataclass(slots=True)
class Topic:
    name: str
    id: bytes
    directory: str
    config: TopicConfig
    partitions: list[Partition] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TopicMeta:
    """What the `topic` file says."""

    name: str
    id: bytes
    partitions: int
    configs: Mapping[str, str]


def check_name(name: str) -> None:
    if not _NAME.fullmatch(name) or name in (".", "..") or len(name) > NAME_CHARACTERS_MAX:
        raise InvalidTopicName(
            f"'{name[:300]}' is not a topic name", remedy=f"use 1 to {NAME_CHARACTERS_MAX} of the characters a-z A-Z 0-9 . _ -"
        )


def check_partitions(count: int) -> None:
    if not 1 <= count <= PARTITIONS_MAX:
        raise InvalidPartitions(f"{count} partitions", remedy=f"a topic has 1 to {PARTITIONS_MAX} partitions")


def new_topic_id() -> bytes:
    return uuid.uuid4().bytes


def topic_directory(root: str, name: str, topic_id: bytes) -> str:
    return posixpath.join(root, f"{name[:200]}.{topic_id.hex()}")


def write_meta(storage: Storage, directory: str, meta: TopicMeta) -> None:
    content = {"name": meta.name, "id": meta.id.hex(), "partitions": meta.partitions, "configs": dict(meta.configs)}
    checkpoint.write(storage, posixpath.join(directory, "topic"), "topic", content)


def read_meta(storage: Storage, directory: str) -> TopicMeta | None:
    content = checkpoint.read(storage, posixpath.join(directory, "topic"), "topic")
    if content is None:
        return None
    return TopicMeta(content["name"], bytes.fromhex(content["id"]), content["partitions"], content["configs"])


def create_files(storage: Storage, root: str, meta: TopicMeta) -> str:
    """A new topic on disk; it exists when this returns, and not before the last step."""
    directory = topic_directory(root, meta.name, meta.id)
    storage.mkdir(directory)
    storage.sync_dir(root)
    add_partition_files(storage, directory, range(meta.partitions))
    write_meta(storage, directory, meta)
    return directory


def add_partition_files(storage: Storage, directory: str, numbers: range) -> None:
    for number in numbers:
        Partition.create(storage, posixpath.join(directory, str(number)))
    storage.sync_dir(directory)


def mark_deleted(storage: Storage, root: str, directory: str) -> str:
    """From here on the topic is gone, also after a crash; its files are removed with `remove_tree`."""
    target = directory + ".deleted"
    storage.rename(directory, target)
    storage.sync_dir(root)
    return target


def remove_tree(storage: Storage, directory: str) -> None:
    """Remove a topic's directory. The `topic` file goes first, so a half-removed directory is never taken for a topic."""
    names = storage.listdir(directory)
    if "topic" in names:
        storage.unlink(posixpath.join(directory, "topic"))
        storage.sync_dir(directory)
    for name in names:
        path = posixpath.join(directory, name)
        if name.isdigit():
            for file in storage.listdir(path):
                storage.unlink(posixpath.join(path, file))
            storage.rmdir(path)
        elif name != "topic":
            storage.unlink(path)
    storage.rmdir(directory)


def list_topics(storage: Storage, root: str) -> dict[str, TopicMeta]:
    """Directory -> meta of every topic; what never came to be, or is on its way out, is removed."""
    found: dict[str, TopicMeta] = {}
    removed = False
    for name in storage.listdir(root):
        directory = posixpath.join(root, name)
        meta = None if name.endswith(".deleted") else read_meta(storage, directory)
        if meta is None:
            remove_tree(storage, directory)
            removed = True
        else:
            found[directory] = meta
    if removed:
        storage.sync_dir(root)
    return found
