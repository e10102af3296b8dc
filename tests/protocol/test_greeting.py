"""Connection headers and the limits in them, as values and as both sides state them."""

import pytest

from aqueduct.errors import AqueductError, CloseCode, LocalProtocolError, RemoteProtocolError
from aqueduct.protocol.config import INITIAL_LIMITS, Config, Limits
from aqueduct.protocol.connection import ConnectionCore
from aqueduct.protocol.events import PeerHeaders
from aqueduct.protocol.greeting import LIMITS, split_limits, with_limits
from aqueduct.wire.chanid import ENTRYPOINT, Side
from aqueduct.wire.frames import AckVersion, ConnectionHeaders, Version
from aqueduct.wire.primitives import encode_headers
from tests.protocol.wires import GIVE_RECEIVER, Pair, RawPeer, credit, stated

OURS = Limits(1, 200, 3_000, 40_000, 500_000, 6_000_000)


def contents(*pairs: tuple[bytes, bytes]) -> bytes:
    encoded = encode_headers(pairs)
    assert encoded[0] < 0x80
    return encoded[1:]


def test_stated_limits_round_trip() -> None:
    """AQ-LIMIT-1."""
    headers = ((b"a", b"1"), (b"a", b"2"))
    assert split_limits(with_limits(headers, OURS, 1000), INITIAL_LIMITS) == (headers, OURS)


def test_limits_are_varints_by_name() -> None:
    """AQ-LIMIT-1: byte by byte."""
    (name, value) = with_limits((), OURS, 1000)[-1]
    assert name == b"aqueduct-limits"
    assert (b"\x0echannel-window" + b"\x01\x01") in value
    assert (b"\x11connection-window" + b"\x02\xc8\x01") in value
    assert (b"\x0bmax-message" + b"\x02\xb8\x17") in value
    for other in (b"\x0cmax-channels", b"\x0fmax-attachments", b"\x0bmax-headers"):
        assert other in value


def test_missing_limits_keep_their_initial_values() -> None:
    """AQ-LIMIT-2: all of them, or some."""
    assert split_limits((), INITIAL_LIMITS) == ((), INITIAL_LIMITS)
    _, limits = split_limits(((LIMITS, contents((b"max-message", b"\x07"))),), INITIAL_LIMITS)
    assert limits.max_message == 7
    assert limits.channel_window == INITIAL_LIMITS.channel_window


def test_unknown_limits_are_ignored() -> None:
    """AQ-LIMIT-1: with any value."""
    value = contents((b"max-temperature", b"\xff\xff\xff"), (b"max-headers", b"\x09"))
    assert split_limits(((LIMITS, value),), INITIAL_LIMITS)[1].max_headers == 9


def test_a_peer_may_state_limits_that_are_invalid_here() -> None:
    """AQ-LIMIT-1: any number is accepted."""
    value = contents((b"channel-window", b"\x00"), (b"max-message", b"\x00"))
    _, limits = split_limits(((LIMITS, value),), INITIAL_LIMITS)
    assert (limits.channel_window, limits.max_message) == (0, 0)
    assert INITIAL_LIMITS.channel_window > 0


@pytest.mark.parametrize("value", [b"", b"\x80", b"\x01\x01"])
def test_a_limit_that_is_not_exactly_one_varint_is_a_violation(value: bytes) -> None:
    """AQ-LIMIT-1."""
    with pytest.raises(RemoteProtocolError, match=r"^AQ-LIMIT-1"):
        split_limits(((LIMITS, contents((b"max-message", value))),), INITIAL_LIMITS)


def test_an_application_may_not_set_reserved_names() -> None:
    """AQ-CONN-6: on either side; the call has no effect."""
    reserved = ((b"aqueduct-anything", b""),)
    with pytest.raises(LocalProtocolError, match=r"^AQ-CONN-6"):
        ConnectionCore(Side.CLIENT, headers=reserved)
    peer = RawPeer(Side.SERVER, greet=False)
    peer.stream(Version(), ConnectionHeaders(()), fin=True)
    with pytest.raises(LocalProtocolError, match=r"^AQ-CONN-6"):
        peer.core.accept(reserved, peer.now)
    peer.core.accept(((b"fine", b""),), peer.now)
    peer.assert_alive()


def test_an_application_does_not_see_reserved_names() -> None:
    """AQ-CONN-6: known ones are used, the others ignored."""
    peer = RawPeer(Side.SERVER, greet=False)
    headers = ((b"a", b"1"), (b"aqueduct-later", b"2"), (b"aqueductor", b"3"))
    peer.stream(Version(), ConnectionHeaders(headers[:1] + stated(OURS) + headers[1:]))
    assert peer.events() == [PeerHeaders(((b"a", b"1"), (b"aqueductor", b"3")))]


def test_each_side_sees_the_headers_of_the_other() -> None:
    """AQ-CONN-2."""
    pair = Pair(headers=((b"who", b"client"),), accept=False)
    pair.to_server.deliver()
    assert pair.at_server() == [PeerHeaders(((b"who", b"client"),))]
    assert pair.at_client() == []
    pair.server.accept(((b"who", b"server"),), pair.now)
    pair.run()
    assert pair.at_client() == [PeerHeaders(((b"who", b"server"),))]


def test_each_side_keeps_to_the_limits_of_the_other() -> None:
    """AQ-LIMIT-1: initially to the initial ones, then to what was stated (AQ-LIMIT-2)."""
    server = Config(limits=Limits(channel_window=5_000_000, connection_window=7_000_000))
    pair = Pair(server_config=server, accept=False)
    assert credit(pair.client, ENTRYPOINT) == INITIAL_LIMITS.channel_window
    pair.to_server.deliver()
    pair.server.accept((), pair.now)
    pair.run()
    assert credit(pair.client, ENTRYPOINT) == 5_000_000


def test_a_side_accepts_what_the_initial_limits_allow_even_if_it_states_less() -> None:
    """AQ-LIMIT-2: a client sends before it knows the limits."""
    tiny = Config(limits=Limits(1, 1, 1, 1, 1, 1))
    pair = Pair(server_config=tiny, accept=False)
    attach = [GIVE_RECEIVER] * INITIAL_LIMITS.max_attachments
    headers = ((b"", b"x" * 8_000),)
    sent = pair.client.send_message(ENTRYPOINT, b"", pair.now, attach=attach, headers=headers)
    pair.client.send(ENTRYPOINT, b"x" * 56_000, pair.now)
    for channel in sent.channels[:14]:
        pair.client.send(channel, b"x" * INITIAL_LIMITS.channel_window, pair.now)
    pair.to_server.deliver()
    pair.server.accept((), pair.now)
    pair.run()
    assert pair.client.leftovers()
    assert len(pair.server.take(ENTRYPOINT, 9, pair.now)) == 2


def test_a_peer_that_states_no_limits_has_the_initial_ones() -> None:
    """AQ-LIMIT-2."""
    peer = RawPeer(Side.CLIENT, limits=None)
    assert credit(peer.core, ENTRYPOINT) == INITIAL_LIMITS.channel_window


def test_headers_over_the_limit_of_the_peer_are_rejected_locally() -> None:
    """AQ-SEQ-7: a client knows the initial limit, a server what the client stated."""
    with pytest.raises(AqueductError):
        ConnectionCore(Side.CLIENT, headers=((b"x", b"y" * INITIAL_LIMITS.max_headers),))
    peer = RawPeer(Side.SERVER, greet=False)
    peer.stream(Version(), ConnectionHeaders(()), fin=True)
    with pytest.raises(AqueductError):
        peer.core.accept(((b"x", b"y" * INITIAL_LIMITS.max_headers),), peer.now)


def test_malformed_limits_close_the_connection() -> None:
    """AQ-LIMIT-1."""
    for side, frames in (
        (Side.SERVER, (Version(),)),
        (Side.CLIENT, (Version(), AckVersion())),
    ):
        peer = RawPeer(side, greet=False)
        bad = ConnectionHeaders(((LIMITS, contents((b"max-headers", b"\x01\x01"))),))
        peer.stream(*frames, bad)
        peer.assert_closed(CloseCode.PROTOCOL_VIOLATION, "AQ-LIMIT-1")
