"""The hand-packed messages are the schema's: every version is read back by the general codec, and the other way round."""

from __future__ import annotations

import random

import pytest

from penstock.protocol import codec, raw
from penstock.protocol.api import Api
from penstock.protocol.codec import Malformed

RECORDS = [b"", b"records", bytes(70_000)]


@pytest.mark.parametrize("version", range(3, 12))
def test_produce_requests_are_read_as_the_codec_writes_them(version: int) -> None:
    topics = [{"name": f"t{n}", "partition_data": [{"index": i, "records": data} for i, data in enumerate(RECORDS)]} for n in range(2)]
    body = {"transactional_id": "tx" if version % 2 else None, "acks": -1, "timeout": 1500, "topic_data": topics}
    frame = memoryview(codec.encode_request(Api.PRODUCE, version, body, correlation_id=1, client_id="c"))[4:]
    header = codec.read_header(frame)
    read = raw.read_produce(frame, header.body_at, version)
    assert (read.transactional_id, read.acks, read.timeout_ms) == (body["transactional_id"], -1, 1500)
    assert [(part.topic, part.partition, bytes(part.records or b"")) for part in read.parts] == [
        (f"t{n}", i, data) for n in range(2) for i, data in enumerate(RECORDS)
    ]


@pytest.mark.parametrize("version", range(3, 12))
def test_produce_answers_are_what_the_codec_reads(version: int) -> None:
    parts = [raw.Produced("t", 0, 0, 42, -1, 7), raw.Produced("t", 1, 2, message="bad"), raw.Produced("u", 0, 0, 1, 1_700_000_000_000, 0)]
    frame = raw.pack_produced(parts, version=version, correlation_id=9)
    correlation_id, entity = codec.decode_response(Api.PRODUCE, version, bytes(frame[4:]))
    assert correlation_id == 9
    assert int.from_bytes(frame[:4]) == len(frame) - 4
    got = [(topic.name, part.index, part.error_code, part.base_offset) for topic in entity.responses for part in topic.partition_responses]
    assert got == [("t", 0, 0, 42), ("t", 1, 2, -1), ("u", 0, 0, 1)]
    if version >= 8:
        assert entity.responses[0].partition_responses[1].error_message == "bad"


@pytest.mark.parametrize("version", range(4, 17))
def test_fetch_requests_agree_both_ways(version: int) -> None:
    topics: list[str | bytes] = [bytes(range(16)), bytes(16)] if version >= 13 else ["t", "u"]
    parts = [raw.FetchPart(topic, index, 5 if version >= 9 else -1, 1 << 40, 1 << 20) for topic in topics for index in range(2)]
    frame = raw.pack_fetch(
        parts, version=version, correlation_id=3, client_id="c", wait_ms_max=500, bytes_min=1, bytes_max=1 << 24, isolation_level=1
    )
    header = codec.read_header(frame[4:])
    read = raw.read_fetch(memoryview(frame)[4:], header.body_at, version)
    assert read == raw.FetchRequest(500, 1, 1 << 24, 1, 0, -1, parts)
    entity = codec.decode_request(header, bytes(frame[4:]))
    assert codec.millis(entity.max_wait) == 500
    assert [(part.partition, part.fetch_offset) for topic in entity.topics for part in topic.partitions] == [(0, 1 << 40), (1, 1 << 40)] * 2


@pytest.mark.parametrize("version", range(4, 17))
def test_fetch_answers_agree_both_ways(version: int) -> None:
    topics: list[str | bytes] = [bytes(range(16)), bytes(range(1, 17))] if version >= 13 else ["t", "u"]
    parts = [
        raw.Fetched(topics[0], 0, 0, 10, 9, 0, [(7, 3), (8, 4)], [b"abc", memoryview(b"defg")]),
        raw.Fetched(topics[0], 1, 3),
        raw.Fetched(topics[1], 0, 0, 5, 5, 0, [], [bytes(100_000)]),
    ]
    frame = b"".join(bytes(part) for part in raw.pack_fetched(parts, version=version, correlation_id=4))
    assert int.from_bytes(frame[:4]) == len(frame) - 4
    correlation_id, entity = codec.decode_response(Api.FETCH, version, frame[4:])
    assert correlation_id == 4
    assert [bytes(part.records or b"") for topic in entity.responses for part in topic.partitions] == [b"abcdefg", b"", bytes(100_000)]
    correlation_id, read = raw.read_fetched(memoryview(frame)[4:], version=version)
    assert [(part.topic, part.partition, part.error, part.high_watermark) for part in read] == [
        (part.topic, part.partition, part.error, part.high_watermark) for part in parts
    ]
    assert [list(part.aborted or ()) for part in read] == [[(7, 3), (8, 4)], [], []]
    assert [b"".join(map(bytes, part.records)) for part in read] == [b"abcdefg", b"", bytes(100_000)]


def test_no_prefix_and_no_junk_is_read_as_a_produce_request() -> None:
    body = {
        "transactional_id": None,
        "acks": 1,
        "timeout": 1,
        "topic_data": [{"name": "t", "partition_data": [{"index": 0, "records": b"xyz"}]}],
    }
    frame = memoryview(codec.encode_request(Api.PRODUCE, 9, body, correlation_id=1, client_id="c"))[4:]
    at = codec.read_header(frame).body_at
    for end in range(at, len(frame) - 1):  # the last byte is the empty list of tags
        with pytest.raises(Malformed):
            raw.read_produce(frame[:end], at, 9)
    rng = random.Random(1)
    for _ in range(2_000):
        junk = memoryview(rng.randbytes(rng.randrange(60)))
        for read in (raw.read_produce, raw.read_fetch):
            try:
                read(junk, 0, rng.choice([9, 3, 4, 11]))
            except Malformed:
                continue
