"""Record batch v2: our bytes are everybody's bytes, and no wrong bit passes."""

from __future__ import annotations

import random

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st

from penstock.log import batch as rb
from penstock.log.batch import Record
from penstock.log.errors import CorruptBatch, LogError, UnsupportedCodec
from tests.log.conftest import batch

_bytes = st.one_of(st.none(), st.binary(max_size=40))
_records = st.lists(
    st.builds(
        Record,
        offset=st.just(0),
        timestamp_ms=st.integers(0, 1 << 44),
        key=_bytes,
        value=_bytes,
        headers=st.lists(st.tuples(st.text(max_size=5), _bytes), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=20,
)


@given(records=_records, codec=st.integers(0, 4))
def test_decode_gives_back_what_encode_took(records: list[Record], codec: int) -> None:
    data = rb.encode(records, codec=codec)
    rb.check(data)
    assert list(rb.decode(data)) == [record._replace(offset=number) for number, record in enumerate(records)]


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_another_client_reads_our_batches(codec: int) -> None:
    records = [Record(0, 1_000 + number, b"k%d" % number, b"v" * 100 * number, (("h", b"x"),)) for number in range(50)]
    theirs = list(DefaultRecordBatch(rb.encode(records, codec=codec)))
    assert [(r.offset, r.timestamp, r.key, r.value, [tuple(h) for h in r.headers]) for r in theirs] == [
        (number, r.timestamp_ms, r.key, r.value, [("h", b"x")]) for number, r in enumerate(records)
    ]


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_we_read_another_clients_batches(codec: int) -> None:
    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=codec, is_transactional=True, producer_id=7, producer_epoch=3, base_sequence=11, batch_size=1 << 20
    )
    for number in range(50):
        builder.append(number, timestamp=5_000 + number, key=b"key", value=b"v" * 1_000, headers=[("a", b"b")])
    data = bytes(builder.build())
    header = rb.check(data)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence) == (7, 3, 11, 60)
    assert header.is_transactional
    assert list(rb.decode(data)) == [Record(number, 5_000 + number, b"key", b"v" * 1_000, (("a", b"b"),)) for number in range(50)]


def test_snappy_without_frames_is_read_too() -> None:
    import cramjam

    plain = rb.encode([Record(0, 1, b"k", b"v" * 100)])
    body = bytes(cramjam.snappy.compress_raw(plain[rb.HEADER_BYTES :]))
    data = rb.assembled(rb.parse(plain)._replace(attributes=rb.SNAPPY), body)
    assert [record.value for record in rb.decode(data)] == [b"v" * 100]


def test_every_flipped_bit_that_the_checksum_covers_is_found() -> None:
    data = batch(b"a" * 20, b"b" * 20)
    for bit in range(8 * 16, 8 * len(data)):  # before byte 16 lie base offset, length and epoch, which the log checks in their place
        bad = bytearray(data)
        bad[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptBatch):
            rb.check(bytes(bad))


@pytest.mark.parametrize("length", range(rb.HEADER_BYTES + 30))
def test_a_cut_batch_is_refused(length: int) -> None:
    data = batch(b"a" * 40)
    with pytest.raises(CorruptBatch):
        rb.check(data[:length])


def test_random_bytes_for_records_raise_nothing_but_our_errors() -> None:
    rng = random.Random(4)
    header = rb.parse(batch(b"x", b"y", b"z"))
    for _ in range(3_000):
        codec = rng.randrange(8)
        data = rb.assembled(header._replace(attributes=codec), rng.randbytes(rng.randrange(80)))
        try:
            list(rb.decode(data))
        except LogError:
            continue


def test_a_small_batch_does_not_become_all_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rb, "RECORDS_BYTES_MAX", 1 << 20)
    for codec in (rb.GZIP, rb.LZ4, rb.ZSTD):
        with pytest.raises(CorruptBatch):
            rb.decompress(rb.compress(bytes(4 << 20), codec), codec)
        assert len(rb.decompress(rb.compress(bytes(1 << 20), codec), codec)) == 1 << 20


def test_an_unknown_codec_is_named() -> None:
    with pytest.raises(UnsupportedCodec, match="codec 6"):
        rb.decompress(b"x", 6)


def test_placing_changes_offset_and_epoch_and_nothing_else() -> None:
    data = batch(b"a", b"b")
    placed = b"".join(rb.placed(data, base_offset=77, leader_epoch=0))
    header = rb.check(placed)
    assert (header.base_offset, header.leader_epoch, header.next_offset) == (77, 0, 79)
    assert placed[16:] == data[16:]


def test_log_append_time_is_the_time_of_every_record() -> None:
    data = batch(b"a", b"b", at_ms=5)
    stamped = rb.restamped(data, rb.parse(data), log_append_time_ms=900)
    rb.check(stamped)
    assert [record.timestamp_ms for record in rb.decode(stamped)] == [900, 900]


def test_markers_say_how_a_transaction_ended() -> None:
    for commit in (True, False):
        data = rb.encode_marker(producer_id=5, producer_epoch=1, commit=commit, coordinator_epoch=3, timestamp_ms=9)
        header = rb.check(data)
        assert header.is_control
        assert header.is_transactional
        assert rb.marker_commits(data, header) is commit


def test_sequences_wrap() -> None:
    assert rb.sequence_after(rb.SEQUENCE_MAX, 1) == 0
    assert rb.sequence_after(rb.SEQUENCE_MAX - 1, 3) == 1
