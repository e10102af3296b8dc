"""Session tickets, which let a client that was here before send with its first packets (0-RTT).

Whoever records such packets can send them once more. So a server takes each ticket once
(AQ-EARLY-1): its store forgets a ticket when it is presented, and what comes with a ticket that the
store does not know is no early data. Tickets are names of secrets that are only in the store: both
die with the server.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import replace
from threading import Lock

from qh3.tls import SessionTicket

from aqueduct.security import Trust
from aqueduct.transport.address import Address

SERVER_TICKETS = 8_192
"""Clients that a server remembers; about 2 KiB each."""
CLIENT_SERVERS = 256
"""Servers that a client remembers."""
TICKETS_PER_SERVER = 8
"""Each serves one connection: so many can be opened at once without waiting."""


class ServerTickets:
    """The tickets a server has given out and not seen again; past the limit the oldest go."""

    def __init__(self, limit: int = SERVER_TICKETS) -> None:
        self._limit = limit
        self._tickets: OrderedDict[bytes, SessionTicket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tickets)

    def add(self, ticket: SessionTicket) -> None:
        """Remember a ticket, and forget those that are too old or too many."""
        # What the client may remember of the server's limits, the server need not.
        self._tickets[ticket.ticket] = replace(ticket, other_extensions=[])
        while self._tickets:
            oldest = next(iter(self._tickets.values()))
            if oldest.is_valid and len(self._tickets) <= self._limit:
                break
            self._tickets.popitem(last=False)

    def take(self, name: bytes) -> SessionTicket | None:
        """A ticket that is presented for the first time; from now on nobody knows it."""
        return self._tickets.pop(name, None)


class ClientTickets:
    """The tickets this process was given, by whom they are from and how that one was trusted.

    A resumed session shows no certificate: the ticket stands for the one that was checked before,
    so it is good only for who would check it in the same way.
    """

    def __init__(self, servers: int = CLIENT_SERVERS) -> None:
        self._servers = servers
        self._tickets: OrderedDict[Hashable, deque[SessionTicket]] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return sum(map(len, self._tickets.values()))

    def add(self, name: str, address: Address, trust: Trust, ticket: SessionTicket) -> None:
        """Keep a ticket for the next connection."""
        key = (name, address, trust)
        with self._lock:
            known = self._tickets.pop(key, None) or deque(maxlen=TICKETS_PER_SERVER)
            known.append(ticket)
            self._tickets[key] = known  # now the newest
            if len(self._tickets) > self._servers:
                self._tickets.popitem(last=False)

    def take(self, name: str, address: Address, trust: Trust) -> SessionTicket | None:
        """The newest ticket that may be used, for one connection."""
        with self._lock:
            known = self._tickets.get((name, address, trust))
            while known:
                ticket = known.pop()
                if ticket.is_valid:
                    return ticket
            self._tickets.pop((name, address, trust), None)
        return None

    def knows(self, name: str, address: Address, trust: Trust) -> bool:
        """Whether there is a ticket for a server."""
        return bool(self._tickets.get((name, address, trust)))
