"""One side of a connection: the start, the version, the headers, the codes and the end."""

import re
from pathlib import Path

import pytest

from aqueduct.errors import (
    ChannelClosed,
    CloseCode,
    LocalProtocolError,
    MessageTooLarge,
    StreamCode,
)
from aqueduct.protocol.actions import CloseConnection, SendDatagram, WriteStream
from aqueduct.protocol.config import INITIAL_LIMITS, Config, Limits
from aqueduct.protocol.connection import Attach, ConnectionCore, Give, Mode
from aqueduct.protocol.events import ConnectionEnded, End, PeerHeaders, ReceiverEnded, SenderEnded
from aqueduct.wire.chanid import ENTRYPOINT, Side
from aqueduct.wire.frames import (
    AckReliable,
    AckVersion,
    CloseReceiver,
    ConnectionHeaders,
    Dequeued,
    RouteTo,
    Version,
)
from tests.protocol.wires import (
    GIVE_RECEIVER,
    GIVE_SENDER,
    Pair,
    RawPeer,
    client_core,
    decode,
    encode,
    from_client,
    payloads,
    plain,
    server_core,
    stated,
)

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spec" / "3-connection.md"
HELLO = (Version(), ConnectionHeaders(()))


def first_frames(core: ConnectionCore) -> list[list[object]]:
    """Return the frames of each sequence that a core begins, streams before datagrams."""
    return [
        [*decode(action.data)]
        for action in core.poll_actions()
        if isinstance(action, WriteStream | SendDatagram)
    ]


# -- codes -----------------------------------------------------------------------------------------


def test_the_codes_are_those_of_the_specification() -> None:
    """AQ-CODE-1, and AQ-CODE-2 for streams."""
    text = PAGE.read_text()
    rows = re.findall(r"^\| (0x[0-9A-F]{2}) \| ([A-Z_]+) \|", text, re.M)
    assert {name: int(code, 16) for code, name in rows} == {c.name: c.value for c in CloseCode}
    resets = re.findall(r"(0x1[0-9A-F]) ([A-Z]+)", text)
    assert {name: int(code, 16) for code, name in resets} == {c.name: c.value for c in StreamCode}


def test_nothing_is_processed_after_a_violation() -> None:
    """AQ-CODE-3: neither the rest of the same bytes, nor later input, nor a timer."""
    peer = server_core()
    peer.raw(encode([RouteTo(ENTRYPOINT), plain(0, b"x"), CloseReceiver(), plain(1, b"y")]))
    peer.assert_closed(CloseCode.PROTOCOL_VIOLATION, "AQ-FRAME-19")
    peer.routed(ENTRYPOINT, plain(1, b"y"))
    peer.datagram_to(ENTRYPOINT, plain(0, b"z"))
    peer.raw(b"\xff\xff", fin=True)
    peer.reset(0)
    peer.core.handle_bidirectional_stream(peer.now)
    peer.core.handle_timer(peer.now + 9)
    peer.core.handle_connection_lost(1, "late", True, peer.now)
    assert peer.poll() == []
    assert peer.events() == []
    assert peer.core.leftovers() == []


def test_unsent_output_is_dropped_after_a_violation() -> None:
    """AQ-CODE-3: the connection closes at once."""
    peer = client_core()
    peer.core.send(ENTRYPOINT, b"x", peer.now)
    peer.core.send_message(ENTRYPOINT, b"", peer.now, attach=[GIVE_SENDER])
    peer.routed(ENTRYPOINT, plain(0, b"x"))
    peer.assert_closed(CloseCode.PROTOCOL_VIOLATION, "AQ-FRAME-18")


# -- the version -----------------------------------------------------------------------------------


def test_a_client_begins_each_sequence_with_its_version_until_it_is_acked() -> None:
    """AQ-VERSION-1."""
    peer = RawPeer(Side.CLIENT, Config(max_datagram=200), greet=False)
    other = peer.core.send_message(ENTRYPOINT, b"", peer.now, attach=[GIVE_RECEIVER]).channels[0]
    peer.core.set_mode(other, Mode.UNRELIABLE)
    peer.core.send(other, b"x", peer.now)
    sequences = first_frames(peer.core)
    assert len(sequences) == 3
    assert all(frames[0] == Version() for frames in sequences)

    peer.stream(Version(), AckVersion(), ConnectionHeaders(()))
    peer.poll()
    peer.core.send(other, b"y", peer.now)
    peer.core.cancel(ENTRYPOINT, peer.now)
    later = [
        decode(a.data)[0]
        for a in peer.core.poll_actions()
        if isinstance(a, WriteStream | SendDatagram)
    ]
    assert later == [RouteTo(ENTRYPOINT), RouteTo(other)]


def test_a_server_begins_each_sequence_with_its_version_until_it_is_acked() -> None:
    """AQ-VERSION-1."""
    peer = RawPeer(Side.SERVER, greet=False)
    peer.stream(*HELLO, fin=True)
    peer.core.accept((), peer.now)
    peer.stream(Version(), RouteTo(ENTRYPOINT), plain(0, b"x"))
    peer.wait(0.02)
    greeting, acks = peer.streams.values()
    assert greeting.frames[0] == Version()
    assert acks.frames == [Version(), RouteTo(ENTRYPOINT), AckReliable(((0, 1),))]
    peer.stream(AckVersion(), fin=True)
    peer.routed(from_client(1), plain(0, b"x"))
    peer.wait(0.02)
    assert [s.frames[0] for s in peer.about(from_client(1))] == [RouteTo(from_client(1))]


@pytest.mark.parametrize("side", list(Side))
def test_the_first_version_is_acked_at_once_and_only_the_first(side: Side) -> None:
    """AQ-VERSION-2."""
    peer = RawPeer(side, greet=False)
    peer.poll()
    peer.log.clear()
    peer.stream(Version())
    assert peer.said() == [Version(), AckVersion()]
    peer.stream(Version())
    assert peer.said() == []


@pytest.mark.parametrize("side", list(Side))
def test_an_ack_of_the_version_takes_effect_with_the_headers_of_the_peer(side: Side) -> None:
    """AQ-VERSION-5: until then each sequence begins with VERSION."""
    peer = RawPeer(side, greet=False)
    peer.stream(Version(), AckVersion())
    peer.poll()
    assert not peer.core._context.out.version_acked
    peer.stream(Version(), ConnectionHeaders(()))
    assert peer.core._context.out.version_acked


@pytest.mark.parametrize("side", list(Side))
def test_a_second_ack_of_the_version_changes_nothing(side: Side) -> None:
    """AQ-VERSION-5."""
    peer = RawPeer(side)
    peer.stream(AckVersion(), fin=True)
    peer.stream(Version(), AckVersion(), AckVersion(), fin=True)
    assert peer.said() == []
    peer.assert_alive()


def test_an_ack_of_the_version_in_a_datagram_is_a_violation() -> None:
    """AQ-VERSION-5, by AQ-UNREL-7."""
    peer = server_core()
    peer.datagram(Version(), AckVersion())
    peer.assert_closed(CloseCode.PROTOCOL_VIOLATION, "AQ-UNREL-7")


def test_a_version_in_a_datagram_is_acked_in_a_stream() -> None:
    """AQ-VERSION-2: the datagram may overtake the first stream."""
    peer = RawPeer(Side.SERVER, greet=False)
    peer.datagram(Version(), RouteTo(ENTRYPOINT), plain(0))
    assert peer.said() == [Version(), AckVersion()]


@pytest.mark.parametrize("side", list(Side))
@pytest.mark.parametrize(
    "frames", [(AckVersion(),), (ConnectionHeaders(()),), (RouteTo(0), plain(0))]
)
def test_a_sequence_without_version_before_any_version_is_a_violation(
    side: Side, frames: tuple[AckVersion, ...]
) -> None:
    """AQ-VERSION-3."""
    peer = RawPeer(side, greet=False)
    peer.poll()
    peer.stream(*frames)
    peer.assert_closed(CloseCode.PROTOCOL_VIOLATION, "AQ-VERSION-3")


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        (b"GET / HTTP/1.1\r\n", "AQ-FRAME-2"),
        (b"\x16\x03\x01\x02\x00", "AQ-FRAME-2"),
        (b"\xefELF", "AQ-FRAME-3"),
        (b"\x04\x00\x00\x00\x00", "AQ-SEQ-3"),
    ],
)
def test_a_server_answers_other_protocols_with_a_close_only(data: bytes, rule: str) -> None:
    """AQ-VERSION-3."""
    peer = RawPeer(Side.SERVER, greet=False)
    peer.raw(data)
    peer.assert_closed(CloseCode.PROTOCOL_VIOLATION, rule)


@pytest.mark.parametrize("version", [b"", b"0.0.0-BEFORE", b"0.0.0-AFTER2"])
def test_another_version_is_a_mismatch(version: bytes) -> None:
    """AQ-VERSION-4: at any time."""
    peer = RawPeer(Side.SERVER, greet=False)
    peer.stream(Version(version))
    peer.assert_closed(CloseCode.VERSION_MISMATCH, "AQ-VERSION-4")
    peer = server_core()
    peer.datagram(Version(version))
    peer.assert_closed(CloseCode.VERSION_MISMATCH, "AQ-VERSION-4")


# -- headers ---------------------------------------------------------------------------------------


def test_the_first_stream_of_a_client_is_its_greeting() -> None:
    """AQ-CONN-1: it ends after the headers, and messages follow without waiting."""
    config = Config(limits=Limits(max_channels=7))
    core = ConnectionCore(Side.CLIENT, config, headers=((b"a", b"b"),))
    core.send(ENTRYPOINT, b"early", 0.0)
    greeting, message = core.poll_actions()
    assert isinstance(greeting, WriteStream)
    assert isinstance(message, WriteStream)
    assert greeting.fin
    assert decode(greeting.data) == [
        Version(),
        ConnectionHeaders(((b"a", b"b"), *stated(config.limits, reserves=True))),
    ]
    assert decode(message.data) == [Version(), RouteTo(ENTRYPOINT), plain(0, b"early")]


def test_a_server_acks_at_once_and_sends_its_headers_when_it_accepts() -> None:
    """AQ-CONN-2: in one stream, which ends after them."""
    peer = RawPeer(Side.SERVER, greet=False)
    peer.stream(*HELLO, fin=True)
    peer.poll()
    assert [(s.frames, s.fin) for s in peer.streams.values()] == [
        ([Version(), AckVersion()], False)
    ]
    peer.core.accept(((b"a", b"b"),), peer.now)
    peer.poll()
    (greeting,) = peer.streams.values()
    headers = ConnectionHeaders(((b"a", b"b"), *stated(peer.core.config.limits, reserves=True)))
    assert greeting.frames == [Version(), AckVersion(), headers]
    assert greeting.fin


def test_a_client_acks_the_version_in_a_stream_that_ends() -> None:
    """AQ-VERSION-2."""
    peer = RawPeer(Side.CLIENT, greet=False)
    peer.poll()
    peer.stream(Version(), AckVersion())
    peer.poll()
    ack = peer.streams[max(peer.streams)]
    assert (ack.frames[-1], ack.fin) == (AckVersion(), True)


@pytest.mark.parametrize("side", list(Side))
def test_headers_may_be_sent_once(side: Side) -> None:
    """AQ-CONN-4."""
    peer = RawPeer(side)
    peer.stream(ConnectionHeaders(()))
    peer.assert_closed(CloseCode.PROTOCOL_VIOLATION, "AQ-CONN-4")


@pytest.mark.parametrize("code", [CloseCode.REFUSED, CloseCode.UNAUTHENTICATED])
def test_a_server_refuses_with_a_code_and_a_reason(code: CloseCode) -> None:
    """AQ-CONN-5."""
    pair = Pair(accept=False)
    pair.to_server.deliver()
    assert [type(event) for event in pair.at_server()] == [PeerHeaders]
    pair.server.refuse(code, "not you", pair.now)
    pair.run()
    assert pair.at_client() == [
        SenderEnded(ENTRYPOINT, End.CONNECTION),
        ConnectionEnded(code, "not you", True),
    ]
    assert pair.client.leftovers() == pair.server.leftovers() == []


def test_a_server_refuses_with_no_other_code() -> None:
    """AQ-CONN-5."""
    peer = RawPeer(Side.SERVER, greet=False)
    peer.stream(*HELLO, fin=True)
    with pytest.raises(LocalProtocolError):
        peer.core.refuse(CloseCode.GOING_AWAY, "", peer.now)
    peer.assert_alive()


def test_only_a_server_accepts_and_refuses_and_only_once() -> None:
    """AQ-CONN-2 and AQ-CONN-5."""
    client = RawPeer(Side.CLIENT)
    with pytest.raises(LocalProtocolError):
        client.core.accept((), client.now)
    with pytest.raises(LocalProtocolError):
        client.core.refuse(CloseCode.REFUSED, "", client.now)
    early = RawPeer(Side.SERVER, greet=False)
    with pytest.raises(LocalProtocolError):
        early.core.accept((), early.now)
    server = RawPeer(Side.SERVER)
    with pytest.raises(LocalProtocolError):
        server.core.accept((), server.now)
    with pytest.raises(LocalProtocolError):
        server.core.refuse(CloseCode.REFUSED, "", server.now)


def test_a_server_passes_its_headers_to_accept_only() -> None:
    with pytest.raises(LocalProtocolError):
        ConnectionCore(Side.SERVER, headers=((b"a", b"b"),))


def test_accepting_an_ended_connection_is_a_no_op() -> None:
    peer = RawPeer(Side.SERVER, greet=False)
    peer.stream(*HELLO, fin=True)
    peer.core.handle_connection_lost(0, "gone", True, peer.now)
    peer.poll()
    peer.core.accept((), peer.now)
    peer.core.refuse(CloseCode.REFUSED, "", peer.now)
    assert peer.poll() == []


# -- both sides ------------------------------------------------------------------------------------


def test_a_message_sent_before_the_headers_is_delivered_after_them() -> None:
    """AQ-CONN-1 and AQ-CONN-3."""
    pair = Pair(accept=False)
    pair.client.send(ENTRYPOINT, b"early", pair.now)
    pair.run()
    assert pair.server.take(ENTRYPOINT, 9, pair.now) == []
    pair.server.accept((), pair.now)
    assert payloads(pair.server.take(ENTRYPOINT, 9, pair.now)) == [b"early"]


def test_channels_in_both_directions_end_and_leave_no_state() -> None:
    """AQ-CLOSE-5: on either side."""
    pair = Pair()
    there, back = pair.give_receiver(), pair.give_sender()
    for channel, sender, receiver in (
        (there, pair.client, pair.server),
        (back, pair.server, pair.client),
    ):
        sender.send(channel, b"hello", pair.now)
        sender.finish(channel, pair.now)
        pair.run()
        assert payloads(receiver.take(channel, 9, pair.now)) == [b"hello"]
    pair.client.finish(ENTRYPOINT, pair.now)
    pair.wait(0.1)
    assert pair.client.leftovers() == pair.server.leftovers() == []
    assert pair.client.next_timer() is pair.server.next_timer() is None


def test_a_bidirectional_stream_is_a_violation() -> None:
    """AQ-STREAM-6."""
    for side in Side:
        peer = RawPeer(side)
        peer.core.handle_bidirectional_stream(peer.now)
        peer.assert_closed(CloseCode.PROTOCOL_VIOLATION, "AQ-STREAM-6")


# -- limits on what is sent ------------------------------------------------------------------------


def test_a_message_over_the_limits_of_the_peer_is_not_sent() -> None:
    """AQ-LIMIT-3: by size, by number of channels, by headers of either kind; no side effects."""
    limits = Limits(max_message=100, max_attachments=2, max_headers=10)
    peer = client_core(limits=limits)
    fits = ((b"abcd", b"efgh"),)
    over = ((b"abcd", b"efghi"),)
    refused: list[tuple[bytes, tuple[tuple[bytes, bytes], ...], list[Attach]]] = [
        (b"x" * 101, (), []),
        (b"x" * 91, fits, []),
        (b"", (), [GIVE_RECEIVER] * 3),
        (b"", over, []),
        (b"", (), [Attach(Give.RECEIVER, headers=over)]),
    ]
    for payload, headers, attach in refused:
        with pytest.raises(MessageTooLarge):
            peer.core.send_message(ENTRYPOINT, payload, peer.now, headers=headers, attach=attach)
    with pytest.raises(MessageTooLarge):
        peer.core.send(ENTRYPOINT, b"x" * 101, peer.now)
    assert peer.said() == []
    assert peer.core.leftovers() == ["entrypoint: sender open"]
    peer.core.send_message(ENTRYPOINT, b"x" * 90, peer.now, headers=fits)
    peer.core.send_message(
        ENTRYPOINT, b"", peer.now, attach=[Attach(Give.RECEIVER, headers=fits), GIVE_RECEIVER]
    )
    assert len(peer.said()) == 3


def test_many_small_headers_count_by_their_encoded_size() -> None:
    """AQ-SEQ-7: exactly as many are sent as the peer accepts."""
    peer = client_core(limits=Limits(max_headers=40))
    peer.core.send_message(ENTRYPOINT, b"", peer.now, headers=((b"a", b"b"),) * 10)
    with pytest.raises(MessageTooLarge):
        peer.core.send_message(ENTRYPOINT, b"", peer.now, headers=((b"a", b"b"),) * 11)
    peer = client_core(limits=Limits(max_headers=65_536))
    headers = ((b"k" * 30_000, b"v" * 35_532),)
    with pytest.raises(MessageTooLarge):
        peer.core.send_message(ENTRYPOINT, b"", peer.now, headers=headers)


def test_a_client_keeps_to_the_initial_limits_until_it_knows_the_servers() -> None:
    """AQ-LIMIT-2."""
    core = ConnectionCore(Side.CLIENT)
    with pytest.raises(MessageTooLarge):
        core.send(ENTRYPOINT, b"x" * (INITIAL_LIMITS.max_message + 1), 0.0)
    with pytest.raises(MessageTooLarge):
        core.send_message(ENTRYPOINT, b"", 0.0, attach=[GIVE_RECEIVER] * 17)
    core.send_message(ENTRYPOINT, b"", 0.0, attach=[GIVE_RECEIVER] * 16)


# -- commands --------------------------------------------------------------------------------------


def test_commands_for_unknown_halves_raise_or_are_no_ops() -> None:
    """AQ-SEND-1: sending raises; the other commands have no effect."""
    peer = server_core()
    for channel in (ENTRYPOINT, from_client(5), 2**64 + 3):
        with pytest.raises(ChannelClosed):
            peer.core.send(channel, b"", peer.now)
        with pytest.raises(ChannelClosed):
            peer.core.send_message(channel, b"", peer.now, attach=[GIVE_RECEIVER])
        peer.core.set_mode(channel, Mode.UNORDERED)
        peer.core.set_priority(channel, 1)
        peer.core.finish(channel, peer.now)
        peer.core.cancel(channel, peer.now)
    assert peer.core.take(from_client(5), 9, peer.now) == []
    peer.core.close(from_client(5), peer.now)
    assert peer.said() == []


def test_a_lost_connection_ends_all_channels() -> None:
    """AQ-CONN-7."""
    peer = client_core()
    other = peer.core.send_message(ENTRYPOINT, b"", peer.now, attach=[GIVE_SENDER]).channels[0]
    peer.poll()
    peer.core.handle_connection_lost(0x99, "cable", False, peer.now)
    assert peer.events() == [
        SenderEnded(ENTRYPOINT, End.CONNECTION),
        ReceiverEnded(other, End.CONNECTION),
        ConnectionEnded(0x99, "cable", False),
    ]
    assert peer.core.leftovers() == []
    assert peer.poll() == []
    with pytest.raises(ChannelClosed):
        peer.core.send(ENTRYPOINT, b"", peer.now)


def test_a_connection_is_closed_once() -> None:
    peer = client_core()
    peer.core.close_connection(CloseCode.NO_ERROR, "first", peer.now)
    peer.core.close_connection(CloseCode.INTERNAL, "second", peer.now)
    assert [a for a in peer.poll() if isinstance(a, CloseConnection)] == [
        CloseConnection(CloseCode.NO_ERROR, "first")
    ]
    assert [e for e in peer.events() if isinstance(e, ConnectionEnded)] == [
        ConnectionEnded(CloseCode.NO_ERROR, "first", False)
    ]


def test_an_early_timer_call_is_a_no_op() -> None:
    peer = server_core()
    peer.routed(ENTRYPOINT, plain(0, b"x"))
    timer = peer.core.next_timer()
    assert timer is not None
    peer.core.handle_timer(timer - 0.001)
    assert peer.said() == []
    peer.core.handle_timer(timer)
    assert peer.said() == [RouteTo(ENTRYPOINT), AckReliable(((0, 1),))]
    assert peer.core.next_timer() is None


def test_leftovers_describes_the_state_that_is_held() -> None:
    peer = client_core()
    peer.core.send(ENTRYPOINT, b"x" * 10, peer.now)
    peer.routed(ENTRYPOINT, Dequeued(3))
    assert peer.core.leftovers() == [
        "entrypoint: sender open",
        "incoming stream 1",
        "7 bytes outstanding",
    ]
    assert peer.core.channel_count == 1
