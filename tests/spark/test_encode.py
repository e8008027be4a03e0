"""Rows become record batches that other clients read, placed where they would place them."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from aiokafka.partitioner import murmur2
from aiokafka.record.memory_records import MemoryRecords

from penstock.spark import encode
from penstock.spark.decode import HEADERS_TYPE
from penstock.spark.encode import CODECS, Outgoing, record_batches
from penstock.spark.jvm_connector import records_of


def outgoing(rows: list) -> Outgoing:
    keys, values, headers, times = zip(*rows)
    listed = [None if each is None else [{"key": k, "value": v} for k, v in each] for each in headers]
    return Outgoing(pa.array(values, pa.binary()), pa.array(keys, pa.binary()), pa.array(listed, HEADERS_TYPE), np.array(times, np.int64))


def read(data: bytes) -> list:
    found, records = [], MemoryRecords(data)
    while records.has_next():
        batch = records.next_batch()
        assert batch.validate_crc()
        found += [(record.key, record.value, list(record.headers), record.timestamp) for record in batch]
    return found


def some_rows(rng: random.Random, count: int) -> list:
    def text(most):
        return None if rng.random() < 0.1 else rng.randbytes(rng.randrange(most))

    return [(text(12), text(200), rng.choice([None, [], [("a", b"1"), ("b", None)]]), rng.randrange(1 << 41)) for _ in range(count)]


@pytest.mark.parametrize("codec", CODECS)
def test_another_decoder_reads_what_is_written(codec, monkeypatch):
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rows = some_rows(random.Random(seed), 300)
    monkeypatch.setattr(encode, "BATCH_BYTES_MAX", 5_000)
    found: dict[int, bytes] = {}
    for partition, batch in record_batches(outgoing(rows), partitions=3, spare=7, codec=CODECS[codec]):
        assert codec != "none" or len(batch) <= 5_061
        found[partition] = found.get(partition, b"") + batch.tobytes()
    expected: dict[int, list] = {0: [], 1: [], 2: []}
    for key, value, headers, time_ms in rows:
        partition = 7 % 3 if key is None else (murmur2(key) & 0x7FFFFFFF) % 3
        expected[partition].append((key, value, headers or [], time_ms))
    assert {partition: read(data) for partition, data in found.items()} == expected


def test_a_row_larger_than_a_batch_is_a_batch_of_its_own():
    rows = [(None, b"x" * size, None, 5) for size in (10, 2_000_000, 10)]
    batches = [batch for _, batch in record_batches(outgoing(rows), partitions=1, spare=0)]
    assert [len(read(batch.tobytes())) for batch in batches] == [1, 1, 1]


def test_slices_of_columns_are_written_whole():
    rows = outgoing([(b"k%d" % i, b"v%d" % i, None, i) for i in range(10)])
    part = Outgoing(rows.values.slice(3, 2), rows.keys.slice(3, 2), None, rows.times_ms[3:5])
    ((_, batch),) = record_batches(part, partitions=1, spare=0)
    assert read(batch.tobytes()) == [(b"k3", b"v3", [], 3), (b"k4", b"v4", [], 4)]


def test_rows_of_sparks_own_connector_become_the_same_records():
    rows = [(b"k", b"v", [("h", b"x"), ("n", None)], 5), (None, None, None, 6), (b"", b"w", [], 7)]
    keys, values, headers, times = zip(*rows)
    listed = [None if each is None else [{"key": k, "value": v} for k, v in each] for each in headers]
    batch = pa.record_batch(
        {
            "key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary()), "headers": pa.array(listed, HEADERS_TYPE), "topic": ["t"] * 3,
            "partition": pa.array([4, 4, 2], pa.int32()), "offset": [9, 8, 1], "timestamp": pa.array([each * 1_000 for each in times], pa.timestamp("us", "UTC")),
        }
    )  # fmt: skip
    found = dict(records_of(batch))
    records = found["t", 4]
    assert records.offsets.tolist() == [8, 9]
    assert records.times_ms.tolist() == [6, 5]
    assert records.keys().to_pylist() == [None, b"k"]
    assert records.values().to_pylist() == [None, b"v"]
    assert records.headers().to_pylist() == [[], [{"key": "h", "value": b"x"}, {"key": "n", "value": None}]]
    assert found["t", 2].values().to_pylist() == [b"w"]
