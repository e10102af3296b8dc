"""The public test kit: two cores over a seeded network in virtual time, and the checkers.

``Pair`` is the place to start: a client and a server that talk over a network as good or as bad as
a test wants it. ``Simulation`` runs a whole seeded application on top, and ``check`` says which
promises of the protocol a recorded run broke.
"""

from aqueduct.testing.checkers import CHECKERS, Violation, check
from aqueduct.testing.clock import StuckTimer, VirtualClock, seeded
from aqueduct.testing.endpoint import CoreFailed, SimulatedEndpoint
from aqueduct.testing.faults import CALM, Faults
from aqueduct.testing.pair import Pair
from aqueduct.testing.quic import FakeQuic
from aqueduct.testing.record import Record
from aqueduct.testing.simulation import RunOutcome, Simulation
from aqueduct.testing.story import story_hash, tell

__all__ = [
    "CALM",
    "CHECKERS",
    "CoreFailed",
    "FakeQuic",
    "Faults",
    "Pair",
    "Record",
    "RunOutcome",
    "SimulatedEndpoint",
    "Simulation",
    "StuckTimer",
    "Violation",
    "VirtualClock",
    "check",
    "seeded",
    "story_hash",
    "tell",
]
