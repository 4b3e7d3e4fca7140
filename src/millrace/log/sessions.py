"""The leader's side of replication: one session per follower's link, one stream per partition on it.

In: ATTACH, FETCH, DETACH of the follower; appends and high-watermark moves of partitions. Out: DATA frames.

    append ─▶ stream is dirty ─▶ one respond per turn of the loop ─▶ DATA with all dirty streams, in rotation
                                                                  ─▶ DATA of streams that catch up, a little at a time
    FETCH = "I have made durable up to here" ─▶ the decider counts it ─▶ HW ─▶ acknowledgements, HW news

Promises: an idle stream costs nothing; a stream gets its share of a frame and goes to the back of the queue, so a slow
or large one starves nobody; at most `FRAMES_IN_FLIGHT_MAX` frames with data are unacknowledged; a follower that is
gigabytes behind in some partitions gets them in small frames, one at a time, so that writes which wait for the same
follower in other partitions are not queued behind them, neither on the link nor on its disk; HW news rides on data
or leaves after `HW_NEWS_S` [L4]. What was sent counts for nothing: only a FETCH moves what the leader believes [L5].
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING

import structlog

from millrace import limits
from millrace.core.effects import Diverged, Fence, OutOfRange, Serve
from millrace.errors import Damaged, NotLeader, OffsetOutOfRange, UnknownLeaderEpoch
from millrace.link.server import Peer
from millrace.model.ids import TopicPartition
from millrace.wire import links

if TYPE_CHECKING:
    from millrace.log.partition import Host, Partition

log = structlog.get_logger(__name__)

FRAMES_IN_FLIGHT_MAX = 3
CATCH_UP_FRAMES_IN_FLIGHT_MAX = 1     # one frame is one file to sync: each further one delays what others wait for
HW_NEWS_S = 0.03
NEWS_PER_FRAME_MAX = 2_000

NO_DIVERGENCE = (-1, -1)


class Stream:
    """One partition as one follower's session sees it."""

    __slots__ = ("acked", "asked", "hw_sent", "id", "live", "partition", "sent", "serving", "session", "start_sent")

    def __init__(self, session: Session, asked: links.Attach) -> None:
        self.session = session
        self.id = asked.stream
        self.asked = asked                 # where it began: evaluated again when the leader learns its epoch
        self.partition: Partition | None = None
        self.live = True                   # False once replaced, detached or cut off
        self.serving = False               # the logs agree up to `sent`: data may follow
        self.sent = asked.offset
        self.acked = -1
        self.hw_sent = -1
        self.start_sent = -1

    def more(self) -> None:
        """The partition has bytes that were not sent."""
        self.session.dirty(self)

    def news(self) -> None:
        """The high watermark or the log start moved."""
        self.session.heard(self)

    def retry(self) -> None:
        """The partition's epoch rose: the follower's ATTACH may be answered now."""
        if self.live and self.partition is not None:
            self.session.evaluate(self, self.partition, *self.asked[3:])

    def fenced(self, leader_epoch: int) -> None:
        """The partition is not led here any more."""
        self.session.refuse(self, NotLeader.kafka_code, leader_epoch)

    def drop(self) -> None:
        self.session.drop(self)


class Lane:
    """Streams with something to send, in the order of their turns, and their frames that are not acknowledged."""

    __slots__ = ("dirty", "frame_bytes_max", "frames_max", "in_flight", "stream_bytes_max")

    def __init__(self, *, frame_bytes_max: int, stream_bytes_max: int, frames_max: int) -> None:
        self.frame_bytes_max, self.stream_bytes_max, self.frames_max = frame_bytes_max, stream_bytes_max, frames_max
        self.dirty: dict[Stream, None] = {}
        self.in_flight: deque[list[tuple[Stream, int]]] = deque()

    @property
    def open(self) -> bool:
        return bool(self.dirty) and len(self.in_flight) < self.frames_max

    def retire(self) -> None:
        """Frames whose every stream was acknowledged (or ended) free their place in the window."""
        flight = self.in_flight
        while flight and all(s.acked >= end or not s.serving for s, end in flight[0]):
            flight.popleft()


class Session:
    """All streams of one follower's link."""

    __slots__ = (
        "_answers", "_behind", "_fresh", "_loop", "_news", "_news_timer", "_scheduled", "closed", "follower",
        "frames_out", "host", "leaders", "peer", "streams",
    )

    def __init__(self, host: Host, leaders: Leaders, peer: Peer) -> None:
        self.host, self.leaders, self.peer = host, leaders, peer
        self.follower = peer.member
        self.streams: dict[int, Stream] = {}
        self.closed = False
        self.frames_out = 0
        self._loop = asyncio.get_running_loop()
        self._fresh = Lane(
            frame_bytes_max=limits.REPLICA_FRAME_BYTES_MAX, stream_bytes_max=limits.REPLICA_STREAM_BYTES_MAX,
            frames_max=FRAMES_IN_FLIGHT_MAX,
        )
        self._behind = Lane(
            frame_bytes_max=limits.REPLICA_CATCH_UP_BYTES_MAX, stream_bytes_max=limits.REPLICA_CATCH_UP_BYTES_MAX,
            frames_max=CATCH_UP_FRAMES_IN_FLIGHT_MAX,
        )
        self._news: dict[Stream, None] = {}
        self._answers: list[bytes] = []           # refusals and divergences: they leave with the next frame
        self._scheduled = False
        self._news_timer: asyncio.TimerHandle | None = None

    # -- what the follower says ------------------------------------------------------------------------------------

    def attach(self, asked: links.Attach) -> None:
        old = self.streams.get(asked.stream)
        if old is not None:
            self.drop(old)
        stream = self.streams[asked.stream] = Stream(self, asked)
        tp = TopicPartition(asked.topic_id, asked.partition)
        partition = self.leaders.find(tp)
        if partition is None:
            self.leaders.park(tp, stream)
            return
        stream.partition = partition
        self.evaluate(stream, partition, asked.leader_epoch, asked.offset, asked.last_epoch)

    def fetch(self, entries: Iterable[links.Fetch]) -> None:
        for stream_id, epoch, offset, last_epoch in entries:
            stream = self.streams.get(stream_id)
            if stream is not None and stream.partition is not None:
                self.evaluate(stream, stream.partition, epoch, offset, last_epoch)
        self._retire()

    def detach(self, stream_ids: Iterable[int]) -> None:
        for stream_id in stream_ids:
            stream = self.streams.get(stream_id)
            if stream is not None:
                self.drop(stream)
        self._retire()

    def evaluate(self, stream: Stream, partition: Partition, epoch: int, offset: int, last_epoch: int) -> None:
        """The decider's answer to a follower that has everything below `offset`, the last of it of `last_epoch`."""
        if partition.failed:
            self.refuse(stream, NotLeader.kafka_code, partition.replica.leader_epoch)
            return
        now = self.host.ports.clock.now()
        answer = partition.replica.follower_fetched(
            now, follower=self.follower, incarnation=self.peer.incarnation, epoch=epoch, offset=offset,
            last_epoch=last_epoch,
        )
        match answer:
            case Serve():
                self._serve(stream, partition, offset)
                partition.take(answer.effects)
            case Diverged():
                self._stop(stream)
                self._answer(stream, 0, partition.replica.leader_epoch, (answer.epoch, answer.end))
            case OutOfRange():
                self._start_over(stream, partition)
            case Fence():
                self._stop(stream)
                if answer.error == UnknownLeaderEpoch.kafka_code or epoch > partition.replica.leader_epoch:
                    partition.parked[self.follower] = stream     # answered as soon as this broker learns the epoch
                else:
                    self.refuse(stream, answer.error, partition.replica.leader_epoch)

    def _serve(self, stream: Stream, partition: Partition, offset: int) -> None:
        stream.acked = offset
        if not stream.serving:
            stream.serving = True
            stream.sent = offset
            old = partition.streams.get(self.follower)
            if old is not None and old is not stream:
                old.drop()
            partition.streams[self.follower] = stream
            self.heard(stream)
        if stream.sent < partition.log.log_end:
            self.dirty(stream)
        elif partition.replica.hw > stream.hw_sent:
            self.heard(stream)

    # -- what happens to a stream ----------------------------------------------------------------------------------

    def _stop(self, stream: Stream) -> None:
        """No data until the follower says where it stands."""
        stream.serving = False
        partition = stream.partition
        if partition is not None:
            for streams in (partition.streams, partition.parked):
                if streams.get(self.follower) is stream:
                    del streams[self.follower]
        self._fresh.dirty.pop(stream, None)
        self._behind.dirty.pop(stream, None)
        self._news.pop(stream, None)

    def drop(self, stream: Stream) -> None:
        self._stop(stream)
        stream.live = False
        if self.streams.get(stream.id) is stream:
            del self.streams[stream.id]

    def refuse(self, stream: Stream, error: int, leader_epoch: int) -> None:
        self._stop(stream)
        self._answer(stream, error, leader_epoch, NO_DIVERGENCE)

    def _start_over(self, stream: Stream, partition: Partition) -> None:
        """What the follower asks for is gone. With where the log starts it is told what it cannot learn any more: the
        writers whose batches went [L28]."""
        self._stop(stream)
        epoch = partition.replica.leader_epoch
        try:
            producers = partition.log.producers_for_restart(partition.replica.hw)
        except Damaged as e:
            self.refuse(stream, NotLeader.kafka_code, epoch)
            self.host.damaged(partition, str(e))
            return
        self._answer(stream, OffsetOutOfRange.kafka_code, epoch, NO_DIVERGENCE, producers)

    def _answer(
        self, stream: Stream, error: int, leader_epoch: int, diverging: tuple[int, int], data: bytes = b""
    ) -> None:
        start = stream.partition.log.log_start if stream.partition is not None else 0
        head = links.encode_data_entry(stream.id, error, leader_epoch, -1, start, diverging, len(data))
        self._answers.append(head + data)
        self._schedule()

    # -- sending ---------------------------------------------------------------------------------------------------

    def dirty(self, stream: Stream) -> None:
        lane, other = self._fresh, self._behind
        if stream.partition is not None and self.follower not in stream.partition.replica.isr:
            lane, other = other, lane      # out of sync: nobody's write waits for it
        other.dirty.pop(stream, None)
        lane.dirty[stream] = None
        if not self._scheduled and lane.open:
            self._schedule()

    def heard(self, stream: Stream) -> None:
        self._news[stream] = None
        if self._news_timer is None and not self._scheduled:
            self._news_timer = self._loop.call_later(HW_NEWS_S, self._respond)

    def _schedule(self) -> None:
        if not self._scheduled and not self.closed:
            self._scheduled = True
            self._loop.call_soon(self._respond)

    def _respond(self) -> None:
        self._scheduled = False
        if self._news_timer is not None:
            self._news_timer.cancel()
            self._news_timer = None
        if self.closed:
            return
        chunks: list[links.Chunk] = self._some_answers()
        if self._fresh.open:
            self._fill(chunks, self._fresh)
        for stream in list(islice(self._news, NEWS_PER_FRAME_MAX)):
            del self._news[stream]
            if stream.serving and stream.partition is not None:
                chunks.append(self._entry(stream, stream.partition, 0))
        self._send(chunks)
        if self._behind.open:
            catching_up: list[links.Chunk] = []
            self._fill(catching_up, self._behind)
            self._send(catching_up)
        if self._news or self._answers or self._fresh.open or self._behind.open:
            self._schedule()

    def _some_answers(self) -> list[links.Chunk]:
        """A frame's worth: an answer to start over may carry the state of thousands of writers."""
        count = size = 0
        while count < len(self._answers) and size < limits.REPLICA_FRAME_BYTES_MAX:
            size += len(self._answers[count])
            count += 1
        taken, self._answers = self._answers[:count], self._answers[count:]
        return list(taken)

    def _send(self, chunks: list[links.Chunk]) -> None:
        if chunks:
            self.frames_out += 1
            self.host.stats.replica_frames_out += 1
            self.peer.send(links.DATA, chunks)

    def _fill(self, chunks: list[links.Chunk], lane: Lane) -> None:
        """Data of dirty streams in turn, up to a frame's bytes; what is not finished goes to the back."""
        left = lane.frame_bytes_max
        again: list[Stream] = []
        carried: list[tuple[Stream, int]] = []
        while lane.dirty and left > 0:
            stream = next(iter(lane.dirty))
            del lane.dirty[stream]
            partition = stream.partition
            if not stream.serving or partition is None:
                continue
            data = self._read(stream, partition, min(left, lane.stream_bytes_max))
            if data is None:
                continue
            chunks.append(self._entry(stream, partition, len(data)))
            chunks.append(data)
            self._news.pop(stream, None)
            carried.append((stream, stream.sent))
            left -= len(data)
            if stream.sent < partition.log.log_end:
                again.append(stream)
        for stream in again:
            lane.dirty[stream] = None
        if carried:
            lane.in_flight.append(carried)
            self.host.stats.replica_bytes_out += lane.frame_bytes_max - left

    def _read(self, stream: Stream, partition: Partition, max_bytes: int) -> bytes | None:
        """The next bytes of a stream; a log that cannot be read is reported, and only its stream stops."""
        try:
            chunk = partition.log.read(stream.sent, max_bytes, upto=partition.log.log_end)
            data = chunk.bytes() if chunk is not None else None
        except OffsetOutOfRange:
            self._start_over(stream, partition)
            return None
        except Damaged as e:
            self.refuse(stream, NotLeader.kafka_code, partition.replica.leader_epoch)
            self.host.damaged(partition, str(e))
            return None
        if chunk is not None:
            stream.sent = chunk.end
        return data

    def _entry(self, stream: Stream, partition: Partition, size: int) -> bytes:
        replica = partition.replica
        stream.hw_sent, stream.start_sent = replica.hw, partition.log.log_start
        return links.encode_data_entry(
            stream.id, 0, replica.leader_epoch, replica.hw, partition.log.log_start, NO_DIVERGENCE, size
        )

    def _retire(self) -> None:
        self._fresh.retire()
        self._behind.retire()
        if self._fresh.open or self._behind.open:
            self._schedule()

    def close(self) -> None:
        self.closed = True
        if self._news_timer is not None:
            self._news_timer.cancel()
            self._news_timer = None
        for stream in list(self.streams.values()):
            self.drop(stream)
        self._fresh.in_flight.clear()
        self._behind.in_flight.clear()


class Leaders:
    """All sessions of followers with this broker."""

    __slots__ = ("_host", "_parked", "find", "sessions")

    def __init__(self, host: Host, find: Callable[[TopicPartition], Partition | None]) -> None:
        self._host = host
        self.find = find
        self.sessions: dict[Peer, Session] = {}
        self._parked: dict[TopicPartition, list[Stream]] = {}   # of partitions this broker has not heard of yet

    def on_attach(self, peer: Peer, body: memoryview) -> None:
        session = self._session(peer)
        for asked in links.decode_attach(body):
            session.attach(asked)

    def on_fetch(self, peer: Peer, body: memoryview) -> None:
        self._session(peer).fetch(links.decode_fetch(body))

    def on_detach(self, peer: Peer, body: memoryview) -> None:
        self._session(peer).detach(links.decode_detach(body))

    def on_closed(self, peer: Peer) -> None:
        session = self.sessions.pop(peer, None)
        if session is not None:
            session.close()
            parked = {tp: [s for s in streams if s.live] for tp, streams in self._parked.items()}
            self._parked = {tp: streams for tp, streams in parked.items() if streams}

    def park(self, tp: TopicPartition, stream: Stream) -> None:
        streams = [s for s in self._parked.get(tp, ()) if s.live]
        self._parked[tp] = [*streams, stream]

    def created(self, partition: Partition) -> None:
        """A partition came to be here: followers that asked early are answered."""
        for stream in self._parked.pop(partition.tp, ()):
            if stream.live:
                stream.partition = partition
                stream.retry()

    def close(self) -> None:
        for session in list(self.sessions.values()):
            session.close()
        self.sessions.clear()
        self._parked.clear()

    def _session(self, peer: Peer) -> Session:
        session = self.sessions.get(peer)
        if session is None:
            session = self.sessions[peer] = Session(self._host, self, peer)
        return session
