"""The test kit: two cores over a seeded network in virtual time, and checkers of the protocol.

Start with ``Pair``: a client and a server over a network with the faults that a test chooses.
``Simulation`` runs a whole seeded application on top, and ``check`` returns the promises of the
protocol that a recorded run broke.
"""

from aqueduct.testing.checkers import CHECKERS, Violation, check
from aqueduct.testing.clock import StuckTimer, VirtualClock, seeded
from aqueduct.testing.endpoint import CoreFailed, SimulatedEndpoint
from aqueduct.testing.faults import CALM, Faults
from aqueduct.testing.pair import Pair
from aqueduct.testing.quic import FakeQuic
from aqueduct.testing.record import Record
from aqueduct.testing.simulation import RunOutcome, Simulation
from aqueduct.testing.transcript import transcript, transcript_hash

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
    "transcript",
    "transcript_hash",
]
