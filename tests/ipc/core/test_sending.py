"""The sending side: messages, acks and timers in, PDUs and results out."""

import time
from itertools import pairwise
from typing import Any

import pytest

from aqueduct.errors import LocalProtocolError, MessageTooLarge, WouldBlock
from aqueduct.ipc.core.events import Ended
from aqueduct.ipc.core.outgoing import MAX_CORRECTIONS
from aqueduct.ipc.core.pdu import Code, Data, DataAck, Header, HeaderAck, Pdu, encode_size
from tests.ipc.cores import DATA, THEM, Core

OWNER = b"ABCDEFGH12345678"
RENEWED = b"ABCDEFGHabcdefgh"
SUCCESSOR = b"abcdefgh12345678"
FULL = b"x" * DATA


def corrected(message_id: bytes, owner: bytes) -> HeaderAck:
    return HeaderAck(message_id, Code.INVALID_DESTINATION, owner)


def familiar(**changes: Any) -> Core:
    """Return a core that knows the owner id of the remote."""
    core = Core(**changes)
    core.knows(OWNER)
    return core


def times_of_tries(core: Core, seconds: float) -> list[float]:
    """Return when the core sent a PDU within some seconds."""
    times = []
    until = core.now + seconds
    while (at := core.exchange.next_timer()) <= until:
        core.now = max(at, core.now)
        core.exchange.handle_timer(core.now)
        times += [core.now] * len(core.said())
    core.now = until
    return times


# Messages held for the receiver's application


def held(core: Core, payload: bytes = b"hello") -> bytes:
    """Send a message of one PDU that arrives and is not taken."""
    message_id = core.send(payload)
    core.said()
    core.wait(0.2)
    assert core.hear(DataAck(message_id, 1)) == []
    assert core.events() == []
    return message_id


def test_a_held_message_is_retransmitted_rarely_and_with_one_byte() -> None:
    """IPC-SEND-18."""
    core = familiar()
    message_id = held(core)
    assert core.wait(0.9) == []
    assert core.wait(0.2) == [Header(message_id, OWNER, 5, b"h")]
    assert core.wait(0.8) == []
    assert core.wait(0.2) == [Header(message_id, OWNER, 5, b"h")]
    assert core.hear(HeaderAck(message_id)) == []
    assert core.ended().code == Code.SUCCESS


def test_a_message_of_several_pdus_can_be_held() -> None:
    """IPC-SEND-18."""
    core = familiar()
    message_id = core.send(FULL + b"yy")
    core.said()
    assert core.hear(DataAck(message_id, 1)) == []  # it is not for the last PDU
    assert core.wait(0.2)
    core.hear(HeaderAck(message_id))
    core.hear(DataAck(message_id, 2))
    assert core.wait(0.9) == []
    assert core.wait(0.2) == [Data(message_id, OWNER, 1, b"y")]
    core.hear(DataAck(message_id, 1))
    assert core.ended().code == Code.SUCCESS


def test_a_held_message_keeps_its_deadline() -> None:
    """IPC-SEND-18, IPC-SEND-13."""
    core = familiar()
    message_id = core.send(b"hello")
    core.said()
    for _ in range(49):
        core.wait(0.1)
        core.hear(DataAck(message_id, 1))
    assert core.events() == []
    core.wait(0.101)
    assert core.ended().code == Code.SEND_TIMEOUT


@pytest.mark.parametrize(
    "notice", [(1, Code.PROCESSING_ERROR, THEM), (2, Code.SUCCESS, THEM), (1, Code.SUCCESS, "eve")]
)
def test_an_invalid_notice_is_ignored(notice: tuple[int, int, str]) -> None:
    """IPC-SEND-18."""
    core = familiar()
    sequence, code, remote = notice
    message_id = core.send(b"hello")
    core.said()
    core.hear(DataAck(message_id, sequence, code), remote=remote)
    assert core.wait(0.2) == [Header(message_id, OWNER, 5, b"hello")]


def test_a_queued_message_is_not_held_by_a_notice() -> None:
    """IPC-SEND-18."""
    core = familiar(window=1)
    sent = [core.send(FULL) for _ in range(100)]
    core.said()
    core.hear(DataAck(sent[-1], 1))
    for message_id in sent:
        core.hear(HeaderAck(message_id))
    assert len(core.events()) == 100


def test_held_messages_do_not_occupy_the_window() -> None:
    """IPC-SEND-18, IPC-FLOW-1."""
    core = familiar(window=1)
    sent = [core.send(FULL) for _ in range(200)]
    begun = len(core.said())
    assert begun < 50
    core.wait(0.2)
    for message_id in sent[:begun]:
        core.exchange.handle_pdu(DataAck(message_id, 1).encode(), THEM, core.now)
    assert len(core.said()) == begun
    for message_id in sent:
        core.hear(HeaderAck(message_id))
    assert len(core.events()) == 200
    assert core.exchange.leftovers() == {}


def test_a_held_message_with_a_corrected_id_is_sent_in_full() -> None:
    """IPC-SEND-18, IPC-SEND-9."""
    core = familiar()
    message_id = held(core)
    assert core.hear(corrected(message_id, RENEWED)) == [Header(message_id, RENEWED, 5, b"hello")]
    assert set(core.wait(0.2)) == {Header(message_id, RENEWED, 5, b"hello")}


# The first PDU


def test_each_message_has_a_unique_id() -> None:
    """IPC-SEND-1."""
    core = Core()
    assert len({core.send(b"same") for _ in range(100)}) == 100
    headers = [pdu for pdu in core.said() if isinstance(pdu, Header)]
    assert len({header.message_id for header in headers}) == len(headers) > 50


def test_a_message_to_an_unknown_remote_goes_to_a_random_id() -> None:
    """IPC-ID-3, IPC-SEND-3."""
    core = Core()
    first, second = core.send(b"hello"), core.send(b"world")
    one, two = core.said()
    assert isinstance(one, Header)
    assert isinstance(two, Header)
    assert (one.message_id, one.length, one.payload) == (first, 5, b"hello")
    assert two.message_id == second
    assert one.destination != two.destination


def test_a_message_to_a_remote_that_answered_recently_goes_to_its_id() -> None:
    """IPC-ID-3."""
    core = familiar()
    message_id = core.send(b"hello")
    assert core.said() == [Header(message_id, OWNER, 5, b"hello")]
    core.wait(0.9)
    message_id = core.send(b"still")
    assert core.said() == [Header(message_id, OWNER, 5, b"still")]


def test_every_answer_renews_the_trust() -> None:
    """IPC-ID-3."""
    core = familiar()
    for _ in range(5):
        core.wait(0.9)
        message_id = core.send(b"hello")
        assert core.hear(HeaderAck(message_id))[0] == Header(message_id, OWNER, 5, b"hello")
        assert core.ended().code == Code.SUCCESS


def test_a_random_id_is_used_after_the_trust_time_or_an_error() -> None:
    """IPC-ID-3."""
    core = familiar()
    core.wait(1.0)
    core.send(b"hello")
    (header,) = core.said()
    assert isinstance(header, Header)
    assert header.destination != OWNER
    core = familiar()
    core.exchange.handle_transient_error(THEM, "connection lost")
    core.exchange.handle_transient_error("a stranger", "unknown error")
    core.send(b"hello")
    (header,) = core.said()
    assert isinstance(header, Header)
    assert header.destination != OWNER


def test_a_message_is_sent_stop_and_wait() -> None:
    """IPC-SEND-2, IPC-SEND-12."""
    core = familiar()
    message_id = core.send(FULL + FULL + b"y")
    assert core.said() == [Header(message_id, OWNER, 2 * DATA + 1, FULL)]
    assert core.hear(HeaderAck(message_id)) == [Data(message_id, OWNER, 1, FULL)]
    assert core.hear(DataAck(message_id, 1)) == [Data(message_id, OWNER, 2, b"y")]
    assert core.hear(DataAck(message_id, 2)) == []
    assert core.ended() == Ended(message_id, THEM, Code.SUCCESS, True)  # IPC-SEND-17
    assert core.exchange.leftovers() == {}
    assert times_of_tries(core, 10) == []


def test_a_message_too_long_for_the_length_field_is_refused() -> None:
    """Zeroed pages that are never touched take no memory."""
    with pytest.raises(MessageTooLarge):
        Core().send(bytes(2**31))


# Retransmission


def test_a_pdu_is_retransmitted_with_random_backoff_until_its_deadline() -> None:
    """IPC-SEND-5, IPC-SEND-6, IPC-SEND-13."""
    core = familiar()
    message_id = core.send(b"hello")
    core.said()
    times = [core.now, *times_of_tries(core, 5)][:-2]  # the last two are the abort
    gaps = [after - before for before, after in pairwise(times)]
    assert all(0.05 <= gap <= 0.2 + 1e-9 for gap in gaps)
    assert len({round(gap, 6) for gap in gaps}) == len(gaps) > 20
    assert max(gaps) > 0.17
    assert min(gaps) < 0.08
    assert core.ended() == Ended(message_id, THEM, Code.SEND_TIMEOUT, True)
    assert core.exchange.statistics.retries == len(gaps)


def test_a_retry_repeats_the_current_pdu() -> None:
    """IPC-SEND-6."""
    core = familiar()
    message_id = core.send(FULL + b"y")
    (header,) = core.said()
    assert set(map(str, core.wait(1))) == {str(header)}
    (data,) = core.hear(HeaderAck(message_id))
    assert set(map(str, core.wait(1))) == {str(data)} == {str(Data(message_id, OWNER, 1, b"y"))}


def test_an_ack_stops_the_retries_and_resets_the_deadline() -> None:
    """IPC-SEND-12."""
    core = familiar()
    message_id = core.send(FULL + FULL)
    core.wait(4.9)
    core.hear(HeaderAck(message_id))
    assert {type(pdu) for pdu in core.wait(4.9)} == {Data}
    assert core.events() == []
    core.hear(DataAck(message_id, 1))
    assert core.ended().code == Code.SUCCESS
    assert core.wait(20) == []


def test_the_backoff_starts_when_the_pdu_was_sent() -> None:
    """IPC-SEND-4: if the transport reports it; one report is enough."""
    core = Core(reports_sent=True)
    core.send(b"hello")
    core.said()
    (sending,) = core.sendings
    assert core.wait(3) == []
    core.exchange.handle_sent(sending, core.now)
    retry = core.exchange.next_timer()
    assert 3.05 <= retry <= 3.2
    core.exchange.handle_sent(sending, retry - 0.001)
    assert core.wait(retry - core.now - 0.001) == []
    assert len(core.wait(0.002)) == 1
    assert core.wait(1.5) == []  # until this one was sent
    assert len(core.wait(1)) == 2  # the abort
    assert core.ended().code == Code.SEND_TIMEOUT  # IPC-SEND-13, though nothing was reported
    core.exchange.handle_sent(sending, core.now)
    assert core.wait(10) == []


def test_a_transient_error_ends_no_send_and_is_the_reason_if_one_fails() -> None:
    """IPC-SEND-4, IPC-SEND-17."""
    core = Core()
    core.send(b"hello")
    core.exchange.handle_transient_error(THEM, "connection refused")
    assert core.events() == []
    core.wait(5)
    ended = core.ended()
    assert (ended.code, ended.exposed, ended.reason) == (
        Code.SEND_TIMEOUT,
        False,
        "connection refused",
    )


# Acks


def test_a_header_ack_counts_only_for_a_header_that_is_pending() -> None:
    """IPC-SEND-7."""
    core = familiar()
    message_id = core.send(FULL + b"y")
    core.said()
    assert core.hear(HeaderAck(b"no such message.")) == []
    assert core.hear(HeaderAck(message_id), remote="elsewhere") == []
    assert len(core.hear(HeaderAck(message_id))) == 1
    for late in (HeaderAck(message_id), HeaderAck(message_id, 1), corrected(message_id, SUCCESSOR)):
        assert core.hear(late) == []
    assert core.events() == []
    assert core.exchange.statistics.ignored == 5


def test_a_data_ack_counts_only_for_the_data_that_is_pending() -> None:
    """IPC-SEND-11."""
    core = familiar()
    message_id = core.send(FULL * 3)
    core.said()
    assert core.hear(DataAck(message_id, 1)) == []
    core.hear(HeaderAck(message_id))
    for wrong in (DataAck(message_id, 2), DataAck(message_id, 2, 1), DataAck(b"?" * 16, 1)):
        assert core.hear(wrong) == []
    assert core.hear(DataAck(message_id, 1), remote="elsewhere") == []
    assert len(core.hear(DataAck(message_id, 1))) == 1
    assert core.hear(DataAck(message_id, 1)) == []
    assert core.events() == []


@pytest.mark.parametrize("code", [1, 3, 4, 6, 0x7FFF])
def test_an_error_code_ends_a_send(code: int) -> None:
    """IPC-SEND-8, IPC-PDU-6: also an unassigned code; nothing more is sent."""
    core = familiar()
    message_id = core.send(b"hello")
    core.said()
    assert core.hear(HeaderAck(message_id, code)) == []
    assert core.ended() == Ended(message_id, THEM, code, True)
    assert core.wait(10) == []


@pytest.mark.parametrize(("code", "payload"), [(1, b""), (2, SUCCESSOR), (5, encode_size(470))])
def test_any_error_code_for_data_ends_a_send(code: int, payload: bytes) -> None:
    """IPC-SEND-8: DATA cannot be corrected."""
    core = familiar(max_pdu=1024)
    message_id = core.send(bytes(5000))
    core.hear(HeaderAck(message_id))
    assert core.hear(DataAck(message_id, 1, code, payload)) == []
    assert core.ended() == Ended(message_id, THEM, code, False)


# Corrections


def test_the_id_in_a_correction_is_used_at_once_and_later() -> None:
    """IPC-SEND-9, IPC-SEND-16."""
    core = Core()
    message_id = core.send(b"hello")
    core.said()
    assert core.hear(corrected(message_id, OWNER)) == [Header(message_id, OWNER, 5, b"hello")]
    later = core.send(b"world")
    assert core.said() == [Header(later, OWNER, 5, b"world")]
    core.hear(HeaderAck(message_id))
    assert core.ended().code == Code.SUCCESS


def test_a_correction_without_a_new_id_is_ignored() -> None:
    """IPC-SEND-9, IPC-PDU-8."""
    core = familiar()
    message_id = core.send(b"hello")
    core.said()
    for owner in (OWNER, b"", OWNER[:15], OWNER + b"x", bytes(16)):
        assert core.hear(corrected(message_id, owner)) == []
    assert core.events() == []
    core.hear(HeaderAck(message_id))
    assert core.ended().code == Code.SUCCESS


def test_a_renewed_id_of_the_same_incarnation_is_followed() -> None:
    """IPC-ID-4."""
    core = familiar()
    message_id = core.send(b"hello")
    core.said()
    assert core.hear(corrected(message_id, RENEWED)) == [Header(message_id, RENEWED, 5, b"hello")]


def test_a_message_that_a_predecessor_may_have_taken_is_not_sent_to_its_successor() -> None:
    """IPC-ID-4; the next message finds the successor."""
    core = familiar()
    message_id = core.send(b"hello")
    core.said()
    assert core.hear(corrected(message_id, SUCCESSOR)) == []
    assert core.ended() == Ended(message_id, THEM, Code.PEER_RESTARTED, True)
    assert core.wait(10) == []
    message_id = core.send(b"again")
    core.said()
    assert core.hear(corrected(message_id, SUCCESSOR)) == [
        Header(message_id, SUCCESSOR, 5, b"again")
    ]


def test_an_unexposed_message_is_redirected_to_the_successor() -> None:
    """IPC-ID-4: no receiver can have all of it."""
    core = familiar()
    message_id = core.send(FULL + b"y")
    core.said()
    expected = [Header(message_id, SUCCESSOR, DATA + 1, FULL)]
    assert core.hear(corrected(message_id, SUCCESSOR)) == expected


def test_a_correction_after_the_deadline_is_not_followed() -> None:
    """IPC-ID-5: the process was suspended, and an old PDU answered after its id expired."""
    core = familiar()
    message_id = core.send(b"hello")
    core.said()
    core.now += 5.0
    abort = [Header(message_id, OWNER, 5), Data(message_id, OWNER, 1)]
    assert core.hear(corrected(message_id, RENEWED)) == abort
    assert core.ended().code == Code.SEND_TIMEOUT


def test_a_message_is_refragmented_to_the_stated_size() -> None:
    """IPC-SEND-10, IPC-SEND-16; later messages use that size from the start."""
    core = familiar(max_pdu=1042)
    message_id = core.send(bytes(1500))
    assert core.said() == [Header(message_id, OWNER, 1500, bytes(1000))]
    too_large = HeaderAck(message_id, Code.PDU_TOO_LARGE, encode_size(600))
    (header,) = core.hear(too_large)
    renamed = header.message_id
    assert renamed != message_id
    assert header == Header(renamed, OWNER, 1500, bytes(600))
    assert core.hear(HeaderAck(message_id), too_large) == []
    assert core.hear(HeaderAck(renamed)) == [Data(renamed, OWNER, 1, bytes(600))]
    assert core.hear(DataAck(renamed, 1)) == [Data(renamed, OWNER, 2, bytes(300))]
    core.hear(DataAck(renamed, 2))
    assert core.ended() == Ended(message_id, THEM, Code.SUCCESS, True)
    message_id = core.send(bytes(700))
    assert core.said() == [Header(message_id, OWNER, 700, bytes(600))]


def test_a_refragmented_message_is_cancelled_by_its_first_id() -> None:
    """IPC-SEND-10, IPC-SEND-15."""
    core = familiar(max_pdu=1042)
    message_id = core.send(bytes(1500))
    (header,) = core.hear(HeaderAck(message_id, Code.PDU_TOO_LARGE, encode_size(600)))[1:]
    core.exchange.cancel(message_id, core.now)
    renamed = header.message_id
    assert core.said() == [Header(renamed, OWNER, 1500), Data(renamed, OWNER, 1)]
    assert core.ended().message_id == message_id
    assert core.exchange.leftovers() == {}


def test_an_exposed_message_is_refragmented_only_once() -> None:
    """IPC-SEND-10."""
    core = familiar(max_pdu=1042)
    message_id = core.send(bytes(1000))
    core.said()
    cut = core.hear(HeaderAck(message_id, Code.PDU_TOO_LARGE, encode_size(600)))
    assert cut == [Header(message_id, OWNER, 1000, bytes(600))]
    assert core.hear(HeaderAck(message_id, Code.PDU_TOO_LARGE, encode_size(500))) == []
    assert core.ended() == Ended(message_id, THEM, Code.PDU_TOO_LARGE, True)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\1",
        encode_size(469),
        encode_size(-1),
        encode_size(1000),
        encode_size(2000),
        bytes(16),
    ],
)
def test_an_invalid_size_is_ignored(payload: bytes) -> None:
    """IPC-SEND-10, IPC-PDU-8."""
    core = familiar(max_pdu=1042)
    message_id = core.send(bytes(1500))
    core.said()
    assert core.hear(HeaderAck(message_id, Code.PDU_TOO_LARGE, payload)) == []
    assert core.events() == []
    retry = Header(message_id, OWNER, 1500, bytes(1000))
    assert core.wait(0.2)[0] == retry


def test_a_peer_that_always_corrects_costs_no_more_than_a_silent_one() -> None:
    """IPC-SEND-16: four immediate retransmissions, then the backoff, until the first deadline."""
    core = Core()
    message_id = core.send(FULL + b"y")
    said = len(core.said())
    number = 0
    while not (events := core.events()):
        for _ in range(3):
            number += 1
            core.exchange.handle_pdu(
                corrected(message_id, number.to_bytes(16)).encode(), THEM, core.now
            )
        said += len(core.said())
        core.now = core.exchange.next_timer()
        core.exchange.handle_timer(core.now)
        said += len(core.said())
    (event,) = events
    assert isinstance(event, Ended)
    assert event.code == Code.SEND_TIMEOUT
    assert core.now == 5.0
    assert said - 2 <= 1 + MAX_CORRECTIONS + 5.0 / 0.05
    assert number > 3 * MAX_CORRECTIONS


# Cancelling


def test_a_send_cancelled_at_data_sends_one_empty_data() -> None:
    """IPC-SEND-14, IPC-SEND-17."""
    core = familiar()
    message_id = core.send(FULL * 3)
    core.hear(HeaderAck(message_id))
    core.exchange.cancel(message_id, core.now)
    core.exchange.cancel(message_id, core.now)
    assert core.said() == [Data(message_id, OWNER, 1)]
    assert core.ended() == Ended(message_id, THEM, Code.RESET, False)
    assert core.wait(10) == []


def test_a_send_cancelled_at_its_header_sends_two_empty_pdus() -> None:
    """IPC-SEND-15."""
    core = familiar()
    message_id = core.send(b"hello")
    core.said()
    core.exchange.cancel(message_id, core.now)
    assert core.said() == [Header(message_id, OWNER, 5), Data(message_id, OWNER, 1)]
    assert core.ended() == Ended(message_id, THEM, Code.RESET, True)


def test_an_empty_message_is_cancelled_without_a_pdu() -> None:
    """IPC-SEND-15."""
    core = familiar()
    message_id = core.send(b"")
    core.said()
    core.exchange.cancel(message_id, core.now)
    assert core.said() == []
    assert core.ended().code == Code.RESET


def test_a_timeout_aborts_the_transfer() -> None:
    """IPC-SEND-13, IPC-SEND-14."""
    core = familiar()
    message_id = core.send(FULL + b"y")
    core.hear(HeaderAck(message_id))
    assert core.wait(5)[-1] == Data(message_id, OWNER, 1)
    assert core.ended() == Ended(message_id, THEM, Code.SEND_TIMEOUT, True)
    assert core.exchange.leftovers() == {}


def test_a_close_fails_all_sends_and_starts_none() -> None:
    """IPC-SEND-14."""
    core = familiar(window=1)
    sent = [core.send(bytes(DATA)) for _ in range(200)]
    begun = len(core.said())
    core.exchange.close(core.now)
    ended = core.events()
    assert [each.message_id for each in ended] == sent
    assert {each.code for each in ended if isinstance(each, Ended)} == {Code.SHUTDOWN}
    assert len(core.said()) == 2 * begun < 400  # no PDU for queued ones
    assert core.exchange.leftovers() == {}
    with pytest.raises(LocalProtocolError):
        core.send(b"")


def test_sends_to_an_unreachable_remote_end_and_others_do_not() -> None:
    core = Core()
    core.send(b"hello")
    core.send(b"hello", "elsewhere")
    core.exchange.handle_unreachable(THEM, "certificate has expired", core.now)
    ended = core.ended()
    assert (ended.code, ended.remote, ended.reason) == (
        Code.APPLICATION,
        THEM,
        "certificate has expired",
    )
    assert core.exchange.leftovers()["outgoing"] == 1


# Limits


def test_messages_that_do_not_fit_the_window_wait_in_order() -> None:
    """IPC-FLOW-1."""
    core = familiar(window=1)  # the minimum: 66,560 bytes
    size = DATA + 1024
    fitting = 66_560 // size
    sent = [core.send(FULL) for _ in range(fitting + 3)]
    said = core.said()
    assert [pdu.message_id for pdu in said] == sent[:fitting]
    for index in range(3):
        (header,) = core.hear(HeaderAck(sent[index]))
        assert header.message_id == sent[fitting + index]
    assert core.exchange.leftovers()["bytes under way"] == fitting * size


def test_a_small_message_does_not_overtake_a_large_one_that_waits() -> None:
    """IPC-FLOW-1."""
    core = familiar(window=1, max_pdu=1042)
    sent = [core.send(bytes(1000)) for _ in range(33)]
    assert len(core.said()) == 32
    small = core.send(b"")
    assert core.said() == []
    assert [pdu.message_id for pdu in core.hear(HeaderAck(sent[0]))] == [sent[-1], small]


def test_a_full_window_of_one_remote_does_not_block_others() -> None:
    """IPC-FLOW-1: each remote has its own window."""
    core = familiar(window=1)
    for _ in range(100):
        core.send(FULL)
    core.said()
    message_id = core.send(b"hello", "elsewhere")
    assert [pdu.message_id for pdu in core.said()] == [message_id]


def test_a_queued_transfer_times_out_when_the_remote_is_silent() -> None:
    """IPC-FLOW-3."""
    core = familiar(window=1)
    sent = [core.send(FULL) for _ in range(100)]
    core.wait(5.0)
    ended = [each for each in core.events() if isinstance(each, Ended)]
    assert {each.message_id for each in ended} == set(sent)
    assert {each.code for each in ended} == {Code.SEND_TIMEOUT}
    assert {each.message_id for each in ended if each.exposed} == set(sent[:44])
    assert core.exchange.leftovers() == {}


def test_a_queued_transfer_does_not_time_out_while_others_are_answered() -> None:
    """IPC-FLOW-3."""
    core = familiar(window=1)
    large = core.send(FULL * 50)
    sent = [core.send(FULL) for _ in range(100)]
    for number in range(3):
        core.wait(4.0)
        ack: Pdu = DataAck(large, number) if number else HeaderAck(large)
        core.hear(ack)
    ended = {each.message_id for each in core.events()}
    assert large not in ended
    assert sent[-1] not in ended  # others failed after 5 and 10 seconds; then it started
    assert sent[0] in ended


def test_a_loss_halves_the_window_and_acks_widen_it() -> None:
    """IPC-FLOW-5."""
    core = familiar(window=10**6)
    size = DATA + 1024

    def room() -> int:
        """Return the number of messages sent at once after all others ended."""
        sent = [core.send(FULL) for _ in range(1000)]
        begun = len(core.said())
        for message_id in sent:
            core.exchange.cancel(message_id, core.now)
        core.said()
        core.events()
        return begun

    first = room()
    assert first == 256 * 1024 // size + 1  # the first message widened it
    for message_id in [core.send(FULL) for _ in range(50)]:
        core.hear(HeaderAck(message_id))
    core.events()
    wider = room()
    assert wider == first + 50
    core.send(FULL)
    core.said()
    while core.exchange.statistics.retries == 0:
        core.wait(0.01)
    assert room() == wider - 1  # one retry may be due to a busy application
    core.wait(0.2)
    assert room() <= wider // 2


def test_a_send_above_max_sends_would_block() -> None:
    """IPC-FLOW-4."""
    core = Core(max_sends=2)
    first = core.send(b"1")
    core.send(b"2")
    with pytest.raises(WouldBlock, match="max_sends"):
        core.send(b"3")
    core.exchange.cancel(first, core.now)
    core.send(b"3")


def test_the_remotes_idle_for_longest_are_forgotten_first() -> None:
    """IPC-FLOW-6."""
    core = Core(max_remotes=4)
    for remote in "abcd":
        core.knows(OWNER, remote)
    core.knows(OWNER, "a")
    core.knows(OWNER, "e")  # the fifth evicts b, the one idle for longest
    for remote, known in {"a": True, "d": True, "e": True, "b": False}.items():
        core.send(b"hello", remote)
        (header,) = core.said()
        assert isinstance(header, Header)
        assert (header.destination == OWNER) == known, remote


def test_remotes_with_open_transfers_are_not_forgotten() -> None:
    """IPC-FLOW-6: max_sends bounds them."""
    core = Core(max_remotes=2, max_sends=100)
    sent = {number: core.send(b"hello", number) for number in range(100)}
    core.said()
    for remote, message_id in sent.items():
        core.hear(corrected(message_id, OWNER), HeaderAck(message_id), remote=remote)
    assert {each.code for each in core.events() if isinstance(each, Ended)} == {Code.SUCCESS}
    assert core.exchange.leftovers() == {}


def test_many_remotes_and_many_cancels_do_not_slow_each_other_down() -> None:
    """IPC-FLOW-6: the cost of each is constant."""
    core = Core(max_remotes=10, max_sends=60_000)
    started = time.process_time()
    for remote in range(30_000):
        core.send(b"hello", remote)
    waiting = [core.send(b"hello") for _ in range(30_000)]
    for message_id in reversed(waiting):
        core.exchange.cancel(message_id, core.now)
    assert time.process_time() - started < 4


def test_a_late_ack_of_a_predecessor_does_not_restore_its_id() -> None:
    """IPC-SEND-9."""
    core = familiar()
    late = core.send(b"to the predecessor")
    core.exchange.handle_transient_error(THEM, "the connection was lost")
    core.knows(SUCCESSOR)
    core.hear(HeaderAck(late))
    assert core.ended().code == Code.SUCCESS
    message_id = core.send(b"hello")
    assert core.said() == [Header(message_id, SUCCESSOR, 5, b"hello")]
