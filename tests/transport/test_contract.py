"""All transports pass the contract suite."""

from __future__ import annotations

from tests.transport.contract import TransportContract


class TestQuic(TransportContract):
    address = "aqueduct+quic://127.0.0.1:0"


class TestTcp(TransportContract):
    address = "aqueduct+tcp://127.0.0.1:0"


class TestMemory(TransportContract):
    address = "memory://"
