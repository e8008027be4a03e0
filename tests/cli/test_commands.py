"""The command line against the embedded broker: what people and scripts type."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.cli.app import app
from penstock.errors import PenstockError


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    from penstock.broker.embedded import broker

    with broker(durability="os") as embedded:
        yield embedded.address


class Shell:
    """Types commands; a failing one gives its message."""

    def __init__(self, address: str) -> None:
        self._broker = ["--broker", address]

    def __call__(self, *arguments: str, typed: str | None = None) -> str:
        result = CliRunner().invoke(app, [*arguments, *self._broker], input=typed)
        if isinstance(result.exception, PenstockError):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json"))


@pytest.fixture
def shell(address: str) -> Shell:
    return Shell(address)


def test_a_topic_from_creation_to_deletion(shell: Shell) -> None:
    shell("topic", "create", "life", "--partitions", "3", "--set", "retention.ms=60000")
    assert {"topic": "life", "partitions": 3} in shell.json("topic", "list")
    shell("topic", "alter", "life", "--partitions", "5", "--set", "retention.ms=120000")
    described = shell.json("topic", "describe", "life")
    assert len(described["partitions"]) == 5
    assert described["settings"]["retention.ms"] == "120000"
    shell("topic", "delete", "life", "--yes")
    assert "life" not in [row["topic"] for row in shell.json("topic", "list")]


def test_records_go_in_and_come_out_with_all_their_parts(shell: Shell) -> None:
    shell("topic", "create", "parts")
    shell("produce", "parts", "--json", typed='{"key": "k", "value": {"n": 1}, "headers": {"h": "x"}, "timestamp_ms": 1767225600000}\n')
    shell("produce", "parts", "--key-separator", ":", typed="a:1\nb:2\n")
    lines = [json.loads(line) for line in shell("consume", "parts", "--from-beginning", "--count", "3", "--json").splitlines()]
    assert [(line["offset"], line["key"], line["value"]) for line in lines] == [(0, "k", '{"n": 1}'), (1, "a", "1"), (2, "b", "2")]
    assert (lines[0]["headers"], lines[0]["timestamp_ms"]) == ({"h": "x"}, 1767225600000)
    assert shell("consume", "parts", "--from-beginning", "--no-follow", "--show", "key,offset").splitlines()[1] == "0:1\ta\t1"
    assert shell("consume", "parts", "--from-offset", "2", "--no-follow").splitlines() == ["2"]
    assert shell("consume", "parts", "--from-time", "2026-01-02T00:00Z", "--no-follow").splitlines() == ["1", "2"]


def test_a_group_shares_commits_lags_and_is_reset(shell: Shell) -> None:
    shell("topic", "create", "shared", "--partitions", "2")
    shell("produce", "shared", typed="".join(f"{number}\n" for number in range(10)))
    read = shell("consume", "shared", "--group", "readers", "--from-beginning", "--count", "10").splitlines()
    assert sorted(map(int, read)) == list(range(10))
    assert sum(row["lag"] for row in shell.json("group", "lag", "readers")) == 0
    shell("group", "reset", "readers", "shared", "--to", "earliest")
    assert sum(row["lag"] for row in shell.json("group", "lag", "readers")) == 10
    assert {"group": "readers", "state": "empty"} in shell.json("group", "list")
    shell("group", "delete", "readers")
    assert "readers" not in [row["group"] for row in shell.json("group", "list")]


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (("topic", "describe", "nope"), "there is no topic 'nope'; create it with 'penstock topic create nope'"),
        (("topic", "create", "copies", "--replication", "3"), "cannot create topic 'copies'"),
        (("topic", "create", "bad", "--set", "retention.ms"), "'retention.ms' is not a setting; write name=value"),
        (("topic", "create", "bad", "--set", "retention.ms=soon"), "cannot create topic 'bad'"),
        (("group", "describe", "nobody"), "there is no group 'nobody'"),
    ],
)
def test_a_mistake_is_one_line(shell: Shell, typed: tuple[str, ...], says: str) -> None:
    with pytest.raises(PenstockError) as caught:
        shell(*typed)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


PIPELINE = """
import penstock as ps

ps.read("{topic}", "user STRING, at TIMESTAMP").event_time("at").key_by("user").window(ps.tumbling("{window}")).aggregate(n="count(*)").write("counts")
"""


def test_a_pipeline_whose_topics_do_not_fit_is_refused_before_spark_starts(shell: Shell, tmp_path: Path) -> None:
    shell("topic", "create", "brief", "--set", "retention.ms=60000")
    file = tmp_path / "app.py"
    for topic, window, says in (
        ("brief", "2m", "topic 'brief' keeps records for 1m; raise retention.ms"),
        ("nowhere", "2m", "there is no topic 'nowhere'"),
    ):
        file.write_text(PIPELINE.format(topic=topic, window=window))
        with pytest.raises(PenstockError) as caught:
            shell("run", str(file), "--data", str(tmp_path))
        assert says in str(caught.value)


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    import os

    return subprocess.run([sys.executable, "-m", "penstock.cli", *arguments], capture_output=True, text=True, env=os.environ | environment)


def test_the_broker_runs_in_the_background_and_keeps_its_records(tmp_path: Path) -> None:
    here = {"PENSTOCK_DATA": str(tmp_path)}
    assert run("broker", "status", **here).returncode == 1
    try:
        assert run("broker", "start", "--port", "0", **here).returncode == 0
        assert run("topic", "create", "kept", **here).returncode == 0
        second = run("broker", "start", "--port", "0", **here)
        assert second.returncode == 1
        assert "a broker already runs" in second.stderr
        assert run("broker", "stop", **here).returncode == 0
        assert run("broker", "start", "--port", "0", **here).returncode == 0
        assert [row["topic"] for row in json.loads(run("topic", "list", "--json", **here).stdout)] == ["kept"]
    finally:
        assert run("broker", "stop", **here).returncode == 0


def test_a_stored_topic_is_verified_and_dumped_without_a_broker(tmp_path: Path) -> None:
    from penstock.broker.embedded import broker

    here = {"PENSTOCK_DATA": str(tmp_path)}
    with broker(data=tmp_path / "log") as embedded:
        shell = Shell(embedded.address)
        shell("topic", "create", "stored")
        shell("produce", "stored", "--key-separator", ":", typed="a:1\nb:2\n")
    rows = json.loads(run("log", "verify", "--topic", "stored", "--json", **here).stdout)
    assert [(row["records"], row["state"]) for row in rows] == [(2, "good")]
    lines = [json.loads(line) for line in run("log", "dump", "--topic", "stored", "--json", **here).stdout.splitlines()]
    assert [(line["offset"], line["key"], line["value"]) for line in lines] == [(0, "a", "1"), (1, "b", "2")]
    assert "record_count=" in run("log", "dump", "--topic", "stored", "--batches", **here).stdout
    (segment,) = (tmp_path / "log").rglob("stored*/**/*.log")
    spoiled = bytearray(segment.read_bytes())
    spoiled[70] ^= 1
    segment.write_bytes(spoiled)
    damaged = run("log", "verify", "--topic", "stored", **here)
    assert damaged.returncode == 1
    assert "DAMAGED" in damaged.stdout


def test_a_port_in_use_is_one_line(address: str, tmp_path: Path) -> None:
    result = run("broker", "start", "--port", address.rpartition(":")[2], PENSTOCK_DATA=str(tmp_path))
    assert result.returncode != 0
    assert result.stderr.count("\n") == 1
    assert "in use" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("topic", "list"), 1, "no broker is running here; start one with 'penstock broker start'"),
        (("topic", "list", "--profile", "moon"), 2, "there is no profile 'moon'"),
        (("topic", "list", "--broker", "127.0.0.1:1"), 1, "no broker answers at 127.0.0.1:1"),
        (("run", "nothing.py"), 2, "nothing.py"),
        (("demo", "--seconds", "5"), 2, "too few for a fire"),
        (("demo", "--data", "/proc/penstock"), 1, "cannot write to the data directory /proc/penstock"),
        (("broker", "start", "--data", "/proc/penstock"), 1, "choose another with --data DIR or PENSTOCK_DATA"),
        (("transcript", "nothing.yaml"), 2, "nothing.yaml"),
    ],
)
def test_errors_are_one_line_with_the_remedy_and_an_exit_code(arguments: tuple[str, ...], code: int, says: str, tmp_path: Path) -> None:
    result = run(*arguments, **({} if "--data" in arguments else {"PENSTOCK_DATA": str(tmp_path)}))
    assert says in result.stderr
    assert result.stderr.strip().count("\n") == 0
    assert result.returncode == code


def test_every_command_has_help_with_an_example() -> None:
    commands = [("demo",), ("run",), ("explain",), ("transcript",), ("produce",), ("consume",)]
    commands += [("topic", name) for name in ("create", "list", "describe", "alter", "delete")]
    commands += [("group", name) for name in ("list", "describe", "lag", "reset", "delete")]
    commands += [(part, name) for part in ("broker", "kafka") for name in ("start", "stop", "status")]
    for command in commands:
        text = CliRunner().invoke(app, [*command, "--help"]).output
        assert "Example:" in text, command
