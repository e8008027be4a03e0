"""Administration: topics, partitions, configuration, offsets, the cluster itself."""

from __future__ import annotations

from confluent_kafka import IsolationLevel, KafkaError, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, NewTopic, OffsetSpec, ResourceType

from penstock.testing.contract.frame import Subject, case, done, error_code, wait_until


def _create(subject: Subject, name: str, *, partitions: int = 1, replicas: int = 1, config: dict[str, str] | None = None) -> int:
    topic = NewTopic(name, num_partitions=partitions, replication_factor=replicas, config=config or {})
    return error_code(lambda: done(subject.admin.create_topics([topic])))


def _config(subject: Subject, topic: str) -> dict[str, ConfigEntry]:
    [entries] = done(subject.admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]))
    result: dict[str, ConfigEntry] = entries
    return result


def _alter(subject: Subject, topic: str, **changes: str | None) -> int:
    entries = [
        ConfigEntry(
            name.replace("_", "."), value, incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
        )
        for name, value in changes.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    return error_code(lambda: done(subject.admin.incremental_alter_configs([resource])))


@case
def a_topic_has_the_partitions_and_configuration_it_was_made_with(subject: Subject) -> None:
    topic = subject.topic(partitions=5, config={"retention.ms": "123456", "cleanup.policy": "compact"})
    metadata = subject.admin.list_topics(topic, timeout=10).topics[topic]
    assert sorted(metadata.partitions) == [0, 1, 2, 3, 4]
    assert all(p.replicas and p.isrs and p.leader in p.replicas for p in metadata.partitions.values())
    config = _config(subject, topic)
    assert (config["retention.ms"].value, config["retention.ms"].is_default) == ("123456", False)
    assert config["cleanup.policy"].value == "compact"
    assert config["max.message.bytes"].is_default
    assert int(config["max.message.bytes"].value) > 0


@case
def a_bad_topic_is_refused_with_the_right_error(subject: Subject) -> None:
    topic = subject.topic()
    fresh = subject.fresh
    assert _create(subject, topic) == KafkaError.TOPIC_ALREADY_EXISTS
    assert _create(subject, "a b") == KafkaError.TOPIC_EXCEPTION
    assert _create(subject, "x" * 250) == KafkaError.TOPIC_EXCEPTION
    assert _create(subject, "..") == KafkaError.TOPIC_EXCEPTION
    assert _create(subject, fresh("t"), replicas=3) == KafkaError.INVALID_REPLICATION_FACTOR
    assert _create(subject, fresh("t"), config={"no.such.setting": "1"}) == KafkaError.INVALID_CONFIG
    assert _create(subject, fresh("t"), config={"retention.ms": "soon"}) == KafkaError.INVALID_CONFIG
    assert _create(subject, fresh("t"), config={"cleanup.policy": "burn"}) == KafkaError.INVALID_CONFIG


@case
def validate_only_creates_nothing(subject: Subject) -> None:
    name = subject.fresh("topic")
    done(subject.admin.create_topics([NewTopic(name, num_partitions=2, replication_factor=1)], validate_only=True))
    assert name not in subject.admin.list_topics(timeout=10).topics


@case
def a_deleted_topic_is_gone_and_its_successor_is_empty(subject: Subject) -> None:
    topic = subject.topic()
    subject.send(topic, [b"old"])
    [before] = subject.admin.describe_topics(_topics([topic])).values()
    first_id = before.result(timeout=10).topic_id
    done(subject.admin.delete_topics([topic]))
    wait_until(lambda: topic not in subject.admin.list_topics(timeout=10).topics, "the topic is gone from the metadata")
    assert error_code(lambda: done(subject.admin.delete_topics([topic]))) == KafkaError.UNKNOWN_TOPIC_OR_PART
    wait_until(lambda: _create(subject, topic) == 0, "the name is free again")
    wait_until(lambda: subject.leaders(topic), "the new topic has a leader")
    [after] = subject.admin.describe_topics(_topics([topic])).values()
    assert str(after.result(timeout=10).topic_id) != str(first_id), "a new topic has a new id"
    assert subject.send(topic, [b"new"]) == [0]
    assert subject.values(topic) == [b"new"]


@case
def partitions_can_be_added_but_not_removed(subject: Subject) -> None:
    topic = subject.topic(partitions=2)
    subject.send(topic, [b"kept"], partition=1)
    done(subject.admin.create_partitions([NewPartitions(topic, 4)]))
    wait_until(lambda: len(subject.leaders(topic)) == 4, "four partitions with leaders")
    assert subject.values(topic, partition=1) == [b"kept"]
    assert subject.send(topic, [b"in the new one"], partition=3) == [0]
    for total in (4, 3):
        assert error_code(lambda total=total: done(subject.admin.create_partitions([NewPartitions(topic, total)]))) == 37  # type: ignore[misc]


@case
def configuration_changes_step_by_step(subject: Subject) -> None:
    topic = subject.topic(config={"retention.ms": "111000"})
    assert _alter(subject, topic, max_message_bytes="5000") == 0
    wait_until(lambda: _config(subject, topic)["max.message.bytes"].value == "5000", "the new limit is shown")
    assert _config(subject, topic)["retention.ms"].value == "111000", "an incremental change leaves the others alone"
    assert error_code(lambda: subject.send(topic, [b"x" * 6000])) == KafkaError.MSG_SIZE_TOO_LARGE
    assert _alter(subject, topic, max_message_bytes=None) == 0
    wait_until(lambda: _config(subject, topic)["max.message.bytes"].is_default, "the limit is the default again")
    assert subject.send(topic, [b"x" * 6000]) == [0]
    assert _alter(subject, topic, no_such_setting="1") == KafkaError.INVALID_CONFIG
    assert _alter(subject, topic, retention_ms="soon") == KafkaError.INVALID_CONFIG


@case
def list_offsets_answers_every_question(subject: Subject) -> None:
    topic = subject.topic()
    subject.send_records(topic, [{"value": b"v", "partition": 0, "timestamp": t} for t in (1000, 9000, 5000)])
    questions = {
        "earliest": (OffsetSpec.earliest(), 0),
        "latest": (OffsetSpec.latest(), 3),
        "newest": (OffsetSpec.max_timestamp(), 1),
        "by time": (OffsetSpec.for_timestamp(4000), 1),
        "after all": (OffsetSpec.for_timestamp(9001), -1),
    }
    for name, (spec, expected) in questions.items():
        [found] = done(subject.admin.list_offsets({TopicPartition(topic, 0): spec}, isolation_level=IsolationLevel.READ_UNCOMMITTED))
        assert found.offset == expected, name


@case
def the_cluster_describes_itself(subject: Subject) -> None:
    cluster = subject.admin.describe_cluster().result(timeout=10)
    assert cluster.cluster_id
    assert cluster.controller is not None
    addresses = {f"{node.host}:{node.port}" for node in cluster.nodes}
    assert addresses & set(subject.address.split(",")), f"clients are sent to {addresses}"


def _topics(names: list[str]) -> object:
    from confluent_kafka import TopicCollection

    return TopicCollection(names)
