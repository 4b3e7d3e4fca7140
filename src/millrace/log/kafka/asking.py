"""How a handler asks the coordinator of a group: answered at once where it can be, by a future where it must wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from millrace.core.groups.calls import Code, Reply
from millrace.log.groups.coordinator import Request, Told
from millrace.log.kafka.shell import Service
from millrace.wire.kafka.codec import Fields

Answered = Fields | Awaitable[Fields]


def ask(service: Service, group: str, request: Request, answer: Callable[[Reply | Code], Fields]) -> Answered:
    return answered(lambda told: service.shell.groups.ask(group, request, told), answer)


def answered(call: Callable[[Told], None], answer: Callable[[Reply | Code], Fields]) -> Answered:
    """`answer` makes fields of a reply, or of the code that stands for it. A parked join or sync costs a future."""
    now: list[Fields] = []
    later: asyncio.Future[Fields] | None = None

    def told(reply: Reply | Code) -> None:
        if later is None:
            now.append(answer(reply))
        elif not later.done():              # the listener was closed meanwhile
            later.set_result(answer(reply))

    call(told)
    if now:
        return now[0]
    later = asyncio.get_running_loop().create_future()
    return later


async def finished(asked: Answered) -> Fields:
    return await asked if isinstance(asked, Awaitable) else asked
