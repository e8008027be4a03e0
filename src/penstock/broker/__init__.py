"""The broker: a Kafka protocol server on the log. `penstock.broker()` starts one: `with penstock.broker() as b: b.address`."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.broker.embedded import Embedded


class _Package(ModuleType):
    # The package has the name that a user wants to call, so the package itself is callable; the work is in embedded.py.
    def __call__(
        self, data: str | Path | None = None, *, port: int = 0, host: str = "127.0.0.1", durability: str = "group", partitions: int = 1
    ) -> AbstractContextManager[Embedded]:
        """A broker while a `with` block runs; see `penstock.broker.embedded.broker`."""
        from penstock.broker.embedded import broker

        return broker(data, port=port, host=host, durability=durability, partitions=partitions)


sys.modules[__name__].__class__ = _Package
