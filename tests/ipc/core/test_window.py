"""How much may be under way to one remote (IPC-FLOW-1, IPC-FLOW-5)."""

from hypothesis import given
from hypothesis import strategies as st

from aqueduct.ipc.core.window import INITIAL, OVERHEAD, SMALLEST, Window

LARGE = 16 * INITIAL


def test_one_pdu_always_fits() -> None:
    """IPC-FLOW-1."""
    window = Window(0)
    assert window.fits(10**9)
    window.add(10**9)
    assert not window.fits(0)
    window.remove(10**9)
    assert window.fits(0)


def test_a_pdu_costs_its_data_and_1024_bytes() -> None:
    """IPC-FLOW-1."""
    window = Window(LARGE)
    window.add(1)
    assert window.used == 1025
    assert window.fits(INITIAL - 1025 - OVERHEAD)
    assert not window.fits(INITIAL - 1025 - OVERHEAD + 1)


def test_it_begins_with_what_is_known_to_be_held_if_that_is_little() -> None:
    assert Window(100_000).limit == 100_000
    assert Window(0).limit == SMALLEST == 66_560
    assert Window(LARGE).limit == INITIAL


def test_it_doubles_in_a_round_trip_until_the_first_loss() -> None:
    """IPC-FLOW-5."""
    window = Window(LARGE)
    for _ in range(INITIAL // (1000 + OVERHEAD) + 1):
        window.grow(1000)
    assert 2 * INITIAL <= window.limit < 2 * INITIAL + 2 * (1000 + OVERHEAD)


def test_after_a_loss_it_has_half_and_grows_by_a_pdu_in_a_round_trip() -> None:
    """IPC-FLOW-5."""
    window = Window(LARGE)
    window.shrink(0.0, 0.05)
    assert window.limit == INITIAL // 2
    window.grow(1000)
    start = window.limit
    for _ in range(start // (1000 + OVERHEAD)):
        window.grow(1000)
    assert 0 < window.limit - start <= 1000 + OVERHEAD + 100


def test_losses_together_halve_it_once() -> None:
    """IPC-FLOW-5."""
    window = Window(LARGE)
    for at in (1.0, 1.01, 1.049):
        window.shrink(at, 0.05)
    assert window.limit == INITIAL // 2
    window.shrink(1.05, 0.05)
    assert window.limit == max(INITIAL // 4, SMALLEST)


@given(st.lists(st.integers(0, 70_000) | st.none()), st.integers(0, LARGE))
def test_it_stays_between_its_bounds(answers: list[int | None], largest: int) -> None:
    """IPC-FLOW-5."""
    window = Window(largest)
    for at, size in enumerate(answers):
        if size is None:
            window.shrink(float(at), 0.5)
        else:
            window.grow(size)
        assert SMALLEST <= window.limit <= max(largest, SMALLEST)
