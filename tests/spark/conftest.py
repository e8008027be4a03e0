"""One Spark session for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.profile import Profile


@pytest.fixture(scope="session")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Profile:
    return Profile(data=Path(tmp_path_factory.mktemp("data")), spark="local[2]")


@pytest.fixture(scope="session")
def spark(profile: Profile) -> Iterator[Any]:
    from penstock.spark.session import session, stop_session

    yield session(profile, quick=True)
    stop_session()
