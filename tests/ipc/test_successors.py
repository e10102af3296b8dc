"""Transfers in flight when a remote restarts as another process."""

from __future__ import annotations

from random import Random

from aqueduct.ipc.core.events import Arrived, Ended
from aqueduct.ipc.core.exchange import Exchange
from aqueduct.ipc.core.pdu import Code
from aqueduct.ipc.core.settings import IpcSettings

CONFIG = IpcSettings(max_pdu=60_000, window=1_000_000)
SENDER = "the sender"
REMOTE = "the receiver"
LARGE = bytes(200_000)


def pass_on(source: Exchange, sink: Exchange, remote: str, now: float) -> int:
    """Pass the PDUs of one side to the other."""
    transmits = source.poll_transmits()
    for transmit in transmits:
        sink.handle_pdu(transmit.head + bytes(transmit.data), remote, now)
    return len(transmits)


def converse(sender: Exchange, receiver: Exchange, now: float) -> None:
    """Pass PDUs both ways until none is left; the receiver takes every message."""
    while pass_on(sender, receiver, SENDER, now):
        for event in receiver.poll_events():
            assert isinstance(event, Arrived)
            receiver.take(event.message_id)
        pass_on(receiver, sender, REMOTE, now)


def ended(sender: Exchange) -> dict[bytes, Ended]:
    events = [event for event in sender.poll_events() if isinstance(event, Ended)]
    return {event.message_id: event for event in events}


def begin(sender: Exchange, receiver: Exchange, pdus: int) -> None:
    """Let a receiver answer the first PDUs of a message before it crashes."""
    for _ in range(pdus):
        pass_on(sender, receiver, SENDER, 0.0)
        pass_on(receiver, sender, REMOTE, 0.0)
    assert ended(sender) == {}


def test_a_transfer_interrupted_by_a_restart_fails_once_the_successor_answers() -> None:
    """IPC-ID-6."""
    sender = Exchange(CONFIG, Random(1), 0.0)
    large = sender.send(REMOTE, LARGE, 0.0)
    begin(sender, Exchange(CONFIG, Random(2), 0.0), pdus=3)
    successor = Exchange(CONFIG, Random(3), 0.0)
    small = sender.send(REMOTE, b"small", 2.0)  # the trust time of the id is over
    converse(sender, successor, 2.0)
    outcomes = ended(sender)
    assert outcomes[small].code == Code.SUCCESS
    assert (outcomes[large].code, outcomes[large].exposed) == (Code.PEER_RESTARTED, False)
    assert sender.leftovers() == {}


def test_a_transfer_whose_last_piece_was_sent_may_have_arrived() -> None:
    sender = Exchange(CONFIG, Random(1), 0.0)
    large = sender.send(REMOTE, LARGE, 0.0)
    begin(sender, Exchange(CONFIG, Random(2), 0.0), pdus=4)
    small = sender.send(REMOTE, b"small", 2.0)
    converse(sender, Exchange(CONFIG, Random(3), 0.0), 2.0)
    outcomes = ended(sender)
    assert outcomes[small].code == Code.SUCCESS
    assert (outcomes[large].code, outcomes[large].exposed) == (Code.PEER_RESTARTED, True)


def test_a_new_owner_id_of_the_same_process_interrupts_no_transfer() -> None:
    sender = Exchange(CONFIG, Random(1), 0.0)
    receiver = Exchange(CONFIG, Random(2), 0.0)
    large = sender.send(REMOTE, LARGE, 0.0)
    begin(sender, receiver, pdus=2)
    receiver.change_owner(1.0)
    small = sender.send(REMOTE, b"small", 2.0)
    converse(sender, receiver, 2.0)
    outcomes = ended(sender)
    assert outcomes.keys() == {large, small}
    assert {outcome.code for outcome in outcomes.values()} == {Code.SUCCESS}


def broken_off(count: int) -> tuple[Exchange, set[bytes]]:
    """Return a sender whose started transfers fill its window."""
    sender = Exchange(CONFIG, Random(1), 0.0)
    sent = {sender.send(REMOTE, LARGE, 0.0) for _ in range(count)}
    begin(sender, Exchange(CONFIG, Random(2), 0.0), pdus=3)
    for tick in range(1, 200):
        sender.handle_timer(tick / 100)
        sender.poll_transmits()
    return sender, sent


def test_interrupted_transfers_do_not_block_messages_to_the_successor() -> None:
    sender, large = broken_off(4)
    small = sender.send(REMOTE, b"small", 2.0)
    assert sender.leftovers()["waiting"] == 1
    sender.handle_timer(2.5)
    converse(sender, Exchange(CONFIG, Random(3), 0.0), 2.5)
    outcomes = ended(sender)
    assert outcomes[small].code == Code.SUCCESS
    assert {outcomes[each].code for each in large} == {Code.PEER_RESTARTED}
    assert sender.leftovers() == {}


def test_only_one_message_at_a_time_exceeds_a_full_window() -> None:
    """IPC-FLOW-7."""
    sender, _ = broken_off(4)
    for number in range(10):
        sender.send(REMOTE, bytes([number]), 2.0)
    for tick in range(200, 400):
        sender.handle_timer(tick / 100)
    assert sender.leftovers()["waiting"] == 9


def test_no_message_exceeds_a_window_full_of_headers() -> None:
    sender = Exchange(CONFIG, Random(1), 0.0)
    for _ in range(10):
        sender.send(REMOTE, LARGE, 0.0)
    waiting = sender.leftovers()["waiting"]
    for tick in range(1, 400):
        sender.handle_timer(tick / 100)
    assert sender.leftovers()["waiting"] == waiting > 0
