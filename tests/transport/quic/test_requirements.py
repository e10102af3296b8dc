"""What an Aqueduct connection requires of its QUIC connection."""

from qh3.quic.configuration import QuicConfiguration
from qh3.quic.connection import QuicConnection
from qh3.quic.events import ConnectionTerminated

from aqueduct.errors import CloseCode
from aqueduct.protocol.connection import ConnectionCore
from aqueduct.security import make_authority, make_certificate
from aqueduct.transport.quic.bridge import Bridge
from aqueduct.transport.quic.configuration import server_settings
from aqueduct.transport.quic.engine import ALPN, Engine
from aqueduct.transport.settings import QuicSettings
from aqueduct.wire.chanid import Side


def test_a_peer_without_datagram_support_is_rejected() -> None:
    """AQ-CONN-8."""
    authority = make_authority("test")
    tls = make_certificate(["localhost"], authority)
    client = QuicConnection(
        configuration=QuicConfiguration(
            is_client=True,
            alpn_protocols=[ALPN],
            server_name="localhost",
            cadata=authority.certificate,
            max_datagram_frame_size=0,
        )
    )
    engine = Engine(
        configuration=server_settings(tls, QuicSettings()),
        original_destination_connection_id=client.original_destination_connection_id,
    )
    server = Bridge(ConnectionCore(Side.SERVER), engine)
    here, there = ("127.0.0.1", 1), ("127.0.0.1", 2)
    client.connect(there, 0.0)
    for turn in range(10):
        now = turn / 100
        for data, _ in client.datagrams_to_send(now):
            server.receive(data, len(data), here, now)
        for data, _ in server.flush(now):
            client.receive_datagram(data, there, now)
    client.handle_timer(100.0)
    events = []
    while (event := client.next_event()) is not None:
        events.append(event)
    (end,) = [event for event in events if isinstance(event, ConnectionTerminated)]
    assert end.error_code == CloseCode.PROTOCOL_VIOLATION
    assert end.reason_phrase.startswith("AQ-CONN-8")
