"""The watermark is the minimum over active partitions, and never goes back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.kernels.envelope import ACTIVE, ENDED, IDLE, Times
from penstock.kernels.kernel import FOREVER_US, NEVER_US
from penstock.kernels.watermark import TimeInput, Tracker

ONE = (TimeInput(1, lateness_us=3),)


def heard(tracker: Tracker, source: int, *times: Times, now_us: int = 0) -> int:
    tracker.hear(source, times, now_us)
    return tracker.advance(now_us)


def test_it_is_the_slowest_partition_minus_the_lateness() -> None:
    tracker = Tracker.start(ONE)
    assert heard(tracker, 1, Times(0, 10), Times(1, 20)) == 7
    assert heard(tracker, 1, Times(0, 30)) == 17


def test_records_of_the_past_do_not_move_it_back() -> None:
    tracker = Tracker.start(ONE)
    assert heard(tracker, 1, Times(0, 10)) == 7
    assert heard(tracker, 1, Times(0, 2)) == 7
    assert heard(tracker, 1, Times(1, 1)) == 7, "a new partition holds it, but does not pull it back"
    assert heard(tracker, 1, Times(0, 50)) == 7
    assert heard(tracker, 1, Times(1, 20)) == 17


def test_a_declared_sender_that_is_silent_holds_it() -> None:
    tracker = Tracker.start((TimeInput(1), TimeInput(2, input=1)))
    assert heard(tracker, 1, Times(0, 10)) == NEVER_US
    assert heard(tracker, 2, Times(0, 4)) == 4


def test_a_partition_without_records_holds_it_until_it_times_out() -> None:
    tracker = Tracker.start((TimeInput(1, idle_us=100),))
    assert heard(tracker, 1, Times(0, 10), Times(1, NEVER_US)) == NEVER_US
    assert heard(tracker, 1, Times(0, 20), Times(1, NEVER_US), now_us=99) == NEVER_US
    assert heard(tracker, 1, Times(0, 30), Times(1, NEVER_US), now_us=100) == 30


def test_a_timed_out_partition_counts_again_with_its_next_record() -> None:
    tracker = Tracker.start((TimeInput(1, idle_us=100),))
    heard(tracker, 1, Times(0, 10), Times(1, 5))
    assert heard(tracker, 1, Times(0, 30), now_us=150) == 30
    assert heard(tracker, 1, Times(1, 8), now_us=160) == 30
    assert heard(tracker, 1, Times(0, 50), now_us=170) == 30, "held by partition 1, which is at 8"
    assert heard(tracker, 1, Times(1, 40), now_us=180) == 40


def test_a_whole_silent_sender_times_out_too() -> None:
    tracker = Tracker.start((TimeInput(1), TimeInput(2, idle_us=50)))
    assert heard(tracker, 1, Times(0, 10), now_us=1_000) == NEVER_US
    assert heard(tracker, 1, Times(0, 12), now_us=1_050) == 12


def test_when_all_are_idle_it_stands_still() -> None:
    tracker = Tracker.start((TimeInput(1, idle_us=10),))
    heard(tracker, 1, Times(0, 10))
    assert tracker.advance(1_000_000) == 10


def test_a_partition_called_idle_stays_so_until_it_has_data() -> None:
    tracker = Tracker.start((TimeInput(1),))
    assert heard(tracker, 1, Times(0, 10), Times(1, 3)) == 3
    assert heard(tracker, 1, Times(1, NEVER_US, IDLE)) == 10
    assert heard(tracker, 1, Times(0, 20), Times(1, NEVER_US, ACTIVE)) == 20
    assert heard(tracker, 1, Times(0, 30), Times(1, 21)) == 21


def test_ended_partitions_do_not_count_and_all_ended_is_forever() -> None:
    tracker = Tracker.start((TimeInput(1), TimeInput(2)))
    assert heard(tracker, 2, Times(0, NEVER_US, ACTIVE, 9)) == NEVER_US
    assert heard(tracker, 1, Times(0, 10), Times(1, 3, ENDED)) == 9
    assert heard(tracker, 1, Times(0, 10, ENDED)) == 9
    assert heard(tracker, 2, Times(0, NEVER_US, ENDED, FOREVER_US)) == FOREVER_US


def test_a_partition_that_has_ended_stays_so_whoever_speaks_of_it_last() -> None:
    tracker = Tracker.start((TimeInput(1),))
    tracker.hear(1, [Times(0, 5, ENDED), Times(0, 5, ACTIVE)], 0)
    assert tracker.advance(0) == FOREVER_US


def test_a_senders_own_watermark_is_taken_as_it_is() -> None:
    tracker = Tracker.start((TimeInput(1, lateness_us=5),))
    assert heard(tracker, 1, Times(0, NEVER_US, ACTIVE, 42)) == 42


def test_senders_that_were_not_declared_do_not_concern_the_stage() -> None:
    tracker = Tracker.start(ONE)
    tracker.hear(9, [Times(0, 1_000)], 0)
    assert tracker.advance(0) == NEVER_US


SAYINGS = st.lists(
    st.tuples(
        st.sampled_from([1, 2]),
        st.integers(0, 3),
        st.one_of(st.just(NEVER_US), st.integers(-100, 100)),
        st.sampled_from([ACTIVE, ACTIVE, ACTIVE, IDLE, ENDED]),
        st.integers(0, 20),
        st.booleans(),
    ),
    max_size=40,
)


@given(SAYINGS)
def test_it_never_goes_back_and_a_restart_changes_nothing(sayings: list[tuple[int, int, int, int, int, bool]]) -> None:
    inputs = (TimeInput(1, lateness_us=2, idle_us=30), TimeInput(2))
    undisturbed, restarted = Tracker.start(inputs), Tracker.start(inputs)
    now_us = 0
    before_us = NEVER_US
    for source, partition, greatest_us, state, passed_us, restart in sayings:
        now_us += passed_us
        if restart:
            restarted = Tracker.restore(inputs, restarted.save())
        times = Times(partition, greatest_us, state)
        after_us = heard(undisturbed, source, times, now_us=now_us)
        assert heard(restarted, source, times, now_us=now_us) == after_us
        assert after_us >= before_us
        before_us = after_us


def test_a_partition_that_has_ended_stays_ended_whoever_speaks_of_it_last() -> None:
    tracker = Tracker.start((TimeInput(1),))
    tracker.hear(1, [Times(0, 5, ENDED)], now_us=0)
    tracker.hear(1, [Times(0, 5)], now_us=0)
    assert tracker.advance(now_us=0) == FOREVER_US
