"""Record batches that other people's encoders made become the columns that were put in."""

from __future__ import annotations

import random

import cramjam
import google_crc32c
import numpy as np
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from penstock.errors import PenstockError
from penstock.spark.decode import CorruptBatch, Records, decode, read_batches

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


def encode(records, *, base=0, codec=0, producer=-1, transactional=False, control=False, log_append_ms=None) -> bytes:
    """One batch, its records encoded by aiokafka; header fields and compression are set here, as a broker or another client would."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=transactional,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=0,
        batch_size=1 << 30,
    )
    for delta, (time_ms, key, value, headers) in enumerate(records):
        assert builder.append(delta, time_ms, key, value, headers) is not None
    data = bytearray(builder.build())
    if codec:
        body = bytes(data[61:])
        squeeze = {1: cramjam.gzip.compress, 2: xerial, 3: cramjam.lz4.compress, 4: cramjam.zstd.compress}[codec]
        data[61:] = bytes(squeeze(body))
    data[0:8] = base.to_bytes(8, "big")
    data[8:12] = (len(data) - 12).to_bytes(4, "big")
    attributes = codec | (16 if transactional else 0) | (32 if control else 0) | (8 if log_append_ms is not None else 0)
    data[21:23] = attributes.to_bytes(2, "big")
    if log_append_ms is not None:
        data[35:43] = log_append_ms.to_bytes(8, "big")
    data[17:21] = google_crc32c.value(bytes(data[21:])).to_bytes(4, "big")
    return bytes(data)


def xerial(body: bytes) -> bytes:
    blocks = [bytes(cramjam.snappy.compress_raw(body[at : at + 1000])) for at in range(0, len(body), 1000)]
    return b"\x82SNAPPY\x00" + (1).to_bytes(4, "big") * 2 + b"".join(len(block).to_bytes(4, "big") + block for block in blocks)


def marker(*, base: int, producer: int, commit: bool) -> bytes:
    return encode(
        [(0, b"\x00\x00\x00" + bytes([commit]), b"\x00\x00\x00\x00\x00\x00", [])],
        base=base,
        producer=producer,
        transactional=True,
        control=True,
    )


def load(data: bytes, *, start=0, end=1 << 62, aborted=()) -> Records:
    frame = np.frombuffer(data, np.uint8)
    return decode(read_batches(frame, start=0, end=len(frame), place="t/0"), start=start, end=end, aborted=aborted)


def listed(records: Records) -> list:
    columns = (
        records.offsets.tolist(),
        records.times_ms.tolist(),
        records.keys().to_pylist(),
        records.values().to_pylist(),
        records.headers().to_pylist(),
    )
    return [(o, t, k, v, [(h["key"], h["value"]) for h in hs]) for o, t, k, v, hs in zip(*columns)]


def some_records(rng: random.Random, count: int) -> list:
    def text(most):
        return None if rng.random() < 0.1 else rng.randbytes(rng.randrange(most))

    return [
        (rng.randrange(1 << 41), text(30), text(300), [(f"h{i}", text(9)) for i in range(rng.choice([0, 0, 1, 3]))]) for _ in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_gives_back_what_was_written(codec, capsys):
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    data, expected, base = b"", [], 0
    for _ in range(5):
        records = some_records(rng, rng.randrange(1, 60))
        data += encode(records, base=base, codec=CODECS[codec])
        expected += [(base + i, *record) for i, record in enumerate(records)]
        base += len(records) + rng.randrange(3)  # gaps, as compaction leaves them
    assert listed(load(data)) == expected
    low, high = expected[7][0], expected[-3][0]
    assert listed(load(data, start=low, end=high)) == [row for row in expected if low <= row[0] < high]


def test_codecs_mix_in_one_fetch():
    data = b"".join(encode([(1, b"k", codec.encode(), [])], base=number, codec=number) for codec, number in CODECS.items())
    assert load(data).values().to_pylist() == [codec.encode() for codec in CODECS]


def test_a_batch_that_the_fetch_cut_off_waits_for_the_next():
    first, second = encode([(1, None, b"a", [])]), encode([(1, None, b"b", [])], base=1)
    for cut in range(len(second)):
        assert load(first + second[:cut]).values().to_pylist() == [b"a"]


def test_log_append_time_replaces_the_records_own():
    assert load(encode([(5, None, b"a", []), (6, None, b"b", [])], log_append_ms=77)).times_ms.tolist() == [77, 77]


def test_aborted_transactions_and_markers_are_not_seen():
    def put(base, producer, value):
        return encode([(1, None, value, [])], base=base, producer=producer, transactional=True)

    data = (
        put(0, 7, b"aborted") + put(1, 8, b"committed") + encode([(1, None, b"plain", [])], base=2) + put(3, 7, b"aborted")
        + marker(base=4, producer=7, commit=False) + put(5, 7, b"again, committed") + marker(base=6, producer=8, commit=True)
        + marker(base=7, producer=7, commit=True) + put(8, 8, b"aborted later") + marker(base=9, producer=8, commit=False)
    )  # fmt: skip
    records = load(data, aborted=[(7, 0), (8, 8)])
    assert records.values().to_pylist() == [b"committed", b"plain", b"again, committed"]
    assert records.offsets.tolist() == [1, 2, 5]
    # A later fetch starts inside the aborted transaction; the broker still lists where it began.
    assert load(data, start=3, aborted=[(7, 0), (8, 8)]).values().to_pylist() == [b"again, committed"]


def test_every_flipped_bit_is_found():
    good = encode([(5, b"key", b"value", [("h", b"x")])])
    for position in range(17, len(good)):
        bad = bytearray(good)
        bad[position] ^= 1 << (position % 8)
        with pytest.raises(CorruptBatch, match=r"t/0.*offset 0"):
            load(bytes(bad))


def test_lies_with_a_right_checksum_are_errors_not_crashes():
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    good = encode(some_records(rng, 20))
    for _ in range(2_000):
        bad = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            bad[rng.randrange(57, len(bad))] = rng.randrange(256)
        bad[17:21] = google_crc32c.value(bytes(bad[21:])).to_bytes(4, "big")
        try:
            records = load(bytes(bad))
            records.keys(), records.values(), records.headers()
        except PenstockError:
            continue


def test_an_old_message_format_is_named():
    data = bytearray(encode([(1, None, b"a", [])]))
    data[16] = 1
    with pytest.raises(CorruptBatch, match="old format"):
        load(bytes(data))
