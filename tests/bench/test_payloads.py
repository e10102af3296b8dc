from bench.ingest.worker import POOL, Payloads


def test_payloads_are_distinct_until_the_pool_wraps_around() -> None:
    payloads = Payloads(1024)
    everything = payloads.next(POOL // 1024)
    assert len(set(everything)) == POOL // 1024
    assert {len(each) for each in everything} == {1024}
    assert payloads.next(2) == everything[:2]


def test_a_batch_continues_at_the_start_of_the_pool() -> None:
    payloads = Payloads(1024 * 1024)
    first, second = payloads.next(2)
    assert payloads.next(1) == [first]
    assert payloads.next(2) == [second, first]
