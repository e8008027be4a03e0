"""The sockets of a broker: accepts connections, gives each frame to the handler of its API, keeps the shared budgets.

Invariant: no request of one client can stop another's: a bad frame closes its connection, a handler's failure answers
that request with an error or closes that connection, and memory is taken from budgets (`limits.py`). Not here: what an API does."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from penstock.broker.budget import Budget
from penstock.broker.connection import Connection, Slot
from penstock.broker.limits import Limits
from penstock.broker.node import Node
from penstock.protocol.api import Api
from penstock.protocol.codec import Buffer, Malformed, RequestHeader, decode_request, encode_response, read_header
from penstock.protocol.error import Error

logger = logging.getLogger("penstock.broker")

RECEIVE_BYTES = 128 * 1024
SWEEP_SECONDS = 1.0
BACKLOG = 1024
# Requests that are dropped when their client goes away. All others are finished: half a commit helps nobody.
WAITS_FOR_OTHERS = frozenset({Api.JOIN_GROUP, Api.SYNC_GROUP})


class Request(NamedTuple):
    """A decoded request and who sent it."""

    header: RequestHeader
    body: Any
    host: str

    @property
    def version(self) -> int:
        return self.header.version


Handler = Callable[[Node, Request], Awaitable[dict[str, Any]]]
RawHandler = Callable[[Node, Connection, Slot, RequestHeader, memoryview], None]


class Served(NamedTuple):
    """An API that this broker answers: the versions it advertises, and the function that answers."""

    versions: range
    handle: Handler | None = None
    handle_raw: RawHandler | None = None


class Server:
    def __init__(self, node: Node, apis: dict[Api, Served], limits: Limits) -> None:
        self.node = node
        self.apis = apis
        self.limits = limits
        self.loop = asyncio.get_running_loop()
        self.connections: set[Connection] = set()
        self.without_budget: dict[Connection, None] = {}  # not read until there is room for their requests, in this order
        self.receive_buffer = memoryview(bytearray(RECEIVE_BYTES))
        self.request_budget = Budget(limits.request_bytes_total_max, on_spent=self._on_spent, on_room=self._on_room)
        self.fetch_budget = Budget(limits.fetch_bytes_total_max)
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None
        self._sweep: asyncio.TimerHandle | None = None

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; the address that was bound."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setblocking(False)
        try:
            listening.bind((host, port))
        except OSError:
            listening.close()
            raise
        self._listener = await self.loop.create_server(lambda: Connection(self), sock=listening, backlog=BACKLOG)
        self._sweep = self.loop.call_later(SWEEP_SECONDS, self._check_connections)
        bound = listening.getsockname()
        return host, bound[1]

    async def stop(self) -> None:
        """Close the listener and all connections, and wait for handlers to end."""
        if self._sweep is not None:
            self._sweep.cancel()
        if self._listener is not None:
            self._listener.close()
        for connection in list(self.connections):
            if connection.transport is not None:
                connection.transport.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)

    # --- connections --------------------------------------------------------------------------------------------------

    def admit(self, connection: Connection) -> bool:
        if len(self.connections) >= self.limits.connections_max:
            self.log_closed(connection, f"{self.limits.connections_max} connections are open already")
            connection.is_closed = True
            return False
        self.connections.add(connection)
        return True

    def forget(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self.without_budget.pop(connection, None)

    def log_closed(self, connection: Connection, why: str) -> None:
        logger.info("connection from %s closed: %s", connection.host, why)

    def log_failure(self, connection: Connection) -> None:
        """A defect of ours, met while answering this client."""
        logger.exception("a request from %s failed", connection.host)

    def _check_connections(self) -> None:
        now = self.loop.time()
        for connection in list(self.connections):
            connection.check(now)
        if self.fetch_budget.has_line:
            self._cut_off_stalled(now)
        self._sweep = self.loop.call_later(SWEEP_SECONDS, self._check_connections)

    def _on_spent(self) -> None:
        self.loop.call_soon(self._pause_all)

    def _pause_all(self) -> None:
        for connection in list(self.connections):
            connection.read_again()

    def _on_room(self) -> None:
        if self.without_budget:
            waiting, self.without_budget = self.without_budget, {}
            for connection in waiting:
                self.loop.call_soon(connection.read_again)

    def _cut_off_stalled(self, now: float) -> None:
        """Fetches wait for memory: whoever holds some of it and has taken nothing for a while gives it back."""
        for connection in list(self.connections):
            since = connection.stalled_since
            if since is not None and connection.holds_fetch_bytes and now - since > self.limits.stall_seconds_others_wait:
                connection.close("takes no answers while others wait for memory")

    # --- requests -----------------------------------------------------------------------------------------------------

    def handle(self, connection: Connection, slot: Slot, frame: Buffer) -> None:
        """Start answering one request. `Malformed` means that the connection must be closed."""
        header = read_header(frame)
        served = self.apis.get(header.api_key)  # type: ignore[call-overload]
        if served is None:
            raise Malformed(f"api key {header.api_key} is not known")
        if header.version not in served.versions:
            if header.api_key == Api.API_VERSIONS:
                # Clients ask with their newest version first; the answer is readable by all of them (KIP-511).
                body = {"error_code": Error.UNSUPPORTED_VERSION, "api_keys": self.advertised()}
                return slot.fill([encode_response(Api.API_VERSIONS, 0, body, correlation_id=header.correlation_id)])
            raise Malformed(f"version {header.version} of {Api(header.api_key).name} is not known")
        if served.handle_raw is not None:
            served.handle_raw(self.node, connection, slot, header, memoryview(frame))
            return None
        assert served.handle is not None
        request = Request(header, decode_request(header, frame), connection.host)
        task = self.loop.create_task(self._answer(connection, slot, served.handle, request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if header.api_key in WAITS_FOR_OTHERS:
            slot.on_gone = task.cancel  # type: ignore[assignment]
        return None

    async def _answer(self, connection: Connection, slot: Slot, handle: Handler, request: Request) -> None:
        header = request.header
        try:
            body = await handle(self.node, request)
            answer = encode_response(Api(header.api_key), header.version, body, correlation_id=header.correlation_id)
        except asyncio.CancelledError:
            raise
        except Exception:
            # A defect of ours: there is no general error answer in this protocol, so the client sees a closed connection.
            logger.exception("%s v%d from %s failed", Api(header.api_key).name, header.version, connection.host)
            connection.close("its request failed here")
            return
        slot.fill([answer])

    def advertised(self) -> list[dict[str, int]]:
        """What ApiVersions lists. Produce is listed from 0, because older librdkafka looks for that; below 3 it is still refused."""
        return [
            {"api_key": api, "min_version": 0 if api == Api.PRODUCE else served.versions.start, "max_version": served.versions.stop - 1}
            for api, served in self.apis.items()
        ]
