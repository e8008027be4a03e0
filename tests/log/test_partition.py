"""The laws of a partition: offsets, order, visibility, idempotence, transactions, times, deletion."""

from __future__ import annotations

import pytest

from penstock.log import batch as rb
from penstock.log.batch import Record
from penstock.log.errors import (
    BatchTooLarge,
    CorruptBatch,
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidTimestamp,
    InvalidTransactionState,
    LogError,
    OffsetOutOfRange,
    OutOfOrderSequence,
    UnsupportedCodec,
)
from penstock.log.partition import Partition
from tests.log.conftest import NOW_MS, NOW_US, World, batch, put, values

# --- offsets, reading ------------------------------------------------------------------------------------------------


def test_offsets_rise_by_one_per_record(os_world: World) -> None:
    partition = os_world.topic()
    assert [put(partition, b"a", b"b"), put(partition, b"c"), put(partition, b"d", b"e", b"f")] == [0, 2, 3]
    assert partition.next_offset == 6
    assert values(partition) == [b"a", b"b", b"c", b"d", b"e", b"f"]


def test_bytes_are_stored_as_they_came(os_world: World) -> None:
    partition = os_world.topic()
    put(partition, b"first")
    data = batch(b"x", b"y", codec=rb.ZSTD)
    partition.append(memoryview(data), now_us=NOW_US)
    (found,) = partition.read(1, bytes_max=1 << 20)
    assert bytes(found[16:]) == data[16:]
    assert rb.parse(found).base_offset == 1


def test_a_read_begins_with_the_batch_that_holds_the_offset(os_world: World) -> None:
    partition = os_world.topic()
    put(partition, b"a", b"b", b"c")
    put(partition, b"d")
    (found,) = partition.read(1, bytes_max=1 << 20)
    assert rb.parse(found).base_offset == 0
    assert partition.read(4, bytes_max=1 << 20) == []


def test_a_read_gives_one_whole_batch_even_over_its_limit(os_world: World) -> None:
    partition = os_world.topic(max_message_bytes=1 << 20)
    put(partition, b"x" * 100_000)
    put(partition, b"y")
    (found,) = partition.read(0, bytes_max=10)
    assert len(found) == rb.parse(found).size > 100_000
    assert values(partition, bytes_max=1) == [b"x" * 100_000, b"y"]


@pytest.mark.parametrize("segment_bytes", [200, 1_000, 1 << 30])
@pytest.mark.parametrize("bytes_max", [1, 150, 700, 1 << 20])
def test_every_start_and_limit_gives_the_same_records(os_world: World, segment_bytes: int, bytes_max: int) -> None:
    partition = os_world.topic(segment_bytes=segment_bytes, index_interval_bytes=100)
    expected = []
    for number in range(40):
        expected += (group := [b"%d-%d" % (number, at) for at in range(number % 3 + 1)])
        put(partition, *group)
    for start in range(partition.next_offset + 1):
        assert values(partition, start, bytes_max=bytes_max) == expected[start:]


def test_an_offset_outside_is_refused(os_world: World) -> None:
    partition = os_world.topic()
    put(partition, b"a")
    for offset in (-1, 2):
        with pytest.raises(OffsetOutOfRange) as caught:
            partition.read(offset, bytes_max=1)
        assert caught.value.kafka_code == 1


def test_nothing_is_visible_before_it_is_on_disk(world: World) -> None:
    partition = world.topic()
    put(partition, b"a")
    assert (partition.next_offset, partition.high_watermark) == (1, 0)
    assert partition.read(0, bytes_max=100) == []
    world.sync()
    assert values(partition) == [b"a"]


# --- what is refused -------------------------------------------------------------------------------------------------


def _spoiled(**fields: int) -> bytes:
    data = batch(b"a", b"b")
    return rb.assembled(rb.parse(data)._replace(**fields), data[rb.HEADER_BYTES :])


@pytest.mark.parametrize(
    ("data", "error", "code"),
    [
        (b"", CorruptBatch, 2),
        (batch(b"a")[:-1], CorruptBatch, 2),
        (batch(b"a")[:-1] + b"x", CorruptBatch, 2),
        (batch(b"a") + batch(b"b"), InvalidRecord, 87),
        (batch(b"a")[:16] + b"\x01" + batch(b"a")[17:], InvalidRecord, 87),
        (batch(b"a")[:16] + b"\x03" + batch(b"a")[17:], CorruptBatch, 2),
        (_spoiled(record_count=3), InvalidRecord, 87),
        (_spoiled(last_offset_delta=5), InvalidRecord, 87),
        (_spoiled(attributes=rb.CONTROL), InvalidRecord, 87),
        (_spoiled(attributes=6), UnsupportedCodec, 76),
        (_spoiled(producer_id=4), InvalidRecord, 87),
        (batch(b"x" * 2_000_000), BatchTooLarge, 10),
        (batch(b"x", at_ms=NOW_MS + 7_200_000), InvalidTimestamp, 32),
    ],
)
def test_a_bad_batch_is_refused_and_leaves_no_trace(os_world: World, data: bytes, error: type[LogError], code: int) -> None:
    partition = os_world.topic()
    put(partition, b"before")
    with pytest.raises(error) as caught:
        partition.append(data, now_us=NOW_US)
    assert caught.value.kafka_code == code
    assert put(partition, b"after") == 1
    assert values(partition) == [b"before", b"after"]


def test_a_compacted_topic_wants_keys(os_world: World) -> None:
    partition = os_world.topic(cleanup_policy="compact")
    with pytest.raises(InvalidRecord, match="without a key"):
        put(partition, b"x")
    put(partition, b"x", key=b"k")
    put(partition, b"x", key=b"k", codec=rb.GZIP)


# --- idempotence -----------------------------------------------------------------------------------------------------


def _send(partition: Partition, sequence: int, *values: bytes, epoch: int = 0, **fields: object) -> tuple[int, bool]:
    appended = partition.append(batch(*values, producer_id=1, producer_epoch=epoch, base_sequence=sequence, **fields), now_us=NOW_US)  # type: ignore[arg-type]
    return appended.base_offset, appended.duplicate


def test_a_repeat_of_the_last_five_batches_gets_its_first_offset(os_world: World) -> None:
    partition = os_world.topic()
    sent = [_send(partition, 2 * number, b"a%d" % number, b"b%d" % number) for number in range(7)]
    assert sent == [(2 * number, False) for number in range(7)]
    for number in range(2, 7):
        assert _send(partition, 2 * number, b"a", b"b") == (2 * number, True)
    with pytest.raises(OutOfOrderSequence):  # too long ago to be known
        _send(partition, 2, b"a", b"b")
    assert partition.next_offset == 14


def test_a_gap_is_refused(os_world: World) -> None:
    partition = os_world.topic()
    _send(partition, 0, b"a")
    with pytest.raises(OutOfOrderSequence) as caught:
        _send(partition, 2, b"c")
    assert caught.value.kafka_code == 45
    assert _send(partition, 1, b"b") == (1, False)


def test_a_newer_epoch_starts_at_zero_and_fences_the_older(os_world: World) -> None:
    partition = os_world.topic()
    _send(partition, 0, b"a")
    with pytest.raises(OutOfOrderSequence):
        _send(partition, 1, b"b", epoch=1)
    assert _send(partition, 0, b"b", epoch=1) == (1, False)
    with pytest.raises(InvalidProducerEpoch) as caught:
        _send(partition, 1, b"c", epoch=0)
    assert caught.value.kafka_code == 47


def test_sequences_wrap_around(os_world: World) -> None:
    partition = os_world.topic()
    _send(partition, rb.SEQUENCE_MAX - 1, b"a")
    _send(partition, rb.SEQUENCE_MAX, b"b", b"c")
    assert _send(partition, 1, b"d") == (3, False)
    assert _send(partition, rb.SEQUENCE_MAX, b"b", b"c") == (1, True)


def test_producers_are_known_again_after_a_restart(world: World) -> None:
    partition = world.topic(segment_bytes=300)
    for number in range(10):
        _send(partition, number, b"v%d" % number)
    world.sync()
    for close in (True, False):
        if close:
            world.log.close()
        partition = world.reopen().partition("words", 0)
        assert _send(partition, 7, b"v7") == (7, True)
        with pytest.raises(OutOfOrderSequence):
            _send(partition, 12, b"x")


def test_a_producer_is_forgotten_by_the_brokers_clock_and_not_by_its_records(os_world: World) -> None:
    partition = os_world.topic(message_timestamp_before_max_ms=1 << 60)
    _send(partition, 0, b"a", at_ms=5)  # a record of 1970
    partition.producers_expire(now_us=NOW_US + 3_600_000_000)
    assert _send(partition, 0, b"a", at_ms=5) == (0, True)
    partition = os_world.reopen().partition("words", 0)
    partition.producers_expire(now_us=NOW_US + 3_600_000_000)
    assert _send(partition, 0, b"a", at_ms=5) == (0, True)
    partition.producers_expire(now_us=NOW_US + 3 * 86_400_000_000)
    assert partition.producers.by_id == {}


# --- transactions ----------------------------------------------------------------------------------------------------


def _begin(partition: Partition, producer_id: int, value: bytes, sequence: int = 0) -> int:
    data = batch(value, producer_id=producer_id, producer_epoch=0, base_sequence=sequence, transactional=True)
    return partition.append(data, now_us=NOW_US).base_offset


def _end(partition: Partition, producer_id: int, *, commit: bool, epoch: int = 0) -> int:
    return partition.append_marker(producer_id=producer_id, producer_epoch=epoch, commit=commit, now_us=NOW_US).base_offset


def test_the_last_stable_offset_is_the_first_open_transaction(os_world: World) -> None:
    partition = os_world.topic()
    put(partition, b"plain")
    assert _begin(partition, 1, b"one") == 1
    assert _begin(partition, 2, b"two") == 2
    assert partition.last_stable_offset == 1
    assert values(partition, committed=True) == [b"plain"]
    _end(partition, 1, commit=True)
    assert partition.last_stable_offset == 2
    _end(partition, 2, commit=False)
    assert partition.last_stable_offset == partition.next_offset == 5
    assert partition.aborted(0, 5) == [(2, 2)]
    assert partition.aborted(0, 2) == []
    assert partition.aborted(5, 9) == []
    assert partition.aborted(4, 5) == [(2, 2)]  # the marker is still to come for such a reader


def test_a_marker_counts_when_it_is_on_disk(world: World) -> None:
    partition = world.topic()
    _begin(partition, 1, b"one")
    world.sync()
    _end(partition, 1, commit=True)
    assert partition.last_stable_offset == 0
    world.sync()
    assert partition.last_stable_offset == 2


def test_transactions_are_known_again_after_a_restart(world: World) -> None:
    partition = world.topic(segment_bytes=250)
    for number in range(6):
        _begin(partition, 1, b"x", number)
        _end(partition, 1, commit=number % 2 == 0)
    _begin(partition, 2, b"open")
    world.sync()
    before = partition.aborted(0, 100)
    assert len(before) == 3
    for close in (True, False):
        if close:
            world.log.close()
        partition = world.reopen().partition("words", 0)
        assert partition.aborted(0, 100) == before
        assert partition.last_stable_offset == 12


def test_a_marker_with_a_newer_epoch_fences_its_producer(os_world: World) -> None:
    partition = os_world.topic()
    _begin(partition, 1, b"one")
    _end(partition, 1, commit=False, epoch=1)
    with pytest.raises(InvalidProducerEpoch):
        _begin(partition, 1, b"late", 1)
    with pytest.raises(InvalidProducerEpoch):
        _end(partition, 1, commit=True)


def test_a_producer_with_an_open_transaction_writes_nothing_outside_of_it(os_world: World) -> None:
    partition = os_world.topic()
    _begin(partition, 1, b"one")
    with pytest.raises(InvalidTransactionState):
        partition.append(batch(b"x", producer_id=1, producer_epoch=0, base_sequence=1), now_us=NOW_US)


# --- times -----------------------------------------------------------------------------------------------------------


def test_a_time_finds_the_first_record_at_or_after_it_also_out_of_order(os_world: World) -> None:
    partition = os_world.topic(segment_bytes=400, index_interval_bytes=100)
    times = [10, 50, 20, 60, 30, 90, 40, 70, 90, 5]
    for number, time in enumerate(times):
        put(partition, b"%d" % number, at_ms=time)
    for wanted in range(0, 100, 5):
        found = next(((offset, time) for offset, time in enumerate(times) if time >= wanted), None)
        assert partition.offset_for_time(wanted) == found
    assert partition.offset_of_max_timestamp() == (5, 90)


def test_a_time_inside_a_batch_is_found_in_every_codec(os_world: World) -> None:
    partition = os_world.topic()
    for codec in range(5):
        partition.append(rb.encode([Record(0, 100 * codec + at, None, b"v") for at in range(5)], codec=codec), now_us=NOW_US)
    assert [partition.offset_for_time(100 * codec + 3) for codec in range(5)] == [(5 * codec + 3, 100 * codec + 3) for codec in range(5)]


def test_log_append_time_replaces_the_producers(os_world: World) -> None:
    partition = os_world.topic(message_timestamp_type="LogAppendTime")
    appended = partition.append(batch(b"a", b"b", at_ms=5), now_us=NOW_US)
    assert appended.log_append_time_ms == NOW_MS
    assert [record.timestamp_ms for record in partition.records()] == [NOW_MS, NOW_MS]


def test_a_topic_may_ask_for_its_own_compression(os_world: World) -> None:
    partition = os_world.topic(compression_type="zstd")
    put(partition, b"v" * 1_000)
    (found,) = partition.read(0, bytes_max=1 << 20)
    assert rb.check(found).codec == rb.ZSTD
    assert values(partition) == [b"v" * 1_000]


# --- deletion --------------------------------------------------------------------------------------------------------


def test_deleted_records_stay_deleted(world: World) -> None:
    partition = world.topic(segment_bytes=250)
    for number in range(20):
        put(partition, b"%d" % number)
    world.sync()
    count = len(partition.segments)
    assert partition.delete_before(11) == 11
    assert len(partition.segments) < count
    for _ in range(2):
        with pytest.raises(OffsetOutOfRange):
            partition.read(10, bytes_max=1)
        assert values(partition) == [b"%d" % number for number in range(11, 20)]
        partition = world.reopen().partition("words", 0)
    assert partition.delete_before(5) == 11
    with pytest.raises(OffsetOutOfRange):
        partition.delete_before(21)


def test_retention_by_time_goes_by_the_records(os_world: World) -> None:
    partition = os_world.topic(segment_bytes=200, retention_ms=1_000)
    for number in range(10):
        put(partition, b"old%d" % number, at_ms=NOW_MS - 5_000)
    for number in range(10):
        put(partition, b"new%d" % number)
    partition.enforce_retention(now_us=NOW_US)
    kept = values(partition)
    assert kept[-10:] == [b"new%d" % number for number in range(10)]
    assert len(kept) < 13
    partition.enforce_retention(now_us=NOW_US + 2_000_000)
    assert values(partition) == []
    assert partition.start_offset == partition.next_offset == 20
    assert put(partition, b"next") == 20


def test_retention_by_size_keeps_at_least_that_much(os_world: World) -> None:
    partition = os_world.topic(segment_bytes=500, retention_bytes=2_000, retention_ms=-1)
    for number in range(200):
        put(partition, b"%d" % number)
    partition.enforce_retention(now_us=NOW_US)
    assert 2_000 <= partition.size_bytes <= 2_500
    assert values(partition)[-1] == b"199"


def test_retention_leaves_open_transactions_alone(os_world: World) -> None:
    partition = os_world.topic(segment_bytes=100, retention_ms=0)
    _begin(partition, 1, b"open")
    for number in range(5):
        put(partition, b"%d" % number, at_ms=NOW_MS - 10)
    partition.enforce_retention(now_us=NOW_US)
    assert partition.start_offset == 0


def test_segments_roll_by_size_and_age(os_world: World) -> None:
    partition = os_world.topic(segment_bytes=200, segment_ms=1_000)
    put(partition, b"x" * 100)
    put(partition, b"x" * 100)
    assert len(partition.segments) == 2
    put(partition, b"y", now_us=NOW_US + 1_000_000)
    assert [segment.base_offset for segment in partition.segments] == [0, 1, 2]


def test_truncation_takes_back_whole_batches_and_what_they_said_of_producers(world: World) -> None:
    partition = world.topic(segment_bytes=300)
    for number in range(12):
        _send(partition, 2 * number, b"a%d" % number, b"b%d" % number)
    world.sync()
    partition.truncate(13)
    assert partition.next_offset == 12
    assert _send(partition, 12, b"again", b"again") == (12, False)
    world.sync()
    partition = world.reopen().partition("words", 0)
    assert partition.next_offset == 14
    assert partition.failed is None
