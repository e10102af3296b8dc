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
    """Give what one side transmits to the other."""
    transmits = source.poll_transmits()
    for transmit in transmits:
        sink.handle_pdu(transmit.head + bytes(transmit.data), remote, now)
    return len(transmits)


def converse(sender: Exchange, receiver: Exchange, now: float) -> None:
    """Pass PDUs both ways until there are none; the receiver takes everything."""
    while pass_on(sender, receiver, SENDER, now):
        for event in receiver.poll_events():
            assert isinstance(event, Arrived)
            receiver.take(event.message_id)
        pass_on(receiver, sender, REMOTE, now)


def ended(sender: Exchange) -> dict[bytes, Ended]:
    events = [event for event in sender.poll_events() if isinstance(event, Ended)]
    return {event.message_id: event for event in events}


def begin(sender: Exchange, receiver: Exchange, pdus: int) -> None:
    """Have a receiver answer the first PDUs of a message, before it is no more."""
    for _ in range(pdus):
        pass_on(sender, receiver, SENDER, 0.0)
        pass_on(receiver, sender, REMOTE, 0.0)
    assert ended(sender) == {}


def test_a_transfer_that_the_receivers_death_broke_off_fails_when_its_successor_shows() -> None:
    """IPC-ID-6."""
    sender = Exchange(CONFIG, Random(1), 0.0)
    large = sender.send(REMOTE, LARGE, 0.0)
    begin(sender, Exchange(CONFIG, Random(2), 0.0), pdus=3)
    successor = Exchange(CONFIG, Random(3), 0.0)
    small = sender.send(REMOTE, b"small", 2.0)  # the id is no longer trusted by now
    converse(sender, successor, 2.0)
    outcomes = ended(sender)
    assert outcomes[small].code == Code.SUCCESS
    assert (outcomes[large].code, outcomes[large].exposed) == (Code.PEER_RESTARTED, False)
    assert sender.leftovers() == {}


def test_one_whose_last_piece_was_sent_may_have_arrived() -> None:
    sender = Exchange(CONFIG, Random(1), 0.0)
    large = sender.send(REMOTE, LARGE, 0.0)
    begin(sender, Exchange(CONFIG, Random(2), 0.0), pdus=4)
    small = sender.send(REMOTE, b"small", 2.0)
    converse(sender, Exchange(CONFIG, Random(3), 0.0), 2.0)
    outcomes = ended(sender)
    assert outcomes[small].code == Code.SUCCESS
    assert (outcomes[large].code, outcomes[large].exposed) == (Code.PEER_RESTARTED, True)


def test_a_new_owner_id_of_the_same_process_breaks_nothing_off() -> None:
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
    """A sender with transfers that have begun, and whose window they fill by now."""
    sender = Exchange(CONFIG, Random(1), 0.0)
    sent = {sender.send(REMOTE, LARGE, 0.0) for _ in range(count)}
    begin(sender, Exchange(CONFIG, Random(2), 0.0), pdus=3)
    for tick in range(1, 200):
        sender.handle_timer(tick / 100)
        sender.poll_transmits()
    return sender, sent


def test_transfers_that_were_broken_off_do_not_keep_others_from_the_successor() -> None:
    sender, large = broken_off(4)
    small = sender.send(REMOTE, b"small", 2.0)
    assert sender.leftovers()["waiting"] == 1
    sender.handle_timer(2.5)
    converse(sender, Exchange(CONFIG, Random(3), 0.0), 2.5)
    outcomes = ended(sender)
    assert outcomes[small].code == Code.SUCCESS
    assert {outcomes[each].code for each in large} == {Code.PEER_RESTARTED}
    assert sender.leftovers() == {}


def test_only_one_message_at_a_time_goes_past_a_full_window() -> None:
    """IPC-FLOW-7."""
    sender, _ = broken_off(4)
    for number in range(10):
        sender.send(REMOTE, bytes([number]), 2.0)
    for tick in range(200, 400):
        sender.handle_timer(tick / 100)
    assert sender.leftovers()["waiting"] == 9


def test_no_message_goes_past_a_window_that_is_full_of_headers_which_ask_by_themselves() -> None:
    sender = Exchange(CONFIG, Random(1), 0.0)
    for _ in range(10):
        sender.send(REMOTE, LARGE, 0.0)
    waiting = sender.leftovers()["waiting"]
    for tick in range(1, 400):
        sender.handle_timer(tick / 100)
    assert sender.leftovers()["waiting"] == waiting > 0
