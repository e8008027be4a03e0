"""A small raw client: one thread, plain sockets, whole record batches in and out.

It is for code that wants the bytes of many partitions at once and knows its own offsets (Spark tasks), not for applications:
they use an ordinary Kafka client. Requests are of versions that every broker since Kafka 2.4 answers. Fetch and Produce are
packed by hand, so that records are never copied: a fetched frame is read into one buffer, and `Fetched` gives positions in it.

    client = Client("127.0.0.1:9092")
    client.list_offsets({("events", 0): EARLIEST})                       # {("events", 0): 0}
    pending = client.send_fetch(node, [Wanted("events", 0, offset=0)])   # several may be under way on different nodes
    frame, parts = client.receive_fetch(pending)

Invariant: one answer per request, in order, per connection; a connection that fails in the middle is closed and never used again.
Not thread-safe. Transactions and group membership are not here. Not fork-safe: make a client after the fork."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from penstock.errors import PenstockError
from penstock.protocol.api import Api
from penstock.protocol.codec import decode_response, encode_request
from penstock.protocol.error import RETRIABLE, Error

Place = tuple[str, int]  # topic, partition
Opener = Callable[[str, int, float], socket.socket]  # host, port, timeout: where TLS and authentication go
Allocate = Callable[[int], Any]  # a writable buffer of that many bytes

EARLIEST, LATEST = -2, -1
FRAME_BYTES_MAX = 1 << 30
RETRY_S_MAX = 30.0  # a cluster elects new leaders, and a single broker restarts, in less
RETRY_WAIT_S_MAX = 1.0
TIMEOUT_S = 30.0

_VERSIONS = {
    Api.PRODUCE: 8, Api.FETCH: 11, Api.LIST_OFFSETS: 3, Api.METADATA: 5, Api.OFFSET_COMMIT: 3, Api.OFFSET_FETCH: 3,
    Api.FIND_COORDINATOR: 1, Api.CREATE_TOPICS: 4, Api.DELETE_TOPICS: 3, Api.API_VERSIONS: 0,
}  # fmt: skip
_LENGTH = struct.Struct(">i")
_HEADER = struct.Struct(">hhih")
_FETCH = struct.Struct(">iiiibii")  # replica, wait_ms, bytes_min, bytes_max, isolation, session, session epoch
_WANTED = struct.Struct(">iiqqi")  # partition, leader epoch, offset, log start, bytes_max
_FETCHED = struct.Struct(">ihqqqi")  # partition, error, high watermark, last stable, log start, count of aborted
_PRODUCED = struct.Struct(">ihqqqi")  # partition, error, base offset, append time, log start, count of record errors


class Unreachable(PenstockError):
    """No broker answers."""

    exit_code = 4


class BrokerError(PenstockError):
    """A broker refused a request."""

    def __init__(self, what: str, code: int, *, detail: str | None = None, remedy: str | None = None) -> None:
        self.code = code
        name = Error(code).name if code in Error.__members__.values() else f"error {code}"
        super().__init__(f"{what}: {name}" + (f" ({detail})" if detail else ""), remedy=remedy)


class UnknownTopic(PenstockError):
    """A topic that the broker does not have."""

    def __init__(self, topic: str, address: str) -> None:
        self.topic = topic
        super().__init__(
            f"topic '{topic}' does not exist at {address}", remedy=f"create it (penstock topic create {topic}) or check its name"
        )


class Node(NamedTuple):
    id: int
    host: str
    port: int


class Wanted(NamedTuple):
    """What to fetch of one partition."""

    topic: str
    partition: int
    offset: int
    bytes_max: int = 8 << 20


class Fetched(NamedTuple):
    """One partition of an answer. Its record batches lie in frame[start:end]; the last one may be cut off."""

    topic: str
    partition: int
    error: int
    high_watermark: int
    last_stable_offset: int
    start_offset: int
    aborted: list[tuple[int, int]]  # (producer id, first offset)
    start: int
    end: int


class Pending(NamedTuple):
    """A fetch that is under way."""

    node: int
    correlation_id: int


def parse_address(address: str) -> list[tuple[str, int]]:
    """Host and port of each bootstrap server.

    >>> parse_address("a:9092, [::1]:9093")
    [('a', 9092), ('::1', 9093)]
    """
    found = []
    for part in address.split(","):
        host, _, port = part.strip().rpartition(":")
        if not host or not port.isdigit():
            raise PenstockError(f"'{part.strip()}' is no broker address", remedy="write host:port, for example 127.0.0.1:9092")
        found.append((host.strip("[]"), int(port)))
    return found


def open_socket(host: str, port: int, timeout_s: float) -> socket.socket:
    connection = socket.create_connection((host, port), timeout=timeout_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


class Connection:
    """One socket to one broker: requests out, answers back in order."""

    def __init__(self, host: str, port: int, *, client_id: str, timeout_s: float, opener: Opener) -> None:
        self.name = f"{host}:{port}"
        self._client = client_id
        self._correlation_id = 0
        try:
            self._socket = opener(host, port, timeout_s)
        except OSError as error:
            raise Unreachable(
                f"no broker answers at {self.name}: {error}", remedy="start it (penstock broker start) or check the address"
            ) from error

    def send(self, api: Api, body: Mapping[str, Any]) -> int:
        self._correlation_id += 1
        self._write([encode_request(api, _VERSIONS[api], body, correlation_id=self._correlation_id, client_id=self._client)])
        return self._correlation_id

    def send_packed(self, api: Api, body: Sequence[Any]) -> int:
        """A request whose body is packed already, as buffers that are written one after the other."""
        self._correlation_id += 1
        client = self._client.encode()
        header = _HEADER.pack(api, _VERSIONS[api], self._correlation_id, len(client)) + client
        self._write([_LENGTH.pack(len(header) + sum(map(len, body))) + header, *body])
        return self._correlation_id

    def receive(self, correlation_id: int, *, allocate: Allocate = bytearray) -> Any:
        """The next answer's frame without its length; it must be the one that was asked for."""
        head = bytearray(8)
        self._fill(memoryview(head))
        size, given = struct.unpack(">ii", head)
        if given != correlation_id or not 4 <= size <= FRAME_BYTES_MAX:
            self.close()
            raise Unreachable(
                f"{self.name} does not answer in Kafka's protocol", remedy="check that the address is a broker's, and whether it wants TLS"
            )
        frame = allocate(size)
        view = memoryview(frame)
        view[:4] = head[4:]
        self._fill(view[4:])
        return frame

    def ask(self, api: Api, body: Mapping[str, Any]) -> Any:
        """One request and its decoded answer."""
        return decode_response(api, _VERSIONS[api], bytes(self.receive(self.send(api, body))))[1]

    def close(self) -> None:
        self._socket.close()

    def _write(self, buffers: list[Any]) -> None:
        try:
            if sum(map(len, buffers)) < 1 << 16:
                self._socket.sendall(b"".join(buffers))
            else:
                for buffer in buffers:
                    self._socket.sendall(buffer)
        except OSError as error:
            self._lost(error)

    def _fill(self, view: memoryview) -> None:
        try:
            while view:
                got = self._socket.recv_into(view)
                if not got:
                    raise ConnectionError("closed by the broker")
                view = view[got:]
        except OSError as error:
            self._lost(error)

    def _lost(self, error: OSError) -> None:
        self.close()
        raise Unreachable(f"connection to {self.name} lost: {error}", remedy="check that the broker is running") from error


class Client:
    """Connections to the brokers of one cluster, opened when needed."""

    def __init__(
        self,
        address: str,
        *,
        client_id: str = "penstock",
        timeout_s: float = TIMEOUT_S,
        retry_s: float = RETRY_S_MAX,
        opener: Opener = open_socket,
    ) -> None:
        self.address = address
        self._bootstrap = parse_address(address)
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._retry_s = retry_s
        self._opener = opener
        self._nodes: dict[int, Node] = {}
        self._leaders: dict[Place, int] = {}
        self._connections: dict[int, Connection] = {}  # by node id; -1 is any broker
        self._coordinators: dict[str, int] = {}

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # --- topics ---

    def partitions(self, topics: Iterable[str]) -> dict[str, list[int]]:
        """The partitions of the topics, asked anew. A topic that is not there is an error."""
        topics = list(topics)
        for attempt in _attempts(self._retry_s):
            found = self._load_metadata(topics)
            waiting = None
            for topic, (error, partitions) in found.items():
                if error == Error.UNKNOWN_TOPIC_OR_PARTITION:
                    raise UnknownTopic(topic, self.address)
                if error and error not in RETRIABLE:
                    raise BrokerError(f"topic '{topic}' at {self.address}", error)
                if error or any(leader < 0 for leader in partitions.values()):
                    waiting = topic
            if waiting is None:
                return {topic: sorted(partitions) for topic, (_, partitions) in found.items()}
            attempt(f"topic '{waiting}' has no leader", Error.LEADER_NOT_AVAILABLE)
        raise AssertionError("attempts end with an error")

    def leader(self, place: Place, *, fresh: bool = False) -> int:
        """The node that serves a partition, from memory unless asked anew."""
        if fresh or place not in self._leaders:
            self.partitions([place[0]])
        if place not in self._leaders:
            raise UnknownTopic(f"{place[0]}/{place[1]}", self.address)
        return self._leaders[place]

    def topics(self) -> list[str]:
        return sorted(self._load_metadata(None))

    def create_topic(self, name: str, *, partitions: int = -1, replicas: int = -1, config: Mapping[str, str] | None = None) -> bool:
        """Make a topic; false if it is there already. -1 leaves a number to the broker's settings."""
        body = {
            "topics": [{
                "name": name, "num_partitions": partitions, "replication_factor": replicas, "assignments": [],
                "configs": [{"name": key, "value": value} for key, value in (config or {}).items()],
            }],
            "timeout": round(self._timeout_s * 1000), "validate_only": False,
        }  # fmt: skip
        for attempt in _attempts(self._retry_s):
            answer = self._on_controller(Api.CREATE_TOPICS, body).topics[0]
            if answer.error_code == Error.NONE:
                self._wait_for(name)
                return True
            if answer.error_code == Error.TOPIC_ALREADY_EXISTS:
                return False
            attempt(f"creating topic '{name}'", int(answer.error_code), answer.error_message)
        raise AssertionError("attempts end with an error")

    def _wait_for(self, topic: str) -> None:
        """A cluster makes a topic before all its nodes know of it."""
        for attempt in _attempts(self._retry_s):
            error, leaders = self._load_metadata([topic])[topic]
            if error == Error.NONE and leaders and min(leaders.values()) >= 0:
                return
            attempt(f"waiting for topic '{topic}'", error or Error.LEADER_NOT_AVAILABLE)

    def delete_topic(self, name: str) -> None:
        answer = self._on_controller(Api.DELETE_TOPICS, {"topic_names": [name], "timeout": round(self._timeout_s * 1000)}).responses[0]
        if answer.error_code != Error.NONE:
            raise BrokerError(f"deleting topic '{name}'", int(answer.error_code))

    # --- offsets ---

    def list_offsets(self, wanted: Mapping[Place, int], *, committed: bool = True) -> dict[Place, int]:
        """For each partition the first offset at or after a time (ms), or at EARLIEST or LATEST.

        A time after the last record gives -1. `committed` makes LATEST the last stable offset."""
        done: dict[Place, int] = {}
        for attempt in _attempts(self._retry_s):
            todo = [place for place in wanted if place not in done]
            if not todo:
                return done
            failed: tuple[Place, int] | None = None
            for node, places in self._by_leader(todo, attempt).items():
                by_topic: dict[str, list[dict[str, int]]] = {}
                for topic, partition in places:
                    by_topic.setdefault(topic, []).append({"partition_index": partition, "timestamp": wanted[topic, partition]})
                body = {
                    "replica_id": -1, "isolation_level": int(committed),
                    "topics": [{"name": topic, "partitions": parts} for topic, parts in by_topic.items()],
                }  # fmt: skip
                try:
                    answers = self._connection(node).ask(Api.LIST_OFFSETS, body).topics
                except Unreachable:
                    self.forget(node)
                    failed = places[0], Error.NETWORK_EXCEPTION
                    continue
                for answer in answers:
                    for part in answer.partitions:
                        place = (answer.name, part.partition_index)
                        if part.error_code == Error.NONE:
                            done[place] = part.offset
                        else:
                            failed = place, int(part.error_code)
            if failed:
                self._leaders.pop(failed[0], None)
                attempt(f"offsets of {failed[0][0]}/{failed[0][1]}", failed[1])
        raise AssertionError("attempts end with an error")

    def commit_offsets(self, group: str, offsets: Mapping[Place, int]) -> None:
        """Store a group's offsets, as one that is no member: others see how far it has read. The group must have no members."""
        by_topic: dict[str, list[dict[str, Any]]] = {}
        for (topic, partition), offset in offsets.items():
            part = {"partition_index": partition, "committed_offset": offset, "committed_leader_epoch": -1, "committed_metadata": ""}
            by_topic.setdefault(topic, []).append(part)
        body = {
            "group_id": group, "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None, "retention_time": -1,
            "topics": [{"name": topic, "partitions": parts} for topic, parts in by_topic.items()],
        }  # fmt: skip
        for attempt in _attempts(self._retry_s):
            answer = self._on_coordinator(group, Api.OFFSET_COMMIT, body)
            errors = [int(part.error_code) for topic in answer.topics for part in topic.partitions if part.error_code != Error.NONE]
            if not errors:
                return
            self._coordinators.pop(group, None)
            attempt(f"committing offsets of group '{group}'", errors[0])

    def committed_offsets(self, group: str, places: Iterable[Place]) -> dict[Place, int]:
        """A group's stored offsets; partitions without one are left out."""
        by_topic: dict[str, list[int]] = {}
        for topic, partition in places:
            by_topic.setdefault(topic, []).append(partition)
        body = {"group_id": group, "topics": [{"name": topic, "partition_indexes": parts} for topic, parts in by_topic.items()]}
        for attempt in _attempts(self._retry_s):
            answer = self._on_coordinator(group, Api.OFFSET_FETCH, body)
            if answer.error_code == Error.NONE:
                parts = [
                    ((topic.name, part.partition_index), part.committed_offset) for topic in answer.topics for part in topic.partitions
                ]
                return {place: offset for place, offset in parts if offset >= 0}
            self._coordinators.pop(group, None)
            attempt(f"offsets of group '{group}'", int(answer.error_code))
        raise AssertionError("attempts end with an error")

    # --- records ---

    def send_fetch(
        self,
        node: int,
        parts: Sequence[Wanted],
        *,
        wait_ms_max: int = 500,
        bytes_min: int = 1,
        bytes_max: int = 32 << 20,
        committed: bool = True,
    ) -> Pending:
        """Ask one node for record batches of many partitions. Answers at once if there are `bytes_min`, else after the wait."""
        body = bytearray(_FETCH.pack(-1, wait_ms_max, bytes_min, bytes_max, int(committed), 0, -1))
        by_topic: dict[str, list[Wanted]] = {}
        for part in parts:
            by_topic.setdefault(part.topic, []).append(part)
        body += _LENGTH.pack(len(by_topic))
        for topic, wanted in by_topic.items():
            body += _string(topic) + _LENGTH.pack(len(wanted))
            for part in wanted:
                body += _WANTED.pack(part.partition, -1, part.offset, -1, part.bytes_max)
        body += _LENGTH.pack(0) + _string("")  # nothing forgotten (no session), no rack
        return Pending(node, self._connection(node).send_packed(Api.FETCH, [body]))

    def receive_fetch(self, pending: Pending, *, allocate: Allocate = bytearray) -> tuple[Any, list[Fetched]]:
        """The frame, and where in it each partition's record batches lie."""
        frame = self._connections[pending.node].receive(pending.correlation_id, allocate=allocate)
        return frame, read_fetched(memoryview(frame))

    def fetch(self, parts: Sequence[Wanted], **options: Any) -> list[tuple[Any, Fetched]]:
        """Fetch from the leaders of all the partitions, one after the other: (frame, part) of each."""
        by_node: dict[int, list[Wanted]] = {}
        for part in parts:
            by_node.setdefault(self.leader((part.topic, part.partition)), []).append(part)
        pending = [self.send_fetch(node, wanted, **options) for node, wanted in by_node.items()]
        answers = [self.receive_fetch(each) for each in pending]
        return [(frame, part) for frame, fetched in answers for part in fetched]

    def produce(self, batches: Mapping[Place, Any], *, acks: int = -1) -> dict[Place, int]:
        """Append one record batch to each partition; returns the base offsets. At least once: a retry may repeat a batch."""
        done: dict[Place, int] = {}
        for attempt in _attempts(self._retry_s):
            todo = [place for place in batches if place not in done]
            if not todo:
                return done
            failed: tuple[str, int, str | None] | None = None
            sent = []
            for node, places in self._by_leader(todo, attempt).items():
                body = _pack_produce({place: batches[place] for place in places}, acks=acks, timeout_ms=round(self._timeout_s * 1000))
                try:
                    sent.append((node, places, self._connection(node).send_packed(Api.PRODUCE, body)))
                except Unreachable as error:
                    failed = self._forget(node, places, error)
            for node, places, correlation_id in sent:
                try:
                    answer = read_produced(memoryview(self._connections[node].receive(correlation_id)))
                except Unreachable as error:
                    failed = self._forget(node, places, error)
                    continue
                for place, (code, offset, message) in answer.items():
                    if code in (Error.NONE, Error.DUPLICATE_SEQUENCE_NUMBER):
                        done[place] = offset
                    elif code == Error.CORRUPT_MESSAGE:
                        raise BrokerError(f"writing to {place[0]}/{place[1]}", code, detail=message)  # the same bytes again would not help
                    else:
                        self._leaders.pop(place, None)
                        failed = f"writing to {place[0]}/{place[1]}", code, message
            if failed:
                attempt(*failed)
        raise AssertionError("attempts end with an error")

    # --- inside ---

    def forget(self, node: int) -> None:
        """Drop a connection that failed, and the leaders that led to it."""
        if connection := self._connections.pop(node, None):
            connection.close()
        self._leaders = {place: leader for place, leader in self._leaders.items() if leader != node}

    def _forget(self, node: int, places: Iterable[Place], error: Unreachable) -> tuple[str, int, str]:
        self.forget(node)
        topic, partition = next(iter(places))
        return f"writing to {topic}/{partition}", Error.NETWORK_EXCEPTION, error.message

    def _by_leader(self, places: Sequence[Place], attempt: Callable[..., None]) -> dict[int, list[Place]]:
        """The partitions of each leader; nothing, and a failed attempt, while no broker answers."""
        by_node: dict[int, list[Place]] = {}
        try:
            for place in places:
                by_node.setdefault(self.leader(place), []).append(place)
        except Unreachable as error:
            attempt(f"finding the leader of {places[0][0]}/{places[0][1]}", Error.NETWORK_EXCEPTION, error.message)
            return {}
        return by_node

    def _connection(self, node: int) -> Connection:
        if node in self._connections:
            return self._connections[node]
        if node < 0:
            return self._bootstrapped()
        if node not in self._nodes:
            self._load_metadata([])
        if node not in self._nodes:
            raise Unreachable(f"node {node} of {self.address} is gone", remedy="wait until the cluster has elected new leaders")
        connection = self._open(self._nodes[node].host, self._nodes[node].port)
        self._connections[node] = connection
        return connection

    def _bootstrapped(self) -> Connection:
        """A connection to any broker, whose versions are checked."""
        problem: Unreachable | None = None
        known = [(node.host, node.port) for node in self._nodes.values()]  # of a cluster, others may live when the first is dead
        for host, port in dict.fromkeys([*self._bootstrap, *known]):
            try:
                connection = self._open(host, port)
            except Unreachable as error:
                problem = error
                continue
            answer = connection.ask(Api.API_VERSIONS, {})
            spoken = {int(each.api_key): (each.min_version, each.max_version) for each in answer.api_keys}
            for api, version in _VERSIONS.items():
                low, high = spoken.get(int(api), (1, 0))
                if not low <= version <= high:
                    connection.close()
                    raise PenstockError(
                        f"{host}:{port} does not speak {api.name} version {version}", remedy="use a broker of Kafka 2.4 or later"
                    )
            self._connections[-1] = connection
            return connection
        assert problem is not None, "an address has at least one server"
        raise problem

    def _open(self, host: str, port: int) -> Connection:
        return Connection(host, port, client_id=self._client_id, timeout_s=self._timeout_s, opener=self._opener)

    def _ask_any(self, api: Api, body: Mapping[str, Any]) -> Any:
        """Ask any broker; a connection that died since the last time is opened again."""
        try:
            return self._connection(-1).ask(api, body)
        except Unreachable:
            self._connections.pop(-1, None)
            return self._connection(-1).ask(api, body)

    def _load_metadata(self, topics: Sequence[str] | None) -> dict[str, tuple[int, dict[int, int]]]:
        """Topic → (error, partition → leader), and nodes and leaders remembered."""
        wanted = None if topics is None else [{"name": topic} for topic in topics]
        answer = self._ask_any(Api.METADATA, {"topics": wanted, "allow_auto_topic_creation": False})
        nodes = {int(each.node_id): Node(int(each.node_id), each.host, each.port) for each in answer.brokers}
        for id, node in self._nodes.items():
            if id in self._connections and nodes.get(id) != node:
                self._connections.pop(id).close()  # the node has moved
        self._nodes = nodes
        self._controller = int(answer.controller_id)
        found = {}
        for topic in answer.topics:
            leaders = {part.partition_index: int(part.leader_id) for part in topic.partitions}
            found[topic.name] = (int(topic.error_code), leaders)
            self._leaders.update({(topic.name, partition): leader for partition, leader in leaders.items() if leader >= 0})
        return found

    def _on_controller(self, api: Api, body: Mapping[str, Any]) -> Any:
        self._load_metadata([])
        return self._connection(self._controller).ask(api, body)

    def _on_coordinator(self, group: str, api: Api, body: Mapping[str, Any]) -> Any:
        if group not in self._coordinators:
            for attempt in _attempts(self._retry_s):
                answer = self._ask_any(Api.FIND_COORDINATOR, {"key": group, "key_type": 0})
                if answer.error_code == Error.NONE:
                    self._coordinators[group] = int(answer.node_id)
                    self._nodes[int(answer.node_id)] = Node(int(answer.node_id), answer.host, answer.port)
                    break
                attempt(f"coordinator of group '{group}'", int(answer.error_code), answer.error_message)
        node = self._coordinators[group]
        try:
            return self._connection(node).ask(api, body)
        except Unreachable:
            self.forget(node)
            del self._coordinators[group]
            raise


def _attempts(retry_s: float) -> Iterator[Callable[..., None]]:
    """Tries for a while. The caller reports a failure; one that cannot pass, or the last one, is raised."""
    started_s = time.monotonic()
    wait_s = 0.02

    def failed(what: str, code: int, detail: str | None = None) -> None:
        if code not in RETRIABLE or time.monotonic() - started_s > retry_s:
            if code == Error.NETWORK_EXCEPTION:
                raise Unreachable(f"{what}: {detail or 'no broker answers'}", remedy="check that the broker is running")
            raise BrokerError(what, code, detail=detail)
        time.sleep(wait_s)

    while True:
        yield failed
        wait_s = min(2 * wait_s, RETRY_WAIT_S_MAX)


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def _read_string(frame: memoryview, at: int) -> tuple[str | None, int]:
    (size,) = struct.unpack_from(">h", frame, at)
    return (None, at + 2) if size < 0 else (str(frame[at + 2 : at + 2 + size], "utf-8"), at + 2 + size)


def read_fetched(frame: memoryview) -> list[Fetched]:
    """The parts of a Fetch answer (version 11)."""
    error, _, topics = struct.unpack_from(">hii", frame, 8)
    if error:
        raise BrokerError("fetch", error)
    at = 18
    parts = []
    for _ in range(topics):
        topic, at = _read_string(frame, at)
        (count,) = _LENGTH.unpack_from(frame, at)
        at += 4
        for _ in range(count):
            partition, code, high_watermark, stable, start_offset, aborted_count = _FETCHED.unpack_from(frame, at)
            at += _FETCHED.size
            aborted = [struct.unpack_from(">qq", frame, at + 16 * index) for index in range(aborted_count)]
            at += 16 * max(aborted_count, 0) + 4  # and the preferred replica
            (size,) = _LENGTH.unpack_from(frame, at)
            at += 4
            parts.append(Fetched(topic or "", partition, code, high_watermark, stable, start_offset, aborted, at, at + max(size, 0)))  # type: ignore[arg-type]
            at += max(size, 0)
    if at != len(frame):
        raise PenstockError(f"a fetch answer of {len(frame)} bytes ends at {at}", remedy="check that the address is a Kafka broker's")
    return parts


def _pack_produce(batches: Mapping[Place, Any], *, acks: int, timeout_ms: int) -> list[Any]:
    """The body of a Produce request (version 8) as buffers; the batches are not copied."""
    by_topic: dict[str, list[Place]] = {}
    for place in batches:
        by_topic.setdefault(place[0], []).append(place)
    buffers: list[Any] = [struct.pack(">hhii", -1, acks, timeout_ms, len(by_topic))]
    for topic, places in by_topic.items():
        buffers.append(_string(topic) + _LENGTH.pack(len(places)))
        for place in places:
            buffers += [struct.pack(">ii", place[1], len(batches[place])), batches[place]]
    return buffers


def read_produced(frame: memoryview) -> dict[Place, tuple[int, int, str | None]]:
    """(error, base offset, message) of each partition in a Produce answer (version 8)."""
    (topics,) = _LENGTH.unpack_from(frame, 4)
    at = 8
    done = {}
    for _ in range(topics):
        topic, at = _read_string(frame, at)
        (count,) = _LENGTH.unpack_from(frame, at)
        at += 4
        for _ in range(count):
            partition, error, offset, _, _, wrong = _PRODUCED.unpack_from(frame, at)
            at += _PRODUCED.size
            detail = None
            for _ in range(wrong):
                detail, at = _read_string(frame, at + 4)
            message, at = _read_string(frame, at)
            done[topic or "", partition] = error, offset, message or detail
    return done
