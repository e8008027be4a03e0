"""The main demo: broker, sensors and the fire-alarm pipeline, from start to summary.

Every figure of the summary is counted by the pipeline or read from its topics; the simulator gives only the truth to compare
with. Not here: the pipeline itself (`examples/fire_alarm.py`) and the view in the terminal (`view.py`)."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.demo.feed import Feed
from penstock.demo.sensors import SMOKE, START, TEMPERATURES, Building, building, history
from penstock.demo.watch import Watch
from penstock.errors import PenstockError
from penstock.profile import Profile

if TYPE_CHECKING:
    from penstock.spark.run import Running

JOB = "fire-alarm"
PARTITIONS = 4
OUTPUTS = ("averages", "alarms", "late", "dead-letters")
REFRESH_S = 0.25
KEPT = {"retention.ms": "-1"}  # records carry simulated event times, which lie in the past: retention by time would take them at once


@dataclass(slots=True)
class Demo:
    """What the view shows and the summary is made of, while it happens."""

    house: Building
    speed: float
    address: str
    ui: str | None = None
    begun_s: float = field(default_factory=time.monotonic)
    phase: str = "starting"
    simulated_us: int = 0
    before: Mapping[str, int] = field(default_factory=dict)  # what earlier runs of the same checkpoint had counted
    totals: Mapping[str, int] = field(default_factory=dict)
    watch: Watch | None = None

    def count(self, totals: Mapping[str, int]) -> None:
        """Take the pipeline's counters, less those of earlier runs; times are no counters."""
        self.totals = {name: value if name.endswith("_us") else value - self.before.get(name, 0) for name, value in totals.items()}

    def summary(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        alarms = self.watch.alarms if self.watch else []
        counted = {name: self.totals.get(name, 0) for name in ("records", "late", "bad", "duplicates")}
        return {
            "fire": {"area": self.house.fire, "at": _iso(self.house.fire_at)},
            "alarms": [{"area": alarm["area"], "at": alarm["at"], "celsius": alarm["celsius"]} for alarm in alarms],
            **counted,
            "first_alarm_s": round(alarms[0]["seen_s"] - self.begun_s, 2) if alarms else None,
        }


def run(
    profile: Profile, *, seconds: int, seed: int, speed: float, fresh: bool, port: int, on_change: Callable[[Demo], None] = lambda _: None
) -> Demo:
    """Run the demo to its end. `on_change` is called a few times a second; an exception from it (Ctrl-C) stops everything cleanly."""
    profile = replace(profile, data=profile.data / "demo")
    if fresh:
        shutil.rmtree(profile.data, ignore_errors=True)
    profile.data.mkdir(parents=True, exist_ok=True)
    house = _next_building(profile.data, seconds=seconds, seed=seed)
    _remember(house, profile.data)
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(_broker(profile, port))
        # A run of a minute is over before the JVM's second compiler has paid for itself.
        profile = replace(profile, broker=address, conf={"penstock.quick": "true", **profile.conf})
        demo = Demo(house, speed, address)
        on_change(demo)
        _create_topics(profile, fresh=fresh)
        demo.watch = stack.enter_context(Watch(address=address, security=profile.security, since=house.start))
        feed = stack.enter_context(Feed(history(house), address=address, speed=speed, security=profile.security))
        demo.before = _counted_before(profile)
        running = stack.enter_context(_pipeline(profile, fresh=fresh))
        demo.ui, demo.phase = running.ui, "running"
        _follow(demo, feed, running, on_change)
        demo.phase = "done"
    on_change(demo)
    return demo


def _follow(demo: Demo, feed: Feed, running: Running, on_change: Callable[[Demo], None]) -> None:
    """Until the sensors have sent everything and the pipeline has worked through it."""
    while not feed.done:
        running.check()
        demo.simulated_us = feed.now_us
        demo.count(running.totals())
        on_change(demo)
        time.sleep(REFRESH_S)
    demo.phase = "catching up"
    while not running.caught_up():
        running.check()
        demo.count(running.totals())
        on_change(demo)
        time.sleep(REFRESH_S)
    demo.count(running.totals())
    assert demo.watch is not None
    demo.watch.catch_up()


@contextlib.contextmanager
def _broker(profile: Profile, port: int) -> Iterator[str]:
    if profile.broker:
        yield profile.broker
        return
    from penstock.broker.embedded import broker

    with broker(data=profile.data / "log", port=port) as embedded:
        yield embedded.address


@contextlib.contextmanager
def _pipeline(profile: Profile, *, fresh: bool) -> Iterator[Running]:
    from penstock.dataflow.load import load_pipeline
    from penstock.spark.run import run as run_pipeline

    running = run_pipeline(load_pipeline(pipeline_file()), profile, name=JOB, fresh=fresh)
    try:
        yield running
    finally:
        running.stop()


def _counted_before(profile: Profile) -> dict[str, int]:
    from penstock.spark.run import totals

    return totals(Path(profile.checkpoints) / JOB / "progress.jsonl")


def pipeline_file() -> Path:
    """The pipeline's source: beside this file in an installed package, in examples/ in the repository."""
    for candidate in (Path(__file__).with_name("fire_alarm_pipeline.py"), Path(__file__).parents[3] / "examples" / "fire_alarm.py"):
        if candidate.is_file():
            return candidate
    raise PenstockError("the fire alarm's pipeline is not in this installation", remedy="install the package again")


def _create_topics(profile: Profile, *, fresh: bool) -> None:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic

    client = AdminClient({"bootstrap.servers": profile.broker, "log_level": 0, **profile.security})
    wanted = {TEMPERATURES: PARTITIONS, SMOKE: PARTITIONS, **dict.fromkeys(OUTPUTS, 1)}
    try:
        there = set(client.list_topics(timeout=15).topics) & set(wanted)
        if fresh and there:
            for future in client.delete_topics(sorted(there)).values():
                future.result(15)
            there = set()
        topics = [
            NewTopic(name, num_partitions=count, replication_factor=1, config=KEPT) for name, count in wanted.items() if name not in there
        ]
        for future in client.create_topics(topics).values() if topics else ():
            future.result(15)
    except KafkaException as error:
        raise PenstockError(
            f"cannot create the demo's topics at {profile.broker}: {error.args[0].str()}", remedy="check the broker"
        ) from None


def _next_building(directory: Path, *, seconds: int, seed: int) -> Building:
    """A run that continues an earlier one begins after it: its readings must not be late, its ids not duplicates."""
    try:
        state = json.loads((directory / "runs.json").read_text())
        return building(seed=seed, seconds=seconds, start=datetime.fromisoformat(state["next_start"]), run=int(state["runs"]))
    except FileNotFoundError:
        return building(seed=seed, seconds=seconds, start=START)


def _remember(house: Building, directory: Path) -> None:
    """Written before the first reading is sent: a run that was stopped in the middle has used up its time and its ids, too."""
    next_start = house.start + timedelta(seconds=house.seconds + 300)
    (directory / "runs.json").write_text(json.dumps({"runs": house.run + 1, "next_start": next_start.isoformat()}))


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
