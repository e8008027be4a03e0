"""A pytest plugin: the fixture `penstock_broker` is a broker for one test session, `penstock_broker.address` its address.

Loaded by pytest in every environment where Penstock is installed, so it imports nothing of Penstock until a test asks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from penstock.broker.embedded import Embedded


@pytest.fixture(scope="session")
def penstock_broker() -> Iterator[Embedded]:
    """A broker with temporary data, at level `os`; it ends with the test session."""
    from penstock.broker.embedded import broker

    with broker(durability="os") as running:
        yield running
