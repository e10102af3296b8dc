"""The contract of a transport: tests that every implementation must pass.

A subclass names an address, and inherits the tests::

    class TestQuic(TransportContract):
        address = "127.0.0.1:0"

Each test drives two protocol cores through the Protocols of `aqueduct.transport.base`, without
the connections and handles above them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import pytest

import aqueduct
from aqueduct.errors import AqueductError, BindError, CloseCode, ConnectError, WouldBlock
from aqueduct.observe import NullObserver
from aqueduct.protocol.budget import AddressAccount
from aqueduct.protocol.config import Config, Limits
from aqueduct.protocol.connection import Attach, ConnectionCore, Give, Mode
from aqueduct.protocol.events import (
    ConnectionEnded,
    Delivered,
    End,
    Event,
    PeerHeaders,
    ReceiverEnded,
    Undelivered,
    Writable,
)
from aqueduct.transport.base import Listener, Transport
from aqueduct.transport.schemes import QuicSettings, connectors_for, listen
from aqueduct.wire.chanid import ENTRYPOINT, Side
from aqueduct.wire.frames import MessageFrame
from tests.processes.peers import TIMEOUT, eventually

STATISTICS = {
    "rtt",
    "bytes_sent",
    "bytes_received",
    "packets_sent",
    "packets_received",
    "lost_packets",
    "congestion_window",
    "bytes_in_flight",
    "streams",
    "send_buffer",
}
CLIENT_HEADERS = ((b"from", b"client"),)
SERVER_HEADERS = ((b"from", b"server"),)

E = TypeVar("E")


@dataclass
class Bytes(NullObserver):
    """An observer that keeps the bytes that it is passed."""

    written: dict[int, bytes] = field(default_factory=dict)
    read: dict[int, bytes] = field(default_factory=dict)
    datagrams_written: list[bytes] = field(default_factory=list)
    datagrams_read: list[bytes] = field(default_factory=list)
    resets_written: set[tuple[int, int]] = field(default_factory=set)
    resets_read: set[tuple[int, int]] = field(default_factory=set)

    def stream_written(self, stream: int, data: bytes, fin: bool) -> None:
        self.written[stream] = self.written.get(stream, b"") + data

    def stream_read(self, stream: int, data: bytes, fin: bool) -> None:
        self.read[stream] = self.read.get(stream, b"") + data

    def datagram_written(self, data: bytes) -> None:
        self.datagrams_written.append(data)

    def datagram_read(self, data: bytes) -> None:
        self.datagrams_read.append(data)

    def reset_written(self, stream: int, code: int) -> None:
        self.resets_written.add((stream, code))

    def reset_read(self, stream: int, code: int) -> None:
        self.resets_read.add((stream, code))


class Owner:
    """One end of a connection: a transport and the callbacks that it made."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.core = transport.core
        self.seen = Bytes()
        self.events: list[Event] = []
        self.flushes = 0
        self.endings: list[int] = []
        """The number of events before each call of `handle_ending`."""
        self.failures: list[AqueductError] = []
        transport.attach(self)
        transport.observe(self.seen)

    def handle_events(self, events: list[Event]) -> None:
        self.events += events
        if self.core.side is Side.SERVER and any(isinstance(e, PeerHeaders) for e in events):
            self.core.accept(SERVER_HEADERS, self.transport.now())
            self.transport.schedule_flush()

    def handle_flushed(self, busy: int) -> None:
        assert busy >= 0
        self.flushes += 1

    def handle_ending(self) -> None:
        self.endings.append(len(self.events))

    def handle_failure(self, error: AqueductError) -> None:
        self.failures.append(error)

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    async def until(self, kind: type[E]) -> E:
        await eventually(lambda: bool(self.of(kind)), f"{kind.__name__} comes")
        return self.of(kind)[0]

    def send(self, payload: bytes, channel: int = ENTRYPOINT) -> None:
        self.core.send(channel, payload, self.transport.now())
        self.transport.schedule_flush()

    async def send_until_blocked(self, payload: bytes) -> int:
        """Send until there is no credit; return the number of messages sent."""
        for sent in range(1_000):
            try:
                self.send(payload)
            except WouldBlock:
                return sent
            await asyncio.sleep(0)
        raise AssertionError("the window is unlimited")

    def take(self, channel: int = ENTRYPOINT) -> list[MessageFrame]:
        messages: list[MessageFrame] = []
        for taken in self.core.take(channel, 1_000_000, self.transport.now()):
            messages += [taken] if isinstance(taken, MessageFrame) else taken.messages()
        self.transport.schedule_flush()
        return messages

    async def receive(self, number: int, channel: int = ENTRYPOINT) -> list[bytes]:
        """Take messages until ``number`` have arrived."""
        payloads: list[bytes] = []

        def have_all() -> bool:
            payloads.extend(message.payload for message in self.take(channel))
            return len(payloads) >= number

        await eventually(have_all, f"{number} messages arrive")
        return payloads


@dataclass
class Ends:
    """Two connected owners and the listener between them."""

    client: Owner
    server: Owner
    listener: Listener


class TransportContract:
    """The tests; a subclass says where to listen, and may choose other options."""

    address = ""
    options = QuicSettings(idle_timeout=2.0, keep_alive=0.5)

    @pytest.fixture(autouse=True)
    def own_certificates(
        self, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AQUEDUCT_DEV_DIR", str(tmp_path_factory.mktemp("dev")))

    async def listen(self, accepted: list[Owner], config: Config) -> Listener:
        def make_core(account: AddressAccount | None) -> ConnectionCore:
            return ConnectionCore(Side.SERVER, config, account=account)

        return await listen(
            self.address,
            tls=aqueduct.dev_tls(),
            options=self.options,
            config=config,
            make_core=make_core,
            on_transport=lambda transport: accepted.append(Owner(transport)),
            early_data=False,
        )

    async def open(self, address: str, config: Config) -> Owner:
        (connector,) = connectors_for(
            address, trust=aqueduct.dev_trust(), options=self.options, early_data=False
        )
        route = (await connector.resolve())[0]
        core = ConnectionCore(Side.CLIENT, config, headers=CLIENT_HEADERS)
        return Owner(connector.open(route, core))

    @asynccontextmanager
    async def joined(self, limits: Limits | None = None) -> AsyncIterator[Ends]:
        config = Config(limits=limits or Limits())
        accepted: list[Owner] = []
        async with asyncio.timeout(TIMEOUT):
            listener = await self.listen(accepted, config)
            client: Owner | None = None
            try:
                client = await self.open(listener.address, config)
                client.transport.start()
                await client.until(PeerHeaders)
                (server,) = accepted
                yield Ends(client, server, listener)
            finally:
                for owner in [*accepted, *([client] if client is not None else [])]:
                    owner.transport.abandon("the test is over")
                    owner.transport.close()
                listener.close()

    # -- the start ------------------------------------------------------------------------------

    async def test_headers_are_exchanged_both_ways(self) -> None:
        async with self.joined() as ends:
            assert ends.client.of(PeerHeaders) == [PeerHeaders(SERVER_HEADERS)]
            assert ends.server.of(PeerHeaders) == [PeerHeaders(CLIENT_HEADERS)]
            assert ends.client.transport.is_established
            assert ends.server.transport.is_established
            assert ends.server.transport.client_certificate is None
            assert not ends.client.failures

    async def test_both_ends_have_one_trace_id_and_know_their_peer(self) -> None:
        async with self.joined() as ends:
            client, server = ends.client.transport, ends.server.transport
            assert client.trace_id == server.trace_id != b""
            for transport in (client, server):
                host, port = transport.peer
                assert isinstance(host, str)
                assert isinstance(port, int)
                assert transport.loop is asyncio.get_running_loop()

    async def test_nothing_is_sent_before_start(self) -> None:
        accepted: list[Owner] = []
        listener = await self.listen(accepted, Config())
        client = await self.open(listener.address, Config())
        await asyncio.sleep(0.05)
        assert accepted == []
        assert not client.transport.is_established
        client.transport.abandon("not needed")
        client.transport.close()
        listener.close()

    async def test_early_data_is_off_unless_asked_for(self) -> None:
        async with self.joined() as ends:
            assert not ends.client.transport.may_send_early
            assert not ends.client.transport.early_data_accepted

    # -- messages -------------------------------------------------------------------------------

    @pytest.mark.parametrize("side", list(Side))
    async def test_ordered_messages_arrive_in_order(self, side: Side) -> None:
        payloads = [b"%d" % number * (number % 50) for number in range(500)]
        payloads += [bytes(300_000), b"last"]
        async with self.joined() as ends:
            sender, receiver, channel = await self.channel(ends, side, Mode.ORDERED)
            for payload in payloads:
                sender.send(payload, channel)
            assert await receiver.receive(len(payloads), channel) == payloads

    async def test_unordered_messages_all_arrive(self) -> None:
        payloads = [b"%d" % number for number in range(300)]
        async with self.joined() as ends:
            sender, receiver, channel = await self.channel(ends, Side.CLIENT, Mode.UNORDERED)
            for payload in payloads:
                sender.send(payload, channel)
            assert sorted(await receiver.receive(len(payloads), channel)) == sorted(payloads)

    async def test_the_fates_of_unreliable_messages_are_reported(self) -> None:
        """The core announces datagrams by a timer, so this also tests timers."""
        number = 50
        async with self.joined() as ends:
            sender, receiver, channel = await self.channel(ends, Side.CLIENT, Mode.UNRELIABLE)
            for at in range(number):
                sender.send(b"%d" % at, channel)
            assert sender.core.next_timer() is not None

            def fates() -> int:
                return sum(
                    stop - start
                    for event in sender.events
                    if isinstance(event, Delivered | Undelivered) and event.channel == channel
                    for start, stop in event.ranges
                )

            await eventually(lambda: fates() == number, "the fate of each message is known")
            got = [message.payload for message in receiver.take(channel)]
            assert len(set(got)) == len(got)
            assert ends.client.seen.datagrams_written

    async def test_a_cancelled_channel_resets_its_streams(self) -> None:
        async with self.joined() as ends:
            sender, receiver, channel = await self.channel(ends, Side.CLIENT, Mode.ORDERED)
            sender.send(b"before", channel)
            await receiver.receive(1, channel)
            sender.core.cancel(channel, sender.transport.now())
            sender.transport.schedule_flush()
            await eventually(
                lambda: ReceiverEnded(channel, End.CANCELLED) in receiver.events,
                "the receiver gets the end",
            )
            await eventually(
                lambda: sender.seen.resets_written == receiver.seen.resets_read != set(),
                "the reset arrives",
            )

    async def test_a_receiver_that_does_not_read_blocks_the_sender(self) -> None:
        limits = Limits(channel_window=64 * 1024, connection_window=1024 * 1024)
        async with self.joined(limits) as ends:
            sent = await ends.client.send_until_blocked(bytes(4_096))
            assert 0 < sent <= 17
            await asyncio.sleep(0.05)
            assert not ends.client.of(Writable)
            await ends.server.receive(sent)
            await ends.client.until(Writable)
            ends.client.send(b"there is room again")
            assert await ends.server.receive(1) == [b"there is room again"]

    async def test_an_observer_sees_the_bytes_of_both_directions(self) -> None:
        async with self.joined() as ends:
            ends.client.send(b"a message")
            await ends.server.receive(1)
            for one, other in ((ends.client, ends.server), (ends.server, ends.client)):
                await eventually(
                    lambda one=one, other=other: one.seen.written == other.seen.read,  # type: ignore[misc]
                    "all written bytes are read",
                )
            assert not set(ends.client.seen.written) & set(ends.server.seen.written)

    # -- turns ----------------------------------------------------------------------------------

    async def test_a_turn_flushes_once_however_often_a_flush_is_scheduled(self) -> None:
        async with self.joined() as ends:
            client = ends.client
            client.send(b"settle")
            await ends.server.receive(1)
            await asyncio.sleep(0.2)
            before = client.flushes
            for _ in range(100):
                client.send(b"x")
                client.transport.schedule_flush()
            assert client.flushes == before
            await asyncio.sleep(0)
            assert client.flushes == before + 1

    async def test_flush_sends_without_waiting_for_a_turn(self) -> None:
        async with self.joined() as ends:
            client = ends.client
            client.core.close_connection(CloseCode.REFUSED, "at once", client.transport.now())
            was_closed = client.transport.is_closed
            client.transport.flush()
            assert (was_closed, client.transport.is_closed) == (False, True)
            ended = await ends.server.until(ConnectionEnded)
            assert ended == ConnectionEnded(CloseCode.REFUSED, "at once", True)

    async def test_a_connection_is_drained_once_everything_arrived(self) -> None:
        async with self.joined() as ends:
            ends.client.send(bytes(200_000))
            await ends.server.receive(1)
            await eventually(ends.client.transport.is_drained, "the peer has acknowledged it")

    async def test_statistics_have_the_documented_keys_and_grow(self) -> None:
        async with self.joined() as ends:
            before = ends.client.transport.statistics(), ends.server.transport.statistics()
            assert set(before[0]) == set(before[1]) == STATISTICS
            ends.client.send(bytes(100_000))
            await ends.server.receive(1)
            after = ends.client.transport.statistics(), ends.server.transport.statistics()
            assert after[0]["bytes_sent"] - before[0]["bytes_sent"] >= 100_000
            assert after[1]["bytes_received"] - before[1]["bytes_received"] >= 100_000
            assert after[0]["packets_sent"] > before[0]["packets_sent"]
            assert after[1]["packets_received"] > before[1]["packets_received"]
            assert 0 <= after[0]["rtt"] < TIMEOUT

    # -- ends -----------------------------------------------------------------------------------

    async def test_a_close_arrives_after_the_messages_with_code_and_reason(self) -> None:
        async with self.joined() as ends:
            client, server = ends.client, ends.server
            for number in range(20):
                client.send(b"%d" % number * 1_000)
            client.core.close_connection(CloseCode.GOING_AWAY, "see you", client.transport.now())
            client.transport.schedule_flush()
            ended = await server.until(ConnectionEnded)
            assert ended == ConnectionEnded(CloseCode.GOING_AWAY, "see you", True)
            assert client.of(ConnectionEnded)[0].by_peer is False
            await eventually(lambda: client.transport.is_closed, "the close was sent")
            assert server.transport.is_closed
            assert server.seen.read == client.seen.written

    async def test_a_reason_that_is_no_unicode_text_arrives_as_well_as_it_can(self) -> None:
        """The name of a file may hold surrogates, and be part of a reason."""
        async with self.joined() as ends:
            client, server = ends.client, ends.server
            reason = "no file \udcff.txt"
            client.core.close_connection(CloseCode.INTERNAL, reason, client.transport.now())
            client.transport.schedule_flush()
            ended = await server.until(ConnectionEnded)
            assert ended == ConnectionEnded(CloseCode.INTERNAL, "no file ?.txt", True)

    async def test_the_owner_can_take_arrived_messages_before_the_core_ends(self) -> None:
        async with self.joined() as ends:
            client, server = ends.client, ends.server
            client.core.close_connection(CloseCode.NO_ERROR, "", client.transport.now())
            client.transport.schedule_flush()
            ended = await server.until(ConnectionEnded)
            (events_before,) = server.endings
            assert events_before <= server.events.index(ended)

    async def test_codes_of_the_protocol_are_not_trust_failures(self) -> None:
        async with self.joined() as ends:
            assert not any(map(ends.client.transport.is_trust_failure, CloseCode))

    async def test_an_abandoned_connection_ends_locally_at_once_and_at_the_peer_eventually(
        self,
    ) -> None:
        async with self.joined() as ends:
            client, server = ends.client, ends.server
            client.transport.abandon("no longer needed")
            client.transport.close()
            assert client.transport.is_closed
            assert client.of(ConnectionEnded) == [
                ConnectionEnded(CloseCode.NO_ERROR, "no longer needed", False)
            ]
            ended = await server.until(ConnectionEnded)
            assert (ended.code, ended.by_peer) == (CloseCode.IDLE, False)

    async def test_closing_twice_delivers_the_last_events_once(self) -> None:
        async with self.joined() as ends:
            client = ends.client
            client.core.close_connection(CloseCode.NO_ERROR, "", client.transport.now())
            client.transport.flush()
            client.transport.close()
            client.transport.close()
            assert len(client.of(ConnectionEnded)) == 1
            await ends.server.until(ConnectionEnded)

    async def test_a_closed_transport_ignores_further_calls(self) -> None:
        async with self.joined() as ends:
            client = ends.client
            client.transport.abandon("over")
            client.transport.close()
            client.transport.schedule_flush()
            client.transport.flush()
            await asyncio.sleep(0.05)
            assert set(client.transport.statistics()) == STATISTICS
            assert len(client.of(ConnectionEnded)) == 1

    # -- listeners ------------------------------------------------------------------------------

    async def test_an_address_in_use_is_a_bind_error(self) -> None:
        accepted: list[Owner] = []
        listener = await self.listen(accepted, Config())
        with pytest.raises(BindError, match="cannot listen on"):
            await type(self).at(listener.address).listen(accepted, Config())
        listener.close()
        listener.close()

    async def test_a_listener_that_stopped_accepting_keeps_its_connections(self) -> None:
        async with self.joined() as ends:
            ends.listener.stop_accepting()
            ends.client.send(b"still here")
            assert await ends.server.receive(1) == [b"still here"]
            with pytest.raises((ConnectError, TimeoutError)):
                await self.be_answered(ends.listener.address, 0.3)

    async def test_a_listener_that_closes_ends_its_connections(self) -> None:
        async with self.joined() as ends:
            ends.listener.close()
            ended = await ends.server.until(ConnectionEnded)
            assert not ended.by_peer

    async def test_a_listener_states_its_handshake_timeout(self) -> None:
        async with self.joined() as ends:
            assert ends.listener.handshake_timeout == self.options.handshake_timeout
            assert ends.listener.unclaimed == 0

    # -- fixtures -------------------------------------------------------------------------------

    @classmethod
    def at(cls, address: str) -> TransportContract:
        """Return the same suite for another address."""
        other = cls()
        other.address = address
        return other

    async def be_answered(self, address: str, seconds: float) -> None:
        """Connect, wait for the server's answer, and disconnect."""
        client = await self.open(address, Config())
        client.transport.start()
        try:
            async with asyncio.timeout(seconds):
                await client.until(PeerHeaders)
        finally:
            client.transport.abandon("the test is over")
            client.transport.close()

    async def channel(self, ends: Ends, side: Side, mode: Mode) -> tuple[Owner, Owner, int]:
        """Return the sender and the receiver of a new channel, and its id."""
        client, server = ends.client, ends.server
        give = Give.RECEIVER if side is Side.CLIENT else Give.SENDER
        attach = Attach(give, mode=mode)
        now = client.transport.now()
        sent = client.core.send_message(ENTRYPOINT, b"carrier", now, attach=[attach])
        client.transport.schedule_flush()
        await server.receive(1)
        (channel,) = sent.channels
        return (client, server, channel) if side is Side.CLIENT else (server, client, channel)
