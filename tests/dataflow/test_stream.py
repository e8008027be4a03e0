"""The fluent API: each method makes one node, and a user's mistake gets a sentence with the remedy."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest

import penstock as ps
from penstock.dataflow import plan, review
from penstock.dataflow import trigger as triggers


def temperatures() -> ps.Stream:
    return ps.read("temperatures", "id STRING, area STRING, celsius DOUBLE, at TIMESTAMP").event_time("at", lateness="10s")


def windowed() -> ps.Windowed:
    return temperatures().key_by("area").window(ps.tumbling("1m"))


def test_each_method_makes_one_node_and_changes_nothing() -> None:
    stream = temperatures()
    before = stream.node
    hot = stream.where("celsius > 40")
    assert isinstance(hot.node, plan.Where)
    assert hot.node.input is before
    assert stream.node is before
    averages = hot.key_by("area").window(ps.sliding("60s", every="5s")).aggregate(celsius="avg(celsius)")
    assert [type(node).__name__ for node in plan.walk((averages.node,))] == ["Read", "EventTime", "Where", "KeyBy", "Window", "Aggregated"]


def test_panes_say_which_pane_of_which_window_they_are() -> None:
    averages = windowed().aggregate(
        mean="avg(celsius)", n="count(*)", names="collect(id)", most="max(celsius)", total="sum(CAST(celsius AS INT))"
    )
    assert str(averages.schema) == (
        "area STRING, mean DOUBLE, n BIGINT, names ARRAY<STRING>, most DOUBLE, total BIGINT, window_start TIMESTAMP, window_end TIMESTAMP, "
        "pane_index INT, on_time_index INT, pane_timing STRING, is_first BOOLEAN, is_last BOOLEAN"
    )
    assert averages.accumulate("retracting").schema.names[-1] == "sign"


def test_trigger_and_refinement_may_stand_before_or_after_the_aggregate() -> None:
    trigger = ps.after_watermark(early=ps.every("1s"), late=ps.after_count(1))
    before = windowed().trigger(trigger).accumulate("discarding").allowed_lateness("1m").aggregate(n="count(*)")
    after = windowed().aggregate(n="count(*)").trigger(trigger).accumulate("discarding").allowed_lateness("1m")
    assert before.node == after.node


@pytest.mark.parametrize(
    ("mode", "trigger", "refinement", "lateness_us"),
    [
        ("append", ps.after_watermark(), "discarding", 0),
        ("update", ps.repeatedly(ps.after_count(1)), "accumulating", 0),
        ("complete", ps.repeatedly(ps.after_count(1)), "accumulating", None),
    ],
)
def test_output_modes_are_names_for_trigger_and_refinement(
    mode: Any, trigger: ps.Trigger, refinement: str, lateness_us: int | None
) -> None:
    node = windowed().aggregate(n="count(*)").output_mode(mode).node
    assert isinstance(node, plan.Aggregated)
    assert (node.input.trigger, node.input.refinement, node.input.allowed_lateness_us) == (trigger, refinement, lateness_us)


def test_case_of_column_names_does_not_matter() -> None:
    assert temperatures().key_by("AREA").node.keys == ("area",)  # type: ignore[attr-defined]


def test_the_key_of_what_is_written_is_the_key_of_the_last_keyed_step() -> None:
    (sink,) = windowed().aggregate(n="count(*)").where("n > 1").write("counts").sinks
    assert sink.key == ("area",)
    (sink,) = windowed().aggregate(n="count(*)").select("n").write("counts").sinks
    assert sink.key == ()


@ps.process(state="n BIGINT", output="area STRING, n BIGINT", outputs={"rare": "area STRING"})
def counted(event: ps.Event, state: ps.State, out: ps.Out) -> None:
    state.n = (state.n or 0) + 1
    out.emit(area=event.area, n=state.n)


class Spread:
    state = "low DOUBLE, high DOUBLE"
    output = "DOUBLE"
    zero = staticmethod(lambda: (float("inf"), float("-inf")))
    lift = staticmethod(lambda value: (value, value))
    combine = staticmethod(lambda a, b: (min(a[0], b[0]), max(a[1], b[1])))
    lower = staticmethod(lambda state: state[1] - state[0])


def test_user_aggregates_and_processes_have_their_declared_types() -> None:
    assert windowed().aggregate(spread=ps.using(Spread, "celsius")).schema.type_of("spread") == "DOUBLE"
    stream = temperatures().key_by("area").process(counted)
    assert str(stream.schema) == "area STRING, n BIGINT"
    assert str(stream.output("rare").schema) == "area STRING"


MISTAKES: dict[str, tuple[Any, str]] = {
    "unknown column": (lambda: temperatures().where("celcius > 1"), "did you mean 'celsius'?"),
    "unknown key": (lambda: temperatures().key_by("aera"), "step 'key_by(aera)': no column 'aera'; did you mean 'area'?"),
    "unknown selected column": (lambda: temperatures().select("are"), "did you mean 'area'?"),
    "aggregate without a window or trigger": (lambda: temperatures().key_by("area").aggregate(n="count(*)").write("counts"),
        "step 'aggregate(n=count(*))': an aggregate of a whole unbounded stream would never be complete; add .window(…) for results per window, or .trigger(ps.every(\"1s\"))"),
    "aggregate of text": (lambda: windowed().aggregate(x="avg(id)"), "avg needs a number, but 'avg(id)' is over STRING; convert it with CAST(… AS DOUBLE)"),
    "unknown aggregate": (lambda: windowed().aggregate(x="mode(id)"), "no aggregate 'mode' in 'mode(id)'; use one of"),
    "not an aggregate": (lambda: windowed().aggregate(x="celsius"), "'celsius' is not an aggregate; call one, for example avg(celsius)"),
    "nothing aggregated": (lambda: windowed().aggregate(), "computes nothing"),
    "bad quantile": (lambda: windowed().aggregate(x="quantile(celsius, 95)"), "asks for the quantile 95; give a number from 0 to 1"),
    "missing argument": (lambda: windowed().aggregate(x="top_k(celsius)"), "has 1 argument(s); write top_k(column, k)"),
    "column twice": (lambda: windowed().aggregate(area="count(*)"), "the output has two columns 'area'"),
    "negative lateness": (lambda: ps.read("t", "at TIMESTAMP").event_time("at", lateness=-1), "lateness is -1; give zero or more"),
    "negative allowed lateness": (lambda: windowed().allowed_lateness(-5), "allowed lateness is -5; give zero or more"),
    "event time of text": (lambda: ps.read("t", "at STRING").event_time("at"), "'at' is STRING, not TIMESTAMP; declare 'at TIMESTAMP' or convert it in select"),
    "event time twice": (lambda: temperatures().event_time("at"), "the stream already has its time from event_time(at)"),
    "no event time": (lambda: ps.read("t", "n INT").window(ps.tumbling(1)), "a tumbling 1s window needs event time, and the stream has none; say .event_time"),
    "trigger that never fires": (lambda: temperatures().key_by("area").aggregate(n="count(*)").trigger(ps.after_watermark()),
        "after_watermark() never fires on a global window of an unbounded stream; trigger by count or processing time"),
    "part that is never reached": (lambda: windowed().trigger(ps.after_each(ps.every("1s"), ps.after_count(3))),
        "after_count(3) never gets its turn: what stands before it in after_each never finishes"),
    "no parts": (lambda: ps.after_any(), "after_any() has no parts and never fires"),
    "no refinement": (lambda: windowed().accumulate("retractig"), "no refinement 'retractig'; use one of discarding, accumulating, retracting"),  # type: ignore[arg-type]
    "no output mode": (lambda: windowed().output_mode("all"), "no output mode 'all'; use append, update or complete"),  # type: ignore[arg-type]
    "process without a key": (lambda: temperatures().process(counted), "state is kept per key, and the stream has none; say .key_by(…) before .process(…)"),
    "process without declaration": (lambda: temperatures().key_by("area").process(lambda e, s, o: None), "declares neither state nor output"),  # type: ignore[arg-type]
    "no such output": (lambda: temperatures().key_by("area").process(counted).output("common"), "no output 'common'; it has rare"),
    "late of something else": (lambda: temperatures().late, "only windows and process steps have late records"),
    "dead letters of windows": (lambda: windowed().aggregate(n="count(*)").dead_letters, "dead letters come from reading topics"),
    "require after select": (lambda: temperatures().select("area").require("area = 'a'"), "say require right after read, or use where"),
    "require outside the subset": (lambda: temperatures().require("sha2(area, 256) = ''"), "a requirement is judged in the scan"),
    "union of two schemas": (lambda: temperatures().union(temperatures().select("area")), "bring them to one schema with select"),
    "keys of two types": (lambda: temperatures().connect(temperatures()).key_by("area", right=["celsius"]), "the keys are STRING and DOUBLE"),
    "reads what it writes": (lambda: temperatures().write("temperatures"), "the pipeline writes the topic 'temperatures' that it reads"),
    "no schema": (lambda: ps.read("t"), "json records need a schema"),
    "no format": (lambda: ps.read("t", "n INT", format="xml"), "no format 'xml'; use one of"),
    "bad type": (lambda: ps.read("t", "n NUMBER"), "step 'read(t)': 'NUMBER' is not a type"),
    "bad start": (lambda: ps.read("t", "n INT", start="beginning"), "'beginning' is not a place in a topic"),
    "not a window": (lambda: temperatures().window("1m"), "'1m' is not a window"),  # type: ignore[arg-type]
    "window of nothing": (lambda: ps.tumbling(0), "window size is 0; give a duration above zero"),
    "delta over text": (lambda: temperatures().window(ps.delta("area", 5)), "'area' is not a number"),
    "punctuation that is no condition": (lambda: temperatures().window(ps.punctuation("celsius")), "condition 'celsius' is DOUBLE, not BOOLEAN"),
    "deduplicate for ever": (lambda: temperatures().deduplicate("id", within=0), "within is zero"),
    "deduplicate without time": (lambda: ps.read("t", "id INT").deduplicate("id", within="1m"), "the stream has no event time"),
    "nothing written": (lambda: ps.pipeline(), "nothing is written"),
    "process of two arguments": (lambda: ps.process(output="n INT")(lambda event, out: None), "does not take three arguments"),  # type: ignore[arg-type]
    "map of text": (lambda: temperatures().map("celsius"), "'celsius' is not a function; use select or where for expressions"),  # type: ignore[arg-type]
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_gets_a_sentence_with_the_remedy(name: str) -> None:
    build, message = MISTAKES[name]
    with pytest.raises(ps.PenstockError, match=re.escape(message)) as caught:
        build()
    assert caught.value.remedy
    assert "\n" not in str(caught.value)


def test_a_trigger_that_drops_data_warns_when_the_plan_is_built() -> None:
    with pytest.warns(ps.PlanWarning, match=r"after_count\(1\) finishes and drops later data; wrap it in repeatedly\(\)"):
        windowed().trigger(ps.after_count(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        windowed().trigger(ps.repeatedly(ps.after_count(1)))
        windowed().trigger(ps.after_watermark())
        temperatures().key_by("area").running(ps.after_count(5))


def test_notes_tell_what_is_lost_unless_it_is_kept() -> None:
    averages = windowed().aggregate(n="count(*)")
    counts = averages.write("counts")
    assert [str(note) for note in counts.notes] == [
        "step 'aggregate(n=count(*))': records that are too late are counted and dropped; .late.write(topic) keeps them"
    ]
    assert ps.pipeline(counts, averages.late.write("late")).notes == ()


@pytest.mark.parametrize("function", ["min(n)", "max(n)", "first(n)", "last(n)", "collect(n)", "median(n)", "count(DISTINCT n)"])
def test_what_cannot_take_a_record_back_is_refused_on_retractions(function: str) -> None:
    panes = windowed().aggregate(n="count(*)").trigger(ps.repeatedly(ps.after_count(1))).accumulate("retracting")
    with pytest.raises(ps.PlanError, match="cannot take a record back, and the stream carries retractions"):
        panes.key_by("area").window(ps.tumbling("1h")).aggregate(x=function)
    panes.key_by("area").window(ps.tumbling("1h")).aggregate(a="sum(n)", b="count(*)", c="avg(n)", d="stddev(n)")


def test_sums_of_refined_panes_are_refused_and_maxima_are_not() -> None:
    panes = windowed().aggregate(n="count(*)").trigger(ps.repeatedly(ps.after_count(1)))
    with pytest.raises(ps.PlanError, match="sum would count a window again each time it is refined"):
        panes.key_by("area").window(ps.tumbling("1h")).aggregate(x="sum(n)")
    panes.key_by("area").window(ps.tumbling("1h")).aggregate(x="max(n)")
    panes.accumulate("discarding").key_by("area").window(ps.tumbling("1h")).aggregate(x="sum(n)")
    once = windowed().aggregate(n="count(*)")  # one pane per window: nothing to refine
    once.key_by("area").window(ps.tumbling("1h")).aggregate(x="sum(n)")


def test_a_row_keeps_its_sign_through_stateless_steps() -> None:
    panes = windowed().aggregate(n="count(*)").accumulate("retracting")
    for stream in (panes.select("n"), panes.where("n > 1"), panes.map(lambda row: row, output="n BIGINT")):
        assert "sign" in stream.schema
        assert review.retracting(stream.node)
    with pytest.raises(ps.PlanError, match="the output has no sign"):
        panes.map_batches(lambda table: table, output="n BIGINT")


def test_steps_that_would_take_a_retraction_for_a_record_are_refused() -> None:
    panes = windowed().aggregate(n="count(*)").accumulate("retracting")
    with pytest.raises(ps.PlanError, match="would take a retraction for a new record"):
        panes.key_by("area").process(counted)
    with pytest.raises(ps.PlanError, match="would be dropped as its repetition"):
        panes.deduplicate("n", within="1m")
    with pytest.raises(ps.PlanError, match="the streams differ"):
        panes.union(windowed().aggregate(n="count(*)"))

    @ps.process(output="area STRING", retractions=True)
    def aware(event: ps.Event, state: ps.State, out: ps.Out) -> None: ...

    panes.key_by("area").process(aware)


def test_a_window_longer_than_retention_is_refused() -> None:
    pipeline = windowed().aggregate(n="count(*)").write("counts")
    review.check_retention(pipeline.sinks, {"temperatures": 3_600_000_000, "other": 1})
    review.check_retention(pipeline.sinks, {"temperatures": None})
    with pytest.raises(ps.PlanError, match="the window covers 1m, but topic 'temperatures' keeps records for 30s"):
        review.check_retention(pipeline.sinks, {"temperatures": 30_000_000})


def test_positions_are_names_times_or_offsets() -> None:
    read = ps.read("t", "n INT", start="2026-01-01", end={"t": {1: 20, 0: 10}}).node
    assert isinstance(read, plan.Read)
    assert read.start == ("timestamp_ms", 1_767_225_600_000)
    assert read.end == ("offsets", (("t", ((0, 10), (1, 20))),))
    assert not plan.unbounded(read)


@pytest.mark.parametrize(
    ("trigger", "finishes", "early"),
    [
        (ps.after_count(1), True, True),
        (ps.repeatedly(ps.after_count(1)), False, False),
        (ps.after_watermark(), True, False),
        (ps.after_watermark(late=ps.after_count(1)), False, False),
        (ps.after_any(ps.after_count(1), ps.after_watermark()), True, True),
        (ps.after_all(ps.after_count(1), ps.after_watermark()), True, False),
        (ps.after_each(ps.after_count(1), ps.after_watermark()), True, False),
        (ps.after_each(ps.after_count(1), ps.every(1)), False, False),
        (ps.or_finally(ps.every(1), ps.after_watermark()), True, False),
        (ps.or_finally(ps.every(1), ps.after_count(9)), True, True),
    ],
)
def test_which_triggers_finish_and_which_before_the_window_does(trigger: ps.Trigger, finishes: bool, early: bool) -> None:
    assert triggers.finishes(trigger) == finishes
    assert triggers.finishes_early(trigger) == early
