"""The exceptions that a failed send raises."""

from __future__ import annotations

from aqueduct.errors import (
    AqueductError,
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


def delivery_error(ended: Ended, to: str) -> AqueductError:
    """Return the exception for a message that was not delivered, or not for certain."""
    why = f": {ended.reason}" if ended.reason else ""
    maybe = ended.exposed
    match ended.code:
        case Code.APPLICATION:
            distrust = TLSError(ended.reason or f"cannot reach {to}")
            if not maybe:
                return distrust
            sentence = f"{to} may have the message, and can no longer be asked{why}"
            error = PeerUnreachable(sentence, to=to, may_have_arrived=True)
            error.__cause__ = distrust
            return error
        case Code.MESSAGE_TOO_LARGE:
            return MessageTooLarge(f"{to} takes no message of that size (its max_message)")
        case Code.SEND_TIMEOUT:
            known = "; it may have the message all the same" if maybe else ""
            sentence = f"{to} did not take the message in time{why}{known}"
            return SendTimeout(sentence, to=to, may_have_arrived=maybe)
        case Code.PEER_RESTARTED:
            known = (
                "which may have taken it; send it again only if taking it twice does no harm"
                if maybe
                else "which did not get all of it; send it again"
            )
            return PeerRestarted(
                f"{to} is another process than the one that was sent the message, {known}",
                to=to,
                may_have_arrived=maybe,
            )
        case Code.RECEIVE_TIMEOUT | Code.INVALID_DESTINATION | Code.PDU_TOO_LARGE:
            sentence = f"{to} gave the message up before it was whole ({name_of(ended.code)})"
            return TransferAborted(sentence, to=to)
        case Code.SHUTDOWN:
            return EndpointClosed("this endpoint was closed", to=to, may_have_arrived=maybe)
        case _:
            sentence = f"{to} could not make use of the message ({name_of(ended.code)})"
            return MessageRefused(sentence, to=to)


def name_of(code: int) -> str:
    """Return the readable name of a code."""
    try:
        return Code(code).name.lower().replace("_", " ")
    except ValueError:
        return f"code {code}"
