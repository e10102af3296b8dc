"""ScalableIPC in virtual time: endpoints that crash and restart on a faulty network.

``IpcSimulation`` runs one seed to its end, and ``check`` returns the promises that a run broke.
"""

from aqueduct.testing.ipc.checkers import CHECKERS, check
from aqueduct.testing.ipc.record import IpcRecord
from aqueduct.testing.ipc.simulation import IpcSimulation, simulate

__all__ = ["CHECKERS", "IpcRecord", "IpcSimulation", "check", "simulate"]
