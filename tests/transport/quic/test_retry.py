"""Retry tokens: valid for one server, for one address, for a limited time."""

import pytest

from aqueduct.transport.quic.admission import RETRY_LIFETIME, RetryTokens

HERE = ("192.0.2.1", 4433)


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tokens(clock: Clock) -> RetryTokens:
    return RetryTokens(clock)


@pytest.mark.parametrize("original", [b"", b"x", b"original", bytes(20)])
def test_a_token_holds_both_ids(tokens: RetryTokens, original: bytes) -> None:
    token = tokens.make(HERE, original, b"retried!")
    assert tokens.open(HERE, token) == (original, b"retried!")


def test_two_tokens_differ_and_reveal_nothing(tokens: RetryTokens) -> None:
    one, two = (tokens.make(HERE, b"original", b"retried!") for _ in range(2))
    assert one != two
    assert b"original" not in one + two
    assert b"retried!" not in one + two


@pytest.mark.parametrize("address", [("192.0.2.2", 4433), ("192.0.2.1", 4434), ("192.0.2.14", 433)])
def test_a_token_is_for_one_address(tokens: RetryTokens, address: tuple[str, int]) -> None:
    token = tokens.make(HERE, b"original", b"retried!")
    with pytest.raises(ValueError, match="for this address"):
        tokens.open(address, token)


def test_a_token_is_for_one_server(tokens: RetryTokens, clock: Clock) -> None:
    with pytest.raises(ValueError, match="of this server"):
        RetryTokens(clock).open(HERE, tokens.make(HERE, b"original", b"retried!"))


def test_a_token_expires(tokens: RetryTokens, clock: Clock) -> None:
    token = tokens.make(HERE, b"original", b"retried!")
    clock.now += RETRY_LIFETIME
    assert tokens.open(HERE, token) == (b"original", b"retried!")
    clock.now += 0.1
    with pytest.raises(ValueError, match="too old"):
        tokens.open(HERE, token)


def test_a_changed_or_truncated_token_is_invalid(tokens: RetryTokens) -> None:
    token = tokens.make(HERE, b"original", b"retried!")
    for at in range(len(token)):
        changed = token[:at] + bytes([token[at] ^ 1]) + token[at + 1 :]
        for bad in (changed, token[:at], token + b"\0"):
            with pytest.raises(ValueError, match="not a token"):
                tokens.open(HERE, bad)
