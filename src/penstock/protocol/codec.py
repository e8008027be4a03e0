"""Messages of the Kafka protocol to bytes and back, for every API and version, from the schemas of `kio`.

Decoding gives `kio`'s frozen entity of that version: attribute names are its names, durations are `timedelta`.
Encoding takes plain nested dicts with the same names, in which durations are integers of milliseconds, errors are
`Error` or int and an absent name is the schema's default; names that this version lacks are ignored, so that one dict serves every version.
A name without default must be there: leaving it out is a KeyError, not a wrong message.

Invariant: `decode(encode(x)) == x` for every version. Not here: sockets, and the hand-packed messages of `raw.py`."""

from __future__ import annotations

import struct
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from datetime import timedelta
from functools import cache
from types import NoneType
from typing import Any, NamedTuple, get_args, get_origin

from penstock.errors import PenstockError
from penstock.protocol.api import Api, is_flexible

# kio offers strategies to hypothesis when that is installed, and importing hypothesis costs more than starting a broker.
_hidden = "hypothesis" not in sys.modules
if _hidden:
    sys.modules["hypothesis"] = None  # type: ignore[assignment]
import kio.index  # noqa: E402
import kio.serial  # noqa: E402

if _hidden:
    del sys.modules["hypothesis"]

Buffer = bytes | bytearray | memoryview
Put = Callable[[bytearray, Any], None]

_HEADER = struct.Struct(">hhih")
_INT32 = struct.Struct(">i")
_ZERO_UUID = bytes(16)
_KEYS = frozenset(map(int, Api))
API_VERSIONS_KNOWN = 4  # what follows the header of a later ApiVersions is not ours to read; it is answered all the same


class Malformed(PenstockError):
    """Bytes that are no message of the Kafka protocol."""


class RequestHeader(NamedTuple):
    """What stands before every request's body; `body_at` is where the body begins."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    body_at: int


def read_header(frame: Buffer) -> RequestHeader:
    """The header of a request frame (without its length). The tagged fields of flexible versions are skipped."""
    try:
        api_key, version, correlation_id, client_bytes = _HEADER.unpack_from(frame)
        at = _HEADER.size
        client_id = None
        if client_bytes >= 0:
            client_id = bytes(frame[at : at + client_bytes]).decode()
            at += client_bytes
        is_newer_hello = api_key == Api.API_VERSIONS and version > API_VERSIONS_KNOWN
        if api_key in _KEYS and not is_newer_hello and is_flexible(Api(api_key), version):
            at = skip_tags(frame, at)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise Malformed(f"request header of {len(frame)} bytes cannot be read: {error}") from error
    if at > len(frame):
        raise Malformed(f"request header of {len(frame)} bytes is cut short")
    return RequestHeader(api_key, version, correlation_id, client_id, at)


def read_uvarint(frame: Buffer, at: int) -> tuple[int, int]:
    """An unsigned varint at `at`, and where it ends."""
    value = shift = 0
    while True:
        byte = frame[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 28:
            raise Malformed("a length of more than 32 bits")


def skip_tags(frame: Buffer, at: int) -> int:
    """Where the tagged fields at `at` end."""
    count, at = read_uvarint(frame, at)
    for _ in range(count):
        _, at = read_uvarint(frame, at)
        size, at = read_uvarint(frame, at)
        at += size
    return at


def put_uvarint(out: bytearray, value: int) -> None:
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def decode_request(header: RequestHeader, frame: Buffer) -> Any:
    """The body of a request as `kio`'s entity of its version. Surplus bytes are let pass: librdkafka sends some with Metadata, and Kafka does too."""
    entity, _ = _decode(_reader(header.api_key, header.version, True), frame, header.body_at)
    _request_check(header.api_key, header.version)(entity)
    return entity


def decode_response(api: Api, version: int, frame: Buffer) -> tuple[int, Any]:
    """Correlation id and body of a response frame (without its length)."""
    (correlation_id,) = _INT32.unpack_from(frame)
    at = 4
    if is_flexible(api, version) and api != Api.API_VERSIONS:
        at = skip_tags(frame, at)
    entity, end = _decode(_reader(api, version, False), frame, at)
    if end != len(frame):
        raise Malformed(f"answer of {len(frame)} bytes has {len(frame) - end} bytes too many")
    return correlation_id, entity


def encode_request(api: Api, version: int, body: Mapping[str, Any], *, correlation_id: int, client_id: str | None) -> bytes:
    """A whole request frame, with its length."""
    client = client_id.encode() if client_id is not None else b""
    out = bytearray(4) + _HEADER.pack(api, version, correlation_id, len(client) if client_id is not None else -1) + client
    if is_flexible(api, version):
        out.append(0)
    _writer(api, version, True)(out, body)
    _INT32.pack_into(out, 0, len(out) - 4)
    return bytes(out)


def encode_response(api: Api, version: int, body: Mapping[str, Any], *, correlation_id: int) -> bytearray:
    """A whole response frame, with its length. The header of ApiVersions never has tagged fields (KIP-511)."""
    out = bytearray(4) + _INT32.pack(correlation_id)
    if is_flexible(api, version) and api != Api.API_VERSIONS:
        out.append(0)
    _writer(api, version, False)(out, body)
    _INT32.pack_into(out, 0, len(out) - 4)
    return out


def millis(duration: timedelta) -> int:
    """A decoded duration in milliseconds."""
    return duration // timedelta(milliseconds=1)


def _decode(reader: Any, frame: Buffer, at: int) -> tuple[Any, int]:
    """The entity at `at`, and where it ends."""
    try:
        # kio reads immutable buffers only. The messages that carry records do not come this way, so the copy is small.
        entity, size = reader(frame if isinstance(frame, bytes) else bytes(frame), at)
    except Exception as error:
        raise Malformed(f"message of {len(frame)} bytes cannot be read: {error}") from error
    return entity, at + size


@cache
def _request_check(api_key: int, version: int) -> Callable[[Any], None]:
    return _null_check(kio.index.load_request_schema(api_key, version))  # type: ignore[arg-type]


def _null_check(entity_type: Any) -> Callable[[Any], None]:
    """A function that refuses null where the schema has an array that may be empty and not null; kio reads both."""
    arrays: list[tuple[str, bool, Callable[[Any], None] | None]] = []
    for field in fields(entity_type):
        is_nullable = NoneType in get_args(field.type)
        kind: Any = next(part for part in get_args(field.type) if part is not NoneType) if is_nullable else field.type
        if get_origin(kind) is tuple:
            item: Any = get_args(kind)[0]
            arrays.append((field.name, is_nullable, _null_check(item) if is_dataclass(item) else None))

    def check(entity: Any) -> None:
        for name, is_nullable, check_item in arrays:
            items = getattr(entity, name)
            if items is None:
                if not is_nullable:
                    raise Malformed(f"{entity_type.__name__}: '{name}' is null")
            elif check_item is not None:
                for item in items:
                    check_item(item)

    return check


@cache
def _reader(api_key: int, version: int, is_request: bool) -> Any:
    load = kio.index.load_request_schema if is_request else kio.index.load_response_schema
    return kio.serial.entity_reader(load(api_key, version))  # type: ignore[arg-type]


@cache
def _writer(api_key: int, version: int, is_request: bool) -> Put:
    load = kio.index.load_request_schema if is_request else kio.index.load_response_schema
    return _put_entity(load(api_key, version))  # type: ignore[arg-type]


def _put_entity(entity: Any) -> Put:
    """A function that appends a dict as this entity: plain fields in order, then the tagged fields that are given."""
    flexible: bool = entity.__flexible__
    plain: list[tuple[str, Put, Any]] = []
    tagged: list[tuple[int, str, Put]] = []
    for field in fields(entity):
        put = _put_field(field, flexible)
        if "tag" in field.metadata:
            tagged.append((field.metadata["tag"], field.name, put))
        else:
            plain.append((field.name, put, field.default))
    tagged.sort()

    def put_entity(out: bytearray, body: Mapping[str, Any]) -> None:
        for name, put, default in plain:
            value = body.get(name, default)
            if value is MISSING:
                raise KeyError(f"{entity.__name__} v{entity.__version__} needs '{name}'")
            put(out, value)
        if not flexible:
            return
        given = [(tag, name, put) for tag, name, put in tagged if body.get(name) is not None]
        put_uvarint(out, len(given))
        for tag, name, put in given:
            part = bytearray()
            put(part, body[name])
            put_uvarint(out, tag)
            put_uvarint(out, len(part))
            out += part

    return put_entity


def _put_field(field: Any, flexible: bool) -> Put:
    kind: Any = field.type
    if NoneType in get_args(kind):
        kind = next(part for part in get_args(kind) if part is not NoneType)
    if get_origin(kind) is tuple:
        item = get_args(kind)[0]
        put_item = _put_entity(item) if is_dataclass(item) else _primitive(field.metadata["kafka_type"], flexible)
        return _put_array(put_item, flexible)
    if is_dataclass(kind):
        return _put_entity(kind) if kind is field.type else _put_nullable(_put_entity(kind))
    return _primitive(field.metadata["kafka_type"], flexible)


def _put_array(put_item: Put, flexible: bool) -> Put:
    def put(out: bytearray, items: Sequence[Any] | None) -> None:
        count = -1 if items is None else len(items)
        if flexible:
            put_uvarint(out, count + 1)
        else:
            out += _INT32.pack(count)
        for item in items or ():
            put_item(out, item)

    return put


def _put_nullable(put_inner: Put) -> Put:
    def put(out: bytearray, value: Any) -> None:
        out.append(255 if value is None else 1)
        if value is not None:
            put_inner(out, value)

    return put


_NUMBERS = {
    "int8": ">b", "int16": ">h", "int32": ">i", "int64": ">q", "uint8": ">B", "uint16": ">H", "uint32": ">I", "uint64": ">Q",
    "float64": ">d", "bool": ">?", "error_code": ">h", "timedelta_i32": ">i", "timedelta_i64": ">q", "datetime_i64": ">q",
}  # fmt: skip


def _primitive(kind: str, flexible: bool) -> Put:
    if kind in _NUMBERS:
        pack = struct.Struct(_NUMBERS[kind]).pack

        def put_number(out: bytearray, value: Any) -> None:
            out += pack(_plain(value))

        return put_number
    if kind == "uuid":
        return _put_uuid
    lengths = None if flexible else struct.Struct(">h" if kind == "string" else ">i")

    def put_bytes(out: bytearray, value: str | bytes | None) -> None:
        data = value.encode() if isinstance(value, str) else value
        size = -1 if data is None else len(data)
        if lengths is None:
            put_uvarint(out, size + 1)
        else:
            out += lengths.pack(size)
        if data is not None:
            out += data

    return put_bytes


def _plain(value: Any) -> Any:
    """Numbers as they are; kio's default durations as milliseconds, and an absent time as -1."""
    return millis(value) if isinstance(value, timedelta) else -1 if value is None else value


def _put_uuid(out: bytearray, value: uuid.UUID | bytes | None) -> None:
    out += _ZERO_UUID if value is None else value if isinstance(value, bytes) else value.bytes
