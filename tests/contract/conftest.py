"""One server of each kind for the whole session; every case makes its own topics on it."""

import os
from collections.abc import Iterator

import pytest

from penstock.errors import MissingPart

pytest.register_assert_rewrite("penstock.testing.contract")

from penstock.broker.embedded import broker  # noqa: E402
from penstock.testing.apache_kafka import ApacheKafka  # noqa: E402
from penstock.testing.contract import Subject  # noqa: E402

# Background work that would otherwise make cases wait: retention every 5 minutes, compaction every 15 s, and so on.
IMPATIENT = {
    "log.retention.check.interval.ms": "300",
    "log.initial.task.delay.ms": "300",
    "log.cleaner.backoff.ms": "200",
    "log.segment.delete.delay.ms": "100",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "group.min.session.timeout.ms": "1000",
}


@pytest.fixture(scope="session")
def kafka() -> Iterator[Subject]:
    """A real Apache Kafka of one node, or a visible reason why not."""
    if address := os.environ.get("PENSTOCK_TEST_KAFKA"):
        yield Subject("Apache Kafka", address)
        return
    try:
        server = ApacheKafka(config=IMPATIENT, jvm_options=("-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"))
        with server:
            yield Subject("Apache Kafka", server.address, session_ms=1500)
    except MissingPart as error:
        pytest.skip(f"no Apache Kafka to compare with: {error}")


@pytest.fixture(scope="session")
def embedded() -> Iterator[Subject]:
    """The embedded broker at its default settings, in a process of its own."""
    if address := os.environ.get("PENSTOCK_TEST_BROKER"):
        yield Subject("embedded broker", address)
        return
    with broker() as running:
        yield Subject("embedded broker", running.address, session_ms=1500)


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=pytest.mark.kafka, id="apache")])
def subject(request: pytest.FixtureRequest) -> Subject:
    found: Subject = request.getfixturevalue(request.param)
    return found
