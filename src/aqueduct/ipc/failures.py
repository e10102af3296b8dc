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
    """Return the exception for a message that was not delivered, or whose outcome is unknown."""
    why = f": {ended.reason}" if ended.reason else ""
    maybe = ended.exposed
    match ended.code:
        case Code.APPLICATION:
            cause = TLSError(ended.reason or f"cannot reach {to}")
            if not maybe:
                return cause
            sentence = f"{to} may have received the message, and is now unreachable{why}"
            error = PeerUnreachable(sentence, to=to, may_have_arrived=True)
            error.__cause__ = cause
            return error
        case Code.MESSAGE_TOO_LARGE:
            return MessageTooLarge(f"the message exceeds the max_message of {to}")
        case Code.SEND_TIMEOUT:
            known = "; it may have received the message" if maybe else ""
            sentence = f"{to} did not take the message in time{why}{known}"
            return SendTimeout(sentence, to=to, may_have_arrived=maybe)
        case Code.PEER_RESTARTED:
            known = (
                "after it may have taken the message; send it again only if it is idempotent"
                if maybe
                else "before it had the whole message; send it again"
            )
            return PeerRestarted(f"{to} restarted {known}", to=to, may_have_arrived=maybe)
        case Code.RECEIVE_TIMEOUT | Code.INVALID_DESTINATION | Code.PDU_TOO_LARGE:
            sentence = f"{to} aborted the transfer before it was complete ({name_of(ended.code)})"
            return TransferAborted(sentence, to=to, code=int(ended.code))
        case Code.SHUTDOWN:
            return EndpointClosed("this endpoint was closed", to=to, may_have_arrived=maybe)
        case _:
            sentence = f"{to} refused the message ({name_of(ended.code)})"
            return MessageRefused(sentence, to=to, code=int(ended.code))


def name_of(code: int) -> str:
    """Return the readable name of a code."""
    try:
        return Code(code).name.lower().replace("_", " ")
    except ValueError:
        return f"code {code}"
