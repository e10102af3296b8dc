"""ScalableIPC in virtual time: endpoints that restart on a bad network, and what they promise.

``Simulation`` plays one seed to its end, and ``check`` says which promises a recorded run broke.
"""

from aqueduct.testing.ipc.checkers import CHECKERS, check
from aqueduct.testing.ipc.record import Record
from aqueduct.testing.ipc.simulation import Outcome, Simulation, simulate
from aqueduct.testing.ipc.story import tell

__all__ = ["CHECKERS", "Outcome", "Record", "Simulation", "check", "simulate", "tell"]
