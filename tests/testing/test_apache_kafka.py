"""A Kafka on this machine: it dies with its parent, or lives detached until it is stopped; its data and ports stay."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import ConfigError, MissingPart
from penstock.testing import apache_kafka
from penstock.testing.apache_kafka import ApacheKafka
from penstock.testing.contract import Subject
from penstock.testing.contract.frame import wait_until

SMALL = ("-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


@pytest.fixture
def jars() -> None:
    try:
        apache_kafka.kafka_class_path()
    except MissingPart as error:
        pytest.skip(f"no Apache Kafka: {error}")


def test_impossible_sizes_and_absent_clusters_are_refused(tmp_path: Path) -> None:
    for nodes in (0, 6):
        with pytest.raises(ConfigError, match="choose 1 to 5"):
            ApacheKafka(nodes=nodes)
    with pytest.raises(ConfigError, match=r"no Kafka cluster in .*; start one: penstock kafka start"):
        apache_kafka.status(tmp_path)


@pytest.mark.kafka
@pytest.mark.usefixtures("jars")
def test_a_detached_cluster_is_stopped_by_anyone_and_keeps_its_data(tmp_path: Path) -> None:
    address = ApacheKafka(data=tmp_path, jvm_options=SMALL, detached=True).start()
    try:
        subject = Subject("detached", address)
        topic = subject.topic()
        subject.send(topic, [b"kept"])
        assert apache_kafka.status(tmp_path).running
        assert apache_kafka.stop(tmp_path).address == address
        assert not apache_kafka.status(tmp_path).running
        assert ApacheKafka(data=tmp_path, jvm_options=SMALL, detached=True).start() == address, "ports stay"
        assert Subject("again", address).values(topic) == [b"kept"]
    finally:
        apache_kafka.stop(tmp_path)


@pytest.mark.kafka
@pytest.mark.usefixtures("jars")
def test_a_node_dies_with_its_parent(tmp_path: Path) -> None:
    program = f"""
import sys
from pathlib import Path
from penstock.testing.apache_kafka import ApacheKafka
kafka = ApacheKafka(data=Path({str(tmp_path)!r}), jvm_options={SMALL!r})
kafka.start()
print("started", flush=True)
sys.stdin.read()
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "started\n"
        assert apache_kafka.status(tmp_path).running
        parent.send_signal(signal.SIGKILL)
        parent.wait(10)
        wait_until(lambda: not apache_kafka.status(tmp_path).running, "the node is gone")
    finally:
        parent.kill()
        parent.communicate()
