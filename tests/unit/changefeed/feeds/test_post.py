"""Messages over real links: who sent them is known, what cannot be read changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from uuid import UUID

from millrace.changefeed.feeds.post import Post
from millrace.changefeed.members import CaptureInfo
from millrace.core.feeds.effects import Send
from millrace.link.pool import LinkPool
from millrace.link.proving import Proving
from millrace.model.feed_messages import EndMaintainer, FeedMessages
from millrace.model.messages import Hello
from millrace.ops.real import RealRandom, real_ports
from millrace.wire import links
from support_feeds import CLUSTER, until
from support_ports import free_port
from support_secret import LINK_KEY


class Office:
    def __init__(self, number: int, cluster: UUID = CLUSTER) -> None:
        self.heard: list[tuple[int, FeedMessages]] = []
        self.post = Post(number, 1, cluster, real_ports(), lambda source, message: self.heard.append((source, message)),
                         link_key=LINK_KEY)
        self.port = free_port()
        self.info = CaptureInfo(number, 1, "", 1, f"127.0.0.1:{self.port}")


def play(story: Callable[[Office, Office], Awaitable[None]], other: Office | None = None) -> None:
    async def main() -> None:
        a, b = Office(1), other or Office(2)
        await a.post.listen("127.0.0.1", a.port)
        await b.post.listen("127.0.0.1", b.port)
        try:
            await story(a, b)
        finally:
            await a.post.close()
            await b.post.close()

    asyncio.run(main())


def message(epoch: int) -> EndMaintainer:
    return EndMaintainer(1, "f", epoch, 1)


def test_C9_messages_go_both_ways_and_to_oneself() -> None:
    async def story(a: Office, b: Office) -> None:
        a.post.reach([a.info, b.info])
        b.post.reach([a.info, b.info])

        def arrives() -> bool:
            a.post.send(Send(2, message(1)))
            b.post.send(Send(1, message(2)))
            return bool(a.heard and b.heard)

        await until(arrives)
        assert b.heard[0] == (1, message(1))
        assert a.heard[0] == (2, message(2))
        b.heard.clear()
        b.post.send(Send(2, message(3)))
        assert b.heard == [], "not within the sender's own step"
        await until(lambda: (2, message(3)) in b.heard)

    play(story)


def test_C9_a_message_to_nobody_is_lost_and_one_to_the_next_process_is_not() -> None:
    async def story(a: Office, b: Office) -> None:
        a.post.send(Send(2, message(1)))
        a.post.send(Send(9, message(1)))
        a.post.reach([CaptureInfo(2, 1, "", 1, f"127.0.0.1:{free_port()}"), CaptureInfo(3, 1, "", 1)])
        a.post.send(Send(2, message(2)))
        a.post.reach([b.info])

        def arrives() -> bool:
            a.post.send(Send(2, message(3)))
            return bool(b.heard)

        await until(arrives)
        assert {m for _, m in b.heard} == {message(3)}
        a.post.reach([])
        b.heard.clear()
        a.post.send(Send(2, message(4)))

        def is_cut() -> bool:
            b.heard.clear()
            a.post.send(Send(2, message(4)))
            return not a.post._pool.connected(2)

        await until(is_cut)

    play(story)


def test_C2_what_cannot_be_read_reaches_nobody() -> None:
    async def story(a: Office, b: Office) -> None:
        def hello() -> Hello:
            return Hello(format=links.FORMAT, cluster_id=CLUSTER, member=5, incarnation=1)

        pool = LinkPool(hello, real_ports(), Proving(LINK_KEY, "capture", RealRandom()))
        pool.set_address(2, "127.0.0.1", b.port)
        await until(lambda: pool.connected(2))
        pool.send(2, links.FEEDS, [b"\x09hostile"])
        await until(lambda: not pool.connected(2))
        assert b.heard == []
        await pool.close()

    play(story)


def test_L4_a_capture_of_another_cluster_is_not_heard() -> None:
    async def story(a: Office, b: Office) -> None:
        a.post.reach([b.info])
        link = a.post._pool.links[2]
        await until(lambda: link.dials > 2)
        a.post.send(Send(2, message(1)))
        assert not link.up
        assert b.heard == []

    play(story, Office(2, UUID(int=99)))
