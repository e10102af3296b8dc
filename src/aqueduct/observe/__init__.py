"""Observation of connections: the Observer protocol, metrics, traces, and charts for reports."""

from aqueduct.observe.base import NullObserver, ObservedConnection, Observer, ObserverFactory
from aqueduct.observe.metrics import ConnectionMetrics

__all__ = [
    "ConnectionMetrics",
    "NullObserver",
    "ObservedConnection",
    "Observer",
    "ObserverFactory",
]
