"""The exception of a send for each result of its message."""

import pytest

from aqueduct.errors import (
    AqueductError,
    DeliveryError,
    EndpointClosed,
    MessageRefused,
    MessageTooLarge,
    PeerRestarted,
    PeerUnreachable,
    SendTimeout,
    TLSError,
    TransferAborted,
)
from aqueduct.ipc.core.events import Ended
from aqueduct.ipc.core.pdu import Code
from aqueduct.ipc.failures import delivery_error

TO = "udp://127.0.0.1:5000"

KINDS = {
    Code.PROCESSING_ERROR: MessageRefused,
    Code.INVALID_DESTINATION: TransferAborted,
    Code.MESSAGE_TOO_LARGE: MessageTooLarge,
    Code.RECEIVE_TIMEOUT: TransferAborted,
    Code.PDU_TOO_LARGE: TransferAborted,
    Code.APPLICATION: TLSError,
    Code.SHUTDOWN: EndpointClosed,
    Code.SEND_TIMEOUT: SendTimeout,
    Code.PEER_RESTARTED: PeerRestarted,
    99: MessageRefused,
}


@pytest.mark.parametrize(("code", "kind"), KINDS.items(), ids=str)
def test_each_code_has_its_error(code: int, kind: type[AqueductError]) -> None:
    error = delivery_error(Ended(b"i" * 16, TO, code, exposed=False), TO)
    assert type(error) is kind
    if isinstance(error, DeliveryError):
        assert error.code == code
    assert TO in str(error) or kind is EndpointClosed


@pytest.mark.parametrize("exposed", [False, True])
def test_a_timeout_says_whether_the_message_may_have_arrived(exposed: bool) -> None:
    error = delivery_error(
        Ended(b"i" * 16, TO, Code.SEND_TIMEOUT, exposed, "connection refused"), TO
    )
    assert isinstance(error, DeliveryError)
    assert error.may_have_arrived is exposed
    assert "connection refused" in str(error)
    assert ("may have received" in str(error)) is exposed
    assert error.to == TO


def test_after_a_restart_the_message_may_have_arrived() -> None:
    error = delivery_error(Ended(b"i" * 16, TO, Code.PEER_RESTARTED, exposed=True), TO)
    assert isinstance(error, PeerRestarted)
    assert error.may_have_arrived
    assert "only if it is idempotent" in str(error)


def test_after_a_restart_in_the_middle_it_has_not_arrived_and_may_be_sent_again() -> None:
    error = delivery_error(Ended(b"i" * 16, TO, Code.PEER_RESTARTED, exposed=False), TO)
    assert isinstance(error, PeerRestarted)
    assert not error.may_have_arrived
    assert str(error).endswith("before it had the whole message; send it again")


def test_a_message_may_have_arrived_before_its_remote_became_untrusted() -> None:
    error = delivery_error(Ended(b"i" * 16, TO, Code.APPLICATION, True, "a wrong certificate"), TO)
    assert isinstance(error, PeerUnreachable)
    assert error.may_have_arrived
    assert "a wrong certificate" in str(error)
    assert isinstance(error.__cause__, TLSError)


def test_every_delivery_error_has_a_code() -> None:
    """IPC-PDU-6."""
    codes = {kind: kind().code for kind in DeliveryError.__subclasses__()}
    assert codes == {
        SendTimeout: Code.SEND_TIMEOUT,
        MessageRefused: Code.PROCESSING_ERROR,
        TransferAborted: Code.RECEIVE_TIMEOUT,
        PeerRestarted: Code.PEER_RESTARTED,
        PeerUnreachable: Code.APPLICATION,
        EndpointClosed: Code.SHUTDOWN,
    }


def test_a_timeout_is_a_timeout_error_too() -> None:
    error = delivery_error(Ended(b"i" * 16, TO, Code.SEND_TIMEOUT, exposed=True), TO)
    assert isinstance(error, TimeoutError)
    assert str(error).startswith(TO)
