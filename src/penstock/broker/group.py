"""One consumer group: who is in it, which generation it is in, and who reads what. A state machine without sockets or clock.

    EMPTY ──join──▶ PREPARING ──all joined or time is up──▶ COMPLETING ──leader's sync──▶ STABLE
      ▲                 ▲  └──────── a member joins, leaves, changes or dies ◀───────────────┘
      └─ last one left ─┘

Members wait for each other, so an answer may come later than the call: `join` and `sync` take a function that is called once with the answer,
at once or from a later call. `tick` is what makes time pass; `deadline_ms` says when it must be called next.

Invariants: a member's answer function is called exactly once; every member of a STABLE group has an assignment; the generation only grows;
a static member (with an instance id) keeps its place while its process restarts.
Not here: offsets, the assignment itself (the leader's work, opaque bytes), storage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from penstock.protocol.error import Error


class State(Enum):
    """The names are those that DescribeGroups shows."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """Bounds on what a member may ask for."""

    session_ms_min: int = 1
    session_ms_max: int = 1_800_000
    rebalance_ms_max: int = 3_600_000
    members_max: int = 1_000
    member_bytes_max: int = 1 << 20
    initial_delay_ms: int = 50  # so that members started together share the first generation; Kafka waits 3 s


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    session_ms: int
    rebalance_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    needs_member_id: bool = True  # from JoinGroup 4 on a new member is first told its id
    skips_assignment: bool = False  # from JoinGroup 9 on a leader can be told not to assign


class Joined(NamedTuple):
    """The answer to a join. Only the leader sees the members."""

    error: Error
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: Sequence[tuple[str, str | None, bytes]] = ()
    skip_assignment: bool = False


class Synced(NamedTuple):
    error: Error
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(slots=True, kw_only=True)
class Member:
    id: str
    instance_id: str | None
    client_id: str
    host: str
    session_ms: int
    rebalance_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes = b""
    expires_ms: int = 0
    on_joined: Callable[[Joined], None] | None = None
    on_synced: Callable[[Synced], None] | None = None

    @property
    def waits(self) -> bool:
        return self.on_joined is not None or self.on_synced is not None

    def metadata(self, protocol: str | None) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def answer_join(self, answer: Joined) -> None:
        if (reply := self.on_joined) is not None:
            self.on_joined = None
            reply(answer)

    def answer_sync(self, answer: Synced) -> None:
        if (reply := self.on_synced) is not None:
            self.on_synced = None
            reply(answer)


@dataclass(slots=True)
class Group:
    """A group by its id. `on_change` is called whenever members or assignments changed and should be stored."""

    id: str
    limits: GroupLimits
    new_member_id: Callable[[str], str]
    on_change: Callable[[Group], None] = lambda group: None
    state: State = State.EMPTY
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    static: dict[str, str] = field(default_factory=dict)  # instance id → member id
    pending: dict[str, int] = field(default_factory=dict)  # ids given out and not yet joined → when they lapse
    rebalance_at_ms: int | None = None
    rebalance_latest_ms: int = 0
    sync_at_ms: int | None = None
    empty_since_ms: int = 0
    is_first_rebalance: bool = False

    # --- join ---------------------------------------------------------------------------------------------------------

    def join(self, request: JoinRequest, reply: Callable[[Joined], None], *, now_ms: int) -> None:
        if (error := self._refuses(request)) is not Error.NONE:
            return reply(Joined(error, request.member_id))
        if request.member_id == "":
            return self._join_unknown(request, reply, now_ms)
        return self._join_known(request, reply, now_ms)

    def _refuses(self, request: JoinRequest) -> Error:
        limits = self.limits
        if self.state is State.DEAD:
            return Error.COORDINATOR_NOT_AVAILABLE
        if not limits.session_ms_min <= request.session_ms <= limits.session_ms_max:
            return Error.INVALID_SESSION_TIMEOUT
        if not request.protocol_type or not request.protocols:
            return Error.INCONSISTENT_GROUP_PROTOCOL
        if sum(len(metadata) for _, metadata in request.protocols) > limits.member_bytes_max:
            return Error.GROUP_MAX_SIZE_REACHED
        is_new = request.member_id not in self.members and request.instance_id not in self.static
        if is_new and len(self.members) + (request.member_id not in self.pending) * len(self.pending) >= limits.members_max:
            return Error.GROUP_MAX_SIZE_REACHED
        if self.members:
            common = self._common_protocols(leaving_out=request.member_id or self.static.get(request.instance_id or ""))
            if request.protocol_type != self.protocol_type or (common is not None and not common & {name for name, _ in request.protocols}):
                return Error.INCONSISTENT_GROUP_PROTOCOL
        return Error.NONE

    def _join_unknown(self, request: JoinRequest, reply: Callable[[Joined], None], now_ms: int) -> None:
        member_id = self.new_member_id(request.instance_id or request.client_id)
        if request.instance_id is not None:
            if request.instance_id in self.static:
                return self._replace_static(request, member_id, reply, now_ms)
            return self._add(request, member_id, reply, now_ms)
        if request.needs_member_id:
            self.pending[member_id] = now_ms + request.session_ms
            return reply(Joined(Error.MEMBER_ID_REQUIRED, member_id))
        return self._add(request, member_id, reply, now_ms)

    def _join_known(self, request: JoinRequest, reply: Callable[[Joined], None], now_ms: int) -> None:
        member_id = request.member_id
        if request.instance_id is None and member_id in self.pending:
            del self.pending[member_id]
            return self._add(request, member_id, reply, now_ms)
        if (error := self._identity(member_id, request.instance_id)) is not Error.NONE:
            return reply(Joined(error, member_id))
        member = self.members[member_id]
        unchanged = member.protocols == request.protocols
        if self.state is State.COMPLETING and unchanged:
            return reply(self._joined(member))  # its answer was lost on the way
        if self.state is State.STABLE and unchanged and member_id != self.leader:
            return reply(self._joined(member))
        return self._rejoin(member, request, reply, now_ms)

    def _identity(self, member_id: str, instance_id: str | None) -> Error:
        """Whether these two name one member of the group."""
        if instance_id is not None:
            if (holder := self.static.get(instance_id)) is None:
                return Error.UNKNOWN_MEMBER_ID
            if holder != member_id:
                return Error.FENCED_INSTANCE_ID
        return Error.NONE if member_id in self.members else Error.UNKNOWN_MEMBER_ID

    def _add(self, request: JoinRequest, member_id: str, reply: Callable[[Joined], None], now_ms: int) -> None:
        if not self.members:
            self.protocol_type = request.protocol_type
        self.members[member_id] = Member(
            id=member_id,
            instance_id=request.instance_id,
            client_id=request.client_id,
            host=request.host,
            session_ms=request.session_ms,
            rebalance_ms=self._rebalance_ms(request),
            protocols=request.protocols,
            on_joined=reply,
        )
        if request.instance_id is not None:
            self.static[request.instance_id] = member_id
        if self.leader is None:
            self.leader = member_id
        self._touch(self.members[member_id], now_ms)
        self._prepare(now_ms, is_new_member=True)

    def _rejoin(self, member: Member, request: JoinRequest, reply: Callable[[Joined], None], now_ms: int) -> None:
        # A client that asks again has given up on its first question.
        member.answer_join(Joined(Error.REBALANCE_IN_PROGRESS, member.id))
        member.protocols = request.protocols
        member.session_ms, member.rebalance_ms = request.session_ms, self._rebalance_ms(request)
        member.client_id, member.host = request.client_id, request.host
        member.on_joined = reply
        self._touch(member, now_ms)
        self._prepare(now_ms)

    def _replace_static(self, request: JoinRequest, member_id: str, reply: Callable[[Joined], None], now_ms: int) -> None:
        """A static member came back under a new member id; the old id is fenced. A stable group does not rebalance for it."""
        assert request.instance_id is not None
        old = self.members.pop(self.static[request.instance_id])
        old.answer_join(Joined(Error.FENCED_INSTANCE_ID, old.id))
        old.answer_sync(Synced(Error.FENCED_INSTANCE_ID))
        was_leader = self.leader == old.id
        member = Member(
            id=member_id,
            instance_id=request.instance_id,
            client_id=request.client_id,
            host=request.host,
            session_ms=request.session_ms,
            rebalance_ms=self._rebalance_ms(request),
            protocols=request.protocols,
            assignment=old.assignment,
        )
        self.members[member_id] = member
        self.static[request.instance_id] = member_id
        if was_leader:
            self.leader = member_id
        self._touch(member, now_ms)
        if (
            self.state is not State.STABLE
            or old.metadata(self.protocol) != member.metadata(self.protocol)
            or self._choose() != self.protocol
        ):
            member.on_joined = reply
            return self._prepare(now_ms)
        self.on_change(self)
        answer = self._joined(member)
        if request.skips_assignment:
            return reply(answer._replace(skip_assignment=was_leader))
        # An old client that is told it leads would assign anew: it is told the id that led before.
        return reply(answer._replace(leader=old.id if was_leader else answer.leader, members=()))

    def _rebalance_ms(self, request: JoinRequest) -> int:
        wanted = request.rebalance_ms if request.rebalance_ms > 0 else request.session_ms
        return min(wanted, self.limits.rebalance_ms_max)

    # --- the rebalance ------------------------------------------------------------------------------------------------

    def _prepare(self, now_ms: int, *, is_new_member: bool = False) -> None:
        """Everyone must join again. What waits for an assignment of the old generation is told so."""
        if self.state is not State.PREPARING:
            for member in self.members.values():
                member.assignment = b"" if self.state is State.COMPLETING else member.assignment
                member.answer_sync(Synced(Error.REBALANCE_IN_PROGRESS))
                self._touch(member, now_ms)
            first = self.state is State.EMPTY
            patience_ms = max((member.rebalance_ms for member in self.members.values()), default=0)
            self.rebalance_latest_ms = now_ms + patience_ms
            self.rebalance_at_ms = now_ms + (min(self.limits.initial_delay_ms, patience_ms) if first else patience_ms)
            self.state, self.sync_at_ms = State.PREPARING, None
            self.is_first_rebalance = first
        elif is_new_member and self.is_first_rebalance:
            self.rebalance_at_ms = min(now_ms + self.limits.initial_delay_ms, self.rebalance_latest_ms)
        self._maybe_complete(now_ms)

    def _maybe_complete(self, now_ms: int) -> None:
        if self.state is not State.PREPARING or self.rebalance_at_ms is None:
            return
        everyone = not self.pending and all(member.on_joined is not None for member in self.members.values())
        time_is_up = now_ms >= self.rebalance_at_ms
        if time_is_up and self.is_first_rebalance and not everyone and now_ms < self.rebalance_latest_ms:
            self.rebalance_at_ms, self.is_first_rebalance, time_is_up = self.rebalance_latest_ms, False, False
        if time_is_up or (everyone and not self.is_first_rebalance):
            self._complete(now_ms)

    def _complete(self, now_ms: int) -> None:
        """Close the joining phase: those who did not come are out, except static members, who keep their place until their session ends."""
        for member in [m for m in self.members.values() if m.on_joined is None and m.instance_id is None]:
            self._drop(member)
        present = [member for member in self.members.values() if member.on_joined is not None]
        if not self.members:
            return self._become_empty(now_ms)
        if not present:
            self.rebalance_at_ms = now_ms + max(member.rebalance_ms for member in self.members.values())
            return None
        if self.leader not in {member.id for member in present}:
            self.leader = present[0].id
        self.generation += 1
        self.protocol = self._choose()
        self.state, self.rebalance_at_ms = State.COMPLETING, None
        self.sync_at_ms = now_ms + max(member.rebalance_ms for member in self.members.values())
        for member in list(self.members.values()):
            self._touch(member, now_ms)
            member.answer_join(self._joined(member))
        return None

    def _become_empty(self, now_ms: int) -> None:
        self.generation += 1
        self.state, self.rebalance_at_ms, self.sync_at_ms = State.EMPTY, None, None
        self.leader = self.protocol = None
        self.empty_since_ms = now_ms
        self.on_change(self)

    def _joined(self, member: Member) -> Joined:
        members: Sequence[tuple[str, str | None, bytes]] = ()
        if member.id == self.leader:
            members = [(m.id, m.instance_id, m.metadata(self.protocol)) for m in self.members.values()]
        return Joined(Error.NONE, member.id, self.generation, self.protocol_type, self.protocol, self.leader or "", members)

    def _common_protocols(self, *, leaving_out: str | None = None) -> set[str] | None:
        sets = [{name for name, _ in member.protocols} for member in self.members.values() if member.id != leaving_out]
        return set.intersection(*sets) if sets else None

    def _choose(self) -> str:
        """The protocol all members know with the most first choices; ties go to the name that comes first."""
        common = self._common_protocols() or set()
        votes = [next(name for name, _ in member.protocols if name in common) for member in self.members.values()]
        return max(sorted(set(votes)), key=votes.count)

    # --- sync, heartbeat, leave ---------------------------------------------------------------------------------------

    def sync(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        assignments: Sequence[tuple[str, bytes]],
        reply: Callable[[Synced], None],
        *,
        protocol_type: str | None = None,
        protocol: str | None = None,
        now_ms: int,
    ) -> None:
        if (error := self.check(member_id, instance_id, generation)) is not Error.NONE:
            return reply(Synced(error))
        if (protocol_type or self.protocol_type) != self.protocol_type or (protocol or self.protocol) != self.protocol:
            return reply(Synced(Error.INCONSISTENT_GROUP_PROTOCOL))
        member = self.members[member_id]
        self._touch(member, now_ms)
        if self.state is State.PREPARING:
            return reply(Synced(Error.REBALANCE_IN_PROGRESS))
        if self.state is State.STABLE:
            return reply(self._synced(member))
        member.answer_sync(Synced(Error.REBALANCE_IN_PROGRESS))
        member.on_synced = reply
        if member_id == self.leader:
            given = dict(assignments)
            for each in self.members.values():
                each.assignment = given.get(each.id, b"")
            self.state, self.sync_at_ms = State.STABLE, None
            self.on_change(self)
            for each in list(self.members.values()):
                self._touch(each, now_ms)
                each.answer_sync(self._synced(each))
        return None

    def _synced(self, member: Member) -> Synced:
        return Synced(Error.NONE, self.protocol_type, self.protocol, member.assignment)

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, *, now_ms: int) -> Error:
        if (error := self.check(member_id, instance_id, generation)) is not Error.NONE:
            return error
        self._touch(self.members[member_id], now_ms)
        return Error.REBALANCE_IN_PROGRESS if self.state is State.PREPARING else Error.NONE

    def leave(self, member_id: str, instance_id: str | None, *, now_ms: int) -> Error:
        """One member goes. By its instance id alone an administrator removes a static member."""
        if instance_id is None and self.pending.pop(member_id, None) is not None:
            self._maybe_complete(now_ms)
            return Error.NONE
        if instance_id is not None and member_id == "":
            member_id = self.static.get(instance_id, "")
        if (error := self._identity(member_id, instance_id)) is not Error.NONE:
            return error
        self._remove(self.members[member_id], now_ms)
        return Error.NONE

    def check(self, member_id: str, instance_id: str | None, generation: int) -> Error:
        """Whether this is a member of the present generation."""
        if self.state is State.DEAD:
            return Error.COORDINATOR_NOT_AVAILABLE
        if (error := self._identity(member_id, instance_id)) is not Error.NONE:
            return error
        return Error.NONE if generation == self.generation else Error.ILLEGAL_GENERATION

    def check_commit(self, member_id: str, instance_id: str | None, generation: int, *, transactional: bool, now_ms: int) -> Error:
        """Whether offsets may be committed by this member, or by nobody in particular when the group has no members."""
        if generation < 0 and member_id == "" and instance_id is None:
            return Error.NONE if transactional or not self.members else Error.UNKNOWN_MEMBER_ID
        if (error := self.check(member_id, instance_id, generation)) is not Error.NONE:
            return error
        if self.state is State.COMPLETING:
            return Error.REBALANCE_IN_PROGRESS
        self._touch(self.members[member_id], now_ms)
        return Error.NONE

    def _touch(self, member: Member, now_ms: int) -> None:
        member.expires_ms = now_ms + member.session_ms

    def _drop(self, member: Member) -> None:
        del self.members[member.id]
        if member.instance_id is not None and self.static.get(member.instance_id) == member.id:
            del self.static[member.instance_id]
        if self.leader == member.id:
            self.leader = next(iter(self.members), None)
        member.answer_join(Joined(Error.UNKNOWN_MEMBER_ID, member.id))
        member.answer_sync(Synced(Error.UNKNOWN_MEMBER_ID))

    def _remove(self, member: Member, now_ms: int) -> None:
        self._drop(member)
        if self.state in (State.STABLE, State.COMPLETING) and self.members:
            self._prepare(now_ms)
        elif not self.members and not self.pending:
            self._become_empty(now_ms)
        else:
            self._maybe_complete(now_ms)

    # --- time ---------------------------------------------------------------------------------------------------------

    def deadline_ms(self) -> int | None:
        """When `tick` has something to do."""
        times = [member.expires_ms for member in self.members.values() if not member.waits]
        times += self.pending.values()
        times += [at for at in (self.rebalance_at_ms, self.sync_at_ms) if at is not None]
        return min(times, default=None)

    def tick(self, *, now_ms: int) -> None:
        """Let go of whom has not been heard of, and end waits whose time is up."""
        for member_id in [each for each, lapses_ms in self.pending.items() if lapses_ms <= now_ms]:
            del self.pending[member_id]
        for member in [m for m in self.members.values() if not m.waits and m.expires_ms <= now_ms]:
            if member.id in self.members:
                self._remove(member, now_ms)
        if self.sync_at_ms is not None and now_ms >= self.sync_at_ms:
            for member in [m for m in self.members.values() if m.on_synced is None and m.instance_id is None]:
                self._drop(member)
            self.sync_at_ms = None
            if self.members:
                self._prepare(now_ms)
            else:
                self._become_empty(now_ms)
        if not self.members and not self.pending and self.state in (State.STABLE, State.COMPLETING, State.PREPARING):
            self._become_empty(now_ms)
        self._maybe_complete(now_ms)

    def abandon(self, reply: object) -> None:
        """Whoever waits for this answer is gone. The member stays until its session ends."""
        for member in self.members.values():
            if member.on_joined is reply or member.on_synced is reply:
                member.on_joined = member.on_synced = None
