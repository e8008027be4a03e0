"""Reads what the pipeline writes: averages and alarms, as any consumer would. Runs on a thread of its own."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

TOPICS = ("averages", "alarms")


class Watch:
    """The latest average of each area and all alarms of the building's time from `since` on, in the order of their coming.

    The sink is at-least-once: an alarm that comes again is shown once."""

    def __init__(self, *, address: str, security: Mapping[str, str], since: datetime) -> None:
        self._settings = {
            "bootstrap.servers": address,
            "group.id": "penstock-demo-view",
            "enable.auto.commit": False,
            "log_level": 0,
            **security,
        }
        self._consumer = Consumer(self._settings)
        self._next = dict.fromkeys(TOPICS, 0)
        self._since = since
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self.averages: dict[str, dict[str, Any]] = {}
        self.alarms: list[dict[str, Any]] = []
        self._seen: set[tuple[str, str]] = set()

    def __enter__(self) -> Watch:
        self._consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING) for topic in TOPICS])
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._consumer.close()

    def catch_up(self) -> None:
        """Return when everything that is in the topics now has been read."""
        # A consumer of its own: the binding deadlocks when two threads call one consumer.
        asking = Consumer(self._settings)
        try:
            ends = {topic: asking.get_watermark_offsets(TopicPartition(topic, 0), timeout=15) for topic in TOPICS}
        finally:
            asking.close()
        for topic, (start, end) in ends.items():
            while self._thread.is_alive() and end > start and self._next[topic] < end:
                time.sleep(0.02)

    def _run(self) -> None:
        while not self._stopping.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                self._take(message.topic(), json.loads(message.value()))
                self._next[message.topic()] = message.offset() + 1

    def _take(self, topic: str, row: dict[str, Any]) -> None:
        if datetime.fromisoformat(row["window_end" if topic == "averages" else "at"]) < self._since:
            return  # of an earlier run
        if topic == "averages":
            self.averages[row["area"]] = row
        elif (row["area"], row["at"]) not in self._seen:
            self._seen.add((row["area"], row["at"]))
            self.alarms.append(row | {"seen_s": time.monotonic()})
