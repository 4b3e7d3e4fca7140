"""HTTP on a broker, in the broker's own loop: health, metrics, `/api/v2` [A1, A4].

In: requests. Out: the broker's state as JSON or Prometheus text; topic changes go to the controller. Promise: reading
changes nothing, and no request holds the loop: what costs more than a table look-up is bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route

from millrace.api import broker_health, brokers, groups, health, metrics, topics
from millrace.api.guard import Door, Guard
from millrace.api.problems import HANDLERS
from millrace.errors import MillraceError
from millrace.log.broker import Broker
from millrace.log.kafka.server import KafkaServer
from millrace.ops.background import Background
from millrace.ops.naps import nap, next_look

ROUTES = [
    Route("/livez", health.livez),
    Route("/readyz", health.readyz),
    Route("/metrics", metrics.scrape),
    Route("/api/v2/health", broker_health.get_health),
    Route("/api/v2/brokers", brokers.list_brokers),
    Route("/api/v2/brokers/{id:int}", brokers.remove_broker, methods=["DELETE"]),
    Route("/api/v2/topics", topics.list_topics),
    Route("/api/v2/topics", topics.create_topic, methods=["POST"]),
    Route("/api/v2/topics/{name}", topics.get_topic),
    Route("/api/v2/topics/{name}", topics.delete_topic, methods=["DELETE"]),
    Route("/api/v2/topics/{name}/partitions/{partition:int}/leader", topics.elect_leader, methods=["PUT"]),
    Route("/api/v2/replicas/{topic_id}", topics.list_replicas),
    Route("/api/v2/groups", groups.list_groups),
    Route("/api/v2/groups/{name:path}", groups.get_group),
]


def build(broker: Broker, kafka: KafkaServer, door: Door) -> Starlette:
    app = Starlette(routes=ROUTES, exception_handlers=HANDLERS, middleware=[Middleware(Guard, door=door)])
    app.router.redirect_slashes = False      # a path that names nothing is refused, not sent elsewhere
    app.state.broker = broker
    app.state.metrics = metrics.registry(broker, kafka)
    return app


class HttpServer:
    """uvicorn as a guest of our loop: it takes no signals and starts no threads. `ended`: it serves no more, and nobody
    has closed it; without HTTP a process cannot be looked at, and is to end."""

    def __init__(self, app: Starlette, *, ended: Callable[[MillraceError], None]) -> None:
        config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=2,
                                limit_concurrency=200, backlog=128)
        self._server, self._ended = _Guest(config), ended
        self._background = Background()

    async def start(self, host: str, port: int) -> None:
        """Raises OSError when the port is taken."""
        sock = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        over = asyncio.Event()

        def fail(error: MillraceError) -> None:
            over.set()
            for server in getattr(self._server, "servers", ()):    # uvicorn closes them only if nothing goes wrong
                server.close()
            sock.close()
            self._ended(error)

        self._background.need("http", lambda: self._server.serve(sockets=[sock]), ended=fail)
        while not self._server.started and not over.is_set():  # noqa: ASYNC110 - it tells by an attribute only
            await asyncio.sleep(0)

    async def close(self) -> None:
        self._server.leave()
        await self._background.finish()


class _Guest(uvicorn.Server):
    """Its own main loop wakes ten times a second, which costs an idle broker a tenth of what it may use."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._leaving = asyncio.Event()

    def leave(self) -> None:
        self.should_exit = True
        self._leaving.set()

    async def main_loop(self) -> None:
        while not await self.on_tick(0):      # renews the date header
            await nap(self._leaving, next_look(asyncio.get_running_loop().time(), 1.0))
            if not self.should_exit:
                self._leaving.clear()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
