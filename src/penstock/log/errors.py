"""What the log refuses, as types.

Invariant: every error carries the Kafka error code (`kafka_code`) that a broker answers with, and names the
partition it is about. `Damaged` and `StorageFailed` are the two that an operator must look at; the rest is the client's."""

from __future__ import annotations

from penstock.errors import PenstockError


class LogError(PenstockError):
    """Anything that the log refuses or cannot do."""

    kafka_code = -1


class OffsetOutOfRange(LogError):
    """The offset is not between the start and the end of the partition."""

    kafka_code = 1

    def __init__(self, place: str, offset: int, *, start: int, end: int) -> None:
        self.offset, self.start, self.end = offset, start, end
        super().__init__(f"{place}: offset {offset} is not in [{start}, {end}]", remedy="read from the start or the end offset")


class CorruptBatch(LogError):
    """A batch that arrived broken: wrong checksum, length or counts. Nothing was written."""

    kafka_code = 2


class Damaged(LogError):
    """Stored bytes are not what was written. Nothing is served from there and nothing is cut."""

    kafka_code = 2

    def __init__(self, place: str, offset: int, *, file: str, position: int, why: str) -> None:
        self.offset, self.file, self.position, self.why = offset, file, position, why
        super().__init__(
            f"{place}: damage at offset {offset} ({file}, byte {position}): {why}",
            remedy="stop the broker, keep a copy of the file, and restore it from a backup or delete the records before the next good batch",
        )


class UnknownTopic(LogError):
    """No such topic, topic id or partition."""

    kafka_code = 3


class BatchTooLarge(LogError):
    """The batch is longer than max.message.bytes of its topic."""

    kafka_code = 10


class InvalidTopicName(LogError):
    """A topic name that Kafka would refuse too."""

    kafka_code = 17


class InvalidTimestamp(LogError):
    """A record timestamp outside of what the topic's configuration allows."""

    kafka_code = 32


class TopicExists(LogError):
    """The topic is there already."""

    kafka_code = 36


class InvalidPartitions(LogError):
    """A partition count that cannot be had."""

    kafka_code = 37


class InvalidConfig(LogError):
    """An unknown configuration name, or a value it cannot take."""

    kafka_code = 40


class OutOfOrderSequence(LogError):
    """An idempotent batch that leaves a gap after the last one of its producer."""

    kafka_code = 45


class InvalidProducerEpoch(LogError):
    """A batch of a producer that a newer one with the same id has fenced off."""

    kafka_code = 47


class InvalidTransactionState(LogError):
    """A batch outside of a transaction from a producer that has one open."""

    kafka_code = 48


class StorageFailed(LogError):
    """The disk is full, or failed. After a failed fsync the partition stays stopped until a restart."""

    kafka_code = 56


class UnsupportedCodec(LogError):
    """A compression codec that record batches do not have."""

    kafka_code = 76


class InvalidRecord(LogError):
    """A batch that is well-formed but may not be stored here: old format, several batches, or no key on a compacted topic."""

    kafka_code = 87


class DirectoryLocked(LogError):
    """Another process has the data directory open."""

    kafka_code = 56
