"""The simulated network: streams cut anew, windows, pauses, cuts, resets, half-open connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from millrace.ops.ports import Ports
from millrace_sim.kit import Sim
from millrace_sim.processes import Host

PORT = 9000


class Collector(asyncio.Protocol):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.pieces: list[int] = []
        self.events: list[str] = []
        self.lost: list[BaseException | None] = []
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.events.append("made")

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.pieces.append(len(data))

    def eof_received(self) -> bool | None:
        self.events.append("eof")
        return None

    def pause_writing(self) -> None:
        self.events.append("pause_writing")

    def resume_writing(self) -> None:
        self.events.append("resume_writing")

    def connection_lost(self, exc: BaseException | None) -> None:
        self.events.append("lost")
        self.lost.append(exc)


class Buffered(asyncio.BufferedProtocol):
    """Offers a small buffer of its own, as the product's connections do."""

    def __init__(self) -> None:
        self.room = bytearray(100)
        self.data = bytearray()

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.room

    def buffer_updated(self, nbytes: int) -> None:
        assert 0 < nbytes <= 100
        self.data += self.room[:nbytes]


class Pair:
    """Two hosts, a server on one, a client on the other."""

    def __init__(self, seed: int = 1, server: Callable[[], Any] = Collector) -> None:
        self.sim = Sim(seed)
        self.a, self.b = self.sim.add_host("a"), self.sim.add_host("b")
        self.made: list[Any] = []
        self.server_kind = server
        self.client = Collector()

    def accept(self) -> Any:
        self.made.append(self.server_kind())
        return self.made[-1]

    async def serve(self, ports: Ports) -> None:
        await asyncio.get_running_loop().create_server(self.accept, "0.0.0.0", PORT)
        await asyncio.sleep(10_000)

    async def dial(self, ports: Ports) -> None:
        await asyncio.get_running_loop().create_connection(lambda: self.client, "b", PORT)
        await asyncio.sleep(10_000)

    def run(self, script: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            self.sim.start(self.b, self.serve)
            await asyncio.sleep(1)
            self.sim.start(self.a, self.dial)
            await asyncio.sleep(1)
            await script()

        self.sim.run(main())

    def cut(self, source: Host, target: Host) -> None:
        self.sim.net.cut(source.name, target.name)


def test_bytes_arrive_whole_in_order_and_cut_anew() -> None:
    sizes = set()
    for seed in range(20):
        pair = Pair(seed)
        sent = bytes(range(256)) * 40

        async def script(pair: Pair = pair, sent: bytes = sent) -> None:
            for at in range(0, len(sent), 512):
                pair.client.transport.write(sent[at:at + 512])
            pair.client.transport.writelines([b"x", b"y", memoryview(b"z")])
            await asyncio.sleep(60)
            assert pair.made[0].data == sent + b"xyz"
            sizes.update(pair.made[0].pieces)

        pair.run(script)
    assert 1 in sizes
    assert max(sizes) > 512
    assert len(sizes) > 20


def test_buffered_protocols_are_fed_through_their_own_buffer() -> None:
    pair = Pair(3, Buffered)

    async def script() -> None:
        pair.client.transport.write(b"q" * 5000)
        await asyncio.sleep(60)
        assert pair.made[0].data == b"q" * 5000

    pair.run(script)


def test_pause_reading_pauses_and_the_window_stops_the_sender() -> None:
    pair = Pair()

    async def script() -> None:
        server = pair.made[0]
        server.transport.pause_reading()
        assert not server.transport.is_reading()
        pair.client.transport.write(b"x" * 1_000_000)
        await asyncio.sleep(60)
        assert server.data == b""
        assert pair.client.events == ["made", "pause_writing"]
        in_kernels = pair.sim.net.window_bytes + pair.sim.net.send_buffer_bytes
        assert pair.client.transport.get_write_buffer_size() == 1_000_000 - in_kernels
        server.transport.resume_reading()
        await asyncio.sleep(60)
        assert len(server.data) == 1_000_000
        assert pair.client.events == ["made", "pause_writing", "resume_writing"]
        assert pair.client.transport.get_write_buffer_size() == 0

    pair.run(script)


def test_close_flushes_then_both_ends_are_told() -> None:
    pair = Pair()

    async def script() -> None:
        pair.client.transport.write(b"x" * 300_000)
        pair.client.transport.close()
        pair.client.transport.write(b"ignored")
        await asyncio.sleep(60)
        assert len(pair.made[0].data) == 300_000
        assert pair.made[0].events == ["made", "eof", "lost"]
        assert pair.client.lost == pair.made[0].lost == [None]
        assert pair.sim.net._transports == {}

    pair.run(script)


def test_abort_resets_the_other_end() -> None:
    pair = Pair()

    async def script() -> None:
        pair.client.transport.abort()
        await asyncio.sleep(1)
        assert pair.client.lost == [None]
        assert isinstance(pair.made[0].lost[0], ConnectionResetError)
        assert pair.sim.net._transports == {}

    pair.run(script)


def test_write_eof_closes_one_direction() -> None:
    class Answers(Collector):
        def eof_received(self) -> bool:
            self.transport.write(b"answer")
            return True

    pair = Pair(1, Answers)

    async def script() -> None:
        pair.client.transport.write_eof()
        with pytest.raises(RuntimeError):
            pair.client.transport.write(b"no")
        await asyncio.sleep(1)
        assert pair.client.data == b"answer"

    pair.run(script)


def test_refused_where_nobody_listens_and_timed_out_where_cut() -> None:
    pair = Pair()
    seen: list[tuple[str, float]] = []

    async def dial(ports: Ports) -> None:
        for port, cut in ((1, False), (PORT, True)):
            if cut:
                pair.cut(pair.b, pair.a)
            begun = pair.sim.loop.now
            try:
                await asyncio.get_running_loop().create_connection(Collector, "b", port)
            except OSError as exc:
                seen.append((type(exc).__name__, pair.sim.loop.now - begun))

    async def main() -> None:
        pair.sim.start(pair.b, pair.serve)
        pair.sim.start(pair.a, dial)
        await asyncio.sleep(100)

    pair.sim.run(main())
    assert [name for name, _ in seen] == ["ConnectionRefusedError", "TimeoutError"]
    assert seen[0][1] < 1
    assert 30 < seen[1][1] < 33


def test_a_listener_is_bound_once_and_freed_by_close() -> None:
    sim = Sim(1)
    host = sim.add_host("a")

    async def program(ports: Ports) -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Collector, "a", PORT)
        assert server.sockets[0].getsockname() == ("a", PORT)
        with pytest.raises(OSError, match="in use"):
            await loop.create_server(Collector, None, PORT)
        server.close()
        await server.wait_closed()
        await loop.create_server(Collector, None, PORT)
        free = await loop.create_server(Collector, None, 0)
        assert free.sockets[0].getsockname()[1] > 1024

    async def main() -> None:
        sim.start(host, program)
        await asyncio.sleep(1)

    sim.run(main())


def test_a_cut_keeps_the_bytes_until_it_heals() -> None:
    for seed in range(10):
        pair = Pair(seed)

        async def script(pair: Pair = pair) -> None:
            pair.client.transport.write(b"before" * 100)
            await asyncio.sleep(0.0004)                       # some of it is on the way
            pair.cut(pair.a, pair.b)
            pair.client.transport.write(b"during" * 100)
            await asyncio.sleep(5)
            got = len(pair.made[0].data)
            assert got <= 600
            pair.made[0].transport.write(b"the other way works")
            await asyncio.sleep(1)
            assert pair.client.data == b"the other way works"
            pair.sim.net.heal_all()
            await asyncio.sleep(5)
            assert pair.made[0].data == b"before" * 100 + b"during" * 100
            assert pair.client.lost == pair.made[0].lost == []

        pair.run(script)


def test_a_long_cut_resets_the_sender_and_leaves_the_other_half_open() -> None:
    pair = Pair()

    async def script() -> None:
        pair.cut(pair.a, pair.b)
        pair.client.transport.write(b"x")
        await asyncio.sleep(100)
        assert isinstance(pair.client.lost[0], TimeoutError)
        assert pair.made[0].lost == []
        pair.sim.net.heal_all()
        await asyncio.sleep(10)
        assert pair.made[0].lost == []
        pair.made[0].transport.write(b"anyone?")
        await asyncio.sleep(1)
        assert isinstance(pair.made[0].lost[0], ConnectionResetError)

    pair.run(script)


def test_without_acknowledgements_data_arrives_and_the_sender_gives_up() -> None:
    pair = Pair()

    async def script() -> None:
        pair.cut(pair.b, pair.a)
        pair.client.transport.write(b"x")
        await asyncio.sleep(100)
        assert pair.made[0].data == b"x"
        assert isinstance(pair.client.lost[0], TimeoutError)

    pair.run(script)


def test_a_killed_process_closes_and_what_its_kernel_had_arrives() -> None:
    pair = Pair()

    async def script() -> None:
        pair.made[0].transport.write(b"the ack")
        pair.sim.crash(pair.b)
        await asyncio.sleep(1)
        assert pair.client.data == b"the ack"
        assert pair.client.events == ["made", "eof", "lost"]
        assert pair.made[0].events == ["made"]

    pair.run(script)


def test_a_power_cut_is_silent_and_the_rebooted_machine_resets() -> None:
    pair = Pair()

    async def script() -> None:
        pair.sim.power_cut(pair.b.machine)
        await asyncio.sleep(5)
        assert pair.client.lost == []
        pair.client.transport.write(b"hello?")
        await asyncio.sleep(5)
        assert pair.client.lost == []
        pair.sim.power_on(pair.b.machine)
        await asyncio.sleep(5)
        assert isinstance(pair.client.lost[0], ConnectionResetError)

    pair.run(script)


def test_a_stopped_process_receives_and_accepts_in_its_kernel() -> None:
    pair = Pair()
    second = Collector()

    async def dial(ports: Ports) -> None:
        await asyncio.get_running_loop().create_connection(lambda: second, "b", PORT)
        second.transport.write(b"early")
        await asyncio.sleep(1000)

    async def script() -> None:
        pair.sim.pause(pair.b, 20)
        pair.client.transport.write(b"x" * 1_000_000)
        pair.sim.start(pair.sim.add_host("c"), dial)
        await asyncio.sleep(19)
        assert second.events == ["made"]
        assert len(pair.made) == 1
        assert pair.made[0].data == b""
        assert pair.client.transport.get_write_buffer_size() > 800_000
        await asyncio.sleep(20)
        assert len(pair.made[0].data) == 1_000_000
        assert pair.made[1].data == b"early"
        assert pair.client.lost == []

    pair.run(script)


def test_loss_is_delay_and_a_slow_link_is_slow() -> None:
    def seconds(loss: float, slow: float) -> float:
        pair = Pair(5)
        took: list[float] = []

        async def script() -> None:
            pair.sim.net.loss = loss
            pair.sim.net.slow["a", "b"] = slow
            begun = pair.sim.loop.now
            for _ in range(20):
                size = len(pair.made[0].data)
                pair.client.transport.write(b"x")
                while len(pair.made[0].data) == size:
                    await asyncio.sleep(0.001)
            took.append(pair.sim.loop.now - begun)

        pair.run(script)
        return took[0]

    plain = seconds(0, 0)
    assert seconds(0.5, 0) > plain + 1
    assert seconds(0, 0.5) > plain + 1


def test_the_network_may_reset_connections() -> None:
    pair = Pair()

    async def script() -> None:
        pair.sim.net.reset_some(1.0)
        await asyncio.sleep(1)
        assert isinstance(pair.client.lost[0], ConnectionResetError)
        assert isinstance(pair.made[0].lost[0], ConnectionResetError)

    pair.run(script)
