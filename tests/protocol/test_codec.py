"""Every message of every version survives the way to bytes and back, and no prefix of it does."""

from __future__ import annotations

import random
import uuid
from dataclasses import fields, is_dataclass
from datetime import timedelta
from types import NoneType
from typing import Any, get_args, get_origin

import kio.index
import pytest

from penstock.protocol import codec
from penstock.protocol.api import FLEXIBLE_FROM, Api
from penstock.protocol.codec import Malformed
from penstock.protocol.error import RETRIABLE, Error

SEED = 20260101
RANGES = {"int8": 7, "int16": 15, "int32": 31, "int64": 63, "uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64}
VERSIONS = [(api, version) for api in Api for version in sorted(kio.index.schema_name_map[kio.index.api_key_map[api]])]


def some(kind: Any, kafka_type: str | None, rng: random.Random) -> Any:
    """A random value for a field, in the form the encoder takes."""
    if NoneType in get_args(kind):
        if rng.random() < 0.3 and kafka_type != "uuid":
            return None
        kind = next(part for part in get_args(kind) if part is not NoneType)
    if get_origin(kind) is tuple:
        return [some(get_args(kind)[0], kafka_type, rng) for _ in range(rng.randrange(3))]
    if is_dataclass(kind):
        return {field.name: some(field.type, field.metadata.get("kafka_type"), rng) for field in fields(kind)}
    match kafka_type:
        case "bool":
            return rng.random() < 0.5
        case "string":
            return "ä" * rng.randrange(200)
        case "bytes" | "records":
            return rng.randbytes(rng.randrange(300))
        case "uuid":
            return uuid.UUID(bytes=rng.randbytes(16))
        case "error_code":
            return int(rng.choice(list(Error)))
        case "timedelta_i32" | "timedelta_i64":
            return rng.randrange(1 << 30)
        case "datetime_i64":
            return rng.randrange(1 << 40)
        case "float64":
            return float(rng.randrange(100))
        case _:
            assert kafka_type is not None
            return rng.randrange(1 << RANGES[kafka_type])


def plain(value: Any) -> Any:
    """A decoded entity in the form the encoder takes."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if isinstance(value, timedelta):
        return codec.millis(value)
    return value


def same(sent: Any, got: Any) -> bool:
    if isinstance(sent, dict):
        return all(same(sent[name], got[name]) for name in sent)
    if isinstance(sent, list):
        return len(sent) == len(got) and all(map(same, sent, got))
    if hasattr(got, "timestamp"):
        return sent == round(got.timestamp() * 1000)
    return bool(sent == got)


@pytest.mark.parametrize(("api", "version"), VERSIONS, ids=lambda value: getattr(value, "name", str(value)))
def test_messages_survive_the_way_to_bytes_and_back(api: Api, version: int) -> None:
    rng = random.Random(f"{SEED}/{api}/{version}")
    for _ in range(5):
        body = some(kio.index.load_request_schema(api, version), None, rng)
        frame = memoryview(codec.encode_request(api, version, body, correlation_id=7, client_id="ä"))
        header = codec.read_header(frame[4:])
        assert header[:4] == (api, version, 7, "ä")
        assert int.from_bytes(frame[:4]) == len(frame) - 4
        assert same(body, plain(codec.decode_request(header, frame[4:])))

        body = some(kio.index.load_response_schema(api, version), None, rng)
        answer = memoryview(codec.encode_response(api, version, body, correlation_id=-3))
        correlation_id, entity = codec.decode_response(api, version, answer[4:])
        assert correlation_id == -3
        assert same(body, plain(entity))


def test_no_prefix_of_a_request_is_a_request() -> None:
    rng = random.Random(SEED)
    body = some(kio.index.load_request_schema(Api.METADATA, 12), None, rng)
    frame = codec.encode_request(Api.METADATA, 12, body, correlation_id=1, client_id="reader")[4:]
    for size in range(len(frame)):
        with pytest.raises(Malformed):
            codec.decode_request(codec.read_header(frame[:size]), frame[:size])
    assert codec.decode_request(codec.read_header(frame), frame + b"\0") == codec.decode_request(codec.read_header(frame), frame)


def test_flexible_versions_are_those_of_the_schemas() -> None:
    for api, version in VERSIONS:
        assert kio.index.load_request_schema(api, version).__flexible__ == (version >= FLEXIBLE_FROM[api])


def test_error_codes_are_those_of_the_schemas() -> None:
    from kio.schema.errors import ErrorCode

    for error in Error:
        assert ErrorCode[error.name.lower()] == error
        assert ErrorCode[error.name.lower()].retriable == (error in RETRIABLE)
