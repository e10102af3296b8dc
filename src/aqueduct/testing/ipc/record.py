"""What happened in a run of endpoints, in order: what each application did, and each datagram.

A *life* of an endpoint is the time between its start and its crash; the next one has the same name
and nothing else in common with it. Stories and checkers read a record; neither looks inside a core.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from aqueduct.ipc.core.config import Config
from aqueduct.ipc.core.events import Statistics


@dataclass(slots=True)
class LifeStarted:
    """An endpoint started."""

    time: float
    who: str
    life: int
    config: Config
    reports_sent: bool


@dataclass(slots=True)
class LifeStopped:
    """An endpoint crashed, or said goodbye first, or the run was over; these were its counts."""

    time: float
    who: str
    life: int
    how: str
    statistics: Statistics


@dataclass(slots=True)
class OwnerIdChanged:
    """An endpoint has another owner id."""

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
    """Whether nothing was wrong any more when it was sent."""


@dataclass(slots=True)
class IpcSendFailed:
    """The application tried to send, and got an error instead."""

    time: float
    who: str
    life: int
    error: str


@dataclass(slots=True)
class Cancelled:
    """The application gave a message up."""

    time: float
    who: str
    life: int
    message: bytes


@dataclass(slots=True)
class IpcEnded:
    """The application was told what became of its message."""

    time: float
    who: str
    life: int
    message: bytes
    code: int
    exposed: bool


@dataclass(slots=True)
class IpcArrived:
    """The application was told that a message arrived."""

    time: float
    who: str
    life: int
    message: bytes


@dataclass(slots=True)
class IpcTaken:
    """The application took a message, and with it the duty to act on it."""

    time: float
    who: str
    life: int
    message: bytes
    remote: str
    payload: bytes


@dataclass(slots=True)
class IpcRefused:
    """The application could not make use of a message."""

    time: float
    who: str
    life: int
    message: bytes


@dataclass(slots=True)
class IpcWithdrawn:
    """The application came too late to take a message."""

    time: float
    who: str
    life: int
    message: bytes


@dataclass(slots=True)
class Resized:
    """The application chose another size of PDUs."""

    time: float
    who: str
    life: int
    max_pdu: int


@dataclass(slots=True)
class Troubled:
    """The transport told that a remote could not be reached just now, or cannot be at all."""

    time: float
    who: str
    life: int
    remote: str
    hopeless: bool = False


@dataclass(slots=True)
class PduSent:
    """A core gave a PDU to the network, which may lose it."""

    time: float
    who: str
    life: int
    remote: str
    pdu: bytes


@dataclass(slots=True)
class Reported:
    """The transport told that a PDU of a message had gone."""

    time: float
    who: str
    life: int
    message: bytes


@dataclass(slots=True)
class PduArrived:
    """A core was given a PDU."""

    time: float
    who: str
    life: int
    source: str
    pdu: bytes


@dataclass(slots=True)
class IpcFault:
    """A core raised what it may not raise, or its timer did not move."""

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
    """One run: its entries in order, and what a checker must know beside them."""

    lateness: float = 0.0
    """How late a timer of this run may have been."""

    entries: list[Entry] = field(default_factory=list)

    drained: bool = False
    """Whether the run was brought to its end: faults off, and time to spare."""

    leftovers: dict[str, dict[str, int]] = field(default_factory=dict)
    """What each endpoint still held when all messages should have ended."""

    most_held: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    """For each life, the maximum of untaken messages and of their bytes."""

    processed: dict[str, int] = field(default_factory=dict)
    """How many ids each still remembered when it should have forgotten all."""
