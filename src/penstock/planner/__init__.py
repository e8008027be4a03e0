"""The planner: from what a pipeline means to how it runs, with the reason for each choice.

`plan` is lowering (`lower.py`) and then an ordered tuple of rules (`rules.py`); `explain` prints both plans."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from penstock.planner.physical import GROUPS, PhysicalPlan

if TYPE_CHECKING:
    from penstock.dataflow.pipeline import Pipeline

__all__ = ["PhysicalPlan", "explain", "plan"]


def plan(pipeline: Pipeline, *, groups: int = GROUPS, without: Collection[str] = ()) -> PhysicalPlan:
    """The physical plan. `without` switches rules off by name, for comparison."""
    from penstock.errors import ConfigError
    from penstock.planner.lower import lower
    from penstock.planner.rules import NAMES, apply_rules

    for name in without:
        if name not in NAMES:
            raise ConfigError(f"no planner rule '{name}'", remedy=f"use one of: {', '.join(NAMES)}")
    return apply_rules(lower(pipeline.sinks, groups=groups), without=without)


def explain(pipeline: Pipeline, *, groups: int = GROUPS, without: Collection[str] = ()) -> str:
    """Both plans as text."""
    from penstock.planner.explain import explain as explained

    return explained(pipeline, groups=groups, without=without)
