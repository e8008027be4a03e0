"""All consumer groups of the broker: finds and makes them, lets time pass for them, and stores their membership.

Membership is stored when a generation is complete, so that after a restart the members go on with the assignments they have.
Invariant: a group is in `groups` while it has members, pending members, or committed offsets that were asked for."""

from __future__ import annotations

import asyncio
import base64
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from penstock.broker.group import Group, Joined, JoinRequest, Member, State, Synced
from penstock.broker.limits import Limits
from penstock.broker.offsets import Offsets
from penstock.broker.state_log import Key, StateLog
from penstock.clock import Clock
from penstock.protocol.error import Error

DAY_MS = 86_400_000


class Groups:
    def __init__(self, state: StateLog, offsets: Offsets, *, limits: Limits, clock: Clock) -> None:
        self.state = state
        self.offsets = offsets
        self.limits = limits
        self.clock = clock
        self.groups: dict[str, Group] = {}
        self._alarms: dict[str, tuple[int, asyncio.TimerHandle]] = {}
        self._writes: set[asyncio.Future[None]] = set()

    def now_ms(self) -> int:
        return self.clock.now_us() // 1000

    def find(self, group_id: str) -> Group | None:
        return self.groups.get(group_id)

    def find_or_make(self, group_id: str) -> Group:
        if (group := self.groups.get(group_id)) is None:
            group = self.groups[group_id] = Group(group_id, self.limits.group, _new_member_id, self._store, empty_since_ms=self.now_ms())
        return group

    # --- members ------------------------------------------------------------------------------------------------------

    async def join(self, group_id: str, request: JoinRequest) -> Joined:
        if group_id not in self.groups and len(self.groups) >= self.limits.groups_max:
            return Joined(Error.GROUP_MAX_SIZE_REACHED, request.member_id)
        group = self.find_or_make(group_id)
        joined: Joined = await self._ask(group, lambda reply: group.join(request, reply, now_ms=self.now_ms()))
        return joined

    async def sync(self, group_id: str, member_id: str, instance_id: str | None, generation: int, **rest: Any) -> Synced:
        if (group := self.groups.get(group_id)) is None:
            return Synced(Error.UNKNOWN_MEMBER_ID)
        synced: Synced = await self._ask(
            group, lambda reply: group.sync(member_id, instance_id, generation, reply=reply, now_ms=self.now_ms(), **rest)
        )
        return synced

    async def _ask(self, group: Group, ask: Callable[[Callable[[Any], None]], None]) -> Any:
        """Ask the state machine and wait for its answer. If the asker goes away, the answer is not kept for it."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def reply(value: Any) -> None:
            if not answer.done():
                answer.set_result(value)

        ask(reply)
        self.wake_for(group)
        try:
            return await answer
        except asyncio.CancelledError:
            group.abandon(reply)
            self.wake_for(group)
            raise

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> Error:
        if (group := self.groups.get(group_id)) is None:
            return Error.UNKNOWN_MEMBER_ID
        return group.heartbeat(member_id, instance_id, generation, now_ms=self.now_ms())

    def leave(self, group_id: str, member_id: str, instance_id: str | None) -> Error:
        if (group := self.groups.get(group_id)) is None:
            return Error.UNKNOWN_MEMBER_ID
        error = group.leave(member_id, instance_id, now_ms=self.now_ms())
        self.wake_for(group)
        return error

    def check_commit(self, group_id: str, member_id: str, instance_id: str | None, generation: int, *, transactional: bool) -> Error:
        if (group := self.groups.get(group_id)) is None:
            # A group without members stores offsets for whoever asks; a member of a group we do not know is a stranger.
            return Error.NONE if generation < 0 else Error.ILLEGAL_GENERATION
        return group.check_commit(member_id, instance_id, generation, transactional=transactional, now_ms=self.now_ms())

    async def delete(self, group_id: str) -> Error:
        group = self.groups.get(group_id)
        if group is None and not self.offsets.has(group_id):
            return Error.GROUP_ID_NOT_FOUND
        if group is not None and (group.members or group.pending):
            return Error.NON_EMPTY_GROUP
        await self.offsets.delete_group(group_id)
        if group is not None:
            group.state = State.DEAD
            self.groups.pop(group_id, None)
            await self.state.put([(("group", group_id), None)])
        return Error.NONE

    # --- time ---------------------------------------------------------------------------------------------------------

    def wake_for(self, group: Group) -> None:
        """Make sure that the group's next deadline is not missed."""
        at_ms = group.deadline_ms()
        alarm = self._alarms.get(group.id)
        if at_ms is None or (alarm is not None and alarm[0] <= at_ms):
            return
        if alarm is not None:
            alarm[1].cancel()
        delay_s = max(0, at_ms - self.now_ms()) / 1000
        self._alarms[group.id] = (at_ms, asyncio.get_running_loop().call_later(delay_s, self._on_alarm, group))

    def _on_alarm(self, group: Group) -> None:
        self._alarms.pop(group.id, None)
        group.tick(now_ms=self.now_ms())
        self.wake_for(group)

    async def forget_empty(self, *, older_than_ms: int) -> None:
        """Forget groups that have been without members, and have no offsets, for so long: consumers with a name for one run leave many."""
        before_ms = self.now_ms() - older_than_ms
        gone = [
            group.id
            for group in self.groups.values()
            if group.state is State.EMPTY and not group.pending and group.empty_since_ms < before_ms and not self.offsets.has(group.id)
        ]
        for group_id in gone:
            self.groups.pop(group_id).state = State.DEAD
        if gone:
            await self.state.put([(("group", group_id), None) for group_id in gone])

    async def expire_offsets(self, *, older_than_ms: int) -> None:
        """Forget the offsets of groups that have been without members, and without commits, for so long."""
        before_ms = self.now_ms() - older_than_ms
        for group_id in [*self.offsets.committed]:
            group = self.groups.get(group_id)
            if group is not None and (group.members or group.empty_since_ms > before_ms):
                continue
            old = [each for each, committed in self.offsets.committed[group_id].items() if committed.at_ms < before_ms]
            await self.offsets.delete(group_id, old)

    def close(self) -> None:
        for _, alarm in self._alarms.values():
            alarm.cancel()
        self._alarms.clear()

    # --- storage ------------------------------------------------------------------------------------------------------

    def _store(self, group: Group) -> None:
        members = [
            {
                "id": m.id,
                "instance": m.instance_id,
                "client": m.client_id,
                "host": m.host,
                "session_ms": m.session_ms,
                "rebalance_ms": m.rebalance_ms,
                "protocols": [[name, _text(metadata)] for name, metadata in m.protocols],
                "assignment": _text(m.assignment),
            }
            for m in group.members.values()
        ]
        row = {"generation": group.generation, "type": group.protocol_type, "protocol": group.protocol, "leader": group.leader}
        # Not waited for: a lost membership costs a rebalance, never an offset.
        self.state.write([(("group", group.id), {**row, "members": members})])

    def load(self, rows: Mapping[str, Mapping[str, Any]]) -> None:
        """Groups as they were stored last. Members have one session's time to be heard of."""
        for group_id, row in rows.items():
            group = self.find_or_make(group_id)
            group.generation, group.protocol_type = row["generation"], row["type"]
            group.protocol, group.leader = row["protocol"], row["leader"]
            for m in row["members"]:
                member = Member(
                    id=m["id"],
                    instance_id=m["instance"],
                    client_id=m["client"],
                    host=m["host"],
                    session_ms=m["session_ms"],
                    rebalance_ms=m["rebalance_ms"],
                    protocols=tuple((name, _bytes(metadata)) for name, metadata in m["protocols"]),
                    assignment=_bytes(m["assignment"]),
                    expires_ms=self.now_ms() + m["session_ms"],
                )
                group.members[member.id] = member
                if member.instance_id is not None:
                    group.static[member.instance_id] = member.id
            group.state = State.STABLE if group.members else State.EMPTY
            self.wake_for(group)


def load_rows(offsets: Offsets, groups: Groups) -> None:
    """Read the state log once: offsets one by one, of each group's membership the newest."""
    memberships: dict[str, Mapping[str, Any]] = {}
    key: Key
    for key, row in offsets.state.rows():
        if key[0] == "group":
            if row is None:
                memberships.pop(key[1], None)
            else:
                memberships[key[1]] = row
        else:
            offsets.load(key, row)
    groups.load(memberships)


def _new_member_id(prefix: str) -> str:
    return f"{prefix or 'member'}-{uuid.uuid4()}"


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)
