"""The bookkeeping of datagrams at both ends, without a connection."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aqueduct.errors import RemoteProtocolError
from aqueduct.protocol.unreliable import ReceivedDatagrams, SentDatagrams
from aqueduct.wire.primitives import MAX_VARINT

GRAIN = 0.005


def sent(*sizes: int) -> SentDatagrams:
    box = SentDatagrams()
    for size in sizes:
        box.add(size)
    box.announced = box.next_number
    return box


def received(announced: int, *arrived: int, deadline: float = 10.0) -> ReceivedDatagrams:
    box = ReceivedDatagrams()
    for number in arrived:
        assert box.arrive(number, number + 1, 100)
    if announced:
        box.announce(announced, deadline, GRAIN)
    return box


# -- the sending side ------------------------------------------------------------------------------


def test_numbers_count_from_zero_without_gaps() -> None:
    """AQ-SEND-2."""
    box = SentDatagrams()
    assert [box.add(1) for _ in range(3)] == [0, 1, 2]
    assert box.unannounced() == 3


def test_decisions_continue_where_the_last_ones_ended() -> None:
    """AQ-UNREL-5: not where an announcement ended."""
    box = sent(1, 2, 3, 4, 5, 6)
    assert box.decide((2, 1)) == (((0, 2),), ((2, 3),), 3)
    assert box.decide((0, 1, 2)) == (((4, 6),), ((3, 4),), 4)
    assert not box.sizes


def test_deciding_an_unannounced_number_is_a_violation() -> None:
    """AQ-UNREL-5."""
    box = sent(1, 1, 1)
    box.add(1)
    box.decide((2,))
    with pytest.raises(RemoteProtocolError, match=r"^AQ-UNREL-5"):
        box.decide((1, 1))


def test_a_dropped_message_keeps_its_number_and_returns_its_bytes() -> None:
    """AQ-UNREL-6."""
    box = sent(5, 7, 9)
    assert box.forgo(1) == 7
    assert box.decide((1, 2)) == (((0, 1),), ((1, 3),), 9)


def test_acks_of_a_pending_channel_are_kept_until_they_are_taken() -> None:
    """AQ-LIN-6."""
    box = sent(*[1] * 10)
    box.keep_acked(((0, 2), (4, 5)))
    box.keep_acked(((2, 4),))
    assert box.take_acked() == ((0, 5),)
    assert box.take_acked() == ()


# -- the receiving side ----------------------------------------------------------------------------


def test_unannounced_numbers_are_not_decided() -> None:
    """AQ-UNREL-5."""
    box = received(0, 0, 1, 2)
    assert box.overtaken()
    assert box.decide(99.0) == ()


def test_arrived_numbers_are_acked_early_up_to_the_first_gap() -> None:
    """AQ-UNREL-4."""
    box = received(5, 0, 1, 3)
    assert box.decide(0.0) == (2,)
    assert box.decide(0.0) == ()
    assert not box.settled()


def test_missing_numbers_are_nacked_at_their_deadline_and_not_earlier() -> None:
    """AQ-UNREL-2."""
    box = received(5, 0, 3, deadline=10.0)
    assert box.decide(9.999) == (1,)
    assert not box.due(9.999)
    assert box.due(10.0)
    assert box.decide(10.0) == (0, 2, 1, 1)
    assert box.settled()


def test_each_announcement_has_its_own_deadline() -> None:
    """AQ-UNREL-2."""
    box = received(2, deadline=1.0)
    box.announce(3, 2.0, GRAIN)
    assert box.decide(1.0) == (0, 2)
    assert box.decide(1.9) == ()
    assert box.decide(2.0) == (0, 3)


def test_a_close_decides_everything_announced_at_once() -> None:
    """AQ-CLOSE-2."""
    box = received(4, 1, 2, deadline=10.0)
    assert box.decide(0.0, everything=True) == (0, 1, 2, 1)
    assert box.settled()


def test_a_number_that_arrives_twice_is_a_violation() -> None:
    """AQ-SEND-2."""
    box = received(0, 4)
    with pytest.raises(RemoteProtocolError, match=r"^AQ-SEND-2"):
        box.arrive(3, 6, 100)


def test_a_datagram_that_opens_one_gap_too_many_is_treated_as_lost() -> None:
    """AQ-LIMIT-6."""
    box = received(0, 0, 2, 4)
    assert not box.arrive(6, 7, 3)
    assert box.arrive(5, 6, 3), "it opens no gap"
    box.announce(7, 1.0, GRAIN)
    assert box.decide(1.0) == (1, 1, 1, 1, 2, 1)


def test_announcements_close_together_share_a_deadline() -> None:
    """AQ-UNREL-2: a flood of announcements needs little memory."""
    box = ReceivedDatagrams()
    for at in range(100_000):
        box.announce(1, 1.0 + at / 1e6, GRAIN)
    assert len(box.deadlines) <= 0.1 / GRAIN + 1


def test_a_deadline_is_rounded_up_by_at_most_the_grain() -> None:
    """AQ-UNREL-2: a few milliseconds, and never down."""
    box = received(1, deadline=1.0012)
    assert not box.due(1.0012 - 1e-9)
    assert box.due(1.0012 + GRAIN)


def test_deadlines_never_decrease() -> None:
    """AQ-UNREL-2: numbers are decided in order even if the round-trip time falls."""
    box = received(1, deadline=2.0)
    box.announce(1, 1.0, GRAIN)
    assert box.decide(1.5) == ()
    assert box.decide(2.0) == (0, 2)


def test_announcing_more_numbers_than_exist_is_a_violation() -> None:
    """AQ-UNREL-1."""
    box = ReceivedDatagrams()
    box.announce(MAX_VARINT - 1, 1.0, GRAIN)
    box.announce(1, 1.0, GRAIN)
    with pytest.raises(RemoteProtocolError, match=r"^AQ-UNREL-1"):
        box.announce(1, 1.0, GRAIN)


@given(st.lists(st.tuples(st.integers(0, 12), st.sets(st.integers(0, 30)), st.floats(0, 1.5))))
def test_both_sides_agree_on_every_number(steps: list[tuple[int, set[int], float]]) -> None:
    """AQ-UNREL-3: a number is acked exactly if it arrived before its decision."""
    announced = sum(count for count, _, _ in steps)
    ours, theirs = sent(*[1] * announced), ReceivedDatagrams()
    in_time: set[int] = set()
    fates: dict[int, bool] = {}

    def decide(now: float) -> None:
        lengths = theirs.decide(now)
        acked, nacked, _ = ours.decide(lengths) if lengths else ((), (), 0)
        for start, stop in acked:
            fates.update(dict.fromkeys(range(start, stop), True))
        for start, stop in nacked:
            fates.update(dict.fromkeys(range(start, stop), False))

    now = 0.0
    for count, arriving, pause in steps:
        for number in sorted(arriving - in_time):
            if theirs.decided <= number < announced:
                assert theirs.arrive(number, number + 1, 100)
                in_time.add(number)
        theirs.announce(count, now + 1.0, GRAIN)
        now += pause
        decide(now)
    decide(now + 9.0)
    assert theirs.settled()
    assert fates == {number: number in in_time for number in range(announced)}
