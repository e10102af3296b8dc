"""The record of a run of endpoints: what each application did, and each datagram, in order.

A *life* of an endpoint is the time between its start and its stop; the next one has the same name
and no other state. Transcripts and checkers use the record only, never the state of a core.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from aqueduct.ipc.core.events import Statistics
from aqueduct.ipc.core.settings import IpcSettings


@dataclass(slots=True)
class LifeStarted:
    """An endpoint started."""

    time: float
    who: str
    life: int
    config: IpcSettings
    reports_sent: bool


@dataclass(slots=True)
class LifeStopped:
    """An endpoint crashed or closed, or the run ended; these were its statistics."""

    time: float
    who: str
    life: int
    how: str
    statistics: Statistics


@dataclass(slots=True)
class OwnerIdChanged:
    """An endpoint changed its owner id."""

    time: float
    who: str
    life: int
    owner: bytes


@dataclass(slots=True)
class IpcSent:
    """The application sent a message."""

    time: float
    who: str
    life: int
    message: bytes
    remote: str
    payload: bytes
    must_arrive: bool = False
    """Whether it was sent after the faults stopped."""


@dataclass(slots=True)
class IpcSendFailed:
    """The application tried to send, and got an error."""

    time: float
    who: str
    life: int
    error: str


@dataclass(slots=True)
class Cancelled:
    """The application cancelled a message."""

    time: float
    who: str
    life: int
    message: bytes


@dataclass(slots=True)
class IpcEnded:
    """The application learned how its send ended."""

    time: float
    who: str
    life: int
    message: bytes
    code: int
    exposed: bool


@dataclass(slots=True)
class IpcArrived:
    """A message arrived completely and waits for the application."""

    time: float
    who: str
    life: int
    message: bytes


@dataclass(slots=True)
class IpcTaken:
    """The application took a message, and is responsible for it from then on."""

    time: float
    who: str
    life: int
    message: bytes
    remote: str
    payload: bytes


@dataclass(slots=True)
class IpcRefused:
    """The application refused a message."""

    time: float
    who: str
    life: int
    message: bytes


@dataclass(slots=True)
class IpcWithdrawn:
    """The application tried to take a message that was withdrawn."""

    time: float
    who: str
    life: int
    message: bytes


@dataclass(slots=True)
class Resized:
    """The application changed the maximum PDU size."""

    time: float
    who: str
    life: int
    max_pdu: int


@dataclass(slots=True)
class Troubled:
    """The transport reported a remote as unreachable, temporarily or for good."""

    time: float
    who: str
    life: int
    remote: str
    hopeless: bool = False


@dataclass(slots=True)
class PduSent:
    """A core sent a PDU, which the network may lose."""

    time: float
    who: str
    life: int
    remote: str
    pdu: bytes


@dataclass(slots=True)
class Reported:
    """The transport reported that a PDU of a message was sent."""

    time: float
    who: str
    life: int
    message: bytes


@dataclass(slots=True)
class PduArrived:
    """A core received a PDU."""

    time: float
    who: str
    life: int
    source: str
    pdu: bytes


@dataclass(slots=True)
class IpcFault:
    """A core raised an undocumented error, or its timer was stuck."""

    time: float
    who: str
    life: int
    text: str


Entry: TypeAlias = (
    LifeStarted
    | LifeStopped
    | OwnerIdChanged
    | IpcSent
    | IpcSendFailed
    | Cancelled
    | IpcEnded
    | IpcArrived
    | IpcTaken
    | IpcRefused
    | IpcWithdrawn
    | Resized
    | Troubled
    | PduSent
    | Reported
    | PduArrived
    | IpcFault
)


@dataclass
class IpcRecord:
    """One run: its entries in order, and the parameters that checkers need."""

    lateness: float = 0.0
    """The maximum lateness of a timer in this run."""

    entries: list[Entry] = field(default_factory=list)

    drained: bool = False
    """Whether the run was drained: the faults were off, and everything had time to end."""

    leftovers: dict[str, dict[str, int]] = field(default_factory=dict)
    """What each endpoint still held when all messages should have ended."""

    most_held: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    """For each life, the maximum of untaken messages and of their bytes."""

    processed: dict[str, int] = field(default_factory=dict)
    """The processed ids that each endpoint remembered when all should have expired."""
