"""The transcript of a run of endpoints: a line per entry of its record."""

from __future__ import annotations

from collections.abc import Iterator

from aqueduct.errors import RemoteProtocolError
from aqueduct.ipc.core.pdu import Code, Data, DataAck, Header, decode
from aqueduct.testing.ipc.record import (
    Cancelled,
    Entry,
    IpcArrived,
    IpcEnded,
    IpcFault,
    IpcRecord,
    IpcRefused,
    IpcSendFailed,
    IpcSent,
    IpcTaken,
    LifeStarted,
    LifeStopped,
    OwnerIdChanged,
    PduArrived,
    PduSent,
    Reported,
    Resized,
    Troubled,
)


def transcript(record: IpcRecord) -> Iterator[str]:
    """Return the lines of the transcript: time, endpoint and life, what happened.

    ``>>`` marks a PDU sent, ``<<`` a PDU received, ``!`` an event of the application; the other
    lines are actions of the application and of the network.
    """
    for entry in record.entries:
        who = f"{entry.who}/{entry.life}"
        yield f"{entry.time:11.6f} {who:6} {_format_entry(entry)}"


def short(identity: bytes) -> str:
    """Return a short prefix of an id."""
    return identity[:3].hex()


def _owner(identity: bytes) -> str:
    return f"{short(identity)}.{short(identity[8:])}"


def _code(code: int) -> str:
    return Code(code).name if code in set(Code) else str(code)


def _format_entry(entry: Entry) -> str:
    if isinstance(entry, PduSent):
        return f">> {entry.remote} {_format_pdu(entry.pdu)}"
    if isinstance(entry, PduArrived):
        return f"<< {entry.source} {_format_pdu(entry.pdu)}"
    if isinstance(entry, IpcEnded):
        exposed = " (exposed)" if entry.exposed and entry.code else ""
        return f"!  {short(entry.message)} ended: {_code(entry.code)}{exposed}"
    if isinstance(entry, IpcArrived):
        return f"!  {short(entry.message)} is whole"
    if isinstance(entry, IpcFault):
        return f"✗  {entry.text}"
    return f"   {_format_action(entry)}"


def _format_action(entry: Entry) -> str:
    if isinstance(entry, LifeStarted):
        return f"begins: {entry.config}{', reports what has gone' if entry.reports_sent else ''}"
    if isinstance(entry, LifeStopped):
        return f"{entry.how}: {entry.statistics}"
    if isinstance(entry, OwnerIdChanged):
        return f"has owner id {_owner(entry.owner)}"
    if isinstance(entry, IpcSent):
        return f"sends {short(entry.message)} to {entry.remote}: {len(entry.payload)} B"
    if isinstance(entry, IpcSendFailed):
        return f"cannot send: {entry.error}"
    if isinstance(entry, IpcTaken):
        size = len(entry.payload)
        return f"takes {short(entry.message)} from {entry.remote}: {size} B"
    if isinstance(entry, Resized):
        return f"sends and takes PDUs of {entry.max_pdu} B"
    if isinstance(entry, Troubled):
        return f"hears that {entry.remote} {'cannot be' if entry.hopeless else 'is not'} there"
    verbs = {Cancelled: "cancels", IpcRefused: "refuses", Reported: "hears that a PDU has gone:"}
    message = getattr(entry, "message", b"")
    return f"{verbs.get(type(entry), 'finds withdrawn:')} {short(message)}"


def _format_pdu(pdu: bytes) -> str:
    try:
        value = decode(pdu)
    except RemoteProtocolError as error:
        return f"{len(pdu)} B that are no PDU: {error}"
    name = short(value.message_id)
    size = f"({len(value.payload)} B)"
    if isinstance(value, Header):
        return f"HEADER {name} for {_owner(value.destination)} of {value.length} {size}"
    if isinstance(value, Data):
        return f"DATA {value.sequence} {name} for {_owner(value.destination)} {size}"
    if isinstance(value, DataAck):
        return f"DATA_ACK {value.sequence} {name} {_code(value.code)} {value.payload.hex()}"
    return f"HEADER_ACK {name} {_code(value.code)} {value.payload.hex()}"
