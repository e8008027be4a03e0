"""What a session is made of, as far as it can be told without starting one."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from penstock.profile import Profile
from penstock.spark.archive import archive_for
from penstock.spark.java import Java
from penstock.spark.run import _checkpoint, _job, cause, processed, totals
from penstock.spark.session import _conf, cores, package_archive

JAVA = Java(Path("/j/bin/java"), "17.0.1", "test")


@pytest.mark.parametrize(("master", "expected"), [("local", 1), ("local[3]", 3), ("local[4,2]", 4)])
def test_cores_are_read_from_the_master(master: str, expected: int) -> None:
    assert cores(Profile(spark=master)) == expected


def test_everything_is_bound_to_loopback_unless_the_cluster_is_elsewhere(tmp_path: Path) -> None:
    assert _conf(Profile(spark="local[2]"), tmp_path)["spark.driver.bindAddress"] == "127.0.0.1"
    assert _conf(Profile(spark="spark://127.0.0.1:7077"), tmp_path)["spark.driver.bindAddress"] == "127.0.0.1"
    assert "spark.driver.bindAddress" not in _conf(Profile(spark="spark://far:7077"), tmp_path)


def test_a_user_s_own_setting_wins(tmp_path: Path) -> None:
    assert _conf(Profile(conf={"spark.sql.shuffle.partitions": "7"}), tmp_path)["spark.sql.shuffle.partitions"] == "7"


def test_executors_get_the_whole_package(tmp_path: Path) -> None:
    with zipfile.ZipFile(package_archive(tmp_path)) as archive:
        assert {"penstock/__init__.py", "penstock/spark/host.py", "penstock/kernels/window.py"} <= set(archive.namelist())


def test_an_archive_is_written_once_and_then_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    monkeypatch.delenv("PENSTOCK_ARCHIVE", raising=False)
    first = archive_for(JAVA, "a.jar")
    assert first.writing is not None
    assert first.options[0] == f"-XX:ArchiveClassesAtExit={first.writing}"
    first.writing.write_bytes(b"classes")
    first.keep(exit_code=0)
    assert archive_for(JAVA, "a.jar").options[0] == f"-XX:SharedArchiveFile={first.path}"
    assert archive_for(JAVA, "b.jar").writing is not None, "other jars need another archive"


def test_an_archive_of_a_jvm_that_failed_is_thrown_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    monkeypatch.delenv("PENSTOCK_ARCHIVE", raising=False)
    archive = archive_for(JAVA, "a.jar")
    assert archive.writing is not None
    archive.writing.write_bytes(b"half")
    archive.keep(exit_code=1)
    assert list((tmp_path / "classes").iterdir()) == []


def test_what_a_killed_process_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    monkeypatch.delenv("PENSTOCK_ARCHIVE", raising=False)
    left = tmp_path / "classes" / f"{archive_for(JAVA, 'a.jar').path.name}.{2**22 + 1}"  # above the greatest process id
    left.write_bytes(b"half")
    archive_for(JAVA, "a.jar")
    assert not left.exists()


def test_the_cause_of_a_failure_is_its_own_line_not_spark_s() -> None:
    trace = """[STREAM_FAILED] Query [id = 1] terminated with exception: [PYTHON_EXCEPTION] Traceback (most recent call last):
  File "host.py", line 3, in on_batch
penstock.errors.PenstockError: step 'alarm' failed in key group 3: ZeroDivisionError: division by zero
 SQLSTATE: 38000"""
    assert cause(trace) == "step 'alarm' failed in key group 3: ZeroDivisionError: division by zero"
    assert cause("Traceback\n  File x\nKeyError: 'area'\n at org.apache.spark") == "KeyError: 'area'"
    assert cause("[TABLE_NOT_FOUND] no such table\n at org") == "[TABLE_NOT_FOUND] no such table"


def test_a_batch_that_ran_twice_counts_once(tmp_path: Path) -> None:
    file = tmp_path / "progress.jsonl"
    lines = ['{"batch": 0, "counts": {"0": {"records": 5, "watermark_us": 9}}}', '{"batch": 1, "counts": {"0": {"records": 1}}}',
             '{"batch": 1, "counts": {"0": {"records": 2}, "3": {"late": 1, "watermark_us": 7}}}', '{"batch": 2, "cou']  # fmt: skip
    file.write_text("\n".join(lines))
    assert totals(file) == {"batches": 2, "records": 7, "watermark_us": 9, "late": 1}


def test_a_checkpoint_that_only_spark_can_read_keeps_plan_and_counters_in_the_data_directory(tmp_path: Path) -> None:
    remote = Profile(data=tmp_path, spark="spark://far:7077", checkpoint="hdfs://far/jobs/")
    assert _job(remote, "alarm") == tmp_path / "jobs" / "alarm"
    assert _checkpoint(remote, "alarm", _job(remote, "alarm")) == "hdfs://far/jobs/alarm/spark"
    assert _checkpoint(Profile(data=tmp_path), "alarm", _job(Profile(data=tmp_path), "alarm")) == str(
        tmp_path / "checkpoints" / "alarm" / "spark"
    )


def test_only_committed_batches_are_processed(tmp_path: Path) -> None:
    for batch, offset in ((0, 5), (1, 9)):
        (tmp_path / "offsets").mkdir(exist_ok=True)
        (tmp_path / "offsets" / str(batch)).write_text(f'v1\n{{}}\n{{"clock": 1, "scans": {{"0": {{"t": {{"3": {offset}}}}}}}}}')
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits" / "0").write_text("v1\n{}")
    assert processed(tmp_path) == {"0/t/3": 5}
