"""The contract, case by case, against the embedded broker and Apache Kafka."""

import pytest

from penstock.testing.contract import CASES, Subject


@pytest.mark.parametrize("name", CASES)
def test_contract(subject: Subject, name: str) -> None:
    CASES[name](subject)
