"""Run a pipeline on Spark: plan, session, one query; watch it, count, stop it.

A job is a name: its checkpoint, the plan it was started with and its counters lie together in one folder.
    <checkpoints>/<name>/spark/               Spark's offsets, commits and state
                        /plan.json            the shape of the plan: a changed one is refused, since the state would not fit
                        /progress.jsonl       one line of exact counters per batch, written by the sink
Invariant: what a user sees of a failure begins with one line that names the step and the cause. Not here: how a plan becomes
operators (`compile.py`), what a batch writes (`sink.py`)."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError, PenstockError
from penstock.planner import plan as planned
from penstock.planner.physical import PhysicalPlan, Scan
from penstock.profile import Profile
from penstock.spark.session import log_file, session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from penstock.dataflow.pipeline import Pipeline

STOP_S_MAX = 60
_POLL_S = 0.05
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def run(
    pipeline: Pipeline, profile: Profile, *, name: str, fresh: bool = False, bounded: bool = False, options: Mapping[str, str] | None = None
) -> Running:
    """Start a pipeline. `bounded` processes what is there now, closes all windows and ends; `fresh` forgets the checkpoint."""
    job = _job(profile, name)
    if fresh and _is_remote(profile):
        raise ConfigError(
            f"cannot remove a checkpoint in {profile.checkpoints}",
            remedy="remove it with that file system's tools, or give the job another name",
        )
    if fresh:
        shutil.rmtree(job, ignore_errors=True)
    plan = planned(pipeline)
    if bounded:
        plan = replace(plan, scans=tuple(_bounded(scan) for scan in plan.scans))
    _remember_shape(plan, job, name)
    return start(plan, profile, name=name, job=job, bounded=bounded or all(scan.end is not None for scan in plan.scans), options=options)


def start(
    plan: PhysicalPlan, profile: Profile, *, name: str, job: Path, bounded: bool, options: Mapping[str, str] | None = None
) -> Running:
    """Start a physical plan as one query."""
    from penstock.spark import sink
    from penstock.spark.compile import compile_plan

    if profile.broker is None:
        raise ConfigError(
            "the pipeline reads and writes topics, but there is no broker",
            remedy="start one with `penstock broker`, or name one with --broker",
        )
    if profile.security:
        raise ConfigError(
            f"profile '{profile.name}' has security settings, which pipelines cannot use yet (the command line's clients can)",
            remedy="give pipelines a listener without TLS and SASL",
        )
    spark = session(profile)
    settings = {**(options or {}), **({"connector": "jvm"} if profile.connector == "jvm" else {})}
    try:
        envelopes = compile_plan(spark, plan, address=profile.broker, options=settings, job=name)
        writer = sink.writer(spark, envelopes, plan, address=profile.broker, options=settings, progress=job / "progress.jsonl")
        writer = writer.queryName(name).option("checkpointLocation", _checkpoint(profile, name, job))
        query = (writer.trigger(availableNow=True) if bounded else writer.trigger(processingTime="0 seconds")).start()
    except Exception as error:
        raise failure(error, profile, name) from error
    return Running(plan, profile, name, job, query, spark.sparkContext.uiWebUrl or "")


def to_dataframe(
    pipeline: Pipeline, spark: SparkSession, *, address: str | None = None, options: Mapping[str, str] | None = None
) -> DataFrame:
    """The rows that the pipeline's one sink would write, as a streaming DataFrame."""
    from penstock.spark.compile import compile_plan, opened

    plan = planned(pipeline)
    if len(plan.sinks) != 1:
        raise ConfigError(f"the pipeline has {len(plan.sinks)} outputs", remedy="call to_dataframe on one stream")
    return opened(compile_plan(spark, plan, address=address, options=options or {}, job=pipeline.name), plan.sinks[0])


@dataclass(slots=True)
class Running:
    """A pipeline at work."""

    plan: PhysicalPlan
    profile: Profile
    name: str
    job: Path
    query: StreamingQuery
    ui: str  # Spark's page
    _target: dict[str, int] | None = field(default=None, init=False)

    @property
    def ended(self) -> bool:
        return not self.query.isActive

    def check(self) -> None:
        """Raise the cause if the query has failed."""
        if self.query.isActive:
            return
        error = self.query.exception()
        if error is not None:
            raise failure(error, self.profile, self.name)

    def wait(self, *, timeout_s: float | None = None) -> bool:
        """Until the query ends; False if the time is over first."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while self.query.isActive:
            if deadline is not None and time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
        self.check()
        return True

    def stop(self) -> None:
        """End the query after the batch it is in; what that batch did not finish is done again at the next start."""
        if self.query.isActive:
            self.query.stop()

    def totals(self) -> dict[str, int]:
        """Counters of all batches since the checkpoint began: records, bad, duplicates, late, watermark_us, batches, …"""
        return totals(self.job / "progress.jsonl")

    def caught_up(self) -> bool:
        """Whether everything is processed that was in the topics when this was first asked (again, after each True)."""
        if self._target is None:
            self._target = self._available()
        done = processed(self.job / "spark") if (self.job / "spark").is_dir() else self._told()
        if any(offset > done.get(place, 0) for place, offset in self._target.items()):
            return False
        self._target = None
        return True

    def _told(self) -> dict[str, int]:
        """What the query itself says it has processed: for a checkpoint in a file system that only Spark reads."""
        last = self.query.lastProgress
        ends = [json.loads(source["endOffset"]) for source in last["sources"] if source["endOffset"]] if last else []
        return {place: offset for end in ends for place, offset in _places(end)}

    def _available(self) -> dict[str, int]:
        from penstock.spark.offsets import client_of, resolve

        assert self.profile.broker is not None, "checked at the start"
        client = client_of(self.profile.broker)
        target: dict[str, int] = {}
        for scan in self.plan.scans:
            places = [(topic, partition) for topic, partitions in client.partitions(scan.topics).items() for partition in partitions]
            for (topic, partition), offset in resolve(client, scan.end or "latest", places).items():
                target[f"{scan.id}/{topic}/{partition}"] = offset
        return target


def totals(progress: Path) -> dict[str, int]:
    """Sum the counters of every batch; a batch that ran twice counts once, by its last line. Times are maxima."""
    batches: dict[int, dict[str, dict[str, int]]] = {}
    with contextlib.suppress(FileNotFoundError):
        for line in progress.read_text().splitlines():
            with contextlib.suppress(ValueError):  # a torn last line: the batch will be done again
                told = json.loads(line)
                batches[told["batch"]] = told["counts"]
    result: dict[str, int] = {"batches": len(batches)}
    for counts in batches.values():
        for each in counts.values():
            for name, value in each.items():
                result[name] = max(result.get(name, value), value) if name.endswith("_us") else result.get(name, 0) + value
    return result


def processed(checkpoint: Path) -> dict[str, int]:
    """The next offset per scan, topic and partition after the last committed batch, from Spark's own logs."""
    batches = [int(file.name) for file in (checkpoint / "commits").glob("*") if file.name.isdigit()]
    if not batches:
        return {}
    lines = (checkpoint / "offsets" / str(max(batches))).read_text().splitlines()
    return {place: offset for line in lines[2:] if line.startswith("{") for place, offset in _places(json.loads(line))}


def _places(told: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """The offsets of our source, flat."""
    for scan, topics in told.get("scans", {}).items():
        for topic, partitions in topics.items():
            for partition, offset in partitions.items():
                yield f"{scan}/{topic}/{partition}", offset


def failure(error: BaseException, profile: Profile, name: str) -> PenstockError:
    """One line that says what went wrong and where the whole story is."""
    if isinstance(error, PenstockError):
        return error
    trace = profile.data / "logs" / f"{name}.failure.txt"
    with contextlib.suppress(OSError):
        trace.parent.mkdir(parents=True, exist_ok=True)
        trace.write_text(str(error))
    remedy = f"the whole trace is in {trace}" + (f", Spark's log in {log_file()}" if log_file() else "")
    return PenstockError(f"pipeline '{name}' failed: {cause(str(error))}", remedy=remedy)


def cause(text: str) -> str:
    """The line of a trace that a person would look for: what Python raised last, or what Spark says first.

    >>> cause("x\\nTraceback (most recent call last):\\n  File\\npenstock.errors.PenstockError: step 'a': no\\n")
    "step 'a': no"
    """
    raised = re.findall(
        r"^(?:[EW]?\s*)((?:\w+\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Refused|Lost\w*|Range|Part)): (.+)$", text, re.MULTILINE
    )
    ours = [message for kind, message in raised if "penstock" in kind]
    if ours:
        return str(ours[0])
    own = [
        (kind, message) for kind, message in raised if not kind.startswith(("org.", "py4j", "java.", "pyspark.errors.exceptions.captured"))
    ]
    if own:
        kind, message = own[0]
        return f"{kind.rsplit('.', 1)[-1]}: {message}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else "no message"


def _job(profile: Profile, name: str) -> Path:
    if not _NAME.fullmatch(name):
        raise ConfigError(f"'{name}' cannot be the name of a job", remedy="use letters, digits, dots, dashes and underscores, at most 100")
    return (profile.data / "jobs" if _is_remote(profile) else Path(profile.checkpoints)) / name


def _is_remote(profile: Profile) -> bool:
    """Whether the checkpoint lies where only Spark can read (hdfs://, s3a://): then plan and counters stay in the data directory."""
    return "://" in profile.checkpoints


def _checkpoint(profile: Profile, name: str, job: Path) -> str:
    return f"{profile.checkpoints.rstrip('/')}/{name}/spark" if _is_remote(profile) else str(job / "spark")


def _bounded(scan: Scan) -> Scan:
    return scan if scan.end is not None else replace(scan, end="latest")


def _shape(plan: PhysicalPlan) -> dict[str, Any]:
    """What the state in a checkpoint depends on."""
    return {
        "scans": [{"id": scan.id, "topics": list(scan.topics)} for scan in plan.scans],
        "stages": [
            {
                "id": stage.id,
                "name": stage.name,
                "kernel": type(stage.kernel).__name__,
                "keys": list(stage.keys),
                "groups": stage.groups,
                "operator": stage.operator,
                "output": str(stage.output),
            }
            for stage in plan.stages
        ],
    }


def _remember_shape(plan: PhysicalPlan, job: Path, name: str) -> None:
    job.mkdir(parents=True, exist_ok=True)
    file, shape = job / "plan.json", _shape(plan)
    if not file.is_file():
        file.write_text(json.dumps(shape, indent=1))
        return
    for what, now, before in _differences(shape, json.loads(file.read_text())):
        raise ConfigError(
            f"job '{name}' was started with another plan: {what} was {before}, now {now}",
            remedy="give the job another name, or begin anew with --fresh (its state is then lost)",
        )


def _differences(now: dict[str, Any], before: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for kind in ("scans", "stages"):
        if len(now[kind]) != len(before[kind]):
            yield f"the number of {kind}", len(now[kind]), len(before[kind])
        for new, old in zip(now[kind], before[kind]):
            for key in new:
                if new[key] != old.get(key):
                    yield f"{key} of {kind[:-1]} {new.get('name', new['id'])}", new[key], old.get(key)
