"""Pipelines that the planner's tests share, each small and each showing something else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import penstock as ps


def temperatures() -> ps.Stream:
    return ps.read("temperatures", "id STRING, area STRING, celsius DOUBLE, n INT, at TIMESTAMP").event_time("at", lateness="10s")


def smoke() -> ps.Stream:
    return ps.read("smoke", "area STRING, density DOUBLE, at TIMESTAMP").event_time("at", lateness="10s")


@ps.process(state="n BIGINT", output="area STRING, n BIGINT, stream STRING")
def numbered(event: ps.Event, state: ps.State, out: ps.Out) -> None:
    """Every record of an area in event time, numbered over both streams."""
    state.n = (state.n or 0) + 1
    out.emit(area=event.area, n=state.n, stream=event.stream)


def doubled(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"area": row["area"], "celsius": row["celsius"] + step} for step in (0, 1)]


def stateless() -> ps.Pipeline:
    """Filters, a projection and a function, to a topic."""
    return (
        temperatures()
        .where("celsius > 0")
        .where("n <> 3")
        .select("area", "at", celsius="celsius * 2")
        .flat_map(doubled, output="area STRING, celsius DOUBLE")
        .write("out")
    )


def tumbling() -> ps.Pipeline:
    """A combinable aggregate, with an expression as its argument."""
    return temperatures().where("celsius > -10").key_by("area").window(ps.tumbling("10s")).aggregate(
        kelvin="avg(celsius + 273.15)", most="max(n)", total="sum(n)", readings="count(*)"
    ).write("out")  # fmt: skip


def sliding_with_late() -> ps.Pipeline:
    """Late records are wanted, so rows travel whole."""
    panes = temperatures().key_by("area").window(ps.sliding("20s", every="5s")).aggregate(readings="count(*)", total="sum(n)")
    return ps.pipeline(panes.write("out"), panes.late.write("late"))


def sessions() -> ps.Pipeline:
    """Sessions with their gap in the record, collected."""
    return temperatures().key_by("area").window(ps.session(gap_expression="n + 1")).aggregate(ids="count(*)", total="sum(n)").write("out")


def chain() -> ps.Pipeline:
    """Four stages of one key in one operator, two connected streams, and a stage of another key behind."""
    unique = temperatures().key_by("area").deduplicate("id", within="10m")
    averages = unique.window(ps.tumbling("10s")).aggregate(celsius="avg(celsius)")
    events = averages.where("celsius > 0").connect(smoke().where("density > 0.5")).key_by("area").process(numbered)
    return ps.pipeline(events.write("out"), averages.write("averages"))


def two_keys() -> ps.Pipeline:
    """A roll-up: per area and then over all areas, by sign."""
    areas = temperatures().key_by("area").window(ps.tumbling("5s")).aggregate(n="sum(n)").accumulate("retracting")
    return areas.window(ps.tumbling("20s")).aggregate(total="sum(n)", panes="count(*)").write("out")


def union() -> ps.Pipeline:
    """Two reads into one window."""
    other = ps.read("others", "area STRING, celsius DOUBLE, at TIMESTAMP").event_time("at", lateness="1s")
    both = temperatures().select("area", "celsius").union(other.select("area", "celsius"))
    return both.key_by("area").window(ps.tumbling("10s")).aggregate(celsius="avg(celsius)").write("out")


def running() -> ps.Pipeline:
    """Results of the whole stream, every second of processing time."""
    return temperatures().key_by("area").running(ps.every("1s")).aggregate(readings="count(*)").write("out")


def outside() -> ps.Pipeline:
    """An expression that only Spark can compute."""
    return temperatures().where("sha2(area, 256) > '8'").write("out")


def letters() -> ps.Pipeline:
    """Requirements, dead letters, and the same topic written as it is."""
    raw = ps.read("temperatures", "id STRING, area STRING, celsius DOUBLE, n INT, at TIMESTAMP").require("celsius BETWEEN -50 AND 200")
    timed = raw.event_time("at", lateness="10s")
    panes = timed.key_by("area").window(ps.tumbling("10s")).aggregate(celsius="avg(celsius)")
    return ps.pipeline(panes.write("out"), raw.select("id").write("ids"), timed.dead_letters.write("bad"))


PIPELINES: dict[str, Callable[[], ps.Pipeline]] = {
    made.__name__: made for made in (stateless, tumbling, sliding_with_late, sessions, chain, two_keys, union, running, outside, letters)
}
