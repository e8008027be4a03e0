"""The state machine of a consumer group: transcripts of joins, syncs and time."""

from __future__ import annotations

import random
from typing import Any

import pytest

from penstock.broker.group import Group, GroupLimits, Joined, JoinRequest, State, Synced
from penstock.protocol.error import Error

LIMITS = GroupLimits(initial_delay_ms=50, members_max=20)


class Script:
    """A group, a clock moved by hand, and the answers that came so far by the name of who asked."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.count = 0
        self.stored = 0
        self.answers: dict[str, Any] = {}
        self.group = Group("g", LIMITS, self._new_id, self._on_change)

    def _new_id(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}-{self.count}"

    def _on_change(self, group: Group) -> None:
        self.stored += 1

    def pass_ms(self, ms: int) -> None:
        self.now_ms += ms
        self.group.tick(now_ms=self.now_ms)

    def join(self, who: str, member_id: str = "", *, instance: str | None = None, protocols: tuple[tuple[str, bytes], ...] = (("range", b"m"),),
             needs_id: bool = False, skips: bool = False, session_ms: int = 10_000, rebalance_ms: int = 30_000, kind: str = "consumer") -> None:  # fmt: skip
        self.answers.pop(who, None)
        request = JoinRequest(
            member_id=member_id, instance_id=instance, client_id=who, host="h", session_ms=session_ms, rebalance_ms=rebalance_ms, protocol_type=kind,
            protocols=protocols, needs_member_id=needs_id, skips_assignment=skips,
        )  # fmt: skip
        self.group.join(request, lambda answer: self.answers.__setitem__(who, answer), now_ms=self.now_ms)

    def sync(
        self, who: str, member_id: str, generation: int, *, instance: str | None = None, given: dict[str, bytes] | None = None
    ) -> None:
        self.answers.pop(who, None)
        self.group.sync(
            member_id,
            instance,
            generation,
            list((given or {}).items()),
            lambda answer: self.answers.__setitem__(who, answer),
            now_ms=self.now_ms,
        )

    def stable(self, *names: str, **options: Any) -> list[Joined]:
        """These members joined and synced; what they were told."""
        for name in names:
            self.join(name, **options)
        self.pass_ms(50)
        joined = [self.answers[name] for name in names]
        leader = next(answer for answer in joined if answer.member_id == answer.leader)
        ids = [answer.member_id for answer in joined]
        for name, answer in zip(names, joined):
            given = {member: member.encode() for member in ids} if answer is leader else None
            self.sync(name, answer.member_id, answer.generation, given=given)
        assert all(self.answers[name].assignment == answer.member_id.encode() for name, answer in zip(names, joined))
        return joined


def test_members_started_together_share_the_first_generation() -> None:
    script = Script()
    one, two = script.stable("one", "two")
    assert one.generation == two.generation == 1
    assert [len(answer.members) for answer in (one, two)] == [2, 0], "only the leader sees the members"
    assert script.group.state is State.STABLE


def test_a_new_member_is_first_told_its_id() -> None:
    script = Script()
    script.join("one", needs_id=True)
    told = script.answers["one"]
    assert told.error is Error.MEMBER_ID_REQUIRED
    script.join("one", told.member_id, needs_id=True)
    script.pass_ms(50)
    assert script.answers["one"].error is Error.NONE
    script.join("stranger", "nobody-knows-me")
    assert script.answers["stranger"].error is Error.UNKNOWN_MEMBER_ID


def test_a_second_member_makes_the_first_join_again() -> None:
    script = Script()
    (one,) = script.stable("one")
    script.join("two")
    assert script.group.heartbeat(one.member_id, None, 1, now_ms=script.now_ms) is Error.REBALANCE_IN_PROGRESS
    assert "two" not in script.answers
    script.join("one", one.member_id)
    assert script.answers["one"].generation == script.answers["two"].generation == 2
    script.sync("two", script.answers["two"].member_id, 2)
    assert "two" not in script.answers, "the leader has not assigned yet"
    assert script.group.state is State.COMPLETING


def test_who_does_not_come_back_is_left_out() -> None:
    script = Script()
    one, two = script.stable("one", "two")
    script.join("three")
    script.join("one", one.member_id)
    for _ in range(30):
        script.pass_ms(1_000)  # no heartbeat of two: its session ends before the rebalance does
    assert script.answers["three"].generation == 2
    assert two.member_id not in script.group.members
    assert script.group.heartbeat(two.member_id, None, 1, now_ms=script.now_ms) is Error.UNKNOWN_MEMBER_ID


def test_a_member_that_falls_silent_is_removed_and_the_rest_rebalance() -> None:
    script = Script()
    one, two = script.stable("one", "two")
    script.pass_ms(9_000)
    assert script.group.heartbeat(one.member_id, None, 1, now_ms=script.now_ms) is Error.NONE
    script.pass_ms(1_001)
    assert two.member_id not in script.group.members
    assert script.group.heartbeat(one.member_id, None, 1, now_ms=script.now_ms) is Error.REBALANCE_IN_PROGRESS
    script.join("one", one.member_id)
    assert script.answers["one"].generation == 2


def test_a_leaving_member_does_not_make_the_others_wait() -> None:
    script = Script()
    one, two = script.stable("one", "two")
    assert script.group.leave(two.member_id, None, now_ms=script.now_ms) is Error.NONE
    script.join("one", one.member_id)
    assert script.answers["one"].generation == 2
    assert script.group.leave(one.member_id, None, now_ms=script.now_ms) is Error.NONE
    assert script.group.state is State.EMPTY
    assert script.group.leave(one.member_id, None, now_ms=script.now_ms) is Error.UNKNOWN_MEMBER_ID


def test_a_follower_that_asks_again_gets_the_same_generation_and_a_leader_a_new_one() -> None:
    script = Script()
    one, two = script.stable("one", "two")
    follower, leader = (one, two) if two.leader == two.member_id else (two, one)
    script.join("again", follower.member_id)
    assert script.answers["again"].generation == 1
    script.join("again", leader.member_id)
    assert "again" not in script.answers
    assert script.group.state is State.PREPARING


def test_a_static_member_comes_back_without_a_rebalance_and_fences_its_former_self() -> None:
    script = Script()
    (first,) = script.stable("one", instance="i1")
    script.join("one", instance="i1", skips=True)
    back = script.answers["one"]
    assert (back.error, back.generation, back.skip_assignment) == (Error.NONE, 1, True)
    assert back.member_id != first.member_id
    script.sync("one", back.member_id, 1, instance="i1")
    assert script.answers["one"].assignment == first.member_id.encode(), "it keeps what it had"
    assert script.group.heartbeat(first.member_id, "i1", 1, now_ms=script.now_ms) is Error.FENCED_INSTANCE_ID
    assert script.group.check_commit(first.member_id, "i1", 1, transactional=False, now_ms=0) is Error.FENCED_INSTANCE_ID


def test_an_old_static_leader_is_not_told_that_it_leads() -> None:
    script = Script()
    (first,) = script.stable("one", instance="i1")
    script.join("one", instance="i1")
    back = script.answers["one"]
    assert back.leader == first.member_id != back.member_id
    assert back.members == ()


def test_a_static_member_with_another_subscription_rebalances() -> None:
    script = Script()
    script.stable("one", instance="i1")
    script.join("one", instance="i1", protocols=(("range", b"other"),))
    assert script.answers["one"].generation == 2


def test_a_static_member_keeps_its_place_while_the_others_rebalance() -> None:
    script = Script()
    script.join("static", instance="i1")
    script.join("one")
    script.pass_ms(50)
    static, one = script.answers["static"], script.answers["one"]
    script.sync("static", static.member_id, 1, instance="i1")
    script.sync("one", one.member_id, 1, given={static.member_id: b"s", one.member_id: b"o"})
    script.join("one", one.member_id, protocols=(("range", b"new"),), rebalance_ms=5_000)
    script.pass_ms(9_999)
    assert static.member_id in script.group.members
    script.pass_ms(2)
    assert static.member_id not in script.group.members, "its session has ended"


def test_the_protocol_all_know_with_most_votes_is_chosen() -> None:
    script = Script()
    script.join("one", protocols=(("a", b""), ("b", b"")))
    script.join("two", protocols=(("b", b""), ("c", b"")))
    script.join("three", protocols=(("z", b""),))
    assert script.answers["three"].error is Error.INCONSISTENT_GROUP_PROTOCOL
    script.join("four", protocols=(("b", b""),), kind="connect")
    assert script.answers["four"].error is Error.INCONSISTENT_GROUP_PROTOCOL
    script.pass_ms(50)
    assert script.answers["one"].protocol == "b"


def test_commits_are_for_members_of_this_generation_or_for_empty_groups() -> None:
    script = Script()

    def check(member: str, generation: int, *, transactional: bool = False) -> Error:
        return script.group.check_commit(member, None, generation, transactional=transactional, now_ms=script.now_ms)

    assert check("", -1) is Error.NONE
    (one,) = script.stable("one")
    assert check("", -1) is Error.UNKNOWN_MEMBER_ID
    assert check("", -1, transactional=True) is Error.NONE
    assert check(one.member_id, 1) is Error.NONE
    assert check(one.member_id, 0) is Error.ILLEGAL_GENERATION
    assert check("other", 1) is Error.UNKNOWN_MEMBER_ID
    script.join("one", one.member_id, protocols=(("range", b"2"),))
    assert check(one.member_id, 2) is Error.REBALANCE_IN_PROGRESS


def test_limits_are_kept() -> None:
    script = Script()
    script.join("one", session_ms=LIMITS.session_ms_max + 1)
    assert script.answers["one"].error is Error.INVALID_SESSION_TIMEOUT
    for number in range(LIMITS.members_max):
        script.join(str(number))
    script.join("one too many")
    assert script.answers["one too many"].error is Error.GROUP_MAX_SIZE_REACHED


def test_a_leader_that_never_assigns_is_dropped() -> None:
    script = Script()
    script.join("one")
    script.join("two")
    script.pass_ms(50)
    one, two = script.answers["one"], script.answers["two"]
    leader, follower = (one, two) if one.leader == one.member_id else (two, one)
    script.sync("follower", follower.member_id, 1)
    for _ in range(31):
        script.pass_ms(1_000)
        script.group.heartbeat(leader.member_id, None, 1, now_ms=script.now_ms)
    assert leader.member_id not in script.group.members
    assert script.answers["follower"].error is Error.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize("seed", range(20))
def test_every_question_is_answered_once_whatever_happens(seed: int) -> None:
    """Random calls: an asker is never answered twice, and all are answered once time passes."""
    print("seed", seed)
    rng = random.Random(seed)
    script = Script()
    asked = answered = 0
    ids: list[str] = []

    def reply(answer: Joined | Synced) -> None:
        nonlocal answered
        answered += 1
        if isinstance(answer, Joined) and answer.member_id and answer.member_id not in ids:
            ids.append(answer.member_id)

    for _ in range(400):
        member = rng.choice([*ids, ""]) if ids else ""
        instance = rng.choice([None, None, "i1", "i2"])
        generation = script.group.generation
        match rng.randrange(5):
            case 0 | 1:
                asked += 1
                request = JoinRequest(
                    member_id=member, instance_id=instance, client_id="c", host="h", session_ms=rng.randrange(100, 2000), rebalance_ms=rng.randrange(100, 3000),
                    protocol_type="consumer", protocols=(("range", rng.randbytes(1)),), needs_member_id=rng.random() < 0.5,
                )  # fmt: skip
                script.group.join(request, reply, now_ms=script.now_ms)
            case 2:
                asked += 1
                script.group.sync(member, instance, generation, [(each, b"x") for each in ids], reply, now_ms=script.now_ms)
            case 3:
                script.group.leave(member, instance, now_ms=script.now_ms)
            case 4:
                script.pass_ms(rng.randrange(500))
        group = script.group
        assert group.state is not State.STABLE or group.members
        assert set(group.static.values()) <= set(group.members)
        assert group.leader is None or group.leader in group.members
    for _ in range(200):
        script.pass_ms(100)
    assert answered == asked
    assert script.group.state is State.EMPTY
    assert script.group.deadline_ms() is None
