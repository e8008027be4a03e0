"""A real Spark standalone cluster on this machine: a master and a worker, each a process of its own, on loopback.

For tests and for trying the `cluster` profile. Invariant: both processes end with the context, or with their parent.
Not here: anything for production; there the profile names a cluster that others run."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

from penstock.errors import PenstockError
from penstock.spark.jars import spark_jar
from penstock.spark.java import Java, find_java

START_S_MAX = 60.0
STOP_S_MAX = 20.0
_PR_SET_PDEATHSIG = 1


class SparkCluster:
    """`with SparkCluster(cores=2) as cluster: cluster.address` gives `spark://127.0.0.1:…`."""

    def __init__(self, *, cores: int = 2, memory: str = "1g", directory: Path | None = None) -> None:
        self._cores = cores
        self._memory = memory
        self._temporary = tempfile.TemporaryDirectory(prefix="penstock-spark-") if directory is None else None
        self.directory = Path(self._temporary.name) if self._temporary else directory or Path()
        self.address = ""
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> SparkCluster:
        java = find_java()
        port = _free_port()
        self.address = f"spark://127.0.0.1:{port}"
        try:
            self._start(java, "master", "org.apache.spark.deploy.master.Master", "--port", str(port))
            self._wait(lambda: _listens(port), "master")
            self._start(
                java, "worker", "org.apache.spark.deploy.worker.Worker", "--cores", str(self._cores), "--memory", self._memory,
                "--work-dir", str(self.directory / "work"), self.address,
            )  # fmt: skip
            self._wait(lambda: "Successfully registered with master" in self.log("worker"), "worker")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for process in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._temporary:
            self._temporary.cleanup()

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def log(self, role: str) -> str:
        with contextlib.suppress(FileNotFoundError):
            return (self.directory / f"{role}.log").read_text(errors="replace")
        return ""

    def _start(self, java: Java, role: str, main: str, *arguments: str) -> None:
        home = spark_jar("spark-core_2.13").parent.parent
        self.directory.mkdir(parents=True, exist_ok=True)
        settings = self.directory / "log4j2.properties"
        settings.write_text(_LOG4J)
        environment = os.environ | {
            "SPARK_HOME": str(home),
            "SPARK_SCALA_VERSION": "2.13",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "JAVA_HOME": _java_home(java, self.directory),
        }
        command = [
            str(java.program), "-cp", f"{home}/jars/*", "-Xmx256m", f"-Dlog4j2.configurationFile={settings}", "-XX:+IgnoreUnrecognizedVMOptions",
            "--add-opens=java.base/java.nio=ALL-UNNAMED", "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED", "--add-opens=java.base/java.lang=ALL-UNNAMED",
            main, "--host", "127.0.0.1", "--webui-port", "0", *arguments,
        ]  # fmt: skip
        with (self.directory / f"{role}.log").open("wb") as output:
            self._processes.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=environment,
                    cwd=self.directory,
                    preexec_fn=_die_with_parent,
                )
            )

    def _wait(self, ready: object, role: str) -> None:
        assert callable(ready)
        deadline_s = time.monotonic() + START_S_MAX
        while not ready():
            if self._processes[-1].poll() is not None or time.monotonic() > deadline_s:
                last = self.log(role).strip().splitlines()[-1:] or ["no output"]
                raise PenstockError(f"the Spark {role} did not start: {last[0]}")
            time.sleep(0.05)


_LOG4J = """
rootLogger.level = info
rootLogger.appenderRef.stdout.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss.SSS} %p %c{1}: %m%n%ex
"""


def _java_home(java: Java, directory: Path) -> str:
    """A Java home for executors. Spark asks for a module that small Java runtimes lack and that it can do without, and
    has no setting against it; so a script of three lines leaves that option out."""
    program = directory / "java" / "bin" / "java"
    program.parent.mkdir(parents=True, exist_ok=True)
    leave_out = 'for option; do shift; [ "$option" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$option"; done'
    program.write_text(f'#!/bin/sh\n{leave_out}\nexec "{java.program}" "$@"\n')
    program.chmod(0o755)
    return str(directory / "java")


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
