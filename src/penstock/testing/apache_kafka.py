"""Run a real Apache Kafka on this machine: one node or several, KRaft, on loopback, from jars resolved by coordinates.

For development and tests: here replication, leaders and followers are Kafka's own. The state of a cluster is its data directory:

    cluster.json            {"cluster_id": …, "nodes": [{"id", "port", "controller_port", "pid", "started"}]}
    node-1/server.properties, node-1/data/, node-1/server.log

Invariant: a process is signalled only if its id and its start time are those in `cluster.json`. Unless detached, every node
dies with the thread that started it. Not here: anything for production; there the profile names a cluster that others run."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType

from penstock.errors import ConfigError, PenstockError
from penstock.spark import jars
from penstock.spark.java import Java, find_java

START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 30.0
NODES_MAX = 5
# What Kafka's own start script gives a broker, less heap: for load tests pass the script's `-Xmx1g -Xms1g`.
JVM_OPTIONS = ("-Xmx768m", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35")

# Starts a program that is killed when its parent dies: the setting survives exec, so no process of ours stays in between.
_TIED = """
import ctypes, os, sys
prctl = getattr(ctypes.CDLL(None), "prctl", None)
if prctl is not None:
    prctl(1, 9)
    if os.getppid() != int(sys.argv[1]):
        sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""

_LOGGING = """<?xml version="1.0" encoding="UTF-8"?>
<Configuration status="WARN">
  <Appenders><Console name="out"><PatternLayout pattern="%d %p %c{1}: %m%n"/></Console></Appenders>
  <Loggers><Root level="WARN"><AppenderRef ref="out"/></Root></Loggers>
</Configuration>
"""


# Nodes that this process started, by process id, so that whoever stops them here also reaps them.
_children: dict[int, subprocess.Popen[bytes]] = {}


@dataclass(frozen=True, slots=True)
class Node:
    """One broker and controller: its ports, and its process while it runs (`started` is the kernel's start time of that process)."""

    id: int
    port: int
    controller_port: int
    pid: int | None = None
    started: int | None = None

    @property
    def running(self) -> bool:
        return self.pid is not None and self.started is not None and _start_time(self.pid) == self.started


@dataclass(frozen=True, slots=True)
class Status:
    """What `penstock kafka status` shows."""

    address: str
    nodes: tuple[Node, ...]
    data: Path

    @property
    def running(self) -> bool:
        return any(node.running for node in self.nodes)


class ApacheKafka:
    """A Kafka cluster in a data directory.

    >>> with ApacheKafka() as kafka:        # doctest: +SKIP
    ...     kafka.address
    '127.0.0.1:40123'
    """

    def __init__(
        self,
        *,
        data: Path | None = None,
        nodes: int = 1,
        config: Mapping[str, str] | None = None,
        jvm_options: Sequence[str] = JVM_OPTIONS,
        detached: bool = False,
    ) -> None:
        if not 1 <= nodes <= NODES_MAX:
            raise ConfigError(f"a Kafka cluster of {nodes} nodes", remedy=f"choose 1 to {NODES_MAX}; 3 shows replication")
        self._temporary = data is None
        self.data = Path(tempfile.mkdtemp(prefix="penstock-kafka-")) if data is None else data
        self._node_count = nodes
        self._config = dict(config or {})
        self._jvm_options = tuple(jvm_options)
        self._detached = detached

    def __enter__(self) -> ApacheKafka:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    @property
    def address(self) -> str:
        return status(self.data).address

    @property
    def nodes(self) -> tuple[Node, ...]:
        return status(self.data).nodes

    def start(self) -> str:
        """Start the nodes that do not run, wait until all have registered, and return the address for clients."""
        java, class_path = find_java(), kafka_class_path()
        if not (self.data / "cluster.json").exists():
            self._create(java, class_path)
        for node in self.nodes:
            if not node.running:
                self.start_node(node.id, wait=False)
        self._wait_until_registered()
        return self.address

    def start_node(self, node_id: int, *, wait: bool = True) -> None:
        """Start one node (after `kill_node`, say) and by default wait until every running node is registered."""
        directory = self.data / f"node-{node_id}"
        java = find_java()
        command = [str(java.program), *self._jvm_options, f"-Dlog4j2.configurationFile={self.data / 'log4j2.xml'}"]
        command += ["-cp", kafka_class_path(), "kafka.Kafka", str(directory / "server.properties")]
        if not self._detached:
            command = [sys.executable, "-c", _TIED, str(os.getpid()), *command]
        with (directory / "server.log").open("ab") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=self._detached, cwd=directory
            )
        _children[process.pid] = process
        self._record(node_id, pid=process.pid, started=_start_time(process.pid))
        if wait:
            self._wait_until_registered()

    def kill_node(self, node_id: int, *, with_signal: signal.Signals = signal.SIGKILL) -> None:
        """End one node, by default as a crash would, and wait until its process is gone."""
        node = next(node for node in self.nodes if node.id == node_id)
        if node.running and node.pid is not None:
            os.kill(node.pid, with_signal)
            self._wait_gone(node, deadline=time.monotonic() + STOP_TIMEOUT_S)
        self._record(node_id, pid=None, started=None)

    def stop(self) -> None:
        """End every node (asking first), and remove the data if it was temporary. Quiet when nothing runs."""
        if (self.data / "cluster.json").exists():
            running = [node for node in self.nodes if node.running]
            for node in running:
                assert node.pid is not None
                os.kill(node.pid, signal.SIGKILL if self._temporary else signal.SIGTERM)
            deadline = time.monotonic() + STOP_TIMEOUT_S
            for node in running:
                self._wait_gone(node, deadline=deadline)
                self._record(node.id, pid=None, started=None)
        if self._temporary:
            shutil.rmtree(self.data, ignore_errors=True)

    def _create(self, java: Java, class_path: str) -> None:
        """Choose ports and write and format the directories of a new cluster."""
        self.data.mkdir(parents=True, exist_ok=True)
        ports = _free_ports(2 * self._node_count)
        nodes = [Node(id=n + 1, port=ports[2 * n], controller_port=ports[2 * n + 1]) for n in range(self._node_count)]
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        (self.data / "log4j2.xml").write_text(_LOGGING)
        formats = []
        for node in nodes:
            directory = self.data / f"node-{node.id}"
            directory.mkdir(exist_ok=True)
            properties = directory / "server.properties"
            properties.write_text("".join(f"{key}={value}\n" for key, value in self._properties(node, nodes, directory).items()))
            command = [str(java.program), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", class_path]
            command += ["kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(properties)]
            formats.append((node, subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)))
        for node, process in formats:
            output, _ = process.communicate(timeout=START_TIMEOUT_S)
            if process.returncode != 0:
                raise PenstockError(f"Kafka node {node.id} cannot format its directory: {_last_line(output.decode(errors='replace'))}")
        _write_state(self.data, {"cluster_id": cluster_id, "nodes": [asdict(node) for node in nodes]})

    def _properties(self, node: Node, nodes: Sequence[Node], directory: Path) -> dict[str, str]:
        replicas = min(3, len(nodes))
        in_sync_min = 2 if replicas == 3 else 1
        return {
            "process.roles": "broker,controller",
            "node.id": str(node.id),
            "controller.quorum.voters": ",".join(f"{n.id}@127.0.0.1:{n.controller_port}" for n in nodes),
            "listeners": f"PLAINTEXT://127.0.0.1:{node.port},CONTROLLER://127.0.0.1:{node.controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{node.port}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": str(directory / "data"),
            "default.replication.factor": str(replicas),
            "min.insync.replicas": str(in_sync_min),
            "offsets.topic.replication.factor": str(replicas),
            "transaction.state.log.replication.factor": str(replicas),
            "transaction.state.log.min.isr": str(in_sync_min),
            "share.coordinator.state.topic.replication.factor": str(replicas),
            "share.coordinator.state.topic.min.isr": str(in_sync_min),
            # One machine serves few groups; fifty partitions of an internal topic would only slow its first use.
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.num.partitions": "4",
            "group.initial.rebalance.delay.ms": "0",
            **self._config,
        }

    def _wait_until_registered(self) -> None:
        """Until the running nodes know each other and answer clients; a node that ends meanwhile is an error with its last words."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        nodes = [node for node in self.nodes if node.running]
        deadline = time.monotonic() + START_TIMEOUT_S
        for node in nodes:
            _wait_for_port(node, deadline=deadline)
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0, "topic.metadata.refresh.interval.ms": 200})
        while time.monotonic() < deadline:
            for node in nodes:
                if not node.running:
                    log = (self.data / f"node-{node.id}" / "server.log").read_text(errors="replace")
                    raise PenstockError(
                        f"Kafka node {node.id} ended while starting: {_last_line(log)}",
                        remedy=f"read {self.data}/node-{node.id}/server.log",
                    )
            with contextlib.suppress(KafkaException):
                if len(admin.list_topics(timeout=1).brokers) >= len(nodes):
                    return
        raise PenstockError(f"Kafka did not start in {START_TIMEOUT_S:.0f} s", remedy=f"read {self.data}/node-1/server.log")

    def _wait_gone(self, node: Node, *, deadline: float) -> None:
        process = _children.pop(node.pid or 0, None)
        if process is not None:
            try:
                process.wait(timeout=max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            return
        while node.running:  # started by another process, so there is nothing to wait on but /proc
            if time.monotonic() > deadline:
                assert node.pid is not None
                os.kill(node.pid, signal.SIGKILL)
                deadline += STOP_TIMEOUT_S
            time.sleep(0.05)

    def _record(self, node_id: int, *, pid: int | None, started: int | None) -> None:
        state = json.loads((self.data / "cluster.json").read_text())
        nodes = [Node(**entry) for entry in state["nodes"]]
        state["nodes"] = [asdict(replace(node, pid=pid, started=started) if node.id == node_id else node) for node in nodes]
        _write_state(self.data, state)


def status(data: Path) -> Status:
    """The cluster of a data directory, and which of its nodes run."""
    try:
        state = json.loads((data / "cluster.json").read_text())
    except FileNotFoundError:
        raise ConfigError(f"no Kafka cluster in {data}", remedy="start one: penstock kafka start") from None
    nodes = tuple(Node(**entry) for entry in state["nodes"])
    return Status(address=",".join(f"127.0.0.1:{node.port}" for node in nodes), nodes=nodes, data=data)


def stop(data: Path) -> Status:
    """Stop the cluster of a data directory, whoever started it; the data stays. Returns its nodes as they were known before."""
    before = status(data)
    ApacheKafka(data=data, nodes=len(before.nodes)).stop()
    return before


def kafka_class_path() -> str:
    """Kafka's jars, and from pyspark what the resolver leaves out because Spark has it: Scala's library and the logging bridge."""
    own = [jars.spark_jar(name) for name in ("scala-library", "slf4j-api", "log4j-slf4j2-impl")]
    return ":".join([*map(str, own), jars.resolve(jars.APACHE_KAFKA).class_path])


def _write_state(data: Path, state: object) -> None:
    scratch = data / "cluster.json.new"
    scratch.write_text(json.dumps(state, indent=1))
    scratch.rename(data / "cluster.json")


def _free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago; all are held together so that they differ."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for held in sockets:
            held.bind(("127.0.0.1", 0))
        return [held.getsockname()[1] for held in sockets]
    finally:
        for held in sockets:
            held.close()


def _wait_for_port(node: Node, *, deadline: float) -> None:
    while time.monotonic() < deadline and node.running:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", node.port), timeout=1):
            return
        time.sleep(0.05)


def _start_time(pid: int) -> int | None:
    """The kernel's start time of a live process (a zombie does not live)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    return None if fields[0] in "ZX" else int(fields[19])


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if "Exception" in line or "ERROR" in line]
    return (telling or lines or ["it said nothing"])[-1][:300]
