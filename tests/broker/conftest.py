from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.broker.wire import Wire

from penstock.broker.embedded import Embedded


@pytest.fixture
def wire(penstock_broker: Embedded) -> Iterator[Wire]:
    with Wire(penstock_broker.address) as connection:
        yield connection
