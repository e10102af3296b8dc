import pytest

from bench.network import figures


def test_a_stream_that_is_too_short_is_followed_by_a_longer_one() -> None:
    assert figures.larger_count(500, 0.0, 0.3) == 4_000
    assert figures.larger_count(500, 0.29, 0.3) == 1_000
    assert figures.larger_count(500, 0.15, 0.3) == 1_500


def test_the_warm_up_ends_at_any_steady_rate() -> None:
    for rate in (200.0, 10_000.0, 5_000_000.0):
        count = figures.first_count(large=False)
        steps = 0
        while count / rate < 0.3:
            count = figures.larger_count(count, count / rate, 0.3)
            steps += 1
        assert steps < 12


def test_a_full_stream_lasts_the_wanted_time_at_the_measured_rate() -> None:
    assert figures.full_count(100_000.0, 2.5) == 250_000
    assert figures.full_count(1.0, 2.5) == figures.FEWEST


def test_percentiles_of_a_hundred_values() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert figures.percentile(values, 50) == 51
    assert figures.percentile(values, 99) == 100
    assert figures.percentile([7.0], 99) == 7


def test_the_summary_of_three_runs_is_their_median_and_extremes() -> None:
    found = figures.summary([90.0, 120.0, 100.0])
    assert (found.median, found.low, found.high, found.runs) == (100, 90, 120, 3)
    assert found.spread == pytest.approx(0.15)
    assert figures.summary([0.0]).spread == 0
