"""Each checker accepts a valid run, and finds a violation in a modified one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from aqueduct.errors import CloseCode
from aqueduct.protocol.config import Limits
from aqueduct.protocol.events import Delivered, End, ReceiverEnded, SenderEnded, Undelivered
from aqueduct.testing.checkers import CHECKERS, Violation, check
from aqueduct.testing.record import (
    CommandCalled,
    ConnectionClosed,
    CoreFault,
    EventRaised,
    FrameArrived,
    FrameSent,
    MessageReceived,
    MessageSent,
    MessageTaken,
    Polled,
    Record,
    RecordEntry,
    SendFailed,
    StreamEnded,
)
from aqueduct.wire.chanid import ENTRYPOINT, Side
from aqueduct.wire.frames import (
    AckNackUnreliable,
    AckReliable,
    AckVersion,
    CancelSender,
    CloseReceiver,
    Dequeued,
    FinishSender,
    ForgetChannel,
    MessageFrame,
    RouteTo,
    SentUnreliable,
    Version,
)
from tests.testing import scenes

Wanted = Callable[[RecordEntry], bool]
Doctor = Callable[[Record], None]


def sent(kind: type, channel: int = ENTRYPOINT) -> Wanted:
    return lambda entry: (
        isinstance(entry, FrameSent) and type(entry.frame) is kind and entry.channel == channel
    )


def arrived(kind: type, channel: int = ENTRYPOINT) -> Wanted:
    return lambda entry: (
        isinstance(entry, FrameArrived)
        and type(entry.sent.frame) is kind
        and entry.sent.channel == channel
    )


def saw(kind: type, channel: int = ENTRYPOINT) -> Wanted:
    return lambda entry: (
        isinstance(entry, EventRaised)
        and type(entry.event) is kind
        and getattr(entry.event, "channel", None) == channel
    )


def took(number: int) -> Wanted:
    return lambda entry: isinstance(entry, MessageTaken) and entry.message.number == number


def where(record: Record, wanted: Wanted, skip: int = 0) -> int:
    positions = [at for at, entry in enumerate(record.entries) if wanted(entry)]
    return positions[skip]


def drop(wanted: Wanted, skip: int = 0) -> Doctor:
    """Remove one entry."""

    def doctor(record: Record) -> None:
        del record.entries[where(record, wanted, skip)]

    return doctor


def change(wanted: Wanted, skip: int = 0, **fields: Any) -> Doctor:
    """Replace one entry."""

    def doctor(record: Record) -> None:
        at = where(record, wanted, skip)
        record.entries[at] = replace(record.entries[at], **fields)

    return doctor


def change_event(wanted: Wanted, skip: int = 0, **fields: Any) -> Doctor:
    """Replace an event."""

    def doctor(record: Record) -> None:
        at = where(record, wanted, skip)
        entry = record.entries[at]
        assert isinstance(entry, EventRaised)
        record.entries[at] = replace(entry, event=replace(entry.event, **fields))

    return doctor


def move(wanted: Wanted, time: float, skip: int = 0) -> Doctor:
    """Move one entry to another time."""

    def doctor(record: Record) -> None:
        entry = record.entries.pop(where(record, wanted, skip))
        record.entries.append(replace(entry, time=time))
        record.entries.sort(key=lambda each: each.time)

    return doctor


def repeat(wanted: Wanted, skip: int = 0, after: float = 0.0) -> Doctor:
    """Duplicate one entry."""

    def doctor(record: Record) -> None:
        entry = record.entries[where(record, wanted, skip)]
        record.entries.append(replace(entry, time=entry.time + after))
        record.entries.sort(key=lambda each: each.time)

    return doctor


def add(entry: RecordEntry) -> Doctor:
    """Insert an entry."""

    def doctor(record: Record) -> None:
        record.entries.append(entry)
        record.entries.sort(key=lambda each: each.time)

    return doctor


def both(*doctors: Doctor) -> Doctor:
    def doctor(record: Record) -> None:
        for each in doctors:
            each(record)

    return doctor


def set_limits(record: Record) -> None:
    record.limits = (Limits(), Limits(channel_window=1, connection_window=1))


def leave_something(record: Record) -> None:
    record.leftovers = (["a half"], [])


CHILD = 8
LATE = 0b010


def send_a_message_before_the_cancel(record: Record) -> None:
    """Let a message leave in the poll of a CANCEL_SENDER, before it."""
    message = record.entries[where(record, sent(MessageFrame))]
    cancel = where(record, sent(CancelSender, CHILD))
    record.entries.insert(cancel, replace(message, time=record.entries[cancel].time))


def let_the_child_leave(record: Record, *entries: RecordEntry) -> None:
    """Let a megabyte of one channel leave while a message of the entrypoint waits."""
    stream = record.entries[where(record, sent(MessageFrame, CHILD))]
    assert isinstance(stream, FrameSent)
    waiting = where(record, lambda entry: isinstance(entry, MessageSent) and not entry.channel, -1)
    time = record.entries[waiting].time
    writes = ((stream.stream, 1_000_000),)
    polled = Polled(time, Side.CLIENT, writes)
    record.entries[waiting + 1 : waiting + 1] = [*entries, polled]


def let_the_least_urgent_class_leave(record: Record) -> None:
    let_the_child_leave(record, CommandCalled(0.2, Side.CLIENT, "set priority", CHILD, "7"))


GRANDCHILD = 16
"""Ids of the channels the scenes make: client#1> and client#2>."""

FORGED = MessageFrame(1, (), (), b"forged")

CASES: list[tuple[str, Callable[[], Record], Doctor]] = [
    ("intact content", scenes.three_messages, change(took(1), message=FORGED)),
    ("at most once", scenes.three_messages, repeat(took(1), after=0.001)),
    ("ordered delivery", scenes.three_messages, move(took(0), 0.299)),
    ("finished means all", scenes.three_messages, drop(took(2))),
    ("nothing after nack", scenes.three_messages, drop(sent(AckReliable), 1)),
    ("taken before end", scenes.three_messages, move(took(2), 99.0)),
    ("taken after arrival", scenes.three_messages, move(took(0), 0.101)),
    ("one fate", scenes.three_messages, repeat(saw(Delivered))),
    (
        "nothing received after cancel",
        scenes.a_cancel,
        add(MessageReceived(99.0, Side.SERVER, CHILD, 0)),
    ),
    (
        "prefetched halves are ended",
        scenes.a_queue_dropped_by_a_cancel,
        add(CommandCalled(0.0, Side.SERVER, "prefetch", ENTRYPOINT)),
    ),
    ("both ends agree", scenes.three_messages, drop(saw(Delivered), 1)),
    ("delivered after ack", scenes.three_messages, move(saw(Delivered), 0.111)),
    (
        "undelivered after nack",
        scenes.three_messages,
        change(saw(Delivered), event=Undelivered(ENTRYPOINT, True, ((0, 1),))),
    ),
    ("fates are complete", scenes.three_messages, drop(saw(Delivered), 2)),
    ("lost is reported", scenes.a_loss_that_spreads, drop(saw(SenderEnded, GRANDCHILD))),
    (
        "only lost is reported",
        scenes.three_messages,
        change_event(saw(SenderEnded), how=End.LOST),
    ),
    (
        "lost is out of reach",
        scenes.a_loss_that_spreads,
        lambda record: add(
            MessageTaken(0.26, Side.SERVER, ENTRYPOINT, _message_on(record, ENTRYPOINT))
        )(record),
    ),
    (
        "right lineage",
        scenes.a_loss_that_spreads,
        change_event(saw(SenderEnded, GRANDCHILD), lineage=(ENTRYPOINT,)),
    ),
    ("lost is forgotten", scenes.a_loss_that_spreads, drop(sent(ForgetChannel, CHILD))),
    ("within the windows", scenes.a_burst, set_limits),
    (
        "no block with room",
        scenes.three_messages,
        add(SendFailed(0.2, Side.CLIENT, ENTRYPOINT, "WouldBlock", 10, 0, False)),
    ),
    (
        "writable when room",
        scenes.three_messages,
        add(SendFailed(0.2, Side.CLIENT, ENTRYPOINT, "WouldBlock", 10, 0, False)),
    ),
    ("credit is exact", scenes.three_messages, drop(sent(Dequeued))),
    ("credit of the connection", scenes.a_burst, set_limits),
    ("acks in time", scenes.three_messages, move(sent(AckReliable), 0.145)),
    ("acks under load", scenes.a_burst, move(sent(AckReliable), 0.115)),
    ("acks are true", scenes.three_messages, move(sent(AckReliable), 0.105)),
    ("nacks in time", scenes.datagrams, move(sent(AckNackUnreliable), 0.15, skip=1)),
    ("announcements in time", scenes.datagrams, move(sent(SentUnreliable), 0.2)),
    (
        "forgets are rare",
        scenes.a_loss_that_spreads,
        repeat(sent(ForgetChannel, CHILD), after=0.5),
    ),
    ("ghosts are forgotten", scenes.a_late_datagram, drop(sent(ForgetChannel, LATE))),
    (
        "forgotten streams are reset",
        scenes.a_loss_that_spreads,
        drop(lambda entry: isinstance(entry, StreamEnded) and entry.side == Side.SERVER, skip=-1),
    ),
    ("closing is bounded", scenes.a_late_datagram, move(sent(CloseReceiver, LATE), 11.0)),
    (
        "routes are answered",
        scenes.a_channel_before_its_carrier,
        change(
            lambda entry: sent(RouteTo, CHILD)(entry) and entry.side == Side.SERVER,
            frame=Dequeued(0),
        ),
    ),
    ("right side", scenes.three_messages, change(sent(AckReliable), side=Side.CLIENT)),
    ("version first", scenes.three_messages, drop(sent(Version, -1))),
    ("handshake is complete", scenes.three_messages, drop(sent(AckVersion, -1))),
    (
        "right stream",
        scenes.three_messages,
        drop(lambda entry: isinstance(entry, StreamEnded) and entry.time > 0.3),
    ),
    (
        "messages leave in their mode",
        scenes.three_messages,
        add(CommandCalled(0.0, Side.CLIENT, "set mode", ENTRYPOINT, "UNRELIABLE")),
    ),
    ("one control stream", scenes.three_messages, change(sent(AckReliable), stream=77)),
    (
        "no frames after the end",
        scenes.three_messages,
        repeat(sent(MessageFrame), after=1.0),
    ),
    (
        "finish counts right",
        scenes.three_messages,
        change(sent(FinishSender), frame=FinishSender(2)),
    ),
    ("cancel resets", scenes.a_cancel, drop(sent(CancelSender, CHILD))),
    ("close has a cause", scenes.three_messages, drop(arrived(FinishSender))),
    ("dropped halves are ended", scenes.a_queue_dropped_unread, drop(sent(CloseReceiver, CHILD))),
    ("only documented errors", scenes.three_messages, add(CoreFault(0.2, Side.CLIENT, "broke"))),
    (
        "no protocol errors",
        scenes.three_messages,
        add(ConnectionClosed(9.0, Side.SERVER, CloseCode.FLOW_CONTROL, "AQ-FLOW-2")),
    ),
    ("only known channels", scenes.three_messages, change(sent(MessageFrame), channel=CHILD)),
    (
        "events follow handles",
        scenes.three_messages,
        repeat(saw(ReceiverEnded), after=0.1),
    ),
    ("senders learn their end", scenes.three_messages, move(saw(SenderEnded), 9.0)),
    (
        "ends have reasons",
        scenes.three_messages,
        change_event(saw(SenderEnded), how=End.CANCELLED),
    ),
    (
        "errors have reasons",
        scenes.three_messages,
        add(SendFailed(0.2, Side.CLIENT, ENTRYPOINT, "ChannelClosed", 1, 0, False)),
    ),
    (
        "stopped keeps what arrived",
        scenes.a_stop,
        drop(took(0)),
    ),
    (
        "leaving is no error",
        scenes.a_client_that_leaves,
        change_event(saw(ReceiverEnded), how=End.CONNECTION),
    ),
    ("urgent frames first", scenes.a_cancel, send_a_message_before_the_cancel),
    ("classes in order", scenes.a_channel_before_its_carrier, let_the_least_urgent_class_leave),
    ("announced behind datagrams", scenes.datagrams, repeat(sent(MessageFrame), after=0.03)),
    ("everything ends", scenes.three_messages, leave_something),
]


def _message_on(record: Record, channel: int) -> MessageFrame:
    entry = record.entries[where(record, sent(MessageFrame, channel))]
    assert isinstance(entry, FrameSent)
    assert isinstance(entry.frame, MessageFrame)
    return entry.frame


SCENES = list(dict.fromkeys(case[1] for case in CASES))


@pytest.mark.parametrize("scene", SCENES)
def test_a_valid_run_has_no_violations(scene: Callable[[], Record]) -> None:
    assert check(scene()) == []


@pytest.mark.parametrize(("name", "scene", "doctor"), CASES, ids=[case[0] for case in CASES])
def test_a_checker_finds_the_violation(
    name: str, scene: Callable[[], Record], doctor: Doctor
) -> None:
    record = scene()
    doctor(record)
    assert name in {violation.checker for violation in check(record)}


def test_every_checker_has_a_case() -> None:
    assert {case[0] for case in CASES} == set(CHECKERS)


def test_every_checker_has_a_docstring() -> None:
    for find in CHECKERS.values():
        assert find.__doc__


def test_a_run_that_does_not_become_idle_is_a_violation() -> None:
    record = scenes.three_messages()
    record.drained = False
    assert "did not become idle" in str(check(record)[0])


def test_a_violation_names_its_checker_time_side_channel_and_message() -> None:
    violation = Violation("was taken twice", 1.5, Side.SERVER, CHILD, 3, "at most once")
    text = "[at most once] 1.500000 server client#1> message 3: was taken twice"
    assert str(violation) == text


def test_a_cancel_leaves_no_stream_open() -> None:
    record = scenes.a_cancel()
    drop(lambda entry: isinstance(entry, StreamEnded) and entry.reset is not None)(record)
    assert "is open after the cancel" in str(check(record))


def test_a_cancel_resets_the_finished_streams_of_unordered_messages() -> None:
    """AQ-CANCEL-1."""
    record = scenes.a_cancel_of_an_unordered_sender()
    assert check(record) == []
    drop(lambda entry: isinstance(entry, StreamEnded) and entry.reset is not None)(record)
    assert "was not reset by the cancel" in str(check(record))


def test_a_close_by_the_application_is_a_cause() -> None:
    record = scenes.a_queue_dropped_unread()
    drop(lambda entry: isinstance(entry, CommandCalled) and entry.verb == "close")(record)
    assert "close has a cause" in {violation.checker for violation in check(record)}


def test_a_sender_gets_the_same_share_as_the_others_of_its_class() -> None:
    """AQ-PRIO-3."""
    record = scenes.a_channel_before_its_carrier()
    let_the_child_leave(record)
    assert "left while it waited in the same class, and 0 of it" in str(check(record))


def test_datagrams_do_not_wait_for_messages() -> None:
    """AQ-PRIO-3."""
    record = scenes.a_datagram_beside_a_stream()
    assert check(record) == []
    let_the_child_leave(record)
    assert "of class 4 left while datagrams waited" in str(check(record))
