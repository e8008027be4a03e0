"""Kill the driver of a pipeline again and again, and compare what it wrote with a run that nobody disturbed.

Everything is real: a broker, topics, the planned pipeline (windows with early and late panes that are retracted, a process step, late
records), Spark, and SIGKILL for the driver at a random moment of a random batch. Invariant: the rows in the topics of both runs are
the same once repeats are removed (the sink is at-least-once, and a batch that is done again writes equal rows). Few records per
batch make many batches; batch boundaries follow from the offsets, so both runs see the same batches.
Not here: kills of the broker (`crash.py`). Run as `python -m penstock.testing.kill_driver FOLDER BROKER RUN` it is the driver."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import penstock as ps
from penstock.errors import PenstockError
from penstock.profile import Profile

SOURCE = "readings"
PARTITIONS = 2
RECORDS_PER_BATCH_MAX = 15
OUTPUTS = ("panes", "numbered", "late", "overtaken")
WAIT_S_MAX = 120.0
JITTER_S_MAX = 0.4  # longer than a batch: the kill may come anywhere in it
_POLL_S = 0.01
_START = datetime(2026, 1, 1, tzinfo=UTC)
_KEPT = {"retention.ms": "-1"}


@ps.process(state="n BIGINT", output="area STRING, id STRING, n BIGINT")
def numbered(event: ps.Event, state: ps.State, out: ps.Out) -> None:
    """The readings of an area in event time, numbered."""
    state.n = (state.n or 0) + 1
    out.emit(area=event.area, id=event.id, n=state.n)


def pipeline(run: str) -> ps.Pipeline:
    """What is killed; it writes to topics of its run."""
    readings = ps.read(SOURCE, "id STRING, area STRING, n INT, at TIMESTAMP").event_time("at", lateness="5s").key_by("area")
    panes = (
        readings.window(ps.tumbling("10s"))
        .trigger(ps.after_watermark(early=ps.after_count(3), late=ps.after_count(1)))
        .allowed_lateness("15s")
        .aggregate(total="sum(n)", readings="count(*)")
        .accumulate("retracting")
    )
    numbers = readings.process(numbered)
    streams = dict(zip(OUTPUTS, (panes, numbers, panes.late, numbers.late), strict=True))
    return ps.pipeline(*(stream.write(f"{run}.{topic}") for topic, stream in streams.items()), name=run)


def readings(seed: int, *, count: int) -> list[dict[str, Any]]:
    """Two readings a second; some come late, a few of them too late for their window."""
    chance = random.Random(seed)
    made = []
    for number in range(count):
        second = number / 2 + chance.random() / 2
        delay = chance.choice((chance.uniform(0, 4),) * 9 + (chance.uniform(5, 60),))
        at = (_START + timedelta(seconds=second)).isoformat()
        made.append((second + delay, {"id": f"r{number}", "area": chance.choice("abcd"), "n": chance.randint(-5, 9), "at": at}))
    return [reading for _, reading in sorted(made, key=lambda pair: pair[0])]


def send(made: Sequence[dict[str, Any]], *, address: str) -> None:
    """The readings into a new topic."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": address})
    for future in admin.create_topics([NewTopic(SOURCE, PARTITIONS, 1, config=_KEPT)]).values():
        future.result(WAIT_S_MAX)
    producer = Producer({"bootstrap.servers": address})
    for number, reading in enumerate(made):
        producer.produce(SOURCE, value=json.dumps(reading), partition=number % PARTITIONS)
    if producer.flush(WAIT_S_MAX):
        raise PenstockError(f"the broker at {address} did not take all readings", remedy="look at its log")


def drive(folder: Path, *, address: str, run: str) -> int:
    """Run the pipeline in this process over everything in the topic, from the checkpoint if there is one; gives the number of batches."""
    from penstock.spark.run import run as run_pipeline

    profile = Profile(data=folder / "data", broker=address, spark="local[2]", conf={"penstock.quick": "true"})
    options = {"records_per_batch_max": str(RECORDS_PER_BATCH_MAX)}
    running = run_pipeline(pipeline(run), profile, name=run, bounded=True, options=options)
    running.wait()
    return _batches(folder, run, "commits")


@dataclass(frozen=True, slots=True)
class Kill:
    """How far the driver had come when it was killed, in batches."""

    begun: int
    committed: int


def start(folder: Path, *, address: str, run: str) -> subprocess.Popen[bytes]:
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "penstock.testing.kill_driver", str(folder), address, run]
    with (folder / "driver.log").open("ab") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def kill(folder: Path, rng: random.Random, *, address: str, run: str, within: int) -> Kill:
    """Start the driver, and kill it up to so many batches later; nothing of it may be left running."""
    import psutil

    driver = start(folder, address=address, run=run)
    until = _batches(folder, run, "offsets") + rng.randint(1, within)
    jitter_s = rng.uniform(0, JITTER_S_MAX)
    deadline = time.monotonic() + WAIT_S_MAX
    while _batches(folder, run, "offsets") < until and driver.poll() is None and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    time.sleep(jitter_s)  # not to wait for something, but to come at any moment of the batch
    if driver.poll() is not None and driver.returncode != 0:
        raise PenstockError(f"the driver failed before it was killed: {_tail(folder)}")
    family = psutil.Process(driver.pid).children(recursive=True) if driver.poll() is None else []
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    _, alive = psutil.wait_procs(family, timeout=WAIT_S_MAX)
    if alive:
        raise PenstockError(f"the driver was killed, but {len(alive)} of its processes live on: {alive}")
    return Kill(_batches(folder, run, "offsets"), _batches(folder, run, "commits"))


def finish(folder: Path, *, address: str, run: str) -> int:
    """Run to the end in a process of its own; gives the number of batches."""
    driver = start(folder, address=address, run=run)
    if driver.wait(WAIT_S_MAX) != 0:
        raise PenstockError(f"the driver failed: {_tail(folder)}")
    return _batches(folder, run, "commits")


def written(run: str, *, address: str) -> dict[str, Counter[str]]:
    """Every row in the topics of a run, with how often it is there."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": address, "group.id": run, "enable.auto.commit": False, "enable.partition.eof": True})
    known = consumer.list_topics(timeout=WAIT_S_MAX).topics
    places = [TopicPartition(f"{run}.{topic}", number, 0) for topic in OUTPUTS for number in known[f"{run}.{topic}"].partitions]
    consumer.assign(places)
    rows: dict[str, Counter[str]] = {topic: Counter() for topic in OUTPUTS}
    ends = 0
    while ends < len(places):
        message = consumer.poll(WAIT_S_MAX)
        if message is None:
            raise PenstockError(f"the topics of {run} did not end within {WAIT_S_MAX:g} s")
        if message.error():
            ends += 1
        else:
            rows[message.topic().removeprefix(f"{run}.")][json.dumps(json.loads(message.value()), sort_keys=True)] += 1
    consumer.close()
    return rows


def differences(rows: dict[str, Counter[str]], undisturbed: dict[str, Counter[str]]) -> list[str]:
    """Rows that only one of two runs has, repeats apart."""
    found = []
    for topic in OUTPUTS:
        found += [f"{topic}: only after kills: {row}" for row in sorted(rows[topic].keys() - undisturbed[topic].keys())]
        found += [f"{topic}: only undisturbed: {row}" for row in sorted(undisturbed[topic].keys() - rows[topic].keys())]
    return found


def wrong_totals(rows: dict[str, Counter[str]], made: Sequence[dict[str, Any]]) -> list[str]:
    """Windows whose rows, added up by sign, are not the sum of the readings that were in time: computed from the readings alone."""
    too_late = {json.loads(row)["id"] for row in rows["late"]}
    wanted, found = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for reading in made:
        at = datetime.fromisoformat(reading["at"])
        if reading["id"] not in too_late:
            wanted[reading["area"], (at - timedelta(seconds=at.second % 10, microseconds=at.microsecond)).isoformat()] += reading["n"]
    for row in map(json.loads, rows["panes"]):
        found[row["area"], datetime.fromisoformat(row["window_start"]).isoformat()] += row["sign"] * row["total"]
    return [f"{key}: {found[key]} instead of {wanted[key]}" for key in sorted(wanted.keys() | found.keys()) if wanted[key] != found[key]]


def _batches(folder: Path, run: str, kind: str) -> int:
    """How many batches were begun (`offsets`) or committed (`commits`)."""
    files = (folder / "data" / "checkpoints" / run / "spark" / kind).glob("*")
    return max((int(file.name) + 1 for file in files if file.name.isdigit()), default=0)


def _tail(folder: Path) -> str:
    return (folder / "driver.log").read_text(errors="replace")[-2_000:]


if __name__ == "__main__":
    drive(Path(sys.argv[1]), address=sys.argv[2], run=sys.argv[3])
