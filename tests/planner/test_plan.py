"""The physical plan: what a pipeline becomes, and the explanation that is kept as a golden file.

After a change that is meant: PENSTOCK_GOLDEN=write .venv/bin/pytest tests/planner, and read the difference."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

import penstock as ps
from penstock import planner
from penstock.kernels.window import WindowKernel
from penstock.planner import capabilities
from penstock.planner.explain import printed
from penstock.planner.rules import NAMES, RULES
from tests.planner.pipelines import PIPELINES

PLANS = Path(__file__).parents[1] / "plans"
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", [*PIPELINES, "fire_alarm"])
def test_the_explanation_is_the_golden_one(name: str) -> None:
    pipeline = ps.load_pipeline(EXAMPLES / "fire_alarm.py") if name == "fire_alarm" else PIPELINES[name]()
    text = pipeline.explain() + "\n"
    golden = PLANS / f"{name}.txt"
    if os.environ.get("PENSTOCK_GOLDEN") == "write":
        golden.write_text(text)
    assert text == golden.read_text()


def test_no_golden_file_is_left_over() -> None:
    assert {file.stem for file in PLANS.glob("*.txt")} == {*PIPELINES, "fire_alarm"}


@pytest.mark.parametrize("name", PIPELINES)
def test_a_physical_plan_travels(name: str) -> None:
    from pyspark import cloudpickle

    physical = planner.plan(PIPELINES[name]())
    assert str(printed(pickle.loads(cloudpickle.dumps(physical)))) == str(printed(physical))


def test_one_read_is_one_scan_and_a_union_two_feeds() -> None:
    physical = planner.plan(PIPELINES["union"]())
    assert [scan.name for scan in physical.scans] == ["temperatures", "others"]
    (stage,) = physical.stages
    assert [(sender.id, feed.input) for sender, feed in physical.feeds_to(stage.id)] == [(0, 0), (1, 0)]
    assert [(sender.id, sender.lateness_us) for sender in stage.inputs[0].senders] == [(0, 10_000_000), (1, 1_000_000)]


def test_connected_streams_are_two_inputs_of_one_stage() -> None:
    physical = planner.plan(PIPELINES["chain"]())
    process = physical.stages[-1]
    assert [each.name for each in process.inputs] == ["temperatures", "smoke"]
    assert sorted(feed.input for _, feed in physical.feeds_to(process.id)) == [0, 1]
    assert [[sender.kind for sender in each.senders] for each in process.inputs] == [["stage"], ["scan"]]


def test_a_topic_with_and_without_event_time_is_read_once() -> None:
    physical = planner.plan(PIPELINES["letters"]())
    (scan,) = physical.scans
    assert scan.event_time == "at"
    assert scan.dead_letters is not None
    assert physical.sink(scan.dead_letters).topic == "bad"
    assert [requirement.condition for requirement in scan.requirements] == ["celsius BETWEEN -50 AND 200"]


def test_different_key_names_of_connected_streams_meet_under_the_first() -> None:
    left = ps.read("a", "area STRING, at TIMESTAMP").event_time("at")
    right = ps.read("b", "place STRING, at TIMESTAMP").event_time("at")

    @ps.process(output="area STRING")
    def seen(event: ps.Event, state: ps.State, out: ps.Out) -> None: ...

    physical = planner.plan(left.connect(right).key_by("area", right=["place"]).process(seen).write("out"))
    (stage,) = physical.stages
    assert stage.inputs[1].schema.names == ("place", "at", "area")
    assert all(feed.keys == ("area",) for _, feed in physical.feeds_to(stage.id))


def test_stages_of_one_key_share_an_operator_until_the_key_may_change() -> None:
    physical = planner.plan(PIPELINES["chain"]())
    assert [[stage.name.split("(")[0] for stage in hosted] for hosted in physical.operators] == [["deduplicate", "aggregate", "process"]]
    two = planner.plan(PIPELINES["two_keys"]())
    assert two.shuffles == 2
    assert planner.plan(PIPELINES["chain"](), without={"one shuffle"}).shuffles == 3


def test_a_process_may_change_the_key_so_what_follows_is_shuffled() -> None:
    stream = ps.read("a", "area STRING, at TIMESTAMP").event_time("at")

    @ps.process(output="area STRING")
    def moved(event: ps.Event, state: ps.State, out: ps.Out) -> None: ...

    again = stream.key_by("area").process(moved).key_by("area").process(moved)
    assert planner.plan(again.write("out")).shuffles == 2


def test_an_operator_never_waits_for_one_behind_it() -> None:
    """a → b by another key → c by the key of a: c cannot go back to the operator of a."""
    stream = ps.read("a", "id STRING, area STRING, at TIMESTAMP").event_time("at")
    unique = stream.key_by("area").deduplicate("id", within="1m").where("id <> ''").key_by("id").deduplicate("area", within="1m")
    physical = planner.plan(unique.where("id <> ''").key_by("area").deduplicate("id", within="2m").where("id <> ''").write("out"))
    assert physical.shuffles == 3


def test_late_records_keep_the_plan_from_combining() -> None:
    assert any(feed.combine for scan in planner.plan(PIPELINES["tumbling"]()).scans for feed in scan.feeds)
    assert not any(feed.combine for scan in planner.plan(PIPELINES["sliding_with_late"]()).scans for feed in scan.feeds)


def test_windows_get_only_what_they_read() -> None:
    (stage,) = planner.plan(PIPELINES["tumbling"]()).stages
    assert isinstance(stage.kernel, WindowKernel)
    assert set(stage.kernel.schema.names) == {"area", "n", "celsius + 273.15"}


def test_the_clock_ticks_only_if_something_asks() -> None:
    assert planner.plan(PIPELINES["running"]()).clock.interval_us == 500_000
    quiet = (
        ps.read("a", "area STRING, at TIMESTAMP").event_time("at", idle=None).key_by("area").window(ps.tumbling(1)).aggregate(n="count(*)")
    )
    assert planner.plan(quiet.write("out")).clock.interval_us is None


def test_outside_the_subset_runs_on_spark_and_says_why() -> None:
    physical = planner.plan(PIPELINES["outside"]())
    assert physical.needs_spark
    assert "sha2" in physical.scans[0].reason


def test_outside_the_subset_after_a_kernel_is_refused_with_the_remedy() -> None:
    panes = ps.read("a", "area STRING, at TIMESTAMP").event_time("at").key_by("area").window(ps.tumbling(1)).aggregate(n="count(*)")
    with pytest.raises(ps.PlanError, match=r"the function sha2 with 2 argument.s. is not in the typed subset; use an expression"):
        planner.plan(panes.where("sha2(area, 256) = ''").write("out"))


def test_rules_are_switched_by_name() -> None:
    assert len(set(NAMES)) == len(RULES)
    with pytest.raises(ps.ConfigError, match="no planner rule 'magic'"):
        planner.plan(PIPELINES["tumbling"](), without={"magic"})


def test_every_row_of_the_capabilities_table_has_a_reason_and_is_reached() -> None:
    """Each row is the answer for some node, so none is hidden by one above it."""
    stream = ps.read("a", "n INT, at TIMESTAMP")
    timed = stream.event_time("at")
    keyed = timed.key_by("n")
    windows = (ps.global_window(), ps.count(2), ps.custom(len), ps.session(1), ps.sliding(2, every=1), ps.tumbling(1))

    @ps.process(output="n INT")
    def nothing(event: ps.Event, state: ps.State, out: ps.Out) -> None: ...

    streams = [
        stream, ps.from_dataframe(object(), schema="n INT"), stream.require("n > 1"), stream.where("n > 1"), stream.map(dict), keyed.deduplicate("n", within=1),
        keyed.process(nothing), *(keyed.window(window).aggregate(x="count(*)") for window in windows),
        keyed.window(ps.tumbling(1)).trigger(ps.every(1)).aggregate(x="count(*)"), keyed.window(ps.tumbling(1)).accumulate("retracting").aggregate(x="count(*)"),
    ]  # fmt: skip
    reached = {capabilities.of(each.node).name for each in streams}
    assert reached == {row.name for row in capabilities.CAPABILITIES}
    assert all(row.why for row in capabilities.CAPABILITIES)
