"""The heap of wake-up times."""

from weakref import ref

from hypothesis import given
from hypothesis import strategies as st

from aqueduct.protocol.timers import NEVER, Timers


class Sleeper:
    def __init__(self) -> None:
        self.wake_at = NEVER

    def handle_timer(self, now: float) -> None:
        raise AssertionError("the heap calls no sleeper itself")


def test_an_empty_heap_has_no_timer() -> None:
    assert Timers().next() is None
    assert Timers().due(1e9) == []


def test_sleepers_wake_in_the_order_of_their_times() -> None:
    timers = Timers()
    early, late = Sleeper(), Sleeper()
    timers.wake(late, 2.0)
    timers.wake(early, 1.0)
    assert timers.next() == 1.0
    assert timers.due(0.5) == []
    assert timers.due(2.0) == [early, late]
    assert timers.next() is None


def test_a_sleeper_wakes_once_at_the_earliest_requested_time() -> None:
    timers = Timers()
    sleeper = Sleeper()
    for at in (3.0, 1.0, 2.0):
        timers.wake(sleeper, at)
    assert timers.next() == 1.0
    assert timers.due(9.0) == [sleeper]
    assert timers.due(9.0) == []


def test_a_cancelled_sleeper_is_not_woken() -> None:
    timers = Timers()
    sleeper = Sleeper()
    timers.wake(sleeper, 1.0)
    sleeper.wake_at = NEVER
    assert timers.next() is None
    assert timers.due(2.0) == []


def test_a_sleeper_may_ask_again_after_it_was_woken() -> None:
    timers = Timers()
    sleeper = Sleeper()
    timers.wake(sleeper, 1.0)
    timers.due(1.0)
    timers.wake(sleeper, 4.0)
    assert timers.next() == 4.0
    assert timers.due(4.0) == [sleeper]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 20), st.booleans())))
def test_each_sleeper_wakes_at_its_earliest_time(
    wishes: list[tuple[int, int, bool]],
) -> None:
    """Compares the heap with the minimum of the requested times."""
    timers = Timers()
    sleepers = [Sleeper() for _ in range(5)]
    model: dict[int, float] = {}
    for who, at, then_wake in wishes:
        timers.wake(sleepers[who], float(at))
        model[who] = min(model.get(who, NEVER), float(at))
        assert timers.next() == min(model.values())
        if then_wake:
            now = min(model.values())
            expected = {who for who, time in model.items() if time <= now}
            assert {sleepers.index(s) for s in timers.due(now) if isinstance(s, Sleeper)} == (
                expected
            )
            model = {who: time for who, time in model.items() if time > now}


def test_stale_timers_are_removed() -> None:
    timers = Timers()
    awake = [Sleeper() for _ in range(100)]
    for at, sleeper in enumerate(awake):
        timers.wake(sleeper, 1e6 + at)
    gone = []
    for at in range(20_000):
        sleeper = Sleeper()
        timers.wake(sleeper, float(at))
        sleeper.wake_at = NEVER
        gone.append(ref(sleeper))
    assert sum(each() is not None for each in gone) < 2_000
    assert timers.due(2e6) == awake
