"""Committed offsets of groups: OffsetCommit, OffsetFetch, OffsetDelete [L20, L21].

A commit is answered once it is committed in the group topic. Groups `millrace.*` hold positions of changefeeds: they
are read like any other, and no request here changes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from millrace.core.admin import is_internal
from millrace.core.groups.calls import Code, CommitOffsets, FetchedOffsets, OffsetsDone, Reply
from millrace.core.groups.offsets import Partition
from millrace.log.kafka.asking import Answered, ask, finished
from millrace.log.kafka.shell import PRINCIPAL, Service, Shell
from millrace.model.groups import NO_LEADER_EPOCH, OffsetValue
from millrace.wire.kafka.codec import Fields

SEVERAL_GROUPS_FROM = 8         # of OffsetFetch
OF_THE_GROUP = frozenset({
    Code.COORDINATOR_LOAD_IN_PROGRESS, Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR, Code.INVALID_GROUP_ID,
    Code.GROUP_AUTHORIZATION_FAILED, Code.GROUP_ID_NOT_FOUND,
})


# -- commit ------------------------------------------------------------------------------------------------------------
def offset_commit(service: Service, version: int, fields: Fields) -> Answered:
    named = {
        (topic["name"], one["partition"]): OffsetValue(
            one["offset"], one.get("leader_epoch", NO_LEADER_EPOCH), one["metadata"] or "", commit_ms=-1,
            topic_id=service.shell.cluster.topic_id_of(topic["name"]),
        )
        for topic in fields["topics"] for one in topic["partitions"]
    }
    own = fields[PRINCIPAL].is_own
    barred = {at: Code.TOPIC_AUTHORIZATION_FAILED for at in named if not own and is_internal(at[0])}
    known = {partition: value for partition, value in named.items()
             if partition not in barred and _exists(service.shell, partition)}
    unknown = {**dict.fromkeys(named.keys() - known.keys(), Code.UNKNOWN_TOPIC_OR_PARTITION), **barred}
    commit = CommitOffsets(
        fields["group_id"], fields["member_id"], fields.get("group_instance_id"), fields["generation_id"], known
    )

    def answer(reply: Reply | Code) -> Fields:
        return {"topics": _by_topic(named, {**unknown, **_codes(reply, known)})}

    if not known and named:
        return answer(OffsetsDone({}))
    return ask(service, commit.group, lambda groups, at, token: groups.commit(at, commit, token), answer)


def _exists(shell: Shell, partition: Partition) -> bool:
    name, index = partition
    topic = shell.cluster.topics_by_name.get(name)
    return topic is not None and index in topic.partitions


def _codes(reply: Reply | Code, asked: Iterable[Partition]) -> Mapping[Partition, Code]:
    if isinstance(reply, Code):
        return dict.fromkeys(asked, reply)
    assert isinstance(reply, OffsetsDone)
    return reply.codes


def _by_topic(named: Iterable[Partition], codes: Mapping[Partition, Code]) -> list[Fields]:
    topics: dict[str, list[Fields]] = {}
    for name, index in named:
        topics.setdefault(name, []).append({"partition": index, "error_code": codes[name, index]})
    return [{"name": name, "partitions": partitions} for name, partitions in topics.items()]


# -- fetch -------------------------------------------------------------------------------------------------------------
def offset_fetch(service: Service, version: int, fields: Fields) -> Answered:
    if version < SEVERAL_GROUPS_FROM:
        return _fetch_one(service, fields)
    asked = [_fetch_one(service, one) for one in fields["groups"]]

    async def answer() -> Fields:
        return {"groups": list(await asyncio.gather(*map(finished, asked)))}

    return answer()


def _fetch_one(service: Service, wanted: Fields) -> Answered:
    group = wanted["group_id"]
    partitions = None
    if wanted["topics"] is not None:
        partitions = [(topic["name"], index) for topic in wanted["topics"] for index in topic["partitions"]]

    def answer(reply: Reply | Code) -> Fields:
        code = reply if isinstance(reply, Code) else Code.NONE
        offsets = {} if isinstance(reply, Code) else _offsets(service.shell, reply)
        topics: dict[str, list[Fields]] = {}
        for name, index in offsets if partitions is None else partitions:
            shown = {"partition": index, "error_code": code, **_shown(offsets.get((name, index)))}
            topics.setdefault(name, []).append(shown)
        return {"group_id": group, "error_code": code,
                "topics": [{"name": name, "partitions": found} for name, found in topics.items()]}

    return ask(service, group, lambda groups, _, token: [groups.fetch(group, token, partitions)], answer)


def _shown(value: OffsetValue | None) -> Fields:
    if value is None:
        return {"offset": -1, "leader_epoch": NO_LEADER_EPOCH, "metadata": ""}
    return {"offset": value.offset, "leader_epoch": value.leader_epoch, "metadata": value.metadata}


def _offsets(shell: Shell, reply: Reply) -> dict[Partition, OffsetValue]:
    """Those of topics that are there, and not of an earlier topic of the same name; positions of changefeeds are kept
    by topic id, and those of topics that are gone have no name."""
    assert isinstance(reply, FetchedOffsets)
    found = {place: value for place, value in reply.offsets.items() if _is_of_present_topic(shell, place[0], value)}
    for (topic_id, index), value in reply.positions.items():
        topic = shell.cluster.topic(topic_id)
        if topic is not None:
            found[topic.name, index] = value
    return found


def _is_of_present_topic(shell: Shell, name: str, value: OffsetValue) -> bool:
    present = shell.cluster.topic_id_of(name)
    return present is not None and value.topic_id in (None, present)


# -- delete ------------------------------------------------------------------------------------------------------------
def offset_delete(service: Service, version: int, fields: Fields) -> Answered:
    group = fields["group_id"]
    named = [(topic["name"], one["partition"]) for topic in fields["topics"] for one in topic["partitions"]]

    def answer(reply: Reply | Code) -> Fields:
        codes = _codes(reply, named)
        whole = reply if isinstance(reply, Code) else next((c for c in codes.values() if c in OF_THE_GROUP), Code.NONE)
        return {"error_code": whole, "topics": [] if whole is not Code.NONE else _by_topic(named, codes)}

    return ask(service, group, lambda groups, _, token: groups.delete_offsets(group, named, token), answer)
