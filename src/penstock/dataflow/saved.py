"""A plan as JSON and back. Values keep their meaning, not their memory: schemas are text, functions are import paths.

    {"penstock": 1, "name": …, "nodes": [{"node": "Read", …}, {"node": "Where", "input": {"$node": 0}, …}], "sinks": [3]}

Invariant: `from_json(to_json(sinks)) == sinks`. A function that cannot be imported by name (a lambda, one inside another function or in a script)
and a DataFrame cannot be saved, and the error says so."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from penstock.dataflow import plan
from penstock.dataflow import trigger as triggers
from penstock.dataflow import window as windows
from penstock.dataflow.aggregate import Aggregate
from penstock.dataflow.process import Process
from penstock.errors import ConfigError, PlanError
from penstock.schema import Schema

VERSION = 1
NODES: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        plan.Read, plan.EventTime, plan.Require, plan.Where, plan.Select, plan.Map, plan.KeyBy, plan.Deduplicate, plan.Window,
        plan.Aggregated, plan.Connect, plan.Processed, plan.Union, plan.SideOutput, plan.Write,
    )
}  # fmt: skip
VALUES: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        windows.Tumbling, windows.Sliding, windows.Session, windows.Global, windows.Count, windows.Delta, windows.Punctuation, windows.Last,
        windows.Custom, triggers.AfterWatermark, triggers.AfterCount, triggers.AfterProcessingTime, triggers.AfterDelta, triggers.AfterPunctuation,
        triggers.Repeatedly, triggers.AfterAny, triggers.AfterAll, triggers.AfterEach, triggers.OrFinally, Aggregate, Process,
    )
}  # fmt: skip


def to_json(sinks: Sequence[plan.Write], *, name: str) -> str:
    order: dict[plan.Node, int] = {}
    nodes = []
    for node in plan.walk(tuple(sinks)):
        if type(node).__name__ not in NODES:
            raise PlanError(
                plan.label(node), "a DataFrame cannot be saved with the plan", remedy="read a topic instead, or keep the plan in Python"
            )
        step, kind = plan.label(node), type(node).__name__
        fields = dataclasses.fields(NODES[kind])
        nodes.append({"node": kind, **{field.name: _plain(getattr(node, field.name), order, step) for field in fields}})
        order[node] = len(order)
    return json.dumps(
        {"penstock": VERSION, "name": name, "nodes": nodes, "sinks": [order[sink] for sink in sinks]}, indent=1, ensure_ascii=False
    )


def from_json(text: str) -> tuple[tuple[plan.Write, ...], str]:
    try:
        saved = json.loads(text)
        version = saved["penstock"]
    except (ValueError, KeyError, TypeError):
        raise ConfigError("this is not a saved plan", remedy="save one with pipeline.to_json()") from None
    if version != VERSION:
        raise ConfigError(f"the plan has version {version}, this Penstock reads {VERSION}", remedy="save it again from its Python file")
    made: list[plan.Node] = []
    try:
        for entry in saved["nodes"]:
            kind = NODES[entry.pop("node")]
            made.append(kind(**{name: _value(given, made) for name, given in entry.items()}))
        sinks = tuple(made[index] for index in saved["sinks"])
    except (KeyError, IndexError, TypeError) as error:
        raise ConfigError(f"the saved plan is damaged ({error})", remedy="save it again from its Python file") from None
    return sinks, saved["name"]  # type: ignore[return-value]  # sinks are Write nodes


def _plain(value: Any, order: dict[plan.Node, int], step: str) -> Any:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case tuple():
            return [_plain(item, order, step) for item in value]
        case Schema():
            return {"$schema": [[field.name, field.type] for field in value]}
        case plan.Node():
            return {"$node": order[value]}
        case _ if type(value).__name__ in VALUES:
            fields = {field.name: _plain(getattr(value, field.name), order, step) for field in dataclasses.fields(value)}
            return {"$value": type(value).__name__, **fields}
        case _ if callable(value):
            return {"$import": import_path(value, step=step)}
        case _:
            raise PlanError(step, f"{value!r} cannot be saved", remedy="use plain values and functions of a module")


def _value(given: Any, made: Sequence[plan.Node]) -> Any:
    match given:
        case list():
            return tuple(_value(item, made) for item in given)
        case {"$schema": pairs}:
            from penstock.schema import Field

            return Schema(tuple(Field(name, type) for name, type in pairs))
        case {"$node": index}:
            return made[index]
        case {"$value": name, **fields}:
            return VALUES[name](**{str(key): _value(item, made) for key, item in fields.items()})
        case {"$import": path}:
            return imported(path)
        case _:
            return given


def import_path(function: Callable[..., Any], *, step: str) -> str:
    """`module:name`, checked to lead back to the same object.

    A process function is saved as the function under its decorator, so the name may lead to the Process that holds it."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    label = name or repr(function)
    if not module or module == "__main__" or "<" in name:
        raise PlanError(step, f"'{label}' cannot be imported by name", remedy="define it at the top of a module")
    try:
        found = imported(f"{module}:{name}")
    except ConfigError:
        found = None
    if found is not function:
        raise PlanError(
            step,
            f"'{module}:{label}' does not lead back to the function",
            remedy="put its file where Python finds it, and define it at the top of the module",
        )
    return f"{module}:{name}"


def imported(path: str) -> Any:
    module, _, name = path.partition(":")
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        raise ConfigError(f"'{path}' cannot be imported", remedy="put its file where Python finds it") from None
    return found.function if isinstance(found, Process) else found
