"""Tests of virtual time."""

from aqueduct.testing.clock import VirtualClock, seeded


def test_calls_run_in_the_order_of_their_times() -> None:
    clock = VirtualClock()
    seen: list[str] = []
    clock.at(2.0, seen.append, "late")
    clock.at(1.0, seen.append, "early")
    clock.run(3)
    assert seen == ["early", "late"]
    assert clock.now == 3.0


def test_calls_at_one_instant_run_in_the_order_they_were_scheduled() -> None:
    clock = VirtualClock()
    seen: list[int] = []
    for number in range(5):
        clock.at(1.0, seen.append, number)
    clock.run(1)
    assert seen == [0, 1, 2, 3, 4]


def test_a_time_in_the_past_means_now() -> None:
    clock = VirtualClock()
    clock.run(5)
    seen: list[float] = []
    clock.at(1.0, lambda _: seen.append(clock.now), None)
    clock.step()
    assert seen == [5.0]


def test_run_does_not_make_calls_due_later() -> None:
    clock = VirtualClock()
    seen: list[str] = []
    clock.after(2.0, seen.append, "later")
    clock.run(1)
    assert seen == []
    clock.run(1)
    assert seen == ["later"]


def test_run_until_idle_returns_whether_it_became_idle() -> None:
    clock = VirtualClock()

    def again(_: None) -> None:
        clock.after(1.0, again, None)

    clock.after(1.0, again, None)
    assert not clock.run_until_idle(10)
    assert clock.now == 10.0
    assert VirtualClock().run_until_idle(10)


def test_an_idle_clock_does_not_step() -> None:
    assert not VirtualClock().step()


def test_each_purpose_has_its_own_rng() -> None:
    assert seeded(1, "network").random() == seeded(1, "network").random()
    assert seeded(1, "network").random() != seeded(1, "workload").random()
    assert seeded(1, "network").random() != seeded(2, "network").random()
