"""`penstock produce` and `penstock consume`: records on standard input and output."""

from __future__ import annotations

import base64
import json as json_
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.options import TIMEOUT_S, Address, ConfigFile, Json, ProfileName, admin, connect
from penstock.cli.topic import known, offsets
from penstock.errors import ConfigError, PenstockError

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

PRODUCE_EXAMPLES = 'Example: echo \'{"page": "/"}\' | penstock produce views   •   penstock produce views --key-separator : < lines.txt'
CONSUME_EXAMPLES = "Example: penstock consume views --from-beginning   •   penstock consume views --from-time 2026-01-01T00:00Z --json"
POLL_S = 0.2
Topic = Annotated[str, typer.Argument(help="The topic.")]


def produce(
    topic: Topic,
    key_separator: Annotated[str | None, typer.Option("--key-separator", help="What stands between key and value on each line.")] = None,
    key: Annotated[str | None, typer.Option("--key", help="The same key for every record.")] = None,
    header: Annotated[list[str] | None, typer.Option("--header", help="name=value; may be repeated.")] = None,
    partition: Annotated[int, typer.Option("--partition", help="Default: by key, or spread.")] = -1,
    acks: Annotated[str, typer.Option("--acks", help="0, 1 or all.")] = "all",
    profile: ProfileName = None, config: ConfigFile = None, broker: Address = None,
    json: Annotated[bool, typer.Option("--json", help='Lines are objects: {"key", "value", "headers", "timestamp_ms", "partition"}.')] = False,
) -> None:  # fmt: skip
    """Send each line of standard input as one record."""
    from confluent_kafka import KafkaException, Producer

    if acks not in ("0", "1", "all"):
        raise ConfigError(f"--acks {acks} is unknown", remedy="use 0, 1 or all")
    address, security = connect(profile, config, broker)
    known(admin(address, security), topic)
    producer = Producer({"bootstrap.servers": address, "acks": acks, "linger.ms": 5, "log_level": 0, **security})
    failures: list[str] = []
    headers = [tuple(pair.split("=", 1)) for pair in header or []]
    count = 0
    for number, line in enumerate(sys.stdin.buffer, 1):
        fields = _parse(line.rstrip(b"\n"), number, json, key, key_separator)
        fields.setdefault("headers", headers)
        if partition >= 0:
            fields["partition"] = partition
        while True:
            try:
                producer.produce(topic, on_delivery=lambda error, _: failures.append(error.str()) if error else None, **fields)
                break
            except BufferError:
                producer.poll(0.1)
            except KafkaException as error:
                raise PenstockError(f"line {number}: {error.args[0].str()}") from None
        producer.poll(0)
        count += 1
    left = producer.flush(TIMEOUT_S)
    if failures or left:
        raise PenstockError(
            f"{len(failures) + left} of {count} records were not acknowledged ({failures[0] if failures else 'time ran out'})",
            remedy="the broker may be gone or its disk full: see its log",
        )
    print(f"sent {count} record(s) to {topic}", file=sys.stderr)


def _parse(line: bytes, number: int, as_json: bool, key: str | None, separator: str | None) -> dict[str, Any]:
    if as_json:
        try:
            record = json_.loads(line)
            value = record["value"]
        except (ValueError, KeyError, TypeError):
            raise ConfigError(f"line {number} is not an object with a value", remedy='write {"key": "k", "value": "v"}') from None
        fields: dict[str, Any] = {"value": value if isinstance(value, str) or value is None else json_.dumps(value)}
        fields |= {"key": record["key"]} if record.get("key") is not None else {}
        fields |= {"timestamp": record["timestamp_ms"]} if "timestamp_ms" in record else {}
        fields |= {"partition": record["partition"]} if "partition" in record else {}
        return fields | ({"headers": list(record["headers"].items())} if record.get("headers") else {})
    if separator is not None:
        before, found, after = line.partition(separator.encode())
        if not found:
            raise ConfigError(f"line {number} has no '{separator}'", remedy="put it between key and value")
        return {"key": before, "value": after}
    return {"value": line} | ({"key": key} if key is not None else {})


def consume(
    topic: Topic,
    from_beginning: Annotated[bool, typer.Option("--from-beginning", help="From the first record that is there.")] = False,
    from_offset: Annotated[int | None, typer.Option("--from-offset", help="From this offset of each partition.")] = None,
    from_time: Annotated[str | None, typer.Option("--from-time", help="From the first record at or after this time (ISO 8601, or ms).")] = None,
    group: Annotated[str | None, typer.Option("--group", "-g", help="Share the topic with this group and commit offsets.")] = None,
    partition: Annotated[int | None, typer.Option("--partition", help="Only this partition.")] = None,
    count: Annotated[int | None, typer.Option("--count", "-n", help="Stop after so many records.")] = None,
    follow: Annotated[bool | None, typer.Option("--follow/--no-follow", help="Wait for more, or stop at the end. Default: follow unless a start is given with --count.")] = None,
    committed: Annotated[bool, typer.Option("--committed/--uncommitted", help="Skip records of open and aborted transactions.")] = True,
    show: Annotated[str, typer.Option("--show", help="What to print beside the value: any of key,headers,timestamp,offset.")] = "",
    profile: ProfileName = None, config: ConfigFile = None, broker: Address = None, json: Json = False,
) -> None:  # fmt: skip
    """Print records as they come."""
    from confluent_kafka import Consumer, TopicPartition

    shown = {word.strip() for word in show.split(",") if word.strip()}
    if unknown := shown - {"key", "headers", "timestamp", "offset"}:
        raise ConfigError(f"--show {', '.join(sorted(unknown))} is unknown", remedy="use key, headers, timestamp or offset")
    address, security = connect(profile, config, broker)
    client = admin(address, security)
    partitions = sorted(known(client, topic).partitions)
    if partition is not None:
        if partition not in partitions:
            raise ConfigError(f"topic '{topic}' has no partition {partition}", remedy=f"it has {len(partitions)}, from 0")
        partitions = [partition]
    consumer = Consumer({
        "bootstrap.servers": address, "group.id": group or "penstock-consume", "enable.auto.commit": group is not None, "log_level": 0,
        "auto.offset.reset": "earliest" if from_beginning else "latest", "isolation.level": "read_committed" if committed else "read_uncommitted", **security,
    })  # fmt: skip
    ends: dict[int, int] | None = None
    if follow is False:
        ends = {index: span[1] for index, span in offsets(client, topic, partitions).items()}
    try:
        if group is not None:
            consumer.subscribe([topic])
        else:
            consumer.assign(
                [
                    TopicPartition(topic, index, offset)
                    for index, offset in _starts(consumer, topic, partitions, from_beginning, from_offset, from_time).items()
                ]
            )
        for message in _messages(consumer, topic, count, ends):
            _print(message, shown, json)
    finally:
        consumer.close()


def _starts(consumer: Consumer, topic: str, partitions: list[int], beginning: bool, offset: int | None, time: str | None) -> dict[int, int]:
    from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, TopicPartition

    if time is not None:
        wanted = [TopicPartition(topic, index, milliseconds(time)) for index in partitions]
        return {
            found.partition: found.offset if found.offset >= 0 else OFFSET_END
            for found in consumer.offsets_for_times(wanted, timeout=TIMEOUT_S)
        }
    start = offset if offset is not None else OFFSET_BEGINNING if beginning else OFFSET_END
    return dict.fromkeys(partitions, start)


def milliseconds(text: str) -> int:
    if text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"'{text}' is not a time", remedy="write 2026-01-31T08:00Z, or milliseconds since 1970") from None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def _messages(consumer: Consumer, topic: str, count: int | None, ends: dict[int, int] | None) -> Iterator[Message]:
    """Records until `count`, or until every partition is read to the end it had at the start."""
    from confluent_kafka import TopicPartition

    given = 0
    while count is None or given < count:
        message = consumer.poll(POLL_S)
        if message is not None:
            if message.error():
                raise PenstockError(f"cannot read '{topic}': {message.error().str()}")
            if ends is None or message.offset() < ends.get(message.partition(), 0):
                given += 1
                yield message
        elif ends is not None:
            # A position of -1001 means nothing was read yet; then only an empty partition is at its end.
            places = consumer.position([TopicPartition(topic, index) for index in ends])
            if all(place.offset >= ends[place.partition] or (place.offset < 0 and ends[place.partition] == 0) for place in places):
                return
            if all(place.offset < 0 for place in places):
                low_high = {index: consumer.get_watermark_offsets(TopicPartition(topic, index), timeout=TIMEOUT_S) for index in ends}
                if all(low == high for low, high in low_high.values()):
                    return


def text_of(value: bytes | None) -> str | None:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(value).decode()


def _print(message: Message, shown: set[str], as_json: bool) -> None:
    headers = {name: text_of(value) for name, value in message.headers() or []}
    timestamp_ms = message.timestamp()[1]
    if as_json:
        record = {
            "topic": message.topic(), "partition": message.partition(), "offset": message.offset(), "timestamp_ms": timestamp_ms,
            "key": text_of(message.key()), "value": text_of(message.value()), "headers": headers,
        }  # fmt: skip
        print(json_.dumps(record), flush=True)
        return
    parts = []
    if "timestamp" in shown:
        parts.append(datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds"))
    if "offset" in shown:
        parts.append(f"{message.partition()}:{message.offset()}")
    if "key" in shown:
        parts.append(text_of(message.key()) or "-")
    if "headers" in shown:
        parts.append(",".join(f"{name}={value}" for name, value in headers.items()) or "-")
    print("\t".join([*parts, text_of(message.value()) or ""]), flush=True)
