"""One client's connection: frames in, answers out in the order of the requests, and back pressure in between.

    socket ─▶ receive buffer (shared) ─▶ frame ─▶ handler ─▶ slot ─▶ … in order … ─▶ socket
                     │ stops while too many requests wait, or while the client does not take its answers

Requests are handled one after another. A handler answers at once, later (the connection waits: fetch, join, sync), or
later while the next request is already handled (produce, whose order is fixed by the append). Answers leave in order.

Invariants: at most `in_flight_max` requests are held; bytes of frames are accounted in `server.request_budget`; a frame that is
no request closes this connection and no other. Not here: what requests mean."""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from penstock.protocol.codec import Buffer, Malformed

if TYPE_CHECKING:
    from penstock.broker.server import Server

_LENGTH = struct.Struct(">i")


class Slot:
    """The place of one answer in the order of answers. `lets_next` says whether the next request may be handled before it is filled."""

    __slots__ = ("answer", "connection", "fetch_bytes", "is_filled", "lets_next", "on_gone")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.answer: Sequence[Buffer] = ()
        self.is_filled = False
        self.lets_next = False
        self.fetch_bytes = 0  # of the server's fetch budget, given back when the client has taken the answer
        self.on_gone: Callable[[], None] | None = None

    def fill(self, answer: Sequence[Buffer]) -> None:
        """The answer, as buffers to write; none at all for a request that gets no answer. A second one is ignored."""
        if self.is_filled:
            return
        self.answer, self.is_filled, self.on_gone = answer, True, None
        self.connection.on_filled()


class Connection(asyncio.BufferedProtocol):
    def __init__(self, server: Server) -> None:
        self.server = server
        self.limits = server.limits
        self.transport: asyncio.Transport | None = None
        self.host = ""
        self.slots: deque[Slot] = deque()
        self.waiting: deque[Buffer] = deque()
        self.is_closed = False
        self.is_write_paused = False
        self.is_read_paused = False
        self.is_parked = False  # a large frame waits for room in the request budget
        self.stalled_since: float | None = None  # while unsent bytes do not get fewer
        self._unsent_bytes = 0
        self.heard_at = server.loop.time()
        self._rest = b""  # of a frame whose length is not whole yet
        self._frame: bytearray | None = None
        self._view: memoryview | None = None
        self._filled = 0
        self._accounted = 0  # bytes held in the request budget
        self._unsent_fetch_bytes = 0
        self._is_pumping = False

    @property
    def holds_fetch_bytes(self) -> bool:
        return self._unsent_fetch_bytes > 0

    # --- the transport's side -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport = cast(asyncio.Transport, transport)  # uvloop's are not its subclasses
        peer = transport.get_extra_info("peername")
        self.host = str(peer[0]) if peer else ""
        transport.set_write_buffer_limits(high=self.limits.write_bytes_high)
        if not self.server.admit(self):
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        for slot in self.slots:
            if slot.on_gone is not None:
                slot.on_gone()
            self.server.fetch_budget.give_back(slot.fetch_bytes)
        self.slots.clear()
        self.waiting.clear()
        self._frame = self._view = None
        self._account(-self._accounted)
        self.server.fetch_budget.give_back(self._unsent_fetch_bytes)
        self._unsent_fetch_bytes = 0
        self.server.forget(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._view is not None:
            return self._view[self._filled :]
        return self.server.receive_buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.heard_at = self.server.loop.time()
        if self._view is not None:
            self._filled += nbytes
            if self._filled < len(self._view):
                return
            assert self._frame is not None
            frame, self._frame, self._view = self._frame, None, None
            self.waiting.append(frame)
        else:
            self._take(self.server.receive_buffer[:nbytes])
        self.pump()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.is_write_paused = True
        self.stalled_since = self.server.loop.time()

    def resume_writing(self) -> None:
        self.is_write_paused = False
        self.stalled_since = None
        self.server.fetch_budget.give_back(self._unsent_fetch_bytes)
        self._unsent_fetch_bytes = 0
        self.pump()

    # --- frames in ----------------------------------------------------------------------------------------------------

    def _take(self, data: memoryview) -> None:
        """Cut what was received into frames. The receive buffer is shared, so nothing may keep pointing into it."""
        if self._rest:
            data = memoryview(self._rest + data)
            self._rest = b""
        at, end = 0, len(data)
        while end - at >= 4:
            (size,) = _LENGTH.unpack_from(data, at)
            if not 0 < size <= self.limits.request_bytes_max:
                return self.close(f"a request of {size} bytes")
            if at + 4 + size > end:
                return self._begin(data[at:], size)
            self._account(size)
            self.waiting.append(bytes(data[at + 4 : at + 4 + size]))
            at += 4 + size
        self._rest = bytes(data[at:])
        return None

    def _begin(self, part: memoryview, size: int) -> None:
        """A frame that is not whole yet gets its own memory, if the budget has room; until then the socket is not read."""
        if size > len(self.server.receive_buffer) and not self.server.request_budget.has_room(size):
            self._rest, self.is_parked = bytes(part), True
            return
        self._account(size)
        self._frame = bytearray(size)
        self._view = memoryview(self._frame)
        self._filled = len(part) - 4
        self._view[: self._filled] = part[4:]

    def _account(self, size: int) -> None:
        self._accounted += size
        self.server.request_budget.take(size)

    # --- requests one after another -----------------------------------------------------------------------------------

    def pump(self) -> None:
        """Handle what waits, as far as order and back pressure allow, then read on or not."""
        if self._is_pumping:
            return
        self._is_pumping = True
        try:
            while self.waiting and not self._is_blocked():
                frame = self.waiting.popleft()
                slot = Slot(self)
                self.slots.append(slot)
                try:
                    self.server.handle(self, slot, frame)
                except Malformed as problem:
                    self.close(str(problem))
                except Exception:
                    self.server.log_failure(self)
                    self.close("its request failed here")
                self._account(-min(len(frame), self._accounted))  # nothing is left to give back after a close
                if len(self.slots) >= self.limits.in_flight_max:
                    self._flush()  # answers that are ready must not hold back the requests behind them
        finally:
            self._is_pumping = False
        self._flush()
        self._read_or_not()

    def _is_blocked(self) -> bool:
        if self.is_closed or self.is_write_paused or len(self.slots) >= self.limits.in_flight_max:
            return True
        return bool(self.slots) and not (self.slots[-1].is_filled or self.slots[-1].lets_next)

    def _read_or_not(self) -> None:
        if self.is_closed or self.transport is None:
            return
        full = len(self.waiting) >= self.limits.in_flight_max or (self.is_write_paused and bool(self.waiting))
        # A frame half received may be finished when the budget is spent: it holds its memory already.
        lacks_budget = self.is_parked or (self._view is None and self.server.request_budget.is_spent)
        if lacks_budget:
            self.server.without_budget[self] = None
        full = full or lacks_budget
        if full and not self.is_read_paused:
            self.is_read_paused = True
            self.transport.pause_reading()
        elif not full and self.is_read_paused:
            self.is_read_paused = False
            self.transport.resume_reading()

    def read_again(self) -> None:
        """The request budget has room again."""
        if self.is_parked and not self.is_closed:
            self.is_parked = False
            self._take(memoryview(b""))
        self._read_or_not()

    # --- answers in order ---------------------------------------------------------------------------------------------

    def on_filled(self) -> None:
        if self._is_pumping or self.is_closed:
            return
        self._flush()
        if self.waiting:
            self.pump()
        elif self.is_read_paused:
            self._read_or_not()

    def _flush(self) -> None:
        if self.is_closed or self.transport is None:
            return
        buffers: list[Buffer] = []
        fetch_bytes = 0
        while self.slots and self.slots[0].is_filled:
            slot = self.slots.popleft()
            buffers.extend(slot.answer)
            fetch_bytes += slot.fetch_bytes
        if not buffers:
            return
        if len(buffers) == 1:
            self.transport.write(buffers[0])
        else:
            self.transport.writelines(buffers)
        if fetch_bytes:
            self._unsent_fetch_bytes += fetch_bytes
            if not self.is_write_paused:
                self.server.fetch_budget.give_back(self._unsent_fetch_bytes)
                self._unsent_fetch_bytes = 0

    def close(self, why: str) -> None:
        """Cut the client off; what waits is dropped."""
        if self.is_closed:
            return
        self.server.log_closed(self, why)
        self.is_closed = True
        if self.transport is not None:
            self.transport.abort()

    def check(self, now: float) -> None:
        """Called now and then: cut off who stalls. Taking a few bytes is not stalling."""
        if self.is_write_paused and self.transport is not None:
            unsent_bytes = self.transport.get_write_buffer_size()
            if unsent_bytes != self._unsent_bytes:
                self._unsent_bytes, self.stalled_since = unsent_bytes, now
        if self.stalled_since is not None and now - self.stalled_since > self.limits.stall_seconds_max:
            self.close(f"took no answer for {now - self.stalled_since:.0f} s")
        elif (self._view is not None or self._rest) and now - self.heard_at > self.limits.stall_seconds_max and not self.is_read_paused:
            self.close(f"sent nothing of a begun request for {now - self.heard_at:.0f} s")
        elif not self.slots and now - self.heard_at > self.limits.idle_seconds_max:
            self.close(f"idle for {now - self.heard_at:.0f} s")
