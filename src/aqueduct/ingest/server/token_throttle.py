"""Rate limiting of wrong tokens per address: count, log without the token, and delay.

The state per address is bounded and expires. A client with a valid token is delayed like any other
from an address that sent wrong ones; otherwise guesses would not be slowed down. A token that was
valid from the same address before is not delayed, so that wrong tokens do not lock out its holder.
"""

from __future__ import annotations

import ipaddress
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from aqueduct.api.server import Refuse

_log = logging.getLogger("aqueduct.ingest")

FREE = 5
"""Wrong tokens from an address that are answered without delay: people mistype."""
FORGIVEN = 10.0
"""Seconds after which one wrong token is forgiven."""
FIRST_PAUSE = 0.1
LAST_PAUSE = 2.0
"""Seconds between two answers to an address past FREE: exponential backoff, doubled with each."""
LONGEST = 10.0
"""Longest delay in seconds; a client that would wait longer is rejected immediately."""
MAX_ADDRESSES = 4_096
"""Addresses to track; the least recently seen one is evicted."""
_LINES = 10
"""Burst of log lines; one more per second after that, so that a flood does not fill the log."""


@dataclass(slots=True)
class _Suspect:
    failures: float = 0.0
    """Wrong tokens, minus the forgiven ones."""
    since: float = 0.0
    """When ``failures`` was last updated."""
    next: float = 0.0
    """When the next token from this address may be checked."""
    total: int = 0


class TokenThrottle:
    """Tracks wrong tokens by address, and computes the delay of further attempts."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._suspects: OrderedDict[str, _Suspect] = OrderedDict()
        self._friends: OrderedDict[tuple[str, bytes], None] = OrderedDict()
        """Networks, and digests of tokens that were valid from there."""
        self.refused = 0
        """Connections with a wrong token, or without a token."""
        self.turned_away = 0
        """Connections rejected before their token was checked."""
        self._lines = float(_LINES)
        self._lines_since = clock()
        self._unsaid = 0

    def __len__(self) -> int:
        return len(self._suspects)

    def knows(self, host: str, digest: bytes) -> bool:
        """Return whether a token, given by its digest, was valid from an address before."""
        return (network_of(host), digest) in self._friends

    def welcome(self, host: str, digest: bytes) -> None:
        """Record that a token was valid."""
        friend = network_of(host), digest
        self._friends[friend] = None
        self._friends.move_to_end(friend)
        if len(self._friends) > MAX_ADDRESSES:
            self._friends.popitem(last=False)

    def pause(self, host: str) -> float:
        """Return the delay before the token of a client is checked; raise `Refuse` if too long."""
        suspect = self._suspects.get(network_of(host))
        if suspect is None:
            return 0.0
        now = self._clock()
        self._forgive(suspect, now)
        if suspect.failures <= FREE - 1:
            return 0.0
        step: float = min(FIRST_PAUSE * 2.0 ** max(suspect.failures - FREE, 0), LAST_PAUSE)
        at = max(now, suspect.next) + step
        if at - now > LONGEST:
            self.turned_away += 1
            raise Refuse(
                "too many wrong tokens came from this address; correct the token, and retry in "
                f"{LONGEST:g} s",
                is_busy=True,
            )
        suspect.next = at
        return at - now

    def fail(self, host: str, *, has_token: bool) -> None:
        """Record that a client sent a wrong token, or none."""
        now = self._clock()
        self.refused += 1
        network = network_of(host)
        suspect = self._suspects.get(network)
        if suspect is None:
            if len(self._suspects) >= MAX_ADDRESSES:
                self._suspects.popitem(last=False)
            suspect = self._suspects[network] = _Suspect(since=now)
        self._suspects.move_to_end(network)
        self._forgive(suspect, now)
        suspect.failures = min(suspect.failures + 1, FREE + 10)
        suspect.total += 1
        if suspect.total & (suspect.total - 1) == 0:  # the first, second, fourth, eighth ...
            self._say(host, suspect.total, has_token, now)

    def _forgive(self, suspect: _Suspect, now: float) -> None:
        suspect.failures = max(suspect.failures - (now - suspect.since) / FORGIVEN, 0.0)
        suspect.since = now

    def _say(self, host: str, total: int, has_token: bool, now: float) -> None:
        self._lines = min(self._lines + now - self._lines_since, _LINES)
        self._lines_since = now
        if self._lines < 1:
            self._unsaid += 1
            return
        self._lines -= 1
        _log.warning(
            "rejected a client at %s: it sent %s token (%d from this address so far%s)",
            host,
            "a wrong" if has_token else "no",
            total,
            f"; {self._unsaid} such lines were suppressed" if self._unsaid else "",
        )
        self._unsaid = 0


def network_of(host: str) -> str:
    """Return the unit of rate limiting: an IPv4 address, or the /64 prefix of an IPv6 address."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.IPv6Address(int(address) >> 64 << 64))
    return str(address)
