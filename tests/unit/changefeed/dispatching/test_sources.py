"""The readers of sources that a data path keeps: one for each source that a dispatcher here reads from [P7]."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from millrace.changefeed.dispatching.data_path import DataPath, Described
from millrace.changefeed.feeds.ports import Work
from millrace.errors import Refused
from millrace.model.changefeeds import DdlPosition
from millrace.model.spans import Dispatcher, whole
from millrace.ops.real import real_ports
from support_feeds import until
from support_homes import FEED, Log, id_of, run, table

T = table(16400, "t")


def readers() -> list[asyncio.Task[Any]]:
    return [task for task in asyncio.all_tasks() if task.get_name().startswith("progress of ")]


def work(epoch: int, feed: str = FEED) -> Work:
    return Work(feed, Dispatcher(0, epoch), whole(id_of(T.oid), 1), 1)


async def refuse(feed: str, maintainer: int) -> Described:
    raise Refused("it was changed")


def test_P7_a_source_is_read_while_a_dispatcher_here_wants_it_and_no_longer(tmp_path: Path) -> None:
    async def story(log: Log) -> None:
        await log.add(T)
        path = DataPath(log.client, (), cast(Any, None), real_ports(), cores=1, describe=refuse,
                        passed=lambda feed: DdlPosition())
        path.prepare(work(1))
        path.prepare(work(1, "other"))
        (first,) = readers()
        path.stop(work(1))
        path.prepare(work(2))                                # taken over where it is: the reader stays warm
        path.stop(work(1, "other"))
        await asyncio.sleep(0)
        assert readers() == [first]
        with pytest.raises(Refused):
            await path.start(work(2), cast(Any, None))
        assert readers() == [first], "it is tried again"
        path.stop(work(2))
        await until(lambda: not readers())
        path.prepare(work(3))                                # a source of the same name, maybe another one
        (second,) = readers()
        assert second is not first
        await path.close()
        assert not readers()

    run(tmp_path, story)
