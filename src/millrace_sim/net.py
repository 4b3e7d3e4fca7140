"""The simulated network: hosts, listeners, connections, and what may happen on the way.

In: `create_server` and `create_connection` of the virtual loop. Out: byte streams with latency, loss (a retransmission
delay, as TCP shows it), slow links, one-way cuts, refusals, time-outs and resets, all drawn from one seed.

A cut keeps the bytes, as TCP does: they arrive after the cut heals, or the connection is reset when nothing was
acknowledged for `give_up_s`. A killed process leaves its kernel to send what it had accepted, then FIN or RST. A power
cut sends nothing: the other side holds a half-open connection until it writes to the rebooted machine.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import random
from collections.abc import Callable
from typing import Any

from millrace_sim.loop import VirtualLoop
from millrace_sim.processes import PROCESS, Host, Machine, Process, State, refuse_the_dead
from millrace_sim.tcp import Address, SimSocket, SimTransport

SYN_TRIES_S = (0.0, 1.0, 3.0, 7.0, 15.0)
SYN_GIVE_UP_S = 31.0
EPHEMERAL_FIRST = 32_768
HERE = (None, "", "0.0.0.0", "::", "127.0.0.1", "localhost")


class SimNet:
    """Everything between hosts."""

    def __init__(self, loop: VirtualLoop, seed: int | str = 0) -> None:
        self.loop = loop
        loop.net = self
        self.rng = random.Random(f"{seed}/net")
        self.hosts: dict[str, Host] = {}
        self.latency_min_s = 0.0001
        self.latency_mean_s = 0.0005
        self.loss = 0.0
        self.give_up_s = 15.0
        self.window_bytes = 65_536
        self.send_buffer_bytes = 65_536
        self.slow: dict[tuple[str, str], float] = {}        # extra seconds per chunk, by (from, to)
        self.blocked: set[tuple[str, str]] = set()
        self.arrived_bytes = 0
        self._listeners: dict[tuple[str, int], SimServer] = {}
        self._transports: dict[int, SimTransport] = {}
        self._count = 0

    # -- delays ------------------------------------------------------------------------------------------------------
    def latency(self, source: str, target: str) -> float:
        if source == target:
            return 0.00002
        delay = self.latency_min_s + self.rng.expovariate(1 / self.latency_mean_s)
        if self.loss and self.rng.random() < self.loss:
            delay += 0.2 * 2 ** self.rng.randint(0, 2)
        extra = self.slow.get((source, target))
        return delay if extra is None else delay + self.rng.uniform(0, extra)

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self.blocked or not self._is_powered(target) or not self._is_powered(source)

    def _is_powered(self, name: str) -> bool:
        host = self.hosts.get(name)
        return host is None or host.machine.powered

    # -- cuts --------------------------------------------------------------------------------------------------------
    def cut(self, source: str, target: str) -> None:
        """One way: nothing from `source` reaches `target`."""
        if source != target:
            self.blocked.add((source, target))

    def heal(self, source: str, target: str) -> None:
        self.blocked.discard((source, target))
        self._retransmit()

    def heal_all(self) -> None:
        self.blocked.clear()
        self.slow.clear()
        self._retransmit()

    def _retransmit(self) -> None:
        for transport in list(self._transports.values()):
            transport.out.healed()

    # -- what processes ask ------------------------------------------------------------------------------------------
    def listen(self, factory: Callable[[], asyncio.BaseProtocol], host: str | None, port: int | None) -> SimServer:
        refuse_the_dead()
        name = self._own_name(host)
        number = port or self._free_port(name)
        if (name, number) in self._listeners:
            raise OSError(errno.EADDRINUSE, f"address in use: {name}:{number}")
        server = SimServer(self, factory, name, number)
        self._listeners[name, number] = server
        return server

    async def connect(self, factory: Callable[[], asyncio.BaseProtocol], host: str | None,
                      port: int) -> tuple[SimTransport, asyncio.BaseProtocol]:
        refuse_the_dead()
        me, target = self._own_name(None), self._own_name(host)
        server = await self._handshake(me, target, port)
        refuse_the_dead()
        self._count += 1
        own = (me, EPHEMERAL_FIRST + self._count)
        mine = self.end(factory(), own, (target, port))
        theirs = server.accept(own)
        mine.out.target, theirs.out.target = theirs, mine
        theirs.begin(None)
        opened: asyncio.Future[None] = self.loop.create_future()
        mine.begin(opened)
        try:
            await opened
        except BaseException:
            mine.abort()
            raise
        return mine, mine.get_protocol()

    async def _handshake(self, me: str, target: str, port: int) -> SimServer:
        """SYN is repeated as Linux does; a machine that is up and does not listen refuses at once."""
        waited = 0.0
        for at in SYN_TRIES_S:
            await self._true_sleep(at - waited)
            waited = at
            there, back = self.latency(me, target), self.latency(target, me)
            await self._true_sleep(there + back)
            if self.is_cut(me, target) or self.is_cut(target, me):
                continue
            server = self._listeners.get((target, port))
            if server is None:
                raise ConnectionRefusedError(errno.ECONNREFUSED, f"refused: {target}:{port}")
            return server
        await self._true_sleep(SYN_GIVE_UP_S - waited)
        raise TimeoutError(errno.ETIMEDOUT, f"timed out: {target}:{port}")

    async def _true_sleep(self, seconds: float) -> None:
        """The network's own time, whatever the host's clock says."""
        done: asyncio.Future[None] = self.loop.create_future()
        timer = self.loop.kit_at(self.loop.now + seconds, _finish, done)
        try:
            await done
        finally:
            timer.cancel()

    # -- what happens to hosts ---------------------------------------------------------------------------------------
    def process_died(self, process: Process, *, power: bool) -> None:
        for key in [k for k, server in self._listeners.items() if server.process is process]:
            del self._listeners[key]
        for transport in [t for t in self._transports.values() if t.process is process]:
            transport.vanish(power=power)

    def machine_lost_power(self, machine: Machine) -> None:
        names = {host.name for host in machine.hosts}
        for key in [k for k in self._listeners if k[0] in names]:
            del self._listeners[key]
        for transport in [t for t in self._transports.values() if t.host_name in names]:
            transport.vanish(power=True)

    def machine_has_power(self) -> None:
        """What was sent to it meanwhile is repeated, and meets a machine that knows no such connection."""
        self._retransmit()

    def reset_some(self, share: float) -> None:
        """A middle box forgot some connections: both ends see a reset."""
        for transport in list(self._transports.values()):
            if self.rng.random() < share:
                transport.lost(ConnectionResetError(errno.ECONNRESET, "reset by the network"))
                transport.out.target.lost(ConnectionResetError(errno.ECONNRESET, "reset by the network"))

    # -- inside ------------------------------------------------------------------------------------------------------
    def end(self, protocol: asyncio.BaseProtocol, own: Address, remote: Address) -> SimTransport:
        self._count += 1
        transport = SimTransport(self, protocol, self._count, own, remote)
        self._transports[self._count] = transport
        return transport

    def forget(self, transport: SimTransport) -> None:
        self._transports.pop(transport.number, None)

    def _own_name(self, host: str | None) -> str:
        process = PROCESS.get()
        if host not in HERE:
            return str(host)
        return "world" if process is None else process.host.name

    def _free_port(self, name: str) -> int:
        port = EPHEMERAL_FIRST
        while (name, port) in self._listeners:
            port += 1
        return port


class SimServer(asyncio.AbstractServer):
    """A listener. Connections it accepts belong to the process that opened it."""

    def __init__(self, net: SimNet, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> None:
        self.net, self.factory, self.host, self.port = net, factory, host, port
        self.process = PROCESS.get()
        self.context = contextvars.copy_context()
        self.sockets: tuple[SimSocket, ...] = (SimSocket((host, port), None),)

    def accept(self, remote: Address) -> SimTransport:
        return self.context.copy().run(self._accept, remote)

    def _accept(self, remote: Address) -> SimTransport:
        own = (self.host, self.port)
        if self.process is not None and self.process.state is State.STOPPED:
            # A stopped process accepts nothing, its kernel does: the protocol is made when it resumes.
            return self.net.end(_Late(self.factory), own, remote)
        return self.net.end(self.factory(), own, remote)

    def close(self) -> None:
        if self.net._listeners.get((self.host, self.port)) is self:
            del self.net._listeners[self.host, self.port]
        self.sockets = ()

    async def wait_closed(self) -> None:
        await asyncio.sleep(0)

    def is_serving(self) -> bool:
        return self.net._listeners.get((self.host, self.port)) is self

    async def start_serving(self) -> None:
        """It listens from the start."""

    async def serve_forever(self) -> None:
        await self.net.loop.create_future()

    def get_loop(self) -> Any:
        return self.net.loop


class _Late(asyncio.Protocol):
    """Stands in until the stopped process runs again and can make its own protocol."""

    def __init__(self, factory: Callable[[], asyncio.BaseProtocol]) -> None:
        self._factory = factory

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, SimTransport)
        protocol = self._factory()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
