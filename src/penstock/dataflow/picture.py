"""A plan as text, as a Mermaid diagram and as a picture (SVG). Only reads the plan."""

from __future__ import annotations

from html import escape

from penstock.clock import spoken
from penstock.dataflow import plan, review
from penstock.dataflow import trigger as triggers

_BOX_WIDTH_MIN, _BOX_HEIGHT, _GAP_X, _GAP_Y, _CHARACTER_WIDTH = 120, 34, 24, 36, 7.2


def lines(sinks: tuple[plan.Write, ...]) -> list[tuple[int, plan.Node]]:
    """Every node with its number, inputs first."""
    return list(enumerate(plan.walk(sinks)))


def text(sinks: tuple[plan.Write, ...]) -> str:
    """One line per step: its number, what it does, where its rows come from, and its columns."""
    numbers = {node: number for number, node in lines(sinks)}
    written = []
    for node, number in numbers.items():
        sources = ", ".join(f"{numbers[source]}" for source in plan.inputs(node))
        arrow = f" ← {sources}" if sources else ""
        written.append(f"{number:>3} {plan.label(node)}{arrow}{_details(node)}")
    return "\n".join(written)


def _details(node: plan.Node) -> str:
    match node:
        case plan.Read():
            end = "" if node.end is None else f", until {node.end}"
            return f"  [{node.schema}]  from {node.start}{end}"
        case plan.EventTime():
            idle = "" if node.idle_us is None else f", idle after {spoken(node.idle_us)}"
            return f"  lateness {spoken(node.lateness_us)}{idle}"
        case plan.Window():
            lateness = ", takes late records for ever" if node.allowed_lateness_us is None else ""
            lateness = f", allowed lateness {spoken(node.allowed_lateness_us)}" if node.allowed_lateness_us else lateness
            return f"  {triggers.text(review.trigger_of(node))}, {node.refinement}{lateness}"
        case plan.Aggregated() | plan.Processed() | plan.Select() | plan.Map() | plan.FromDataFrame():
            kind = "retractions: " if review.retracting(node) else ""
            return f"  [{kind}{node.schema}]"
        case _:
            return ""


def mermaid(sinks: tuple[plan.Write, ...]) -> str:
    """`flowchart LR`, as GitHub and most editors show it."""
    numbers = {node: number for number, node in lines(sinks)}
    written = ["flowchart LR"]
    for node, number in numbers.items():
        left, right = (
            ("[(", ")]") if isinstance(node, plan.Read | plan.Write) else ("([", "])") if isinstance(node, plan.SideOutput) else ("[", "]")
        )
        said = plan.label(node).replace('"', "#quot;")
        written.append(f'  n{number}{left}"{said}"{right}')
    for node, number in numbers.items():
        written += [f"  n{numbers[source]} --> n{number}" for source in plan.inputs(node)]
    return "\n".join(written)


def svg(sinks: tuple[plan.Write, ...]) -> str:
    """Layers from top to bottom: a node stands below all its inputs."""
    numbers = {node: number for number, node in lines(sinks)}
    depth: dict[plan.Node, int] = {}
    for node in numbers:
        depth[node] = max((depth[source] + 1 for source in plan.inputs(node)), default=0)
    rows = [[node for node in numbers if depth[node] == level] for level in range(max(depth.values()) + 1)]
    width_of = {node: max(_BOX_WIDTH_MIN, round(len(plan.label(node)) * _CHARACTER_WIDTH) + 20) for node in numbers}
    width = max(sum(width_of[node] + _GAP_X for node in row) for row in rows) + _GAP_X
    place: dict[plan.Node, tuple[float, float]] = {}
    for level, row in enumerate(rows):
        x = (width - sum(width_of[node] + _GAP_X for node in row) + _GAP_X) / 2
        for node in row:
            place[node] = (x, _GAP_Y / 2 + level * (_BOX_HEIGHT + _GAP_Y))
            x += width_of[node] + _GAP_X
    height = len(rows) * (_BOX_HEIGHT + _GAP_Y)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" font-family="monospace" font-size="12">',
            *(_line(place, width_of, source, node) for node in numbers for source in plan.inputs(node)),
            *(_box(place[node], width_of[node], node) for node in numbers),
            "</svg>",
        ]
    )


def _line(place: dict[plan.Node, tuple[float, float]], width_of: dict[plan.Node, int], source: plan.Node, node: plan.Node) -> str:
    (x1, y1), (x2, y2) = place[source], place[node]
    return f'<line x1="{x1 + width_of[source] / 2:.0f}" y1="{y1 + _BOX_HEIGHT:.0f}" x2="{x2 + width_of[node] / 2:.0f}" y2="{y2:.0f}" stroke="#667"/>'


def _box(at: tuple[float, float], width: int, node: plan.Node) -> str:
    fill = "#dfeee0" if isinstance(node, plan.Read | plan.Write) else "#f6e3c8" if isinstance(node, plan.SideOutput) else "#e4ebf5"
    x, y = at
    return (
        f'<g><rect x="{x:.0f}" y="{y:.0f}" width="{width}" height="{_BOX_HEIGHT}" rx="5" fill="{fill}" stroke="#667"/>'
        f'<text x="{x + width / 2:.0f}" y="{y + _BOX_HEIGHT / 2 + 4:.0f}" text-anchor="middle">{escape(plan.label(node))}</text></g>'
    )
