"""Pipelines: saved and loaded, found in files, drawn; and the package's public names."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import penstock as ps
from penstock.dataflow import plan
from tests.dataflow.functions_of_a_module import Spread, counted, doubled, halves

ROOT = Path(__file__).parents[2]


def everything() -> ps.Pipeline:
    """A pipeline with every kind of node, window and trigger that can be saved."""
    temperatures = (
        ps.read(["a", "b"], "id STRING, area STRING, celsius DOUBLE, at TIMESTAMP, tags MAP<STRING,BIGINT>", start="2026-01-01", end={"a": {0: 5}})
        .require("celsius BETWEEN -50 AND 200")
        .event_time("at", lateness="10s", idle=None)
    )  # fmt: skip
    smoke = ps.read("smoke", "area STRING, at TIMESTAMP").event_time("at")
    doubles = temperatures.where("celsius > 0").map(doubled, output="area STRING, celsius DOUBLE").select("area", half="celsius / 2")
    windows = (
        ps.tumbling("1m", offset="5s"), ps.sliding("1m", every="10s"), ps.session("30s"), ps.session(gap_expression="celsius"), ps.count(10, every=5),
        ps.delta("celsius", 2), ps.punctuation("celsius > 99"), ps.last(records=100, every="10s"), ps.custom(halves),
    )  # fmt: skip
    trigger = ps.or_finally(
        ps.after_each(ps.after_all(ps.after_count(3), ps.after_delta("celsius", 1)), ps.repeatedly(ps.after_any(ps.after_punctuation("celsius > 1"), ps.after_processing_time(3)))),
        ps.after_watermark(early=ps.every("1s"), late=ps.after_count(1)),
    )  # fmt: skip
    panes = [
        temperatures.key_by("area").window(window).trigger(trigger).aggregate(n="count(*)", spread=ps.using(Spread, "celsius"))
        for window in windows
    ]
    alarms = panes[0].union(panes[1]).connect(smoke).key_by("area").process(counted)
    return ps.pipeline(
        alarms.write("alarms"), alarms.output("rare").write("rare", key="area"), doubles.write("doubles"), panes[0].late.write("late"),
        temperatures.dead_letters.write("bad"), temperatures.key_by("area").deduplicate("id", within="1h").where("celsius > 1").write("unique"),
        *(pane.write(f"panes-{number}") for number, pane in enumerate(panes)), name="everything",
    )  # fmt: skip


def test_a_plan_survives_json() -> None:
    pipeline = everything()
    text = pipeline.to_json()
    again = ps.Pipeline.from_json(text)
    assert again == pipeline
    assert again.to_json() == text
    assert json.loads(text)["penstock"] == 1


def test_a_function_without_an_import_path_is_refused() -> None:
    stream = ps.read("t", "n INT")
    with pytest.raises(ps.PlanError, match="cannot be imported by name; define it at the top of a module"):
        stream.map(lambda row: row).write("u").to_json()


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"penstock": 1, "name": "x", "nodes": [{"node": "Raed"}], "sinks": [0]}', '{"penstock": 2}']
)
def test_what_is_no_saved_plan_is_said(text: str) -> None:
    with pytest.raises(ps.ConfigError):
        ps.Pipeline.from_json(text)


def test_drawings_show_every_node_and_edge() -> None:
    pipeline = everything()
    nodes = list(plan.walk(pipeline.sinks))
    edges = sum(len(plan.inputs(node)) for node in nodes)
    assert pipeline.mermaid().count("-->") == edges
    assert len(pipeline.mermaid().splitlines()) == 1 + len(nodes) + edges
    picture = ElementTree.fromstring(pipeline.svg())
    assert len(picture.findall(".//{*}rect")) == len(nodes)
    assert len(picture.findall(".//{*}line")) == edges
    assert len(str(pipeline).splitlines()) == len(nodes)


def load(tmp_path: Path, text: str) -> ps.Pipeline:
    file = tmp_path / "app.py"
    file.write_text(text)
    return ps.load_pipeline(file)


HEAD = "import penstock as ps\nstream = ps.read('t', 'n INT')\n"


def test_all_written_streams_of_a_file_are_its_pipeline(tmp_path: Path) -> None:
    pipeline = load(tmp_path, HEAD + "stream.write('a')\nstream.where('n > 1').write('b')\n")
    assert [sink.topic for sink in pipeline.sinks] == ["a", "b"]
    assert pipeline.name == "app"


def test_a_variable_named_pipeline_wins(tmp_path: Path) -> None:
    pipeline = load(tmp_path, HEAD + "stream.write('a')\npipeline = ps.pipeline(stream.write('b'), name='mine')\n")
    assert [sink.topic for sink in pipeline.sinks] == ["b"]
    assert pipeline.name == "mine"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD, "writes no stream; end a stream with .write"),
        (HEAD + "stream.where('m > 1')", "app.py, line 3: step 'where(m > 1)': no column 'm'"),
        ("import penstock as ps\n\n1 / 0", "app.py, line 3: ZeroDivisionError: division by zero"),
        ("def f(:", "app.py, line 1 is not Python"),
        ("import nowhere_to_be_found", "app.py, line 1: ModuleNotFoundError"),
    ],
)
def test_a_mistake_in_the_file_names_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ps.ConfigError) as caught:
        load(tmp_path, text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "app" not in sys.modules


def test_a_file_that_is_not_there_is_said() -> None:
    with pytest.raises(ps.ConfigError, match=r"cannot read nowhere\.py: No such file"):
        ps.load_pipeline("nowhere.py")


def test_public_names_are_what_all_says() -> None:
    import penstock

    assert sorted(penstock.__all__) == penstock.__dir__()
    for name in penstock.__all__:
        assert getattr(penstock, name) is not None
    assert not [name for name in penstock._MODULE_OF if name not in penstock.__all__]
    with pytest.raises(AttributeError, match="no attribute 'reed'"):
        penstock.reed  # noqa: B018


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = (
        "import sys, penstock\nassert not [m for m in sys.modules if m.startswith('penstock.')], sys.modules\n"
        "penstock.read('t', 'n INT').key_by('n')\n"
        "heavy = {'pyarrow', 'duckdb', 'polars', 'numba', 'pyspark', 'sqlglot', 'numpy', 'pandas'} & set(sys.modules)\nassert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=60)
