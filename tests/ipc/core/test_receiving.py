"""The receiving side: PDUs and timers in, acks and messages out."""

from typing import Any

import pytest

from aqueduct.ipc.core.events import Arrived, Withdrawn
from aqueduct.ipc.core.pdu import Code, Data, DataAck, Header, HeaderAck, Pdu, encode_size
from tests.ipc.cores import DATA, ID, THEM, WRONG, Core

OTHER = b"another message."
FULL = b"x" * DATA


def whole() -> Core:
    """Receive a complete message of two pieces."""
    core = Core()
    core.hear(core.header(DATA + 1, FULL), core.data(1, b"y"))
    return core


# The HEADER


def test_a_header_that_does_not_complete_its_message_is_acked_at_once() -> None:
    """IPC-RECV-7, IPC-RECV-18."""
    core = Core()
    assert core.hear(core.header(DATA + 1, FULL)) == [HeaderAck(ID)]
    assert core.events() == []


def test_a_complete_message_is_reported_once_with_its_sender() -> None:
    """IPC-RECV-19."""
    core = Core()
    header = core.header(5, b"hello")
    core.hear(header, header)
    assert core.events() == [Arrived(ID, THEM, b"hello")]
    assert core.events() == []


def test_the_last_pdu_is_acked_when_the_message_is_taken() -> None:
    """IPC-RECV-8; until then the HEADER is ignored if it is not the last PDU (IPC-RECV-3)."""
    core = Core()
    assert core.hear(core.header(5, b"hello")) == []
    assert core.wait(1) == []
    assert core.take() == [HeaderAck(ID)]
    core = whole()
    assert core.hear(core.header(DATA + 1, FULL)) == []
    assert core.take() == [DataAck(ID, 1)]
    assert core.exchange.statistics.received == 1


def test_a_duplicate_of_the_last_pdu_is_answered_with_a_notice() -> None:
    """IPC-RECV-20: the number is one that no PDU of the message has."""
    core = Core()
    header = core.header(5, b"hello")
    core.hear(header)
    assert core.hear(header) == [DataAck(ID, 1)]
    assert core.hear(core.header(5, b"h")) == [DataAck(ID, 1)]
    assert core.take() == [HeaderAck(ID)]
    assert core.hear(header) == [HeaderAck(ID)]
    core = Core()
    core.hear(core.header(0))
    assert core.hear(core.header(0)) == [DataAck(ID, 1)]
    core = whole()
    assert core.hear(core.data(1, b"y")) == [DataAck(ID, 2)]
    assert core.hear(core.data(2, b"y")) == []
    assert core.take() == [DataAck(ID, 1)]


def test_an_empty_message_is_allowed() -> None:
    """IPC-RECV-4."""
    core = Core()
    assert core.hear(core.header(0)) == []
    assert core.arrived() == [b""]
    assert core.take() == [HeaderAck(ID)]


def test_a_duplicate_header_is_acked_while_data_1_is_expected() -> None:
    """IPC-RECV-3."""
    core = Core()
    header = core.header(3 * DATA, FULL)
    core.hear(header)
    assert core.hear(header) == [HeaderAck(ID)]
    core.hear(core.data(1, FULL))
    assert core.hear(header) == []
    core.hear(core.data(2, FULL))
    assert core.arrived() == [FULL * 3]


def test_a_message_over_the_maximum_is_answered_with_a_code() -> None:
    """IPC-RECV-4."""
    core = Core(max_message=65_536)
    assert core.hear(core.header(65_537, FULL)) == [HeaderAck(ID, Code.MESSAGE_TOO_LARGE)]
    assert core.hear(core.header(65_536, FULL)) == [HeaderAck(ID)]


def test_a_header_with_too_much_data_is_answered_with_the_limit() -> None:
    """IPC-RECV-5, IPC-PDU-8."""
    core = Core()
    answer = HeaderAck(ID, Code.PDU_TOO_LARGE, encode_size(DATA))
    assert core.hear(core.header(1000, FULL + b"x")) == [answer]
    assert core.hear(core.header(1000, FULL)) == [HeaderAck(ID)]


def test_a_header_for_another_id_is_answered_with_the_owner_id() -> None:
    """IPC-RECV-6, IPC-PDU-8; no transfer starts."""
    core = Core()
    answer = HeaderAck(ID, Code.INVALID_DESTINATION, core.exchange.owner)
    assert core.hear(Header(ID, WRONG, 5, b"hello")) == [answer]
    assert core.exchange.leftovers() == {}
    assert core.exchange.statistics.misdirected == 1


def test_a_header_with_more_than_the_message_is_cut() -> None:
    """IPC-RECV-1."""
    core = Core()
    core.hear(core.header(3, b"hello"))
    assert core.arrived() == [b"hel"]


# DATA


def test_data_complete_a_message_in_order_each_with_its_ack() -> None:
    """IPC-RECV-7."""
    core = Core()
    core.hear(core.header(2 * DATA + 2, FULL))
    assert core.hear(core.data(1, FULL)) == [DataAck(ID, 1)]
    assert core.hear(core.data(2, b"yyzzz")) == []
    assert core.arrived() == [FULL * 2 + b"yy"]  # IPC-RECV-1
    assert core.take() == [DataAck(ID, 2)]


def test_data_of_a_message_that_has_not_begun_are_ignored() -> None:
    """IPC-RECV-11."""
    core = Core()
    assert core.hear(core.data(1, b"y"), core.data(1), Data(ID, WRONG, 3, b"z")) == []
    assert core.exchange.statistics.ignored == 3


def test_data_out_of_order_are_ignored_and_the_one_before_is_acked_again() -> None:
    """IPC-RECV-12."""
    core = Core()
    core.hear(core.header(9 * DATA, FULL), core.data(1, FULL), core.data(2, FULL))
    for sequence in (1, 4, 5, 2**31 - 1):
        assert core.hear(core.data(sequence, FULL), core.data(sequence)) == []
    assert core.hear(core.data(2, FULL)) == [DataAck(ID, 2)]
    assert core.hear(core.data(3, FULL)) == [DataAck(ID, 3)]


def test_data_must_name_the_owner_id_of_the_header() -> None:
    """IPC-RECV-9: not the id that the endpoint has now."""
    core = Core()
    before = core.exchange.owner
    core.hear(core.header(3 * DATA, FULL))
    core.exchange.change_owner(core.now)
    assert core.exchange.owner != before
    wrong = DataAck(ID, 1, Code.INVALID_DESTINATION, before)
    assert core.hear(core.data(1, FULL)) == [wrong]
    assert core.hear(Data(ID, WRONG, 1)) == [wrong]
    assert core.hear(Data(ID, before, 1, FULL)) == [DataAck(ID, 1)]


def test_data_may_be_as_large_as_the_limit_at_the_header() -> None:
    """IPC-RECV-10: the saved maximum applies, and is stated in the ack."""
    core = Core(max_pdu=542)
    core.hear(core.header(2000, bytes(500)))
    core.exchange.resize(512)
    assert core.hear(core.data(1, bytes(500))) == [DataAck(ID, 1)]
    too_large = DataAck(ID, 2, Code.PDU_TOO_LARGE, encode_size(500))
    assert core.hear(core.data(2, bytes(501))) == [too_large]
    refused = HeaderAck(OTHER, Code.PDU_TOO_LARGE, encode_size(470))
    assert core.hear(core.header(2000, bytes(471), OTHER)) == [refused]


# Aborts and ends


@pytest.mark.parametrize("sequence", [1, 2])
def test_an_empty_data_aborts_a_message(sequence: int) -> None:
    """IPC-RECV-15: the expected number, or the one before whose ack may be lost."""
    core = Core()
    core.hear(core.header(9 * DATA, FULL), core.data(1, FULL))
    assert core.hear(core.data(sequence)) == []
    assert core.exchange.leftovers() == {}
    assert core.exchange.statistics.aborted == 1
    # IPC-RECV-16: the ack of a duplicate has the kind and number of the duplicate.
    code = Code.PROCESSING_ERROR
    assert core.hear(core.data(2, FULL)) == [DataAck(ID, 2, code)]
    assert core.hear(core.header(9 * DATA, FULL)) == [HeaderAck(ID, code)]


@pytest.mark.parametrize("sequence", [1, 2])
def test_a_message_that_waits_to_be_taken_can_be_withdrawn(sequence: int) -> None:
    """IPC-RECV-15."""
    core = whole()
    assert core.exchange.holds(ID)
    assert core.hear(core.data(sequence)) == []
    assert not core.exchange.holds(ID)
    assert not core.exchange.take(ID)
    core.exchange.refuse(ID)
    assert core.said() == []
    assert core.exchange.statistics.received == core.exchange.statistics.refused == 0


def test_a_message_of_one_pdu_is_withdrawn_by_its_senders_abort() -> None:
    """IPC-RECV-15, with IPC-SEND-15: the empty HEADER has no effect, the DATA after it has."""
    core = Core()
    core.hear(core.header(5, b"hello"))
    assert core.hear(core.header(5), core.data(1)) == []
    assert not core.exchange.take(ID)
    assert core.hear(core.header(5, b"hello")) == [HeaderAck(ID, Code.PROCESSING_ERROR)]


def test_an_abort_that_arrives_first_prevents_delivery() -> None:
    """IPC-RECV-15."""
    core = Core()
    core.hear(core.header(5), core.data(1), core.header(5, b"hello"))
    assert core.events() == []


def test_a_refused_message_is_answered_with_a_code_and_remembered() -> None:
    """IPC-RECV-14, IPC-RECV-16."""
    core = whole()
    core.exchange.refuse(ID)
    assert core.said() == [DataAck(ID, 1, Code.PROCESSING_ERROR)]
    assert core.hear(core.data(1, b"y")) == [DataAck(ID, 1, Code.PROCESSING_ERROR)]
    assert not core.exchange.take(ID)
    assert core.exchange.statistics.refused == 1


def test_a_stalled_transfer_is_aborted_after_the_receive_timeout() -> None:
    """IPC-RECV-13, and IPC-RECV-7: each piece resets the timer."""
    core = Core(min_rate=0)
    core.hear(core.header(9 * DATA, FULL))
    before = core.exchange.owner
    core.wait(5.9)
    assert core.hear(Data(ID, before, 1, FULL)) == [DataAck(ID, 1)]
    assert core.wait(5.9) == []
    assert core.hear(Data(ID, before, 2, FULL)) == [DataAck(ID, 2)]
    assert core.wait(6) == []
    assert core.exchange.leftovers() == {}
    code = Code.RECEIVE_TIMEOUT
    assert core.hear(Data(ID, before, 3, FULL)) == [DataAck(ID, 3, code)]  # IPC-RECV-16
    assert core.events() == []


def test_a_duplicate_does_not_reset_the_timer() -> None:
    """IPC-RECV-7."""
    core = Core()
    core.hear(core.header(2 * DATA, FULL))
    core.wait(4)
    core.hear(core.header(2 * DATA, FULL))
    core.wait(2)
    assert core.exchange.leftovers() == {}


def test_a_complete_message_waits_for_the_application_without_a_timeout() -> None:
    """IPC-RECV-19: the timer is stopped."""
    core = whole()
    assert core.wait(600) == []
    assert core.take() == [DataAck(ID, 1)]


def test_a_close_refuses_complete_messages_and_aborts_the_others() -> None:
    """IPC-RECV-13, IPC-RECV-14; IPC-FLOW-2: no transfer starts afterwards."""
    core = whole()
    core.hear(core.header(2 * DATA, FULL, OTHER))
    core.exchange.close(core.now)
    core.exchange.close(core.now)
    assert core.said() == [DataAck(ID, 1, Code.PROCESSING_ERROR)]
    assert core.exchange.leftovers() == {}
    code = Code.PROCESSING_ERROR
    assert core.hear(core.data(1, FULL, OTHER)) == [DataAck(OTHER, 1, code)]
    assert core.hear(core.header(0, b"", WRONG)) == []


# Processed ids


@pytest.mark.parametrize("pdu", ["header", "data", "abort"])
def test_a_processed_message_is_answered_with_its_last_ack(pdu: str) -> None:
    """IPC-RECV-16."""
    core = whole()
    core.take()
    questions: dict[str, Pdu] = {
        "header": core.header(DATA + 1, FULL),
        "data": core.data(1, b"y"),
        "abort": core.data(1),
    }
    assert core.hear(questions[pdu]) == [DataAck(ID, 1)]
    assert len(core.events()) == 1


def test_a_processed_message_is_recognized_despite_other_errors_in_the_header() -> None:
    """IPC-RECV-16: another owner id, too large, from another remote, another length."""
    core = Core()
    core.hear(core.header(5, b"hello"))
    core.take()
    core.exchange.change_owner(core.now)
    for question in (
        Header(ID, WRONG, 5, b"hello"),
        core.header(5, b"hello"),
        core.header(5, bytes(1000)),
        core.header(2**31 - 1, b"hello"),
    ):
        assert core.hear(question, remote="elsewhere") == [HeaderAck(ID)]
    assert len(core.events()) == 1


def test_processed_ids_expire_after_an_owner_change_and_the_timeout() -> None:
    """IPC-RECV-2: both are required, and the timeout starts at the change."""
    core = Core(owner_id_lifetime=100)
    header = core.header(5, b"hello")
    core.hear(header)
    core.take()
    core.wait(50)  # after the timeout, but with the same id
    assert core.hear(header) == [HeaderAck(ID)]
    core.exchange.change_owner(core.now)
    assert core.exchange.processed == 1
    core.wait(5.9)
    core.exchange.change_owner(core.now)  # another id, but before the timeout
    assert core.hear(header) == [HeaderAck(ID)]
    core.wait(0.1)
    assert core.exchange.processed == 1  # after the timeout, but no further change
    core.exchange.change_owner(core.now)
    assert core.exchange.processed == 0
    assert core.hear(header) == [HeaderAck(ID, Code.INVALID_DESTINATION, core.exchange.owner)]


def test_a_hundred_thousand_processed_ids_are_freed() -> None:
    """IPC-RECV-2."""
    core = Core()
    for number in range(1, 100_001):
        message_id = number.to_bytes(16)
        core.exchange.handle_pdu(core.header(0, b"", message_id).encode(), THEM, core.now)
        core.exchange.take(message_id)
    assert len(core.arrived()) == len(core.said()) == 100_000
    assert core.exchange.processed == 100_000
    core.wait(2 * 6.0)
    assert core.exchange.processed == 0


def test_acks_go_to_the_source_of_the_latest_pdu() -> None:
    """IPC-RECV-17: a sender may have reconnected."""
    core = Core()
    core.hear(core.header(DATA + 1, FULL), remote="before")
    core.exchange.handle_pdu(core.header(DATA + 1, FULL).encode(), "meanwhile", core.now)
    assert core.said_to() == [(HeaderAck(ID), "meanwhile")]
    core.exchange.handle_pdu(core.data(1, b"y").encode(), "now", core.now)
    core.exchange.handle_pdu(core.data(1, b"y").encode(), "at last", core.now)
    assert core.said_to() == [(DataAck(ID, 2), "at last")]
    core.exchange.take(ID)
    assert core.said_to() == [(DataAck(ID, 1), "at last")]
    core.hear(core.header(0, b"", OTHER), remote="before")
    core.hear(core.header(0, b"", OTHER), remote="now")
    core.exchange.take(OTHER)
    assert core.said_to() == [(HeaderAck(OTHER), "now")]


def test_an_ack_is_not_reported_as_sent() -> None:
    """IPC-RECV-17."""
    core = Core(reports_sent=True)
    core.hear(core.header(DATA + 1, FULL))
    assert core.sendings == []


# Ids and limits


def test_the_owner_id_changes_periodically_and_keeps_its_incarnation() -> None:
    """IPC-ID-1, IPC-ID-2."""
    core = Core()
    seen = [core.exchange.owner]
    for _ in range(20):
        core.wait(6)
        seen.append(core.exchange.owner)
    assert len(set(seen)) == 21
    assert len({owner[:8] for owner in seen}) == 1
    assert len({owner[8:] for owner in seen}) == 21
    assert Core(seed=2).exchange.owner[:8] != seen[0][:8]


def test_a_header_above_max_receives_is_not_answered() -> None:
    """IPC-FLOW-2; there is room again when a message is taken."""
    core = Core(max_receives=2)
    core.hear(core.header(0), remote="another")
    core.hear(core.header(DATA + 1, FULL, OTHER))
    late = core.header(0, b"", WRONG)
    assert core.hear(late) == []
    assert core.exchange.statistics.over_limit == 1
    core.take()
    core.hear(late, remote="another")
    assert core.take(WRONG) == [HeaderAck(WRONG)]


def test_a_piece_above_max_received_is_not_answered() -> None:
    """IPC-FLOW-2: announced lengths do not count."""
    core = Core(max_message=65_536, max_received=65_536, max_pdu=60_000)
    first, second = bytes(32_000), bytes(30_000)
    core.hear(core.header(32_000, first), remote="one")
    core.hear(core.header(30_000, second, OTHER), remote="two")
    assert core.hear(core.header(65_536, bytes(3_600), WRONG), remote="three") == []
    assert core.exchange.statistics.over_limit == 1
    assert core.hear(core.header(65_536, bytes(3_536), WRONG), remote="three") == [HeaderAck(WRONG)]
    assert core.exchange.leftovers() == {"incoming": 3, "bytes received": 65_536}
    assert core.hear(core.data(1, b"x", WRONG), remote="three") == []
    core.take()
    assert core.hear(core.data(1, b"x", WRONG), remote="three") == [DataAck(WRONG, 1)]


def test_a_header_above_max_processed_is_not_answered() -> None:
    """IPC-FLOW-2; there is room again when they are forgotten."""
    core = Core(max_processed=1)
    core.hear(core.header(0))
    core.take()
    assert core.hear(core.header(2 * DATA, FULL, OTHER)) == []
    assert core.exchange.statistics.over_limit == 1
    core.wait(12)
    assert core.exchange.processed == 0
    assert core.hear(core.header(2 * DATA, FULL, OTHER)) == [HeaderAck(OTHER)]


def test_a_reused_id_waits_until_the_application_released_the_first_message() -> None:
    """IPC-FLOW-2."""
    core = Core()
    core.hear(core.header(5, b"hello"), core.data(1))
    core.wait(12)
    assert core.hear(core.header(DATA + 1, FULL)) == []
    assert core.exchange.statistics.over_limit == 1
    assert not core.exchange.take(ID)
    assert core.hear(core.header(DATA + 1, FULL)) == [HeaderAck(ID)]
    assert not core.exchange.take(ID)
    core.hear(core.data(1, b"y"))
    assert core.take() == [DataAck(ID, 1)]


@pytest.mark.parametrize("limits", [{"max_receives": 1}, {"max_received": 65_536}], ids=str)
@pytest.mark.parametrize("is_taken", [False, True])
def test_a_withdrawn_message_counts_until_the_application_releases_it(
    limits: dict[str, Any], is_taken: bool
) -> None:
    """IPC-FLOW-2, IPC-RECV-15."""
    core = Core(max_message=65_536, max_pdu=60_000, **limits)
    large = bytes(40_000)
    core.hear(core.header(40_001, large), core.data(1, b"y"), core.data(1))
    assert core.events() == [Arrived(ID, THEM, large + b"y"), Withdrawn(ID)]
    assert core.exchange.leftovers() == {"withdrawn": 1, "bytes received": 40_001}
    late = core.header(65_536, large, OTHER)
    assert core.hear(late) == []
    if is_taken:
        assert not core.exchange.take(ID)
    else:
        core.exchange.refuse(ID)
    assert core.exchange.leftovers() == {}
    assert core.hear(late) == [HeaderAck(OTHER)]


def test_a_close_releases_withdrawn_messages() -> None:
    core = whole()
    core.hear(core.data(1))
    core.exchange.close(core.now)
    assert core.exchange.leftovers() == {}
