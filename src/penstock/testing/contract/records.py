"""What is stored is what was sent: order, offsets, bytes, keys, headers, timestamps, sizes, idempotence."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, KafkaError, TopicPartition

from penstock.testing.contract.frame import Subject, case, closing, error_code, poll_until


@case
def offsets_are_dense_and_in_order_of_sending(subject: Subject) -> None:
    topic = subject.topic()
    assert subject.send(topic, [b"%d" % n for n in range(5000)]) == list(range(5000))
    messages = subject.read(topic)
    assert [message.offset() for message in messages] == list(range(5000))
    assert [message.value() for message in messages] == [b"%d" % n for n in range(5000)]
    assert subject.ends(topic) == (0, 5000)


@case
def partitions_are_independent(subject: Subject) -> None:
    topic = subject.topic(partitions=3)
    for partition in range(3):
        assert subject.send(topic, [b"%d" % partition] * (partition + 1), partition=partition) == list(range(partition + 1))
    for partition in range(3):
        assert subject.values(topic, partition=partition) == [b"%d" % partition] * (partition + 1)


@case
def keys_values_and_headers_come_back_byte_for_byte(subject: Subject) -> None:
    topic = subject.topic()
    sent: list[dict[str, Any]] = [
        {"key": None, "value": None, "headers": None},
        {"key": b"", "value": b"", "headers": [("h", b"")]},
        {"key": bytes(range(256)), "value": bytes(range(255, -1, -1)), "headers": [("h", None)]},
        {"key": "κλειδί".encode(), "value": "値".encode(), "headers": [("a", b"1"), ("b", b"2"), ("a", b"3"), ("ключ", b"\x00")]},
    ]
    subject.send_records(topic, [{**record, "partition": 0} for record in sent])
    got = [{"key": m.key(), "value": m.value(), "headers": m.headers()} for m in subject.read(topic)]
    assert got == sent


@case
def create_time_is_the_producers(subject: Subject) -> None:
    topic = subject.topic()
    times = [1_000, 1_700_000_000_123, 1_700_000_000_122, 0]
    subject.send_records(topic, [{"value": b"v", "partition": 0, "timestamp": t} for t in times if t])
    assert [message.timestamp() for message in subject.read(topic)] == [(TIMESTAMP_CREATE_TIME, t) for t in times if t]


@case
def log_append_time_is_the_servers(subject: Subject) -> None:
    topic = subject.topic(config={"message.timestamp.type": "LogAppendTime"})
    before = int(time.time() * 1000)
    subject.send_records(topic, [{"value": b"v", "partition": 0, "timestamp": 1_000}] * 3)
    stamps = [message.timestamp() for message in subject.read(topic)]
    assert all(kind == TIMESTAMP_LOG_APPEND_TIME and before - 1000 <= at <= time.time() * 1000 + 1000 for kind, at in stamps), stamps


@case
def every_codec_passes_through(subject: Subject) -> None:
    topic = subject.topic()
    expected = []
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        values = [f"{codec} {n} ".encode() * 40 for n in range(50)]
        subject.send(topic, values, compression_type=codec, linger_ms=20)
        expected += values
    assert subject.values(topic) == expected


@case
def every_level_of_acknowledgement_stores(subject: Subject) -> None:
    topic = subject.topic()
    for acks in ("1", "all"):
        subject.send(topic, [acks.encode()], acks=acks)
    subject.send(topic, [b"0"], acks="0")
    with closing(subject.consumer()) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        assert [message.value() for message in poll_until(consumer, 3)] == [b"1", b"all", b"0"]


@case
def a_batch_above_the_topics_limit_is_refused(subject: Subject) -> None:
    topic = subject.topic(config={"max.message.bytes": "1000"})
    assert error_code(lambda: subject.send(topic, [b"x" * 2000])) == KafkaError.MSG_SIZE_TOO_LARGE
    assert subject.send(topic, [b"x" * 100]) == [0]


@case
def a_record_above_the_fetch_limit_still_arrives(subject: Subject) -> None:
    topic = subject.topic()
    subject.send(topic, [b"x" * 200_000, b"y"])
    limits = {"fetch_message_max_bytes": 1000, "fetch_max_bytes": 1000, "max_partition_fetch_bytes": 1000, "message_max_bytes": 1000}
    assert [len(value or b"") for value in subject.values(topic, **limits)] == [200_000, 1]


@case
def a_fetch_waits_for_data(subject: Subject) -> None:
    topic = subject.topic()
    with closing(subject.consumer(fetch_wait_max_ms=5000, enable_partition_eof=False)) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        assert consumer.poll(0.3) is None
        subject.send(topic, [b"now"])
        [message] = poll_until(consumer, 1)
        assert message.value() == b"now"


@case
def reading_starts_where_it_is_asked_to(subject: Subject) -> None:
    topic = subject.topic()
    subject.send(topic, [b"%d" % n for n in range(300)], linger_ms=50)  # large batches: starts inside one
    for start in (0, 1, 150, 299, 300):
        assert [m.offset() for m in subject.read(topic, start=start)] == list(range(start, 300))


@case
def a_start_out_of_range_resets_or_fails(subject: Subject) -> None:
    topic = subject.topic()
    subject.send(topic, [b"a", b"b"])
    assert [m.offset() for m in subject.read(topic, start=17, auto_offset_reset="earliest")] == [0, 1]
    assert subject.read(topic, start=17, auto_offset_reset="latest") == []
    assert error_code(lambda: subject.read(topic, start=17, auto_offset_reset="error")) == KafkaError._AUTO_OFFSET_RESET


@case
def look_up_by_time_finds_the_first_at_or_after(subject: Subject) -> None:
    """Also with times out of order, in one batch or several (the first offset whose time is at or after the target)."""
    topic = subject.topic()
    times = [1000, 3000, 2000, 5000, 4000, 5000]
    for linger_ms in (50, 0):
        subject.send_records(topic, [{"value": b"v", "partition": 0, "timestamp": t} for t in times], linger_ms=linger_ms)
    wanted = {0: 0, 1000: 0, 1001: 1, 2500: 1, 3000: 1, 3001: 3, 5000: 3, 5001: -1}
    with closing(subject.consumer()) as consumer:
        for target, expected in wanted.items():
            [found] = consumer.offsets_for_times([TopicPartition(topic, 0, target)], timeout=10)
            assert found.offset == expected, f"time {target}: offset {found.offset}, expected {expected}"


@case
def an_idempotent_producer_writes_once_and_in_order(subject: Subject) -> None:
    topic = subject.topic()
    values = [b"%d" % n for n in range(3000)]
    config = {"enable_idempotence": True, "max_in_flight_requests_per_connection": 5, "batch_num_messages": 10}
    assert subject.send(topic, values, **config) == list(range(3000))
    assert subject.values(topic) == values
