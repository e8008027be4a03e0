"""The embedded broker against Apache Kafka on this machine, in one run, with the same clients and settings.

    python benchmarks/broker.py [--quick] [--json FILE] [--only embedded-os,apache] [--no-java]

Three servers are up together and each measurement goes round them in turn, so that a noisy machine is noisy for all: Apache Kafka as its
own start script runs it, the embedded broker at level `os` (acknowledged from the page cache, as Kafka does: this is the fair pair) and
at level `group` (fdatasync before the acknowledgement). Clients are librdkafka and Kafka's own ProducerPerformance and
ConsumerPerformance, each in a process of its own. Topics have 4 partitions; batches up to 64 kB; linger 5 ms; no compression.
Every produce run is checked by the end offsets. A ratio above 1 means that the embedded broker is better."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PARTITIONS = 4
BASE = "apache"
PRODUCER = {"linger.ms": 5, "batch.size": 65536, "enable.idempotence": False}
KAFKA_JVM = (
    "-Xmx1g",
    "-Xms1g",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
)


@dataclass(frozen=True, slots=True)
class Size:
    """Records of so many bytes, so many of them per run."""

    bytes: int
    records: int
    java_records: int


@dataclass(slots=True)
class Server:
    name: str
    address: str
    pid: int
    start_s: float
    idle_mb: float = 0.0
    figures: dict[str, list[float]] = field(default_factory=dict)

    def add(self, figure: str, value: float) -> None:
        self.figures.setdefault(figure, []).append(value)


# ---- the client side: runs in a process of its own, prints one JSON line ----


def client_produce(address: str, topic: str, *, bytes_each: int, records: int, acks: str) -> dict[str, float]:
    from confluent_kafka import Producer

    config = {
        **PRODUCER,
        "bootstrap.servers": address,
        "acks": acks,
        "queue.buffering.max.messages": 0,
        "queue.buffering.max.kbytes": 2097151,
    }
    producer = Producer(config)
    producer.list_topics(topic, timeout=10)
    value, chunk = os.urandom(bytes_each), 1000
    messages = [{"value": value} for _ in range(chunk)]
    begin = time.perf_counter()
    for n in range(records // chunk):
        queued = producer.produce_batch(topic, messages, partition=n % PARTITIONS)
        assert queued == chunk, "the queue was made large enough for all"
    assert producer.flush(120) == 0, "not all records were answered"
    return {"seconds": time.perf_counter() - begin}


def client_consume(address: str, topic: str, *, records: int) -> dict[str, float]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": address, "group.id": "bench", "enable.auto.commit": False, "fetch.queue.backoff.ms": 10})
    consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)
    begin = time.perf_counter()
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    seen, deadline = 0, begin + 120
    while seen < records and time.perf_counter() < deadline:
        seen += len(consumer.consume(10_000, 0.2))
    seconds = time.perf_counter() - begin
    consumer.close()
    assert seen >= records, f"{seen} of {records} records came"
    return {"seconds": seconds}


def client_latency(address: str, topic: str, *, acks: str, seconds: float) -> dict[str, float]:
    """One record at a time, each answered before the next is sent."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": address, "acks": acks, "linger.ms": 0, "socket.nagle.disable": True})
    producer.list_topics(topic, timeout=10)
    value, times = os.urandom(100), list[float]()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        begin = time.perf_counter()
        producer.produce(topic, value, partition=0)
        producer.flush(10)
        times.append(time.perf_counter() - begin)
    times = sorted(times[len(times) // 10 :])
    return {"p50_ms": 1000 * times[len(times) // 2], "p99_ms": 1000 * times[len(times) * 99 // 100]}


CLIENTS: dict[str, Callable[..., dict[str, float]]] = {"produce": client_produce, "consume": client_consume, "latency": client_latency}


def client(action: str, server: Server, topic: str, **options: Any) -> dict[str, float]:
    arguments = json.dumps({"address": server.address, "topic": topic, **options})
    done = subprocess.run(
        [sys.executable, __file__, "--client", action, arguments], capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{action} on {server.name} failed: {done.stderr.strip()[-500:]}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


# ---- Kafka's own load tools ----


def java(*arguments: str) -> str:
    from penstock.spark.java import find_java
    from penstock.testing.apache_kafka import kafka_class_path

    command = [str(find_java().program), "-Xmx512m", "-cp", kafka_class_path(), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{arguments[0]} failed: {(done.stdout + done.stderr).strip()[-500:]}")
    return done.stdout


def java_produce(server: Server, topic: str, *, size: Size, acks: str) -> float:
    """Records per second, as the tool reports them at its end."""
    props = [f"bootstrap.servers={server.address}", f"acks={acks}", "linger.ms=5", "batch.size=65536", "enable.idempotence=false"]
    load = ["--topic", topic, "--num-records", str(size.java_records), "--record-size", str(size.bytes), "--throughput", "-1"]
    last = java("org.apache.kafka.tools.ProducerPerformance", *load, "--producer-props", *props).strip().splitlines()[-1]
    return float(last.split("records sent, ")[1].split(" records/sec")[0].replace(",", "."))


def java_consume(server: Server, topic: str, *, records: int) -> float:
    """Records per second of fetching, without the time to join the group."""
    arguments = ["--bootstrap-server", server.address, "--topic", topic, "--num-records", str(records), "--timeout", "30000"]
    lines = java("org.apache.kafka.tools.ConsumerPerformance", *arguments).strip().splitlines()
    names, values = ([part.strip() for part in line.split(",")] for line in lines[-2:])
    return float(dict(zip(names, values))["fetch.nMsg.sec"])


# ---- servers ----


@contextlib.contextmanager
def servers(wanted: list[str], scratch: Path) -> Iterator[list[Server]]:
    with contextlib.ExitStack() as stack:
        started = [_start(name, scratch / name, stack) for name in wanted]
        time.sleep(2)  # let them come to rest before their idle memory is read
        for server in started:
            server.idle_mb = memory_mb(server.pid)
        yield started


def _start(name: str, data: Path, stack: contextlib.ExitStack) -> Server:
    if name == BASE:
        from penstock.testing.apache_kafka import ApacheKafka

        kafka = ApacheKafka(data=data, jvm_options=KAFKA_JVM)
        kafka.start()  # formats its directory first, which is not part of a start
        stack.callback(kafka.stop)
        kafka.stop()
        begin = time.perf_counter()
        kafka.start()
        [node] = kafka.nodes
        assert node.pid is not None
        return Server(name, kafka.address, node.pid, time.perf_counter() - begin)
    from penstock.broker.embedded import broker

    begin = time.perf_counter()
    running = stack.enter_context(broker(data, durability=name.removeprefix("embedded-")))
    return Server(name, running.address, running.pid, time.perf_counter() - begin)


def memory_mb(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0]) / 1024


def make_topic(server: Server, name: str) -> str:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": server.address, "log_level": 3})
    for future in admin.create_topics([NewTopic(name, num_partitions=PARTITIONS, replication_factor=1)]).values():
        future.result(timeout=30)
    return name


def check_count(server: Server, topic: str, records: int) -> None:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": server.address, "group.id": "check"})
    stored = sum(consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=10)[1] for p in range(PARTITIONS))
    consumer.close()
    if stored != records:
        raise SystemExit(f"{server.name} stored {stored} of {records} records in {topic}")


# ---- the run ----


def measure(servers: list[Server], sizes: list[Size], *, repeats: int, latency_s: float, with_java: bool) -> None:
    for server in servers:  # a JVM needs to be warm, and every first topic has its first time
        topic = make_topic(server, "warm")
        client("produce", server, topic, bytes_each=1000, records=50_000, acks="all")
        client("consume", server, topic, records=50_000)
    for repeat in range(repeats):
        for size in sizes:
            for acks in ("1", "all"):
                for server in servers:
                    topic = make_topic(server, f"p{size.bytes}-{acks}-{repeat}")
                    seconds = client("produce", server, topic, bytes_each=size.bytes, records=size.records, acks=acks)["seconds"]
                    check_count(server, topic, size.records)
                    server.add(f"librdkafka produce {size.bytes} B acks={acks}", size.records / seconds)
            for server in servers:
                seconds = client("consume", server, f"p{size.bytes}-all-{repeat}", records=size.records)["seconds"]
                server.add(f"librdkafka consume {size.bytes} B", size.records / seconds)
        for acks in ("1", "all"):
            for server in servers:
                topic = make_topic(server, f"latency-{acks}-{repeat}")
                for figure, value in client("latency", server, topic, acks=acks, seconds=latency_s).items():
                    server.add(f"synchronous send acks={acks} {figure}", value)
    for size in sizes if with_java else []:
        for acks in ("1", "all"):
            for server in servers:
                topic = make_topic(server, f"j{size.bytes}-{acks}")
                server.add(f"Java produce {size.bytes} B acks={acks}", java_produce(server, topic, size=size, acks=acks))
                check_count(server, topic, size.java_records)
        for server in servers:
            server.add(f"Java consume {size.bytes} B", java_consume(server, f"j{size.bytes}-all", records=size.java_records))
    for server in servers:
        server.add("memory after load MB", memory_mb(server.pid))


def table(servers: list[Server]) -> list[dict[str, Any]]:
    """Rows of figure, a value per server (the best of its repeats), and ratios to Apache Kafka where a higher one is better."""
    figures: dict[str, dict[str, float]] = {
        "start-up s": {s.name: s.start_s for s in servers},
        "idle memory MB": {s.name: s.idle_mb for s in servers},
    }
    for server in servers:
        for figure, values in server.figures.items():
            best = min(values) if _lower_is_better(figure) else max(values)
            figures.setdefault(figure, {})[server.name] = best
            figures.setdefault(f"{figure}", {})
    rows = []
    for figure, values in figures.items():
        ratios = {}
        if BASE in values:
            for name, value in values.items():
                if name != BASE and value > 0:
                    ratios[name] = values[BASE] / value if _lower_is_better(figure) else value / values[BASE]
        rows.append({"figure": figure, "values": values, "ratios": ratios})
    return rows


def _lower_is_better(figure: str) -> bool:
    return figure.endswith((" s", " MB", "_ms"))


def show(rows: list[dict[str, Any]], servers: list[Server]) -> None:
    names = [server.name for server in servers]
    print(f"{'':36}" + "".join(f"{name:>24}" for name in names))
    for row in rows:
        cells = []
        for name in names:
            value = row["values"].get(name)
            text = "-" if value is None else _text(row["figure"], value)
            ratio = row["ratios"].get(name)
            cells.append(f"{text + (f' {ratio:.2f}x' if ratio else ''):>24}")
        print(f"{row['figure']:36}" + "".join(cells))
    fair = [row["ratios"]["embedded-os"] for row in rows if "embedded-os" in row["ratios"] and " B" in row["figure"]]
    if fair:
        print(
            f"throughput, level os against Apache Kafka: worst {min(fair):.2f}x, median {statistics.median(fair):.2f}x, best {max(fair):.2f}x"
        )


def _text(figure: str, value: float) -> str:
    if " B" in figure:
        size = int(figure.split(" B")[0].split()[-1])
        return f"{value / 1000:.0f} k/s {value * size / 1e6:.0f} MB/s"
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a third of the records, one round, no Java clients")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE")
    parser.add_argument("--only", default="apache,embedded-os,embedded-group", help="servers, by name")
    parser.add_argument("--no-java", action="store_true", help="leave out Kafka's own load tools")
    parser.add_argument("--client", nargs=2, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        action, arguments = options.client
        print(json.dumps(CLIENTS[action](**json.loads(arguments))))
        return 0
    from penstock.errors import PenstockError

    scale = 1 if options.quick else 2
    sizes = [Size(100, 400_000 * scale, 1_000_000 * scale), Size(1000, 60_000 * scale, 150_000 * scale)]
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=os.environ.get("TMPDIR", "/var/tmp")) as scratch:
        try:
            with servers(options.only.split(","), Path(scratch)) as running:
                measure(
                    running,
                    sizes,
                    repeats=1 if options.quick else 2,
                    latency_s=1.0 if options.quick else 1.5,
                    with_java=not (options.quick or options.no_java),
                )
                rows = table(running)
                show(rows, running)
        except PenstockError as error:
            print(f"broker benchmark: {error}", file=sys.stderr)
            return error.exit_code
    print(f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, {time.monotonic() - begin:.0f} s")
    if options.json:
        options.json.write_text(json.dumps({"machine": platform.machine(), "cores": os.cpu_count(), "rows": rows}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
