"""Rare scenarios of ScalableIPC that the simulation found, or would find in a million runs."""

from __future__ import annotations

from random import Random

from aqueduct.ipc.core.events import Arrived, Ended
from aqueduct.ipc.core.exchange import Exchange
from aqueduct.ipc.core.pdu import Code
from aqueduct.ipc.core.settings import IpcSettings

CONFIG = IpcSettings(
    max_pdu=1_000,
    owner_id_lifetime=100.0,
    receive_timeout=5.0,
    ack_timeout=5.0,
    min_backoff=1.0,
    max_backoff=1.0,
)


class Pair:
    """A sender, a receiver, and the owner id that the sender knows."""

    def __init__(self) -> None:
        self.sender = Exchange(CONFIG, Random(1), 0.0)
        self.receiver = Exchange(CONFIG, Random(2), 0.0)
        self.sender.send("receiver", b"first", 0.0)
        for _ in range(2):
            self.give(self.sent(), 0.0)
            self.take()
            self.answer(self.answers(), 0.0)
        assert self.ended() == [Code.SUCCESS]

    def sent(self) -> list[bytes]:
        """Return what the sender sends."""
        return [each.head + bytes(each.data) for each in self.sender.poll_transmits()]

    def answers(self) -> list[bytes]:
        """Return the acks of the receiver."""
        return [each.head for each in self.receiver.poll_transmits()]

    def give(self, pdus: list[bytes], now: float) -> None:
        """Pass PDUs to the receiver."""
        for pdu in pdus:
            self.receiver.handle_pdu(pdu, "sender", now)

    def answer(self, pdus: list[bytes], now: float) -> None:
        """Pass PDUs to the sender."""
        for pdu in pdus:
            self.sender.handle_pdu(pdu, "receiver", now)

    def take(self) -> list[bytes]:
        """Take the messages that arrived."""
        arrived = [each for each in self.receiver.poll_events() if isinstance(each, Arrived)]
        return [each.payload for each in arrived if self.receiver.take(each.message_id)]

    def ended(self) -> list[int]:
        """Return the events of the sending application."""
        return [each.code for each in self.sender.poll_events() if isinstance(each, Ended)]


def test_a_correction_after_the_deadline_does_not_redirect() -> None:
    """The receiver may have dropped the id of a message that it took (IPC-CONF-2)."""
    pair = Pair()
    pair.sender.send("receiver", b"once", 0.0)
    header = pair.sent()
    pair.give(header, 0.0)
    assert pair.take() == [b"once"]
    pair.answers()  # which is lost
    pair.receiver.change_owner(0.1)
    pair.receiver.change_owner(5.2)
    pair.give(header, 5.3)
    pair.answer(pair.answers(), 5.3)  # the sender is stalled: its timer has not fired
    pair.give(pair.sent(), 5.4)
    assert pair.take() == []
    assert pair.ended() == [Code.SEND_TIMEOUT]


def test_a_large_header_accepted_late_does_not_corrupt_the_message() -> None:
    pair = Pair()
    payload = bytes(range(250)) * 8
    pair.sender.send("receiver", payload, 0.0)
    large = pair.sent()
    pair.receiver.resize(512)
    pair.give(large, 0.0)
    too_large = pair.answers()
    pair.receiver.resize(1_000)
    pair.give(large, 0.0)  # a duplicate
    accepted = pair.answers()
    pair.answer(too_large, 0.0)
    pair.answer(accepted, 0.0)
    for _ in range(10):
        pair.give(pair.sent(), 0.0)
        assert pair.take() in ([], [payload])
        pair.answer(pair.answers(), 0.0)
    assert pair.ended() == [Code.SUCCESS]


def test_an_exposed_message_is_refragmented_under_its_own_id() -> None:
    pair = Pair()
    payload = bytes(range(250)) * 3
    pair.sender.send("receiver", payload, 0.0)
    large = pair.sent()
    pair.receiver.resize(512)
    pair.give(large, 0.0)
    pair.answer(pair.answers(), 0.0)
    small = pair.sent()
    pair.receiver.resize(1_000)
    pair.give(large, 0.0)
    assert pair.take() == [payload]
    pair.answers()  # which is lost
    pair.give(small, 0.0)
    assert pair.take() == []


def test_an_exposed_message_is_refragmented_only_once() -> None:
    pair = Pair()
    pair.sender.send("receiver", bytes(900), 0.0)
    for max_pdu in (700, 600):
        pair.receiver.resize(max_pdu)
        pair.give(pair.sent(), 0.0)
        pair.answer(pair.answers(), 0.0)
    assert pair.ended() == [Code.PDU_TOO_LARGE]
    assert pair.sender.leftovers() == {}


def test_a_refragmented_message_is_cancelled_by_its_first_id() -> None:
    pair = Pair()
    message = pair.sender.send("receiver", bytes(2_000), 0.0)
    pair.receiver.resize(512)
    pair.give(pair.sent(), 0.0)
    pair.answer(pair.answers(), 0.0)
    assert pair.sent()[0][6:22] != message
    pair.sender.cancel(message, 0.0)
    assert pair.ended() == [Code.RESET]
    assert pair.sender.leftovers() == {}
