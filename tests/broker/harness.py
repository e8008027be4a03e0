"""A broker inside the test process, on a thread of its own, with limits of the test's choice."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

from penstock.broker.apis import APIS
from penstock.broker.limits import Limits
from penstock.broker.node import Node
from penstock.broker.server import Server
from penstock.log import Storage

T = TypeVar("T")


class Inside:
    """The running broker; `call` runs a function on its thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, node: Node, server: Server) -> None:
        self.loop, self.node, self.server = loop, node, server
        self.address = f"127.0.0.1:{node.port}"

    def call(self, function: Callable[[], Any]) -> Any:
        async def run() -> Any:
            return function()

        return self.run(run())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(20)


@contextlib.contextmanager
def inside(data: Path, *, limits: Limits | None = None, durability: str = "os", storage: Storage | None = None) -> Iterator[Inside]:
    limits = limits or Limits()
    ready: list[Inside | BaseException] = []
    is_ready = threading.Event()
    stop = asyncio.Event()

    async def serve() -> None:
        try:
            node = await Node.open(data, durability=durability, limits=limits, storage=storage)
            node.server = server = Server(node, APIS, limits)
            node.host = "127.0.0.1"
            _, node.port = await server.start("127.0.0.1", 0)
            ready.append(Inside(asyncio.get_running_loop(), node, server))
        except BaseException as error:
            ready.append(error)
            raise
        finally:
            is_ready.set()
        await stop.wait()
        await server.stop()
        await node.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    is_ready.wait(20)
    running = ready[0]
    if isinstance(running, BaseException):
        thread.join()
        raise running
    try:
        yield running
    finally:
        running.loop.call_soon_threadsafe(stop.set)
        thread.join()
