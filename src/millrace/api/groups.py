"""Consumer group routes: all groups with their state, one group with its members and committed offsets."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from millrace.api import peers
from millrace.api.problems import Json, started
from millrace.core.groups.calls import Code, Described, FetchedOffsets, Reply
from millrace.core.groups.groups import DEAD
from millrace.errors import UnknownGroup, Unreachable
from millrace.log.broker import Broker

HERE = "here"       # query of one broker to another: only what you coordinate yourself


async def list_groups(request: Request) -> Response:
    """Every coordinator's own word; `missing` names brokers that did not answer."""
    broker = started(request)
    if HERE in request.query_params:
        items = coordinated_by(broker)
        return Json({"total": len(items), "items": items})
    brokers = sorted(b.broker for b in broker.cluster.brokers.values() if not b.fenced)
    said = await asyncio.gather(*(_list_of(broker, b) for b in brokers))
    items = sorted((item for one in said for item in one or ()), key=lambda item: str(item["group"]))
    missing = [b for b, one in zip(brokers, said, strict=True) if one is None]
    return Json({"total": len(items), "items": items, "missing": missing})


async def get_group(request: Request) -> Response:
    """As its coordinator says."""
    broker = started(request)
    name = request.path_params["name"]
    here = HERE in request.query_params
    home = broker.groups.home_of(name)
    if home is None or home.broker == broker.id or here:
        found = await described(broker, name)
    else:
        found = await peers.get_json(broker, home.endpoint, f"/api/v2/groups/{quote(name, safe='')}?{HERE}=true")
    if found is None:
        raise Unreachable(f"the coordinator of {name!r} does not answer at present")
    if found["state"] == DEAD and not here:
        raise UnknownGroup(f"no group {name!r}")
    return Json(found)


# -- views -------------------------------------------------------------------------------------------------------


def coordinated_by(broker: Broker) -> list[dict[str, Any]]:
    serving = [one.groups for one in broker.groups.all() if one.groups is not None]
    return [
        {"group": one.group, "state": one.state, "protocol_type": one.protocol_type, "coordinator": broker.id,
         "members": len(groups.by_name[one.group].members) if one.group in groups.by_name else 0}
        for groups in serving for one in groups.listed()
    ]


async def described(broker: Broker, name: str) -> dict[str, Any] | None:
    """None: it cannot be said at present. The state of what does not exist is DEAD."""
    if broker.groups.topic is None:
        return {"group": name, "state": DEAD}
    offsets = await _committed(broker, name)
    groups = broker.groups.now(name)
    if offsets is None or isinstance(groups, Code):
        return None
    found = groups.describe(name)
    return {
        "group": name, "state": found.state, "protocol_type": found.protocol_type, "protocol": found.protocol,
        "coordinator": broker.id, "members": _members(found), "offsets": _offsets(broker, offsets),
    }


async def _committed(broker: Broker, name: str) -> FetchedOffsets | None:
    answer: asyncio.Future[Reply | Code] = asyncio.get_running_loop().create_future()

    def told(reply: Reply | Code) -> None:
        if not answer.done():                   # the request was cut off meanwhile
            answer.set_result(reply)

    broker.groups.ask(name, lambda groups, _, token: [groups.fetch(name, token)], told)
    reply = await answer
    return reply if isinstance(reply, FetchedOffsets) else None


def _members(found: Described) -> list[dict[str, Any]]:
    return [
        {"member_id": m.member_id, "instance_id": m.instance_id, "client_id": m.client_id, "host": m.client_host}
        for m in found.members
    ]


def _offsets(broker: Broker, found: FetchedOffsets) -> list[dict[str, Any]]:
    """Positions of changefeeds are shown under the name their topic has now."""
    rows = [(topic, partition, value) for (topic, partition), value in found.offsets.items()]
    for (topic_id, partition), value in found.positions.items():
        topic = broker.cluster.topic(topic_id)
        rows.append((topic.name if topic is not None else str(topic_id), partition, value))
    return [
        {"topic": topic, "partition": partition, "offset": str(value.offset), "metadata": value.metadata}
        for topic, partition, value in sorted(rows)
    ]


async def _list_of(broker: Broker, of: int) -> list[dict[str, Any]] | None:
    if of == broker.id:
        return coordinated_by(broker)
    answer = await peers.get_json(broker, broker.cluster.brokers[of].endpoint, f"/api/v2/groups?{HERE}=true")
    items: list[dict[str, Any]] | None = answer["items"] if answer is not None else None
    return items
