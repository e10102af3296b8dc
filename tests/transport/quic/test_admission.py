"""The bounds on what QUIC holds for clients that were not accepted."""

from __future__ import annotations

from aqueduct.protocol.config import Config
from aqueduct.transport.quic.admission import Hidden


def test_the_connection_with_the_most_hidden_state_of_its_address_is_closed() -> None:
    """AQ-COST-3."""
    hidden: Hidden[str] = Hidden(Config(max_address_hidden=100))
    assert hidden.hold("honest", "a", 10) is None
    assert hidden.hold("greedy", "a", 60) is None
    assert hidden.hold("another", "b", 90) is None
    assert hidden.hold("honest", "a", 40) is None
    assert hidden.hold("honest", "a", 41) == "greedy"
    hidden.remove("greedy", "a")
    assert hidden.hold("honest", "a", 42) is None
    hidden.remove("greedy", "a")
    hidden.remove("honest", "a")
    hidden.remove("another", "b")
    assert (hidden.total, hidden._by_address, hidden._totals) == (0, {}, {})


def test_the_connection_with_the_most_hidden_state_of_all_addresses_is_closed() -> None:
    """AQ-COST-3: an address at its own bound leaves room for others."""
    hidden: Hidden[str] = Hidden(Config(max_address_hidden=100, early_share=3))
    for address in ("a", "b"):
        assert hidden.hold(f"{address} small", address, 10) is None
        assert hidden.hold(f"{address} large", address, 85) is None
    assert hidden.hold("b small", "b", 15) is None
    assert hidden.hold("c", "c", 90) is None
    assert hidden.hold("d", "d", 16) == "b large"
    assert hidden.hold("d", "d", 15) is None, "a smaller estimate closes no connection"
