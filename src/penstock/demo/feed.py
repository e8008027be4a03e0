"""Sends a building's history to the topics, at a chosen multiple of real time, over the Kafka protocol.

Like any producer it knows nothing of who reads. Runs on a thread of its own; `stop` ends it between two readings."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

from confluent_kafka import KafkaException, Producer

from penstock.clock import MICROS
from penstock.demo.sensors import Reading
from penstock.errors import PenstockError

TICK_S = 0.02  # readings that fall into one tick are sent together


class Feed:
    """`with Feed(readings, address=…, speed=20) as feed:` sends in the background until done or stopped."""

    def __init__(self, readings: Sequence[Reading], *, address: str, speed: float, security: Mapping[str, str]) -> None:
        self._readings = readings
        self._speed = speed
        self._producer = Producer({"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 5, "log_level": 0, **security})
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sensors", daemon=True)
        self._failure: Exception | None = None
        self.sent = 0
        self.now_us = 0  # simulated

    def __enter__(self) -> Feed:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    @property
    def done(self) -> bool:
        """True when everything was sent and acknowledged. Raises what went wrong on the thread."""
        if self._failure is not None:
            raise PenstockError(f"the sensors cannot send: {self._failure}", remedy="is the broker up?") from self._failure
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._send_all()
        except (KafkaException, BufferError) as error:
            self._failure = error

    def _send_all(self) -> None:
        begun_s = time.monotonic()
        for reading in self._readings:
            while not self._stopping.is_set() and reading.sent_us > self.now_us:
                ahead_s = (reading.sent_us - self.now_us) / MICROS / self._speed
                self._producer.poll(0)
                self._stopping.wait(min(max(ahead_s, 0.001), TICK_S))
                self.now_us = round((time.monotonic() - begun_s) * self._speed * MICROS)
            if self._stopping.is_set():
                break
            self._produce(reading)
            self.sent += 1
        self._producer.flush(30)

    def _produce(self, reading: Reading) -> None:
        while True:
            try:
                self._producer.produce(reading.topic, key=reading.sensor.encode(), value=reading.value)
                return
            except BufferError:  # the queue is full: let the broker catch up
                self._producer.poll(0.1)
