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
"""Wrong tokens from an address that are answered without delay: typing errors happen."""
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
class _Failures:
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
        self._failures: OrderedDict[str, _Failures] = OrderedDict()
        self._valid_tokens: OrderedDict[tuple[str, bytes], None] = OrderedDict()
        """Networks, each with the digest of a token that was valid from there, by last use."""
        self.refused = 0
        """Connections with a wrong token, or without a token."""
        self.turned_away = 0
        """Connections rejected before their token was checked."""
        self._lines = float(_LINES)
        self._lines_since = clock()
        self._suppressed = 0

    def __len__(self) -> int:
        return len(self._failures)

    def was_valid(self, host: str, digest: bytes) -> bool:
        """Return whether a token, given by its digest, was valid from an address before."""
        return (network_of(host), digest) in self._valid_tokens

    def record_valid(self, host: str, digest: bytes) -> None:
        """Record that a token was valid."""
        known = network_of(host), digest
        self._valid_tokens[known] = None
        self._valid_tokens.move_to_end(known)
        if len(self._valid_tokens) > MAX_ADDRESSES:
            self._valid_tokens.popitem(last=False)

    def pause(self, host: str) -> float:
        """Return the delay before the token of a client is checked; raise `Refuse` if too long."""
        failed = self._failures.get(network_of(host))
        if failed is None:
            return 0.0
        now = self._clock()
        self._decay(failed, now)
        if failed.failures <= FREE - 1:
            return 0.0
        step: float = min(FIRST_PAUSE * 2.0 ** max(failed.failures - FREE, 0), LAST_PAUSE)
        at = max(now, failed.next) + step
        if at - now > LONGEST:
            self.turned_away += 1
            raise Refuse(
                "too many wrong tokens came from this address; correct the token, and retry in "
                f"{LONGEST:g} s",
                is_busy=True,
            )
        failed.next = at
        return at - now

    def record_invalid(self, host: str, *, has_token: bool) -> None:
        """Record that a client sent a wrong token, or none."""
        now = self._clock()
        self.refused += 1
        network = network_of(host)
        failed = self._failures.get(network)
        if failed is None:
            if len(self._failures) >= MAX_ADDRESSES:
                self._failures.popitem(last=False)
            failed = self._failures[network] = _Failures(since=now)
        self._failures.move_to_end(network)
        self._decay(failed, now)
        failed.failures = min(failed.failures + 1, FREE + 10)
        failed.total += 1
        if failed.total & (failed.total - 1) == 0:  # the first, second, fourth, eighth ...
            self._log_failure(host, failed.total, has_token, now)

    def _decay(self, failed: _Failures, now: float) -> None:
        failed.failures = max(failed.failures - (now - failed.since) / FORGIVEN, 0.0)
        failed.since = now

    def _log_failure(self, host: str, total: int, has_token: bool, now: float) -> None:
        self._lines = min(self._lines + now - self._lines_since, _LINES)
        self._lines_since = now
        if self._lines < 1:
            self._suppressed += 1
            return
        self._lines -= 1
        _log.warning(
            "rejected a client at %s: it sent %s token (%d from this address so far%s)",
            host,
            "a wrong" if has_token else "no",
            total,
            f"; {self._suppressed} such lines were suppressed" if self._suppressed else "",
        )
        self._suppressed = 0


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
