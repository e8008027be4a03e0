"""Every law of the log is broken once by hand, and the checker names it; a good history passes."""

import random

import pytest

from penstock.testing.history import Assign, Event, Outcome, Poll, Send, check

P = ("t", 0)
Q = ("t", 1)


def sends(*offsets: int | None, producer: str = "p", transaction: str | None = None, prefix: str = "v") -> list[Event]:
    return [Send(producer, P, f"{prefix}{n}", offset, transaction) for n, offset in enumerate(offsets)]


def polls(*pairs: tuple[int, str], consumer: str = "c") -> list[Event]:
    return [Assign(consumer, P), *(Poll(consumer, P, offset, value) for offset, value in pairs)]


def kinds(events: list[Event], **options: object) -> list[str]:
    return [anomaly.kind for anomaly in check(events, **options)]  # type: ignore[arg-type]


def test_a_good_history_has_no_anomaly() -> None:
    events = sends(0, 1, None, 3) + polls((0, "v0"), (1, "v1"), (2, "v2"), (3, "v3"))
    assert check(events, ends={P: 4}) == []


def test_a_send_of_unknown_outcome_may_be_absent() -> None:
    assert check(sends(0, None, 1) + polls((0, "v0"), (1, "v2")), ends={P: 2}) == []


BAD: dict[str, tuple[list[Event], list[str]]] = {
    "acknowledged but not in the log": (sends(0, 1, 2) + polls((0, "v0"), (2, "v2")), ["lost write", "skipped poll"]),
    "acknowledged beyond the end": (sends(0, 1, 2, 3) + polls((0, "v0"), (1, "v1"), (2, "v2")), ["lost write"]),
    "nothing came back at all": (sends(0), ["lost write"]),
    "written twice by a retry": (sends(0, None) + polls((0, "v0"), (1, "v1"), (2, "v1")), ["duplicate"]),
    "elsewhere than acknowledged": (sends(0) + polls((1, "v0")), ["duplicate"]),
    "in another partition": ([*sends(0), *polls((0, "v0")), Poll("c", Q, 0, "v0")], ["duplicate"]),
    "two values acknowledged at one offset": (
        [Send("p", P, "a", 0), Send("q", P, "b", 0), *polls((0, "a"))],
        ["inconsistent offset", "lost write"],
    ),
    "the record at an offset changed": (sends(0, None) + polls((0, "v0")) + polls((0, "v1"), consumer="d"), ["inconsistent offset"]),
    "a consumer went back": (sends(0, 1) + polls((0, "v0"), (1, "v1"), (0, "v0")), ["non-monotonic poll"]),
    "a consumer got the same again": (sends(0) + polls((0, "v0"), (0, "v0")), ["non-monotonic poll"]),
    "a consumer jumped": (sends(0, 1, 2) + polls((0, "v0"), (2, "v2")) + polls((1, "v1")), ["skipped poll"]),
    "sends changed places": (sends(1, 0) + polls((0, "v1"), (1, "v0")), ["non-monotonic send"]),
    "an aborted record was delivered": ([*sends(0, transaction="x"), Outcome("x", False), *polls((0, "v0"))], ["aborted read"]),
    "half of a committed transaction": ([*sends(0, 1, transaction="x"), Outcome("x", True), *polls((0, "v0"))], ["lost write"]),
    "a value from nowhere": (polls((0, "ghost")), ["unsent read"]),
}


@pytest.mark.parametrize("name", BAD)
def test_a_broken_law_is_named(name: str) -> None:
    events, expected = BAD[name]
    found = check(events, ends={P: 3})
    assert sorted(anomaly.kind for anomaly in found) == sorted(expected), "\n".join(map(str, found))
    assert all(str(anomaly).startswith(f"{anomaly.kind} in t/") for anomaly in found)


def test_an_aborted_transaction_may_leave_gaps() -> None:
    events = [*sends(0, 1, transaction="x"), Outcome("x", False), Send("q", P, "w", 3), *polls((3, "w"))]
    assert check(events, ends={P: 4}) == []


def test_an_unknown_transaction_may_be_seen_or_not() -> None:
    events = [*sends(0, transaction="x"), Outcome("x", None)]
    assert check(events, ends={P: 2}) == []
    assert check(events + polls((0, "v0")), ends={P: 2}) == []


def test_a_consumer_that_asked_for_everything_may_see_aborted_records() -> None:
    events = [*sends(0, transaction="x"), Outcome("x", False), *polls((0, "v0"))]
    assert kinds(events) == ["aborted read"]
    assert kinds(events, read_committed=False) == []


def test_after_an_assignment_a_consumer_may_start_anywhere() -> None:
    events = sends(0, 1, 2) + polls((1, "v1"), (2, "v2")) + polls((0, "v0"), (1, "v1"))
    assert check(events, ends={P: 3}) == []


def test_any_single_change_of_a_long_history_is_found() -> None:
    """Mutate one poll of a good history in each way that breaks a law; none may pass."""
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    count = 60
    base = sends(*range(count))
    for _ in range(200):
        seen = [(n, f"v{n}") for n in range(count)]
        n = rng.randrange(count - 1)
        match rng.randrange(4):
            case 0:
                del seen[n]
            case 1:
                seen[n], seen[n + 1] = seen[n + 1], seen[n]
            case 2:
                seen[n] = (n, f"v{n + 1}")
            case 3:
                seen.insert(n, seen[n])
        assert check(base + polls(*seen), ends={P: count}) != []
