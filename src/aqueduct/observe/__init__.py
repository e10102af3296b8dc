"""Observation of connections: the Observer protocol, traces, and charts for reports."""
