"""asyncio, and one UDP socket for many connections: routing by connection id, timers, turns."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import ssl
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic
from typing import Protocol

from qh3._hazmat import pull_quic_header
from qh3.quic.packet import (
    QuicPacketType,
    QuicProtocolVersion,
    encode_quic_retry,
    encode_quic_version_negotiation,
)

from aqueduct.errors import CloseCode, TLSError
from aqueduct.protocol.budget import Account
from aqueduct.protocol.config import Config
from aqueduct.protocol.connection import ConnectionCore
from aqueduct.protocol.events import Event
from aqueduct.security import ServerTLS, Trust, check, system_authorities
from aqueduct.transport.quic.admission import Accounts, HalfOpen, Hidden, neighbourhood
from aqueduct.transport.quic.bridge import Bridge
from aqueduct.transport.quic.engine import ALPN, Engine, Settings
from aqueduct.transport.quic.retry import RetryTokens
from aqueduct.transport.quic.tickets import ServerTickets
from aqueduct.transport.udp import Address, UdpSocket

Received = tuple[bytes, int, Address]
"""Packets of one sender, joined, the size of each but the last, and who sent them."""

ID_LENGTH = 8
_RECEIVES_PER_TURN = 64
_TURN = 0.005
"""Seconds of reading after which packets wait, so that one connection's flood delays no other."""
_MAX_INBOX = 16 * 1024 * 1024
"""Bytes of packets that wait for one connection: more than its flow control lets it send."""
_MAX_WAITING = 64 * 1024 * 1024
"""The same for all connections of a socket. Past either, packets are lost, as packets are."""
_COST_OF_WAITING = 256
"""What packets that wait cost besides their bytes."""
_SMALLEST_INITIAL = 1_200
_SHORTEST_ID = 8
"""Shortest destination connection id of a client's first packet (RFC 9000, 7.2): shorter ids can be
guessed, and collide."""
_GREEDY = 4
"""An address with this fraction of `handshakes_before_retry` half-open connections gets a Retry."""
_RESERVED = 10
"""One in so many connections is kept for addresses that have fewer than that, so that one address
cannot use up `max_connections`."""
_PATIENCE = 1.0
"""Seconds for which a half-open connection is not displaced by its own address: handshakes take
less."""
_MAX_CLOSING = 4
"""Connections closed for what QUIC holds that keep it while they may have to repeat the close."""
_LARGEST_PACKET = 65_527
_LONGEST = 86_400 * 365
"""Seconds that a timer may be set to: a year is as good as for ever, and fits what QUIC states."""

SAFE_PACKET = 1_452
"""Fits every Ethernet path with IPv4 and IPv6, before path MTU discovery finds more."""
LOOPBACK_PACKET = 16_000
"""On loopback packets can be large, and each costs much the same."""


LOOPBACK_ACK_DELAY = 0.25
"""On loopback nothing is lost on the way, but a busy process answers late. A packet that is sent
again for nothing costs more than the wait: it also brings out faults in qh3."""


TIMER_GRAIN = 0.001
"""Seconds. Loops round their timers to this: some up, and some down, again and again for less."""


@dataclass(frozen=True)
class QuicOptions:
    """How QUIC behaves; times are seconds."""

    idle_timeout: float = 30.0
    """A peer that says nothing for so long is gone."""
    keep_alive: float | None = 10.0
    """How often to say something when there is nothing to say; None to let idle connections end."""
    max_packet: int | None = None
    """UDP payload; None for 16,000 bytes on loopback and 1,452 elsewhere."""
    handshake_timeout: float = 10.0
    """A client that is not through the handshake, or has not sent its headers, so long after its
    first packet is dropped."""
    handshakes_before_retry: int = 256
    """Half-open connections above which new clients must validate their address (Retry); a client
    from an address with a quarter of that must, too. Validation costs a round trip."""
    max_half_open: int = 1_024
    """Connections not yet accepted, about 80 KB each. Above that, the server drops the oldest one
    of the address with the most."""
    max_connections: int = 10_000
    """Connections that one server socket serves at once; above that, it drops half-open ones. One
    address gets nine tenths of them at most."""

    def __post_init__(self) -> None:
        """Refuse what QUIC could not do."""
        for name in ("idle_timeout", "keep_alive", "handshake_timeout"):
            seconds = getattr(self, name)
            if name == "keep_alive" and seconds is None:
                continue
            if not _is_number(seconds) or not 0 < seconds <= _LONGEST:
                also = ", or None for never" if name == "keep_alive" else ""
                raise ValueError(
                    f"QuicOptions({name}={seconds!r}): give seconds, "
                    f"more than 0 and at most {_LONGEST:,}{also}"
                )
        size = self.max_packet
        if size is not None and (
            type(size) is not int or not _SMALLEST_INITIAL <= size <= _LARGEST_PACKET
        ):
            raise ValueError(
                f"QuicOptions(max_packet={size!r}): QUIC needs {_SMALLEST_INITIAL:,} bytes and UDP "
                f"carries {_LARGEST_PACKET:,}; give what is between, or None for a choice"
            )
        for name, least in (
            ("handshakes_before_retry", 0),
            ("max_half_open", 1),
            ("max_connections", 1),
        ):
            count = getattr(self, name)
            if type(count) is not int or count < least:
                raise ValueError(
                    f"QuicOptions({name}={count!r}): give a whole number, {least} or more"
                )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class Owner(Protocol):
    """Who hears of a connection's events."""

    def handle_events(self, events: list[Event]) -> None:
        """The core learned something."""

    def turned(self) -> None:
        """The turn is over: what was to be sent was handed to QUIC."""


class Driver:
    """Runs one connection on the event loop: packs writes per turn and keeps one timer."""

    def __init__(self, endpoint: Endpoint, bridge: Bridge, keep_alive: float | None) -> None:
        self.endpoint = endpoint
        self.bridge = bridge
        self.core: ConnectionCore = bridge.core
        self.loop = endpoint.loop
        self.owner: Owner | None = None
        self.ids: set[bytes] = set()
        self._keep_alive = keep_alive
        self._last_heard = monotonic()
        self._turn_due = False
        self._is_pacing = False
        self._is_time = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self.packets_sent = self.bytes_sent = 0
        self.packets_received = self.bytes_received = 0
        """Of UDP, as the socket has them."""

    def now(self) -> float:
        """The monotonic time; some loops keep only milliseconds."""
        return monotonic()

    def receive(self, data: bytes, segment: int, address: Address) -> None:
        """Packets for this connection."""
        now = self._last_heard = monotonic()
        size = len(data)
        self.bytes_received += size
        self.packets_received += 1 if size <= segment else -(-size // segment)
        self.bridge.receive(data, segment, address, now)
        # Whoever waits runs before the turn's end, so that answers go along with the acks.
        self.tell()
        self.touch()

    def touch(self) -> None:
        """Something changed: send, tell and rearm at the end of this turn of the loop."""
        if not self._turn_due:
            self._turn_due = True
            self.endpoint.turns_due += 1
            self.loop.call_soon(self._turn)

    def tell(self) -> None:
        """Pass events on to the owner."""
        events = self.core.poll_events()
        if events and self.owner is not None:
            self.owner.handle_events(events)

    def abandon(self, reason: str) -> None:
        """The connection cannot go on, and the peer is not told."""
        self.bridge.ended = True
        self.core.handle_connection_lost(CloseCode.NO_ERROR, reason, False, self.now())

    def stop(self) -> None:
        """Cancel the timer and free the memory of QUIC; the connection is over."""
        self.bridge.release()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _turn(self) -> None:
        self._turn_due = False
        self.endpoint.turns_due -= 1
        bridge = self.bridge
        now = monotonic()
        if self._is_time:
            self._is_time = False
            bridge.handle_timer(now)
        self.tell()
        packets = bridge.flush(now)
        if packets:
            self.packets_sent += len(packets)
            for data, _ in packets:
                self.bytes_sent += len(data)
            self.endpoint.send(packets)
        if self.owner is not None:
            self.owner.turned()
        if bridge.fresh_ids or bridge.retired_ids:
            self.endpoint.reroute(self)
        if bridge.ended:
            self.endpoint.forget(self)
            return
        if bridge.has_cut:
            self.touch()
            return
        self._rearm(now)
        if bridge.paced_until and not self._is_pacing:
            self._is_pacing = True
            self._pace()

    def _pace(self) -> None:
        """Go on when the pacer does: a timer of the loop would take a millisecond or more."""
        bridge = self.bridge
        now = monotonic()
        if now >= bridge.paced_until or bridge.paced_until - now > TIMER_GRAIN:
            self._is_pacing = False
            if bridge.paced_until and now >= bridge.paced_until and not bridge.ended:
                bridge.paced_until = 0.0
                bridge.stir()
                self.touch()
        else:
            self.loop.call_soon(self._pace)

    def _rearm(self, now: float) -> None:
        if self._timer_at <= now + TIMER_GRAIN:
            return  # it looks again in a moment
        at = self.bridge.next_timer()
        if self._keep_alive is not None:
            alive = self._last_heard + self._keep_alive
            at = alive if at is None else min(at, alive)
        if at is None or at == self._timer_at:
            return
        if self._timer is not None:
            if at > self._timer_at:
                return  # it wakes too early once, which is cheaper than a new timer each turn
            self._timer.cancel()
        self._timer_at = at
        self._timer = self.loop.call_later(max(TIMER_GRAIN, at - now), self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._timer_at = float("inf")
        if self._turn_due:
            self._is_time = True  # the turn sees to it, and all leaves together
            return
        now = monotonic()
        if self._keep_alive is not None and now - self._last_heard >= self._keep_alive:
            self._last_heard = now
            self.bridge.ping(now)
        elif (due := self.bridge.next_timer()) is None or due > now:
            self._rearm(now)  # what was due then has been put off
            return
        self.bridge.handle_timer(now)
        self._turn_due = True
        self.endpoint.turns_due += 1
        self._turn()


class Inbox:
    """Packets that wait for their connection's turn."""

    __slots__ = ("runs", "size")

    def __init__(self) -> None:
        self.runs: deque[tuple[Received, int]] = deque()
        self.size = 0

    def add(self, received: Received, size: int) -> None:
        """Behind the others."""
        self.runs.append((received, size))
        self.size += size

    def take(self) -> tuple[Received, int]:
        """The first, and its size."""
        received, size = self.runs.popleft()
        self.size -= size
        return received, size


class Endpoint:
    """A UDP socket on the loop, and the connections that share it."""

    def __init__(self, sock: socket.socket, options: QuicOptions) -> None:
        self.loop = asyncio.get_running_loop()
        self.options = options
        self.turns_due = 0
        """Connections whose turn is due."""
        self.udp = UdpSocket(sock)
        self.clock: Callable[[], float] = monotonic
        """Not the loop's, which may stand still during a turn."""
        self.drivers: dict[Driver, None] = {}
        self._by_id: dict[bytes, Driver] = {}
        self._inboxes: OrderedDict[Driver, Inbox] = OrderedDict()
        """Packets that wait; the connection whose turn it is comes first."""
        self._waiting = 0
        self._is_late = False
        self._turns_due = False
        self._writing = False
        self._closed = False
        self.loop.add_reader(sock, self._readable)

    @property
    def address(self) -> Address:
        """Where the socket is bound."""
        name = self.udp.socket.getsockname()
        return name[0], name[1]

    def add(self, bridge: Bridge, *ids: bytes) -> Driver:
        """Drive a connection, and route packets with these ids to it."""
        driver = Driver(self, bridge, self.options.keep_alive)
        self.drivers[driver] = None
        for one in ids:
            self._by_id[one] = driver
            driver.ids.add(one)
        return driver

    def reroute(self, driver: Driver) -> None:
        """Follow the connection ids that came and went."""
        bridge = driver.bridge
        for one in bridge.fresh_ids:
            self._by_id[one] = driver
            driver.ids.add(one)
        for one in bridge.retired_ids:
            self._by_id.pop(one, None)
            driver.ids.discard(one)
        bridge.fresh_ids, bridge.retired_ids = [], []

    def forget(self, driver: Driver) -> None:
        """A connection is over."""
        driver.stop()
        driver.tell()
        for one in driver.ids:
            self._by_id.pop(one, None)
        self.drivers.pop(driver, None)
        inbox = self._inboxes.pop(driver, None)
        if inbox is not None:
            self._waiting -= inbox.size

    def send(self, packets: list[tuple[bytes, Address]]) -> None:
        """Send packets, or keep them until the socket takes more."""
        if self._closed:
            return
        if not self.udp.send(packets) and not self._writing:
            self._writing = True
            self.loop.add_writer(self.udp.socket, self._writable)

    def close(self) -> None:
        """Close the socket; connections that were not closed before end without a word."""
        if self._closed:
            return
        self._closed = True
        self.loop.remove_reader(self.udp.socket)
        if self._writing:
            self.loop.remove_writer(self.udp.socket)
        for driver in list(self.drivers):
            driver.abandon("the socket was closed")
            self.forget(driver)
        self.udp.close()

    def unknown(self, data: bytes, address: Address) -> Driver | None:
        """A packet for no connection we have; a server may make one."""
        return None

    def released(self, driver: Driver) -> None:
        """A connection is closed and will not come back."""

    def network_error(self, error: OSError) -> None:
        """The network said something of a packet of ours."""

    def _writable(self) -> None:
        if self.udp.send(()):
            self._writing = False
            self.loop.remove_writer(self.udp.socket)

    def _readable(self) -> None:
        receive, clock = self.udp.receive, self.clock
        until = clock() + _TURN
        self._is_late = False
        is_alone = self.udp.gro and len(self.drivers) == 1
        for _ in range(_RECEIVES_PER_TURN):
            received = receive()
            if received is None:
                if self.udp.error is not None:
                    error, self.udp.error = self.udp.error, None
                    self.network_error(error)
                break
            data, segment, address = received
            if len(data) <= segment:
                self._route(data, segment, address)
            else:
                self._route_many(data, segment, address)
            if self._closed or (is_alone and len(data) <= segment):
                break  # a lone packet of a lone connection: looking for another costs more
            if clock() > until:
                # What else is here waits its turn, and nobody's packets wait behind a flood.
                self._is_late = True

    def _route(self, data: bytes, segment: int, address: Address) -> None:
        driver = self._by_id.get(destination_id(data))
        if driver is None:
            driver = self.unknown(data, address)
        if driver is None:
            return
        if self._is_late or driver in self._inboxes:
            self._postpone(driver, (data, segment, address))
        else:
            driver.receive(data, segment, address)

    def _postpone(self, driver: Driver, received: Received) -> None:
        """Packets wait until the connections before theirs had a turn."""
        size = len(received[0]) + _COST_OF_WAITING
        inbox = self._inboxes.get(driver)
        if inbox is None:
            if not self._turns_due:
                self._turns_due = True
                self.loop.call_soon(self._take_turns)
            inbox = self._inboxes[driver] = Inbox()
        if inbox.size + size <= _MAX_INBOX and self._waiting + size <= _MAX_WAITING:
            inbox.add(received, size)
            self._waiting += size

    def _take_turns(self) -> None:
        """Read packets that had to wait: those of one system call for each connection in turn."""
        inboxes, clock = self._inboxes, self.clock
        until = clock() + _TURN
        while inboxes:
            driver, inbox = inboxes.popitem(last=False)
            if inbox.runs:
                received, size = inbox.take()
                self._waiting -= size
                driver.receive(*received)
            if inbox.runs:
                inboxes[driver] = inbox  # behind the others
            if clock() > until:
                break
        self._turns_due = bool(inboxes)
        if inboxes:
            self.loop.call_soon(self._take_turns)

    def _route_many(self, data: bytes, segment: int, address: Address) -> None:
        """Joined packets of one sender, most often all of one connection."""
        first = destination_id(data)
        for start in range(segment, len(data), segment):
            if destination_id(data, start) != first:
                for at in range(0, len(data), segment):
                    self._route(data[at : at + segment], segment, address)
                return
        self._route(data, segment, address)


class ServerEndpoint(Endpoint):
    """An endpoint that takes new connections."""

    def __init__(
        self,
        sock: socket.socket,
        options: QuicOptions,
        tls: ServerTLS,
        make_core: Callable[[Account], ConnectionCore],
        on_connection: Callable[[Driver, Address], None],
        tickets: ServerTickets | None = None,
        config: Config | None = None,
    ) -> None:
        self._settings = server_settings(tls, options)
        super().__init__(sock, options)
        self._make_core = make_core
        self._on_connection = on_connection
        self._tickets = tickets
        self._tokens = RetryTokens(monotonic)
        self._handshakes: dict[Driver, asyncio.TimerHandle] = {}
        self._half_open: HalfOpen[Driver] = HalfOpen()
        self._accounts = Accounts(config or Config())
        self._hidden: Hidden[Driver] = Hidden(config or Config())
        self._closing: deque[Driver] = deque()
        """The last connections that were closed for their hidden state."""
        self._addresses: dict[Driver, str] = {}
        self.accepting = True
        self.refused = 0
        self.unclaimed = 0
        """Connections that are over, with something in them that the application has not seen."""

    def forget(self, driver: Driver) -> None:
        """A connection is over."""
        self._end_handshake(driver)
        self._half_open.remove(driver)
        address = self._addresses.pop(driver, None)
        if address is not None:
            self._hidden.remove(driver, address)
            self._accounts.leave(address)
        super().forget(driver)

    def unknown(self, data: bytes, address: Address) -> Driver | None:
        """Answer an Initial packet: version negotiation, a retry, or a new connection."""
        try:
            header = pull_quic_header(data, 0, ID_LENGTH)
        except ValueError:
            return None
        version, kind, _, destination, source, token = header[:6]
        if len(data) < _SMALLEST_INITIAL or version is None:
            return None
        if version not in self._settings.supported_versions:
            if version != 0:
                answer = encode_quic_version_negotiation(
                    source_cid=destination,
                    destination_cid=source,
                    supported_versions=self._settings.supported_versions,
                )
                self.send([(answer, address)])
            return None
        if kind != int(QuicPacketType.INITIAL) or not self.accepting:
            return None
        if len(destination) < _SHORTEST_ID:
            return None
        original, retried = destination, None
        name = neighbourhood(address[0])
        if token:
            try:
                original, retried = self._tokens.open(address, token)
            except ValueError:
                return None
        elif self._is_pressed(name):
            self._send_retry(version, destination, source, address)
            return None
        if not self._make_room(name):
            self.refused += 1
            return None
        return self._new(original, retried, destination, address, name)

    def _is_pressed(self, name: str) -> bool:
        """Return whether a new client must validate its address."""
        limit = self.options.handshakes_before_retry
        return len(self._half_open) >= limit or self._half_open.count(name) * _GREEDY >= limit

    def _make_room(self, name: str) -> bool:
        """Make room for one more connection, by dropping a half-open one if necessary."""
        options = self.options
        held = len(self.drivers) + self.unclaimed
        limit = options.max_connections
        reserved = limit // _RESERVED
        if self._accounts.count(name) >= reserved:
            limit -= reserved
        full = held >= limit
        if not full and len(self._half_open) < options.max_half_open:
            return True
        old = self._half_open.makes_way(name, self.clock(), _PATIENCE)
        if old is None:
            return False
        old.abandon("dropped before acceptance: too many half-open connections")
        self.forget(old)
        return True

    def _new(
        self,
        original: bytes,
        retried: bytes | None,
        destination: bytes,
        address: Address,
        name: str,
    ) -> Driver:
        settings = replace_packet_size(self._settings, self.options, address)
        core = self._make_core(self._accounts.enter(name))
        settings.max_streams = max(settings.max_streams, core.config.max_streams)
        quic = Engine(
            configuration=settings,
            original_destination_connection_id=original,
            retry_source_connection_id=retried,
            tickets=self._tickets,
        )
        bridge = Bridge(core, quic)
        driver = self.add(bridge, destination, quic.host_cid)
        bridge.when_connected = partial(self._end_handshake, driver)
        bridge.when_ready = partial(self._accepted, driver, name)
        bridge.when_hidden = partial(self._hold_hidden, driver, name)
        self._addresses[driver] = name
        self._half_open.add(driver, name, self.clock())
        timeout = self.options.handshake_timeout
        self._handshakes[driver] = self.loop.call_later(timeout, self._give_up, driver)
        self._on_connection(driver, address)
        return driver

    def _accepted(self, driver: Driver, name: str) -> None:
        self._half_open.remove(driver)
        self._hidden.remove(driver, name)

    def _hold_hidden(self, driver: Driver, name: str, size: int) -> None:
        """Account for what QUIC holds; close the half-open connection with the most if need be."""
        if driver not in self.drivers:
            return
        greediest = self._hidden.hold(driver, name, size)
        if greediest is not None:
            self._hidden.remove(greediest, self._addresses[greediest])
            reason = "too many bytes without an event from all clients before headers"
            greediest.core.handle_excess("AQ-COST-3", reason, greediest.now())
            greediest.touch()
            self._closing.append(greediest)
            if len(self._closing) > _MAX_CLOSING:
                self._drop(self._closing.popleft())

    def _drop(self, driver: Driver) -> None:
        """Free the memory of a connection that was closed, before its closing period is over."""
        if driver in self.drivers:
            driver.bridge.ended = True
            self.forget(driver)

    def _end_handshake(self, driver: Driver) -> None:
        timer = self._handshakes.pop(driver, None)
        if timer is not None:
            timer.cancel()

    def _give_up(self, driver: Driver) -> None:
        driver.abandon("the handshake took too long")
        self.forget(driver)

    def _send_retry(
        self, version: int, destination: bytes, source: bytes, address: Address
    ) -> None:
        fresh = os.urandom(ID_LENGTH)
        token = self._tokens.make(address, destination, fresh)
        packet = encode_quic_retry(
            version=version,
            source_cid=fresh,
            destination_cid=source,
            original_destination_cid=destination,
            retry_token=token,
        )
        self.send([(packet, address)])


def destination_id(data: bytes, start: int = 0) -> bytes:
    """The destination connection id of a packet, or what would be it."""
    if len(data) <= start:
        return b""
    if data[start] & 0x80:
        length = data[start + 5] if len(data) > start + 5 else 0
        return data[start + 6 : start + 6 + length]
    return data[start + 1 : start + 1 + ID_LENGTH]


def server_settings(tls: ServerTLS, options: QuicOptions) -> Settings:
    """The QUIC settings of a server, before it knows who connects."""
    check(tls)
    settings = Settings(
        is_client=False,
        alpn_protocols=[ALPN],
        connection_id_length=ID_LENGTH,
        idle_timeout=options.idle_timeout,
        supported_versions=[QuicProtocolVersion.VERSION_1],
    )
    try:
        settings.load_cert_chain(tls.certificate, tls.key)
    except ValueError as error:
        raise TLSError(f"the server's certificate or key cannot be used: {error}") from None
    return settings


def client_settings(
    trust: Trust, options: QuicOptions, server_name: str, address: Address
) -> Settings:
    """The QUIC settings of a client."""
    settings = Settings(
        is_client=True,
        alpn_protocols=[ALPN],
        connection_id_length=ID_LENGTH,
        idle_timeout=options.idle_timeout,
        supported_versions=[QuicProtocolVersion.VERSION_1],
        server_name=server_name,
    )
    if trust.pinned is not None:
        # A fingerprint says more than an authority could: qh3 compares it instead.
        settings.assert_fingerprint = trust.pinned
        settings.verify_mode = ssl.CERT_NONE
    elif trust.authorities is not None:
        settings.cadata = trust.authorities
    else:
        settings.cafile = system_authorities()
    return replace_packet_size(settings, options, address)


def replace_packet_size(settings: Settings, options: QuicOptions, address: Address) -> Settings:
    """Choose the packet size for a path."""
    size = options.max_packet
    loopback = ipaddress.ip_address(address[0].partition("%")[0]).is_loopback
    if size is None:
        size = LOOPBACK_PACKET if loopback else SAFE_PACKET
    delay = LOOPBACK_ACK_DELAY if loopback else settings.max_ack_delay
    return replace(
        settings,
        max_datagram_size=size,
        probe_datagram_size=not loopback,
        max_ack_delay=delay,
    )
