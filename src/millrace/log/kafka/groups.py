"""Consumer groups as clients and tools ask for them: who coordinates, members, lists [L20].

In: requests. Out: what the group's coordinator says, when it says it: joins and syncs are parked there. What of a
request outlives the call is copied: its bytes are the connection's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from millrace.core.groups.calls import (
    Code,
    Heartbeat,
    Join,
    Joined,
    Leave,
    Leaving,
    Left,
    Reply,
    Said,
    Sync,
    Synced,
)
from millrace.core.groups.groups import DEAD
from millrace.errors import MillraceError
from millrace.log.kafka import transactions
from millrace.log.kafka.asking import Answered, ask, finished
from millrace.log.kafka.shell import WHO, Service
from millrace.wire.kafka.codec import Fields

GROUP_KEY_TYPE = 0
MUST_KNOW_ID_FROM = 4           # of JoinGroup: a new member asks again with the id it was given
MAY_SKIP_FROM = 9
NULL_PROTOCOL_FROM = 7
MEMBERS_FROM = 3                # of LeaveGroup: several at once
CLASSIC = "classic"


# -- who coordinates ---------------------------------------------------------------------------------------------------
def find_coordinator(service: Service, version: int, fields: Fields) -> Answered:
    if fields.get("key_type", GROUP_KEY_TYPE) != GROUP_KEY_TYPE:
        return transactions.coordinator(service.shell, fields)
    return _found(service, fields) if service.shell.groups.topic is not None else _create_then_find(service, fields)


async def _create_then_find(service: Service, fields: Fields) -> Fields:
    try:
        await service.shell.groups.create_topic()
    except MillraceError as error:          # the client asks again: by then it is there, or the controller is
        return _found(service, fields, str(error))
    return _found(service, fields)


def _found(service: Service, fields: Fields, why: str = "the group's partition has no leader at present") -> Fields:
    many = [{"key": key, **_home(service, key, why)} for key in fields.get("coordinator_keys", [])]
    return {**_home(service, fields.get("key", ""), why), "coordinators": many}


def _home(service: Service, group: str, why: str) -> Fields:
    shell = service.shell
    home = shell.groups.home_of(group)
    if home is None or home.broker in shell.suspects():
        return {**transactions.NO_NODE, "error_code": Code.COORDINATOR_NOT_AVAILABLE, "error_message": why}
    return {"node_id": home.broker, "host": home.endpoint.host, "port": home.endpoint.kafka_port, "error_code": 0}


# -- members -----------------------------------------------------------------------------------------------------------
def join_group(service: Service, version: int, fields: Fields) -> Answered:
    client_id, host = fields[WHO]
    member_id, instance_id = fields["member_id"], fields.get("group_instance_id")
    session_ms, rebalance_ms = fields["session_timeout_ms"], fields.get("rebalance_timeout_ms", -1)
    join = Join(
        group=fields["group_id"], member_id=member_id, instance_id=instance_id, client_id=client_id, client_host=host,
        session_s=session_ms / 1000, rebalance_s=(rebalance_ms if rebalance_ms >= 0 else session_ms) / 1000,
        protocol_type=fields["protocol_type"],
        protocols=tuple((one["name"], bytes(one["metadata"])) for one in fields["protocols"]),
        fresh_id=f"{instance_id or client_id}-{service.shell.ports.random.uuid()}",
        must_know_id=version >= MUST_KNOW_ID_FROM, may_skip=version >= MAY_SKIP_FROM,
    )

    def answer(reply: Reply | Code) -> Fields:
        joined = Joined(reply, member_id) if isinstance(reply, Code) else reply
        assert isinstance(joined, Joined)
        return _joined(joined, version)

    return ask(service, join.group, lambda groups, at, token: groups.join(at, join, token), answer)


def _joined(joined: Joined, version: int) -> Fields:
    return {
        "error_code": joined.code, "generation_id": joined.generation, "protocol_type": joined.protocol_type,
        "protocol_name": joined.protocol if version >= NULL_PROTOCOL_FROM else joined.protocol or "",
        "leader": joined.leader, "skip_assignment": joined.skip_assignment, "member_id": joined.member_id,
        "members": [
            {"member_id": member.member_id, "group_instance_id": member.instance_id, "metadata": member.metadata}
            for member in joined.members
        ],
    }


def sync_group(service: Service, version: int, fields: Fields) -> Answered:
    sync = Sync(
        group=fields["group_id"], member_id=fields["member_id"], instance_id=fields.get("group_instance_id"),
        generation=fields["generation_id"],
        assignments={one["member_id"]: bytes(one["assignment"]) for one in fields["assignments"]},
        protocol_type=fields.get("protocol_type"), protocol=fields.get("protocol_name"),
    )

    def answer(reply: Reply | Code) -> Fields:
        synced = Synced(reply) if isinstance(reply, Code) else reply
        assert isinstance(synced, Synced)
        return {"error_code": synced.code, "protocol_type": synced.protocol_type, "protocol_name": synced.protocol,
                "assignment": synced.assignment}

    return ask(service, sync.group, lambda groups, at, token: groups.sync(at, sync, token), answer)


def heartbeat(service: Service, version: int, fields: Fields) -> Answered:
    beat = Heartbeat(
        fields["group_id"], fields["member_id"], fields.get("group_instance_id"), fields["generation_id"]
    )
    return ask(service, beat.group, lambda groups, at, token: groups.heartbeat(at, beat, token), _said)


def _said(reply: Reply | Code) -> Fields:
    code = reply.code if isinstance(reply, Said) else reply
    assert isinstance(code, Code)
    return {"error_code": code}


def leave_group(service: Service, version: int, fields: Fields) -> Answered:
    members = fields["members"] if version >= MEMBERS_FROM else [{"member_id": fields["member_id"]}]
    leaving = tuple(Leaving(one["member_id"], one.get("group_instance_id")) for one in members)
    leave = Leave(fields["group_id"], leaving)

    def answer(reply: Reply | Code) -> Fields:
        left = Left(reply) if isinstance(reply, Code) else reply
        assert isinstance(left, Left)
        if version < MEMBERS_FROM:
            return {"error_code": next((code for _, code in left.members), left.code)}
        return {"error_code": left.code, "members": [
            {"member_id": one.member_id, "group_instance_id": one.instance_id, "error_code": code}
            for one, code in left.members]}

    return ask(service, leave.group, lambda groups, at, token: groups.leave(at, leave, token), answer)


# -- for tools ---------------------------------------------------------------------------------------------------------
def list_groups(service: Service, version: int, fields: Fields) -> Fields:
    """Those coordinated here; a tool asks every broker."""
    states = {state.lower() for state in fields.get("states_filter", [])}
    types = {type_.lower() for type_ in fields.get("types_filter", [])}
    coordinators = list(service.shell.groups.all())
    loading = any(one.groups is None for one in coordinators)
    shown = [listed for one in coordinators if one.groups is not None for listed in one.groups.listed()]
    return {
        "error_code": Code.COORDINATOR_LOAD_IN_PROGRESS if loading else Code.NONE,
        "groups": [
            {"group_id": one.group, "protocol_type": one.protocol_type, "group_state": one.state,
             "group_type": CLASSIC}
            for one in shown
            if (not states or one.state.lower() in states) and (not types or CLASSIC in types)
        ],
    }


def describe_groups(service: Service, version: int, fields: Fields) -> Fields:
    return {"groups": [_described(service, name) for name in fields["groups"]]}


def _described(service: Service, name: str) -> Fields:
    groups = service.shell.groups.now(name)
    if isinstance(groups, Code):
        return {"error_code": groups, "group_id": name, "group_state": DEAD}
    found = groups.describe(name)
    return {
        "error_code": found.code, "group_id": name, "group_state": found.state, "protocol_type": found.protocol_type,
        "protocol_data": found.protocol,
        "members": [
            {
                "member_id": member.member_id, "group_instance_id": member.instance_id,
                "client_id": member.client_id, "client_host": member.client_host, "member_metadata": member.metadata,
                "member_assignment": member.assignment,
            }
            for member in found.members
        ],
    }


def delete_groups(service: Service, version: int, fields: Fields) -> Awaitable[Fields]:
    names = list(fields["groups_names"])
    asked = [_delete(service, name) for name in names]

    async def answer() -> Fields:
        codes = await asyncio.gather(*map(finished, asked))
        return {"results": [{"group_id": name, **code} for name, code in zip(names, codes, strict=True)]}

    return answer()


def _delete(service: Service, name: str) -> Answered:
    return ask(service, name, lambda groups, _, token: groups.delete(name, token), _said)
