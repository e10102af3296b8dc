import time

from bench.network import machine


def test_the_time_and_memory_of_a_process_are_measured() -> None:
    before = machine.process_seconds()
    sum(range(2_000_000))
    assert machine.process_seconds() > before
    assert machine.peak_megabytes() > 5


def test_the_load_of_others_is_a_fraction_of_the_machine() -> None:
    watch = machine.Watch(busy=0.0, since=time.monotonic() - 10)
    busy = machine.busy_seconds()
    if busy is None:
        assert watch.disturbance(0.0) is None
    else:
        assert watch.disturbance(busy + 100) == 0
        assert (watch.disturbance(0.0) or 0) > 0


def test_an_unknown_process_has_used_nothing() -> None:
    assert machine.other_process_seconds(None) == 0
    assert machine.other_process_seconds(2**30) == 0


def test_the_wait_for_a_quiet_machine_times_out() -> None:
    assert machine.wait_until_quiet(timeout=0, step=0.01) in {True, False}
