"""The public test kit: two cores over a seeded network in virtual time, and the checkers.

``Pair`` is the place to start: a client and a server that talk over a network as good or as bad as
a test wants it. ``Simulation`` runs a whole seeded application on top, and ``check`` says which
promises of the protocol a recorded run broke.
"""

from aqueduct.testing.checkers import CHECKERS, Violation, check
from aqueduct.testing.clock import Clock, seeded
from aqueduct.testing.endpoint import CoreBroke, Endpoint
from aqueduct.testing.faults import CALM, Faults
from aqueduct.testing.pair import Pair
from aqueduct.testing.quic import FakeQuic, TimerDoesNotMove
from aqueduct.testing.record import Record
from aqueduct.testing.simulation import Outcome, Simulation
from aqueduct.testing.story import story_hash, tell

__all__ = [
    "CALM",
    "CHECKERS",
    "Clock",
    "CoreBroke",
    "Endpoint",
    "FakeQuic",
    "Faults",
    "Outcome",
    "Pair",
    "Record",
    "Simulation",
    "TimerDoesNotMove",
    "Violation",
    "check",
    "seeded",
    "story_hash",
    "tell",
]
