"""Stream processing for Python people: the Dataflow model on Apache Spark, on a durable log that speaks the Kafka protocol.

    import penstock as ps

Names are loaded when they are first used, so importing the package costs nothing."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.dataflow.aggregate import UserAggregate, using
    from penstock.dataflow.load import load_pipeline
    from penstock.dataflow.pipeline import Pipeline, pipeline
    from penstock.dataflow.process import Event, Out, Process, State, Timer, process
    from penstock.dataflow.review import Note, PlanWarning
    from penstock.dataflow.stream import Aggregate, Keyed, Stream, Windowed, from_dataframe, read
    from penstock.dataflow.trigger import (
        Trigger,
        after_all,
        after_any,
        after_count,
        after_delta,
        after_each,
        after_processing_time,
        after_punctuation,
        after_watermark,
        every,
        or_finally,
        repeatedly,
    )
    from penstock.dataflow.window import Window, count, custom, delta, global_window, last, punctuation, session, sliding, tumbling
    from penstock.errors import ConfigError, MissingPart, PenstockError, PlanError
    from penstock.schema import Schema

__version__ = "0.1.0"

_WHERE = {
    "penstock.dataflow.aggregate": ("UserAggregate", "using"),
    "penstock.dataflow.load": ("load_pipeline",),
    "penstock.dataflow.pipeline": ("Pipeline", "pipeline"),
    "penstock.dataflow.process": ("Event", "Out", "Process", "State", "Timer", "process"),
    "penstock.dataflow.review": ("Note", "PlanWarning"),
    "penstock.dataflow.stream": ("Aggregate", "Keyed", "Stream", "Windowed", "from_dataframe", "read"),
    "penstock.dataflow.trigger": (
        "Trigger", "after_all", "after_any", "after_count", "after_delta", "after_each", "after_processing_time", "after_punctuation",
        "after_watermark", "every", "or_finally", "repeatedly",
    ),
    "penstock.dataflow.window": ("Window", "count", "custom", "delta", "global_window", "last", "punctuation", "session", "sliding", "tumbling"),
    "penstock.errors": ("ConfigError", "MissingPart", "PenstockError", "PlanError"),
    "penstock.schema": ("Schema",),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names}

__all__ = [
    "Aggregate", "ConfigError", "Event", "Keyed", "MissingPart", "Note", "Out", "PenstockError", "Pipeline", "PlanError", "PlanWarning",
    "Process", "Schema", "State", "Stream", "Timer", "Trigger", "UserAggregate", "Window", "Windowed", "__version__", "after_all", "after_any",
    "after_count", "after_delta", "after_each", "after_processing_time", "after_punctuation", "after_watermark", "count", "custom", "delta",
    "every", "from_dataframe", "global_window", "last", "load_pipeline", "or_finally", "pipeline", "process", "punctuation", "read",
    "repeatedly", "session", "sliding", "tumbling", "using",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "broker":
        return import_module("penstock.broker")  # callable: `with penstock.broker() as b: b.address`
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'penstock' has no attribute '{name}'")
    value = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
