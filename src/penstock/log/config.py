"""Topic configurations under Kafka's names, as a table.

Invariant: a `TopicConfig` holds valid values only; text comes in through `validate` and goes out through `entries`. Names that Kafka
knows and that have no meaning on one node (`min.insync.replicas`) are accepted and kept, so that tools written for Kafka
work; their row says so. Anything else is refused with the nearest known name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock.log.errors import InvalidConfig

LONG_MAX = (1 << 63) - 1
INT_MAX = (1 << 31) - 1


class Option(NamedTuple):
    """One configuration: its Kafka type, default, reader, and whether it does anything here."""

    type: str
    default: str
    read: Callable[[str], Any]
    effective: bool = True


class ConfigEntry(NamedTuple):
    name: str
    value: str
    is_default: bool
    type: str


def _whole(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise ValueError(f"must be in [{low}, {high}]")
        return value

    return read


def _one_of(*choices: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return text

    return read


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("must be true or false")
    return text.lower() == "true"


def _ratio(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise ValueError("must be in [0, 1]")
    return value


def _policies(text: str) -> frozenset[str]:
    names = frozenset(part.strip() for part in text.split(",") if part.strip())
    if not names or names - {"delete", "compact"}:
        raise ValueError("must be delete, compact, or both with a comma")
    return names


_ANY_TIME = _whole(-1, LONG_MAX)
_TIME = _whole(0, LONG_MAX)

OPTIONS: dict[str, Option] = {
    "cleanup.policy": Option("LIST", "delete", _policies),
    "compression.type": Option("STRING", "producer", _one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")),
    "delete.retention.ms": Option("LONG", "86400000", _TIME),
    "file.delete.delay.ms": Option("LONG", "60000", _TIME, effective=False),
    "flush.messages": Option("LONG", str(LONG_MAX), _whole(1, LONG_MAX), effective=False),
    "flush.ms": Option("LONG", str(LONG_MAX), _TIME, effective=False),
    "index.interval.bytes": Option("INT", "4096", _whole(0, INT_MAX)),
    "max.compaction.lag.ms": Option("LONG", str(LONG_MAX), _whole(1, LONG_MAX)),
    "max.message.bytes": Option("INT", "1048588", _whole(0, INT_MAX)),
    "message.timestamp.after.max.ms": Option("LONG", "3600000", _TIME),
    "message.timestamp.before.max.ms": Option("LONG", str(LONG_MAX), _TIME),
    "message.timestamp.type": Option("STRING", "CreateTime", _one_of("CreateTime", "LogAppendTime")),
    "min.cleanable.dirty.ratio": Option("DOUBLE", "0.5", _ratio),
    "min.compaction.lag.ms": Option("LONG", "0", _TIME),
    "min.insync.replicas": Option("INT", "1", _whole(1, INT_MAX), effective=False),
    "preallocate": Option("BOOLEAN", "false", _boolean, effective=False),
    "retention.bytes": Option("LONG", "-1", _ANY_TIME),
    "retention.ms": Option("LONG", "604800000", _ANY_TIME),
    "segment.bytes": Option("INT", "1073741824", _whole(14, INT_MAX)),
    "segment.index.bytes": Option("INT", "10485760", _whole(4, INT_MAX), effective=False),
    "segment.jitter.ms": Option("LONG", "0", _TIME, effective=False),
    "segment.ms": Option("LONG", "604800000", _whole(1, LONG_MAX)),
    "unclean.leader.election.enable": Option("BOOLEAN", "false", _boolean, effective=False),
}


def validate(configs: Mapping[str, str]) -> dict[str, Any]:
    """The values of these texts; raises `InvalidConfig` for the first that is unknown or wrong."""
    values = {}
    for name, text in configs.items():
        option = OPTIONS.get(name)
        if option is None:
            near = difflib.get_close_matches(name, OPTIONS, n=1)
            raise InvalidConfig(
                f"unknown topic configuration '{name}'",
                remedy=f"did you mean '{near[0]}'?" if near else "see the list in the documentation",
            )
        try:
            values[name] = option.read(str(text))
        except ValueError as error:
            raise InvalidConfig(f"{name}={text}: {error}") from None
    return values


DEFAULTS: dict[str, Any] = validate({name: option.default for name, option in OPTIONS.items()})


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The configuration of one topic: what was set on it, over the defaults of the broker.

    >>> TopicConfig.of({"retention.ms": "1000"}).retention_ms
    1000
    """

    overrides: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, str] = field(default_factory=dict)
    is_compacted: bool = False
    is_deleted: bool = True  # retention applies
    max_message_bytes: int = DEFAULTS["max.message.bytes"]
    retention_ms: int = DEFAULTS["retention.ms"]
    retention_bytes: int = DEFAULTS["retention.bytes"]
    segment_bytes: int = DEFAULTS["segment.bytes"]
    segment_ms: int = DEFAULTS["segment.ms"]
    index_interval_bytes: int = DEFAULTS["index.interval.bytes"]
    log_append_time: bool = False
    timestamp_after_ms_max: int = DEFAULTS["message.timestamp.after.max.ms"]
    timestamp_before_ms_max: int = DEFAULTS["message.timestamp.before.max.ms"]
    compression: str = DEFAULTS["compression.type"]
    compaction_lag_ms_min: int = DEFAULTS["min.compaction.lag.ms"]
    compaction_lag_ms_max: int = DEFAULTS["max.compaction.lag.ms"]
    delete_retention_ms: int = DEFAULTS["delete.retention.ms"]
    dirty_ratio_min: float = DEFAULTS["min.cleanable.dirty.ratio"]

    @classmethod
    def of(cls, overrides: Mapping[str, str], *, defaults: Mapping[str, str] | None = None) -> TopicConfig:
        defaults = defaults or {}
        value = DEFAULTS | validate(defaults) | validate(overrides)
        return cls(
            overrides=dict(overrides),
            defaults=dict(defaults),
            is_compacted="compact" in value["cleanup.policy"],
            is_deleted="delete" in value["cleanup.policy"],
            max_message_bytes=value["max.message.bytes"],
            retention_ms=value["retention.ms"],
            retention_bytes=value["retention.bytes"],
            segment_bytes=value["segment.bytes"],
            segment_ms=value["segment.ms"],
            index_interval_bytes=value["index.interval.bytes"],
            log_append_time=value["message.timestamp.type"] == "LogAppendTime",
            timestamp_after_ms_max=value["message.timestamp.after.max.ms"],
            timestamp_before_ms_max=value["message.timestamp.before.max.ms"],
            compression=value["compression.type"],
            compaction_lag_ms_min=value["min.compaction.lag.ms"],
            compaction_lag_ms_max=value["max.compaction.lag.ms"],
            delete_retention_ms=value["delete.retention.ms"],
            dirty_ratio_min=value["min.cleanable.dirty.ratio"],
        )

    def entries(self) -> list[ConfigEntry]:
        """Every configuration with its value, as `describe configs` shows it."""
        return [
            ConfigEntry(name, self.overrides.get(name, self.defaults.get(name, option.default)), name not in self.overrides, option.type)
            for name, option in OPTIONS.items()
        ]
