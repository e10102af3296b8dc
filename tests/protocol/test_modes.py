"""Modes of senders that were received: the hint in the channel's headers, and reserved headers."""

from __future__ import annotations

from typing import Any

import pytest

from aqueduct.errors import LocalProtocolError
from aqueduct.protocol.connection import Attach, Give, Mode
from aqueduct.protocol.modes import (
    check_channel_headers,
    check_mode,
    hinted_mode,
    visible_headers,
    with_hint,
)
from aqueduct.wire.chanid import ENTRYPOINT
from aqueduct.wire.frames import Attachment, MessageFrame
from tests.protocol.wires import Pair, RawPeer, plain, server_core, to_client


def holding(*hints: bytes) -> RawPeer:
    """Return a server whose application took a sender with these values of the mode header."""
    channel = to_client(0)
    headers = tuple((b"aqueduct-mode", hint) for hint in hints)
    peer = server_core()
    peer.routed(ENTRYPOINT, MessageFrame(0, (), (Attachment(channel, headers),), b""))
    peer.core.take(ENTRYPOINT, 1, peer.now)
    peer.poll()
    return peer


def sent_apart(peer: RawPeer) -> tuple[list[int], int]:
    """Send two messages on the sender; return the messages per stream, and the datagrams."""
    channel = to_client(0)
    for payload in (b"a", b"b"):
        peer.core.send(channel, payload, peer.now)
    peer.poll()
    streams = [
        sum(isinstance(frame, MessageFrame) for frame in stream.frames)
        for stream in peer.about(channel)
    ]
    return [count for count in streams if count], len(peer.datagrams)


@pytest.mark.parametrize(
    ("hints", "streams", "datagrams"),
    [
        ([], [2], 0),
        ([b"ordered"], [2], 0),
        ([b"unordered"], [1, 1], 0),
        ([b"unreliable"], [], 1),
        ([b"sideways"], [2], 0),
        ([b"UNRELIABLE"], [2], 0),
        ([b""], [2], 0),
        ([b"unordered", b"sideways"], [1, 1], 0),
        ([b"unreliable", b"unordered"], [1, 1], 0),
    ],
)
def test_a_sender_that_was_received_starts_with_the_mode_in_its_headers(
    hints: list[bytes], streams: list[int], datagrams: int
) -> None:
    """AQ-MODE-1."""
    assert sent_apart(holding(*hints)) == (streams, datagrams)


def test_the_holder_of_a_sender_may_choose_another_mode_than_its_headers_say() -> None:
    """AQ-MODE-1: the header is a hint."""
    peer = holding(b"unreliable")
    peer.core.set_mode(to_client(0), Mode.ORDERED)
    assert sent_apart(peer) == ([2], 0)


def test_the_mode_of_a_channel_travels_with_its_sender_and_not_with_its_receiver() -> None:
    """AQ-MODE-1."""
    pair = Pair()
    attach = [
        Attach(give, mode=mode, headers=((b"name", b"x"),))
        for give in (Give.SENDER, Give.RECEIVER)
        for mode in Mode
    ]
    pair.client.send_message(ENTRYPOINT, b"", pair.now, attach=attach)
    pair.run()
    (message,) = pair.server.take(ENTRYPOINT, 1, pair.now)
    assert isinstance(message, MessageFrame)
    hints = [dict(each.headers).get(b"aqueduct-mode") for each in message.attachments]
    assert hints == [None, b"unordered", b"unreliable", None, None, None]
    assert all(visible_headers(each.headers) == ((b"name", b"x"),) for each in message.attachments)


@pytest.mark.parametrize("mode", list(Mode))
def test_a_hint_reads_as_the_mode_that_was_written(mode: Mode) -> None:
    """AQ-MODE-1."""
    assert hinted_mode(with_hint(((b"k", b"v"),), mode)) is mode


@pytest.mark.parametrize("wrong", ["unreliable", None, 1, Mode])
def test_only_a_mode_is_a_mode(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"mode is a Mode such as Mode.UNRELIABLE, not "):
        check_mode(wrong)
    with pytest.raises(TypeError):
        server_core().core.set_mode(to_client(0), wrong)


def test_an_application_neither_sets_nor_sees_reserved_headers() -> None:
    """AQ-CHAN-4: reserved names that are not known are ignored."""
    check_channel_headers(((b"aqueduct", b""), (b"x-aqueduct-mode", b"")))
    with pytest.raises(LocalProtocolError, match=r"AQ-CHAN-4.*aqueduct-colour"):
        check_channel_headers(((b"k", b"v"), (b"aqueduct-colour", b"red")))
    pairs = ((b"k", b"v"), (b"aqueduct-colour", b"red"), (b"", b""))
    assert visible_headers(pairs) == ((b"k", b"v"), (b"", b""))


def test_a_mode_cannot_be_set_after_the_first_message_on_a_sender_that_was_received() -> None:
    """AQ-SEND-3."""
    peer = holding(b"unreliable")
    peer.core.send(to_client(0), b"x", peer.now)
    with pytest.raises(LocalProtocolError, match=r"AQ-SEND-3: .* set the mode before the first"):
        peer.core.set_mode(to_client(0), Mode.ORDERED)
    peer.poll()
    assert peer.datagrams[0][-1] == plain(0, b"x")
