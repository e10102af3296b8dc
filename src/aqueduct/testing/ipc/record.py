"""The record of a run of endpoints: what each application did, and each datagram, in order.

A *life* of an endpoint is the time between its start and its stop; the next one has the same name
and no other state. Transcripts and checkers use the record only, never the state of a core.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from aqueduct.errors import RemoteProtocolError
from aqueduct.ipc.core.events import Statistics
from aqueduct.ipc.core.pdu import Code, Data, DataAck, Header, decode
from aqueduct.ipc.core.settings import IpcSettings


@dataclass(slots=True)
class IpcEntry:
    """Something that happened to an endpoint; its string is its line in the transcript.

    ``>>`` marks a PDU sent, ``<<`` a PDU received, ``!`` an event of the application; the other
    lines are actions of the application and of the network.
    """

    time: float
    endpoint: str
    life: int

    @property
    def subject(self) -> str:
        """The name of the endpoint and the number of its life."""
        return f"{self.endpoint}/{self.life}"


@dataclass(slots=True)
class LifeStarted(IpcEntry):
    """An endpoint started."""

    config: IpcSettings
    reports_sent: bool

    def __str__(self) -> str:
        reports = ", reports sent PDUs" if self.reports_sent else ""
        return f"   starts: {self.config}{reports}"


@dataclass(slots=True)
class LifeStopped(IpcEntry):
    """An endpoint crashed or closed, or the run ended; these were its statistics."""

    how: str
    statistics: Statistics

    def __str__(self) -> str:
        return f"   {self.how}: {self.statistics}"


@dataclass(slots=True)
class OwnerIdChanged(IpcEntry):
    """An endpoint changed its owner id."""

    owner: bytes

    def __str__(self) -> str:
        return f"   has owner id {_format_owner(self.owner)}"


@dataclass(slots=True)
class IpcSent(IpcEntry):
    """The application sent a message."""

    message: bytes
    remote: str
    payload: bytes
    must_arrive: bool = False
    """Whether it was sent after the faults stopped."""

    def __str__(self) -> str:
        return f"   sends {_short(self.message)} to {self.remote}: {len(self.payload)} B"


@dataclass(slots=True)
class IpcSendFailed(IpcEntry):
    """The application tried to send, and got an error."""

    error: str

    def __str__(self) -> str:
        return f"   cannot send: {self.error}"


@dataclass(slots=True)
class Cancelled(IpcEntry):
    """The application cancelled a message."""

    message: bytes

    def __str__(self) -> str:
        return f"   cancels {_short(self.message)}"


@dataclass(slots=True)
class IpcEnded(IpcEntry):
    """The application learned how its send ended."""

    message: bytes
    code: int
    exposed: bool

    def __str__(self) -> str:
        exposed = " (exposed)" if self.exposed and self.code else ""
        return f"!  {_short(self.message)} ended: {_format_code(self.code)}{exposed}"


@dataclass(slots=True)
class IpcArrived(IpcEntry):
    """A message arrived completely and waits for the application."""

    message: bytes

    def __str__(self) -> str:
        return f"!  {_short(self.message)} is complete"


@dataclass(slots=True)
class IpcTaken(IpcEntry):
    """The application took a message, and is responsible for it from then on."""

    message: bytes
    remote: str
    payload: bytes

    def __str__(self) -> str:
        return f"   takes {_short(self.message)} from {self.remote}: {len(self.payload)} B"


@dataclass(slots=True)
class IpcRefused(IpcEntry):
    """The application refused a message."""

    message: bytes

    def __str__(self) -> str:
        return f"   refuses {_short(self.message)}"


@dataclass(slots=True)
class IpcWithdrawn(IpcEntry):
    """The application tried to take a message that was withdrawn."""

    message: bytes

    def __str__(self) -> str:
        return f"   cannot take {_short(self.message)}: withdrawn"


@dataclass(slots=True)
class Resized(IpcEntry):
    """The application changed the maximum PDU size."""

    max_pdu: int

    def __str__(self) -> str:
        return f"   sets max_pdu to {self.max_pdu} B"


@dataclass(slots=True)
class RemoteFailed(IpcEntry):
    """The transport reported a remote as unreachable, temporarily or permanently."""

    remote: str
    permanent: bool = False

    def __str__(self) -> str:
        how = "unreachable" if self.permanent else "temporarily unreachable"
        return f"   learns that {self.remote} is {how}"


@dataclass(slots=True)
class PduSent(IpcEntry):
    """A core sent a PDU, which the network may lose."""

    remote: str
    pdu: bytes

    def __str__(self) -> str:
        return f">> {self.remote} {_format_pdu(self.pdu)}"


@dataclass(slots=True)
class Reported(IpcEntry):
    """The transport reported that a PDU of a message was sent."""

    message: bytes

    def __str__(self) -> str:
        return f"   learns that a PDU of {_short(self.message)} was sent"


@dataclass(slots=True)
class PduArrived(IpcEntry):
    """A core received a PDU."""

    source: str
    pdu: bytes

    def __str__(self) -> str:
        return f"<< {self.source} {_format_pdu(self.pdu)}"


@dataclass(slots=True)
class IpcFault(IpcEntry):
    """A core raised an undocumented error, or its timer was stuck."""

    text: str

    def __str__(self) -> str:
        return f"✗  {self.text}"


@dataclass
class IpcRecord:
    """One run: its entries in order, and the parameters that checkers need."""

    lateness: float = 0.0
    """The maximum lateness of a timer in this run."""

    entries: list[IpcEntry] = field(default_factory=list)

    drained: bool = False
    """Whether the run was drained: the faults were off, and everything had time to end."""

    leftovers: dict[str, dict[str, int]] = field(default_factory=dict)
    """What each endpoint still held when all messages should have ended."""

    most_held: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    """For each life, the maximum of untaken messages and of their bytes."""

    processed: dict[str, int] = field(default_factory=dict)
    """The processed ids that each endpoint remembered when all should have expired."""


def _short(identity: bytes) -> str:
    return identity[:3].hex()


def _format_owner(identity: bytes) -> str:
    return f"{_short(identity)}.{_short(identity[8:])}"


def _format_code(code: int) -> str:
    return Code(code).name if code in set(Code) else str(code)


def _format_pdu(pdu: bytes) -> str:
    try:
        value = decode(pdu)
    except RemoteProtocolError as error:
        return f"{len(pdu)} malformed bytes: {error}"
    name = _short(value.message_id)
    size = f"({len(value.payload)} B)"
    if isinstance(value, Header):
        return f"HEADER {name} for {_format_owner(value.destination)} of {value.length} {size}"
    if isinstance(value, Data):
        return f"DATA {value.sequence} {name} for {_format_owner(value.destination)} {size}"
    kind = f"DATA_ACK {value.sequence}" if isinstance(value, DataAck) else "HEADER_ACK"
    return f"{kind} {name} {_format_code(value.code)} {value.payload.hex()}"
