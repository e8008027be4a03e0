from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.broker.embedded import Embedded
from tests.broker.wire import Wire


@pytest.fixture
def wire(penstock_broker: Embedded) -> Iterator[Wire]:
    with Wire(penstock_broker.address) as connection:
        yield connection
