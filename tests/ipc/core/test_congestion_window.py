"""The congestion window of one remote (IPC-FLOW-1, IPC-FLOW-5)."""

from hypothesis import given
from hypothesis import strategies as st

from aqueduct.ipc.core.sending import (
    DATAGRAM_OVERHEAD,
    INITIAL_WINDOW,
    SMALLEST_WINDOW,
    CongestionWindow,
)

LARGE = 16 * INITIAL_WINDOW


def test_one_pdu_always_fits() -> None:
    """IPC-FLOW-1."""
    window = CongestionWindow(0)
    assert window.fits(10**9)
    window.add(10**9)
    assert not window.fits(0)
    window.remove(10**9)
    assert window.fits(0)


def test_a_pdu_costs_its_data_and_1024_bytes() -> None:
    """IPC-FLOW-1."""
    window = CongestionWindow(LARGE)
    window.add(1)
    assert window.used == 1025
    assert window.fits(INITIAL_WINDOW - 1025 - DATAGRAM_OVERHEAD)
    assert not window.fits(INITIAL_WINDOW - 1025 - DATAGRAM_OVERHEAD + 1)


def test_the_initial_window_is_the_configured_one_within_bounds() -> None:
    assert CongestionWindow(100_000).limit == 100_000
    assert CongestionWindow(0).limit == SMALLEST_WINDOW == 66_560
    assert CongestionWindow(LARGE).limit == INITIAL_WINDOW


def test_the_window_doubles_per_round_trip_until_the_first_loss() -> None:
    """IPC-FLOW-5."""
    window = CongestionWindow(LARGE)
    for _ in range(INITIAL_WINDOW // (1000 + DATAGRAM_OVERHEAD) + 1):
        window.grow(1000)
    assert 2 * INITIAL_WINDOW <= window.limit < 2 * INITIAL_WINDOW + 2 * (1000 + DATAGRAM_OVERHEAD)


def test_a_loss_halves_the_window_which_then_grows_by_a_pdu_per_round_trip() -> None:
    """IPC-FLOW-5."""
    window = CongestionWindow(LARGE)
    window.shrink(0.0, 0.05)
    assert window.limit == INITIAL_WINDOW // 2
    window.grow(1000)
    start = window.limit
    for _ in range(start // (1000 + DATAGRAM_OVERHEAD)):
        window.grow(1000)
    assert 0 < window.limit - start <= 1000 + DATAGRAM_OVERHEAD + 100


def test_simultaneous_losses_halve_the_window_once() -> None:
    """IPC-FLOW-5."""
    window = CongestionWindow(LARGE)
    for at in (1.0, 1.01, 1.049):
        window.shrink(at, 0.05)
    assert window.limit == INITIAL_WINDOW // 2
    window.shrink(1.05, 0.05)
    assert window.limit == max(INITIAL_WINDOW // 4, SMALLEST_WINDOW)


@given(st.lists(st.integers(0, 70_000) | st.none()), st.integers(0, LARGE))
def test_the_window_stays_between_its_bounds(answers: list[int | None], largest: int) -> None:
    """IPC-FLOW-5."""
    window = CongestionWindow(largest)
    for at, size in enumerate(answers):
        if size is None:
            window.shrink(float(at), 0.5)
        else:
            window.grow(size)
        assert SMALLEST_WINDOW <= window.limit <= max(largest, SMALLEST_WINDOW)
