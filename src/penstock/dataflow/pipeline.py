"""A pipeline: the streams that are written, together. It prints, draws, saves, explains and runs.

The engine and the planner stand above this package and are named here only by their module names, so that describing a pipeline needs neither."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from penstock.dataflow import plan, review
from penstock.errors import PlanError

EXPLANATION, ENGINE, PROFILES = "penstock.planner.explain", "penstock.spark.run", "penstock.profile"

_collecting: ContextVar[list[plan.Write] | None] = ContextVar("collecting", default=None)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Everything that runs as one query."""

    sinks: tuple[plan.Write, ...]
    name: str = "pipeline"

    def __post_init__(self) -> None:
        if not self.sinks:
            raise PlanError(self.name, "nothing is written", remedy='end a stream with .write("<topic>")')
        topics = [sink.topic for sink in self.sinks if sink.topic is not None]
        for read in plan.walk(self.sinks):
            if isinstance(read, plan.Read) and read.end is None and (loop := set(read.topics) & set(topics)):
                raise PlanError(
                    plan.label(read),
                    f"the pipeline writes the topic '{min(loop)}' that it reads",
                    remedy="write to another topic, or split the pipeline in two",
                )

    @property
    def notes(self) -> tuple[review.Note, ...]:
        """What can be lost and where it is counted."""
        return review.notes(self.sinks)

    def __add__(self, other: Pipeline) -> Pipeline:
        return Pipeline(tuple(dict.fromkeys(self.sinks + other.sinks)), self.name)

    def __str__(self) -> str:
        from penstock.dataflow.picture import text

        return text(self.sinks)

    def mermaid(self) -> str:
        """The plan as a Mermaid diagram."""
        from penstock.dataflow.picture import mermaid

        return mermaid(self.sinks)

    def svg(self) -> str:
        """The plan as a picture."""
        from penstock.dataflow.picture import svg

        return svg(self.sinks)

    def to_json(self) -> str:
        """The plan as JSON; functions are named by their import path."""
        from penstock.dataflow.saved import to_json

        return to_json(self.sinks, name=self.name)

    @staticmethod
    def from_json(text: str) -> Pipeline:
        from penstock.dataflow.saved import from_json

        sinks, name = from_json(text)
        return Pipeline(sinks, name)

    def explain(self) -> str:
        """Both plans, each physical choice with its reason, the guarantee of each sink and the weakest link."""
        return str(import_module(EXPLANATION).explain(self))

    def run(self, profile: Any = None, *, name: str | None = None, fresh: bool = False, bounded: bool = False) -> Any:
        """Starts the pipeline (profile: a name from penstock.toml, or a Profile) and returns it running: `.wait()`, `.stop()`, `.totals()`.

        `bounded` reads what is there now and ends."""
        if profile is None or isinstance(profile, str):
            profile = import_module(PROFILES).load(profile)
        return import_module(ENGINE).run(self, profile, name=name or self.name, fresh=fresh, bounded=bounded)

    def to_dataframe(self, spark: Any) -> Any:
        return import_module(ENGINE).to_dataframe(self, spark)


def pipeline(*written: Pipeline, name: str = "pipeline") -> Pipeline:
    """Several written streams as one query: `ps.pipeline(alarms.write("alarms"), averages.write("averages"))`."""
    return Pipeline(tuple(dict.fromkeys(sink for part in written for sink in part.sinks)), name)


def written(sink: plan.Write) -> Pipeline:
    """A pipeline of one sink, noted for whoever is loading a pipeline file."""
    collected = _collecting.get()
    if collected is not None:
        collected.append(sink)
    return Pipeline((sink,))


@contextmanager
def collecting() -> Iterator[list[plan.Write]]:
    """Every stream that is written inside."""
    collected: list[plan.Write] = []
    token = _collecting.set(collected)
    try:
        yield collected
    finally:
        _collecting.reset(token)
