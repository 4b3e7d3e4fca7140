"""Reading again while that may help; calls that end together."""

from __future__ import annotations

import asyncio

import pytest

from millrace.changefeed.homes.patience import patiently, together
from millrace.errors import Malformed, MillraceError, Unreachable


def test_brokers_that_are_away_are_asked_again_and_damage_is_told_at_once() -> None:
    async def main(*errors: MillraceError) -> tuple[str, int]:
        left = list(errors)

        async def ask() -> str:
            if left:
                raise left.pop(0)
            return "read"

        return await patiently(ask), len(left)

    assert asyncio.run(main(Unreachable("away"), Unreachable("away"))) == ("read", 0)
    with pytest.raises(Malformed):
        asyncio.run(main(Unreachable("away"), Malformed("damaged")))


def test_the_first_error_ends_all_calls() -> None:
    ended: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("waits")

    async def fails() -> None:
        await asyncio.sleep(0)
        raise Unreachable("away")

    async def main() -> None:
        with pytest.raises(Unreachable):
            await together([waits(), fails()])
        assert ended == ["waits"]

    asyncio.run(main())
