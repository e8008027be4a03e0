"""The planner: from what a pipeline means to how it runs, with the reason for each choice.

`plan` is lowering (`lower.py`) and then an ordered tuple of rules (`rules.py`); `explain.py` prints both plans."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from penstock.planner.physical import GROUPS, PhysicalPlan

if TYPE_CHECKING:
    from penstock.dataflow.pipeline import Pipeline

__all__ = ["PhysicalPlan", "plan"]


def plan(pipeline: Pipeline, *, groups: int = GROUPS, without: Collection[str] = ()) -> PhysicalPlan:
    """The physical plan. `without` switches rules off by name, for comparison."""
    from penstock.errors import ConfigError, PlanError
    from penstock.planner.lower import lower
    from penstock.planner.rules import NAMES, apply_rules

    for name in without:
        if name not in NAMES:
            raise ConfigError(f"no planner rule '{name}'", remedy=f"use one of: {', '.join(NAMES)}")
    physical = lower(pipeline.sinks, groups=groups)
    for stage in physical.stages:
        for step in (step for feed in stage.feeds for step in feed.steps if step.outside):
            raise PlanError(
                str(step), f"follows {stage.name}, where expressions run on Arrow, and {step.outside}",
                remedy="use an expression of the typed subset, or a Python function with map",
            )  # fmt: skip
    return apply_rules(physical, without=without)
