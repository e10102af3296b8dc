"""A small Aqueduct peer on another QUIC implementation, aioquic, driven by tests."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import (
    ConnectionTerminated,
    DatagramFrameReceived,
    QuicEvent,
    StreamDataReceived,
    StreamReset,
)
from aioquic.tls import SessionTicket

from aqueduct.security import dev_trust
from tests.interop.frames import Frame, connection_headers, read_frames, route_to, version

TIMEOUT = 60.0
ENTRYPOINT = 0


@dataclass
class Incoming:
    """A stream or datagram of the server."""

    frames: list[Frame] = field(default_factory=list)
    rest: bytes = b""
    fin: bool = False
    reset: int | None = None

    @property
    def channel(self) -> int | None:
        """The channel of its ROUTE_TO."""
        return next((frame.number for frame in self.frames if frame.name == "ROUTE_TO"), None)


class Peer(QuicConnectionProtocol):
    """One connection."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.streams: dict[int, Incoming] = {}
        self.datagrams: list[Incoming] = []
        self.closed: tuple[int, str] | None = None
        self._news = asyncio.Event()

    def quic_event_received(self, event: QuicEvent) -> None:
        if isinstance(event, StreamDataReceived):
            stream = self.streams.setdefault(event.stream_id, Incoming())
            frames, stream.rest = read_frames(stream.rest + event.data)
            stream.frames += frames
            stream.fin = event.end_stream
        elif isinstance(event, StreamReset):
            self.streams.setdefault(event.stream_id, Incoming()).reset = event.error_code
        elif isinstance(event, DatagramFrameReceived):
            frames, rest = read_frames(event.data)
            self.datagrams.append(Incoming(frames, rest, fin=True))
        elif isinstance(event, ConnectionTerminated):
            self.closed = event.error_code, event.reason_phrase
        self._news.set()

    # Sending

    def open(self, data: bytes, *, fin: bool = True) -> int:
        """Open a stream and write bytes."""
        stream: int = self._quic.get_next_available_stream_id(is_unidirectional=True)
        return self.write(stream, data, fin=fin)

    def write(self, stream: int, data: bytes, *, fin: bool = False) -> int:
        """Write more bytes to a stream."""
        self._quic.send_stream_data(stream, data, fin)
        self.transmit()
        return stream

    def on(self, channel: int, *frames: bytes, fin: bool = True) -> int:
        """Open a stream that starts with ROUTE_TO."""
        return self.open(version() + route_to(channel) + b"".join(frames), fin=fin)

    def datagram(self, data: bytes) -> None:
        """Send a datagram."""
        self._quic.send_datagram_frame(data)
        self.transmit()

    def reset(self, stream: int, code: int = 0x10) -> None:
        """Reset a stream."""
        self._quic.reset_stream(stream, code)
        self.transmit()

    def greet(self, *headers: tuple[bytes, bytes]) -> None:
        """Send the first stream of a client."""
        self.open(version() + connection_headers(list(headers)))

    # Receiving

    async def until(self, check: Callable[[], Any], what: str) -> Any:
        """Wait until a condition holds."""
        try:
            async with asyncio.timeout(TIMEOUT):
                while not (found := check()):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"timed out: {what}; closed: {self.closed}") from None
        return found

    def about(self, channel: int | None) -> list[Incoming]:
        """Return all streams of a channel, or of the connection."""
        return [stream for stream in self.streams.values() if stream.channel == channel]

    def frames(self, name: str, channel: int | None = None) -> list[Frame]:
        """Return all frames with this name so far."""
        return [
            frame for stream in self.about(channel) for frame in stream.frames if frame.name == name
        ]

    async def frame(self, name: str, channel: int | None = None) -> Frame:
        """Wait for the first frame with this name, and return it."""
        await self.until(lambda: self.frames(name, channel), f"{name} on {channel}")
        return self.frames(name, channel)[0]

    async def closing(self) -> tuple[int, str]:
        """Wait until the server closes the connection; return the code and reason."""
        await self.until(lambda: self.closed is not None, "the server closes")
        assert self.closed is not None
        return self.closed


@asynccontextmanager
async def peer_of(
    address: str,
    *,
    datagrams: int | None = 65_535,
    ticket: SessionTicket | None = None,
    on_ticket: Callable[[SessionTicket], None] | None = None,
) -> AsyncIterator[Peer]:
    """Connect to a server with the development certificate; with a ticket, do not wait."""
    host, _, port = address.rpartition(":")
    authorities = dev_trust().authorities
    configuration = QuicConfiguration(
        is_client=True,
        alpn_protocols=["aqueduct"],
        server_name="localhost",
        verify_mode=ssl.CERT_REQUIRED,
        cadata=authorities,
        max_datagram_frame_size=datagrams,
        initial_rtt=0.01,
        session_ticket=ticket,
    )
    quic = QuicConnection(configuration=configuration, session_ticket_handler=on_ticket)
    loop = asyncio.get_running_loop()
    transport, peer = await loop.create_datagram_endpoint(
        lambda: Peer(quic), local_addr=("127.0.0.1", 0)
    )
    try:
        peer.connect((host, int(port)))
        if ticket is None:
            async with asyncio.timeout(TIMEOUT):
                await peer.wait_connected()
        yield peer
    finally:
        # Unlike aioquic's own context manager, this does not wait until the close has drained.
        peer.close()
        transport.close()
