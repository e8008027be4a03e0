"""Consumer groups: sharing, rebalancing, committing, resuming, and what an administrator may do to them."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from penstock.testing.contract.frame import Subject, case, closing, done, error_code, poll_until, wait_until

ASSIGNORS = ("range", "roundrobin", "cooperative-sticky")


class Member:
    """A consumer that polls in a thread of its own, as an application would, until it is closed."""

    def __init__(self, consumer: Consumer, topic: str) -> None:
        self.consumer = consumer
        self.values: list[bytes | None] = []
        self.errors: list[KafkaError] = []
        self.assigned: set[int] = set()
        self.assignments = 0
        self.fewest = sys.maxsize  # partitions that it was left with after a revocation
        self._ending = threading.Event()
        consumer.subscribe([topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.assignments += 1
        self.assigned |= {p.partition for p in partitions}

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.assigned -= {p.partition for p in partitions}
        self.fewest = min(self.fewest, len(self.assigned))

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                message = self.consumer.poll(0.05)
            except KafkaException as error:
                self.errors.append(error.args[0])
                return
            if message is None:
                continue
            if message.error() is None:
                self.values.append(message.value())
                with contextlib.suppress(KafkaException):
                    self.consumer.commit(message=message, asynchronous=True)
            elif message.error().code() != KafkaError._PARTITION_EOF:
                self.errors.append(message.error())

    def close(self) -> None:
        if not self._ending.is_set():
            self._ending.set()
            self._thread.join(20)
            self.consumer.close()


@contextlib.contextmanager
def members(subject: Subject, topic: str, group: str) -> Iterator[Callable[..., Member]]:
    """Makes members of the group, and closes those that are left."""
    made: list[Member] = []

    def make(**config: object) -> Member:
        made.append(Member(subject.consumer(group, **config), topic))
        return made[-1]

    try:
        yield make
    finally:
        for member in made:
            member.close()


def _share(*group: Member, partitions: int) -> Callable[[], bool]:
    """Every partition is held by exactly one of them, and each holds one at least."""

    def shared() -> bool:
        held = [p for member in group for p in member.assigned]
        return sorted(held) == list(range(partitions)) and all(member.assigned for member in group)

    return shared


def _rebalances(subject: Subject, assignor: str) -> None:
    topic, group = subject.topic(partitions=4), subject.fresh("group")
    for partition in range(4):
        subject.send(topic, [b"a%d" % partition], partition=partition)
    with members(subject, topic, group) as member:
        first = member(partition_assignment_strategy=assignor)
        wait_until(lambda: first.assigned == {0, 1, 2, 3}, "one member holds all partitions")
        second = member(partition_assignment_strategy=assignor)
        wait_until(_share(first, second, partitions=4), "two members share the partitions")
        for partition in range(4):
            subject.send(topic, [b"b%d" % partition], partition=partition)
        wait_until(lambda: len(set(first.values) | set(second.values)) == 8, "all records were read")
        first.close()
        wait_until(lambda: second.assigned == {0, 1, 2, 3}, "the second takes over when the first leaves")
        assert first.errors == second.errors == []


@case
def range_members_share_the_partitions(subject: Subject) -> None:
    _rebalances(subject, "range")


@case
def round_robin_members_share_the_partitions(subject: Subject) -> None:
    _rebalances(subject, "roundrobin")


@case
def cooperative_members_share_the_partitions(subject: Subject) -> None:
    _rebalances(subject, "cooperative-sticky")


@case
def cooperative_members_keep_what_they_have(subject: Subject) -> None:
    """With the cooperative protocol a member that joins takes partitions away, but nobody gives up everything first."""
    topic, group = subject.topic(partitions=4), subject.fresh("group")
    with members(subject, topic, group) as member:
        first = member(partition_assignment_strategy="cooperative-sticky")
        wait_until(lambda: len(first.assigned) == 4, "one member holds all partitions")
        second = member(partition_assignment_strategy="cooperative-sticky")
        wait_until(_share(first, second, partitions=4), "two members share the partitions")
        assert first.fewest == 2, "the first member gave up more than it had to"


@case
def a_group_resumes_where_it_committed(subject: Subject) -> None:
    topic, group = subject.topic(), subject.fresh("group")
    subject.send(topic, [b"%d" % n for n in range(10)])
    with closing(subject.consumer(group)) as consumer:
        consumer.subscribe([topic])
        messages = poll_until(consumer, 10)
        consumer.commit(message=messages[3], asynchronous=False)
    assert subject.committed(group, topic) == 4
    with closing(subject.consumer(group)) as consumer:
        consumer.subscribe([topic])
        assert [m.offset() for m in poll_until(consumer, 6)] == [4, 5, 6, 7, 8, 9]


@case
def a_group_without_a_commit_starts_by_its_policy(subject: Subject) -> None:
    topic = subject.topic()
    subject.send(topic, [b"early"])
    assert subject.committed(subject.fresh("group"), topic) == OFFSET_INVALID
    with closing(subject.consumer(auto_offset_reset="latest")) as consumer:
        assigned: list[int] = []
        consumer.subscribe([topic], on_assign=lambda _, parts: assigned.extend(p.partition for p in parts))
        wait_until(lambda: (consumer.poll(0.05), assigned)[1], "the group is formed")
        wait_until(lambda: consumer.poll(0.05), "the end was reached once")  # so the position is fixed
        subject.send(topic, [b"later"])
        [message] = poll_until(consumer, 1)
        assert message.value() == b"later"


@case
def a_commit_carries_metadata_within_a_limit(subject: Subject) -> None:
    topic, group = subject.topic(partitions=2), subject.fresh("group")
    with closing(subject.consumer(group)) as consumer:
        consumer.commit(offsets=[TopicPartition(topic, 0, 7, "note"), TopicPartition(topic, 1, 8)], asynchronous=False)
        first, second = consumer.committed([TopicPartition(topic, 0), TopicPartition(topic, 1)], timeout=10)
        assert (first.offset, first.metadata) == (7, "note")
        assert second.offset == 8
        long = [TopicPartition(topic, 0, 9, "x" * 10_000)]
        assert error_code(lambda: _raise_first(consumer.commit(offsets=long, asynchronous=False))) == KafkaError.OFFSET_METADATA_TOO_LARGE
    assert subject.committed(group, topic) == 7


@case
def a_killed_member_is_replaced_after_its_session(subject: Subject) -> None:
    topic, group = subject.topic(partitions=2), subject.fresh("group")
    program = (
        "import sys; from confluent_kafka import Consumer\n"
        "c = Consumer({'bootstrap.servers': sys.argv[1], 'group.id': sys.argv[2], 'session.timeout.ms': int(sys.argv[4]), 'heartbeat.interval.ms': 300, 'log_level': 2})\n"
        "c.subscribe([sys.argv[3]], on_assign=lambda c, p: print('assigned', flush=True))\n"
        "while True: c.poll(0.1)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, subject.address, group, topic, str(subject.session_ms)], stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"assigned\n"
        process.kill()
        with members(subject, topic, group) as member:
            survivor = member(session_timeout_ms=subject.session_ms)
            wait_until(lambda: survivor.assigned == {0, 1}, "the survivor holds all partitions")
            assert survivor.errors == []
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@case
def a_static_member_returns_without_a_rebalance(subject: Subject) -> None:
    topic, group = subject.topic(partitions=2), subject.fresh("group")
    with members(subject, topic, group) as member:
        first = member(group_instance_id="one")
        second = member(group_instance_id="two")
        wait_until(_share(first, second, partitions=2), "two members share the partitions")
        held, assignments = set(first.assigned), second.assignments
        first.close()
        again = member(group_instance_id="one")
        wait_until(lambda: again.assigned == held, "it gets its partitions back")
        assert second.assignments == assignments, "the other member saw no rebalance"


@case
def a_second_holder_of_an_instance_id_fences_the_first(subject: Subject) -> None:
    topic, group = subject.topic(), subject.fresh("group")
    with members(subject, topic, group) as member:
        first = member(group_instance_id="same")
        wait_until(lambda: first.assigned == {0}, "the first holds the partition")
        second = member(group_instance_id="same")
        wait_until(
            lambda: any(error.code() in (KafkaError.FENCED_INSTANCE_ID, KafkaError._FATAL) for error in first.errors), "the first is told"
        )
        wait_until(lambda: second.assigned == {0}, "the second holds the partition")
        assert second.errors == []


@case
def groups_can_be_listed_and_described(subject: Subject) -> None:
    topic, group = subject.topic(partitions=2), subject.fresh("group")
    with members(subject, topic, group) as member:
        first = member(client_id="a-client", partition_assignment_strategy="range")
        wait_until(lambda: first.assigned == {0, 1}, "the member holds the partitions")
        listed = subject.admin.list_consumer_groups().result(timeout=10)
        assert group in {entry.group_id for entry in listed.valid}
        [future] = subject.admin.describe_consumer_groups([group]).values()
        description = future.result(timeout=10)
        assert description.state == ConsumerGroupState.STABLE
        assert description.partition_assignor == "range"
        [described] = description.members
        assert described.client_id == "a-client"
        assert {p.partition for p in described.assignment.topic_partitions} == {0, 1}
    [future] = subject.admin.describe_consumer_groups([group]).values()
    assert future.result(timeout=10).state in (ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD)


@case
def offsets_of_an_empty_group_can_be_set_and_the_group_deleted(subject: Subject) -> None:
    topic, group = subject.topic(), subject.fresh("group")
    subject.send(topic, [b"%d" % n for n in range(5)])
    request = [ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 3)])]
    done(subject.admin.alter_consumer_group_offsets(request))
    assert subject.committed(group, topic) == 3
    with closing(subject.consumer(group)) as consumer:
        consumer.subscribe([topic])
        assert [m.offset() for m in poll_until(consumer, 2)] == [3, 4]
    done(subject.admin.delete_consumer_groups([group]))
    assert subject.committed(group, topic) == OFFSET_INVALID
    assert error_code(lambda: done(subject.admin.delete_consumer_groups([subject.fresh("absent")]))) == KafkaError.GROUP_ID_NOT_FOUND


@case
def an_active_group_is_protected(subject: Subject) -> None:
    topic, group = subject.topic(), subject.fresh("group")
    with members(subject, topic, group) as member:
        first = member()
        wait_until(lambda: first.assigned == {0}, "the member holds the partition")
        assert error_code(lambda: done(subject.admin.delete_consumer_groups([group]))) == KafkaError.NON_EMPTY_GROUP
        request = [ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 0)])]
        assert (
            error_code(lambda: _raise_first(done(subject.admin.alter_consumer_group_offsets(request))[0].topic_partitions))
            == KafkaError.UNKNOWN_MEMBER_ID
        )


@case
def deleting_a_topic_drops_its_committed_offsets(subject: Subject) -> None:
    topic, kept, group = subject.topic(), subject.topic(), subject.fresh("group")
    with closing(subject.consumer(group)) as consumer:
        consumer.commit(offsets=[TopicPartition(topic, 0, 1), TopicPartition(kept, 0, 2)], asynchronous=False)
    done(subject.admin.delete_topics([topic]))

    def offsets() -> dict[str, int]:
        [future] = subject.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
        return {p.topic: p.offset for p in future.result(timeout=10).topic_partitions}

    wait_until(lambda: offsets() == {kept: 2}, "only the other topic's offset is left")


def _raise_first(partitions: list[TopicPartition]) -> None:
    for partition in partitions:
        if partition.error is not None:
            raise KafkaException(partition.error)
