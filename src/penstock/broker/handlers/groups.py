"""Consumer groups: join, sync, heartbeat, leave; and what administrators ask about them. The rules are in group.py."""

from __future__ import annotations

from typing import Any

from penstock.broker.group import Group, JoinRequest, State
from penstock.broker.node import Node
from penstock.broker.server import Request
from penstock.protocol.codec import millis
from penstock.protocol.error import Error


async def join_group(node: Node, request: Request) -> dict[str, Any]:
    body, version = request.body, request.version
    if not body.group_id:
        return _joined_error(Error.INVALID_GROUP_ID, body.member_id)
    session_ms = millis(body.session_timeout)
    asked = JoinRequest(
        member_id=body.member_id,
        instance_id=getattr(body, "group_instance_id", None),
        client_id=request.header.client_id or "",
        host=f"/{request.host}",
        session_ms=session_ms,
        rebalance_ms=millis(body.rebalance_timeout) if version >= 1 else session_ms,
        protocol_type=body.protocol_type,
        protocols=tuple((protocol.name, protocol.metadata) for protocol in body.protocols),
        needs_member_id=version >= 4,
        skips_assignment=version >= 9,
    )
    joined = await node.groups.join(body.group_id, asked)
    # Before version 7 the protocol is not nullable.
    protocol = joined.protocol if joined.protocol is not None or version >= 7 else ""
    return {
        "throttle_time": 0,
        "error_code": joined.error,
        "generation_id": joined.generation,
        "protocol_type": joined.protocol_type,
        "protocol_name": protocol,
        "leader": joined.leader,
        "skip_assignment": joined.skip_assignment,
        "member_id": joined.member_id,
        "members": [
            {"member_id": member, "group_instance_id": instance, "metadata": metadata} for member, instance, metadata in joined.members
        ],
    }


def _joined_error(error: Error, member_id: str) -> dict[str, Any]:
    return {"throttle_time": 0, "error_code": error, "protocol_name": "", "leader": "", "member_id": member_id, "members": []}


async def sync_group(node: Node, request: Request) -> dict[str, Any]:
    body = request.body
    synced = await node.groups.sync(
        body.group_id,
        body.member_id,
        getattr(body, "group_instance_id", None),
        body.generation_id,
        assignments=[(each.member_id, each.assignment) for each in body.assignments],
        protocol_type=getattr(body, "protocol_type", None),
        protocol=getattr(body, "protocol_name", None),
    )
    return {
        "throttle_time": 0,
        "error_code": synced.error,
        "protocol_type": synced.protocol_type,
        "protocol_name": synced.protocol,
        "assignment": synced.assignment,
    }


async def heartbeat(node: Node, request: Request) -> dict[str, Any]:
    body = request.body
    error = node.groups.heartbeat(body.group_id, body.member_id, getattr(body, "group_instance_id", None), body.generation_id)
    return {"throttle_time": 0, "error_code": error}


async def leave_group(node: Node, request: Request) -> dict[str, Any]:
    body = request.body
    if request.version < 3:
        return {"throttle_time": 0, "error_code": node.groups.leave(body.group_id, body.member_id, None)}
    members = [
        {
            "member_id": member.member_id,
            "group_instance_id": member.group_instance_id,
            "error_code": node.groups.leave(body.group_id, member.member_id, member.group_instance_id),
        }
        for member in body.members
    ]
    return {"throttle_time": 0, "error_code": Error.NONE, "members": members}


async def describe_groups(node: Node, request: Request) -> dict[str, Any]:
    return {"throttle_time": 0, "groups": [_described(node, group_id, request.version) for group_id in request.body.groups]}


def _described(node: Node, group_id: str, version: int) -> dict[str, Any]:
    group = node.groups.find(group_id)
    if group is None:
        state = State.EMPTY if node.offsets.has(group_id) else State.DEAD
        error = Error.GROUP_ID_NOT_FOUND if version >= 6 and state is State.DEAD else Error.NONE
        return {
            "error_code": error,
            "group_id": group_id,
            "group_state": state.value,
            "protocol_type": "",
            "protocol_data": "",
            "members": [],
        }
    shows_assignments = group.state is State.STABLE
    return {
        "error_code": Error.NONE,
        "group_id": group_id,
        "group_state": group.state.value,
        "protocol_type": group.protocol_type or "",
        "protocol_data": group.protocol or "" if shows_assignments else "",
        "members": [
            {
                "member_id": member.id,
                "group_instance_id": member.instance_id,
                "client_id": member.client_id,
                "client_host": member.host,
                "member_metadata": member.metadata(group.protocol) if shows_assignments else b"",
                "member_assignment": member.assignment if shows_assignments else b"",
            }
            for member in group.members.values()
        ],
    }


async def list_groups(node: Node, request: Request) -> dict[str, Any]:
    states = {state.lower() for state in getattr(request.body, "states_filter", ())}
    types = {kind.lower() for kind in getattr(request.body, "types_filter", ())}
    found: list[dict[str, str]] = []
    only_offsets = [group_id for group_id in node.offsets.committed if node.groups.find(group_id) is None]
    shown: list[tuple[str, Group | None]] = [*node.groups.groups.items(), *((group_id, None) for group_id in only_offsets)]
    for group_id, group in shown:
        state = group.state if group is not None else State.EMPTY
        if (states and state.value.lower() not in states) or (types and "classic" not in types):
            continue
        kind = group.protocol_type or "" if group is not None else ""
        found.append({"group_id": group_id, "protocol_type": kind, "group_state": state.value, "group_type": "classic"})
    return {"throttle_time": 0, "error_code": Error.NONE, "groups": found}


async def delete_groups(node: Node, request: Request) -> dict[str, Any]:
    results = [{"group_id": group_id, "error_code": await node.groups.delete(group_id)} for group_id in request.body.groups_names]
    return {"throttle_time": 0, "results": results}
