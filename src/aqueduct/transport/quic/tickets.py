"""Session tickets, with which a client sends data in its first packets (0-RTT).

An attacker can record such packets and replay them. A server therefore accepts each ticket once
(AQ-EARLY-1): its store removes a ticket that is presented, and early data with an unknown ticket is
rejected. A ticket is only a name of secrets in the store, which are lost with the server.
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
"""Most tickets in a server's store; about 2 KiB each."""
CLIENT_SERVERS = 256
"""Most servers of which a client keeps tickets."""
TICKETS_PER_SERVER = 8
"""Most tickets for one server, and so the most concurrent connections with early data."""


class ServerTickets:
    """The tickets that a server issued and no client has used, up to a limit."""

    def __init__(self, limit: int = SERVER_TICKETS) -> None:
        self._limit = limit
        self._tickets: OrderedDict[bytes, SessionTicket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tickets)

    def add(self, ticket: SessionTicket) -> None:
        """Store a ticket, and drop tickets that are too old or too many."""
        # Only the client needs the server's limits of this connection.
        self._tickets[ticket.ticket] = replace(ticket, other_extensions=[])
        while self._tickets:
            oldest = next(iter(self._tickets.values()))
            if oldest.is_valid and len(self._tickets) <= self._limit:
                break
            self._tickets.popitem(last=False)

    def take(self, name: bytes) -> SessionTicket | None:
        """Remove and return a ticket; return None if it is unknown or was used."""
        return self._tickets.pop(name, None)


class ClientTickets:
    """The tickets of this process, by server and by the trust with which it was verified.

    A resumed session shows no certificate: the ticket stands for the one that was verified before,
    so it is valid only with the same trust.
    """

    def __init__(self, servers: int = CLIENT_SERVERS) -> None:
        self._servers = servers
        self._tickets: OrderedDict[Hashable, deque[SessionTicket]] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return sum(map(len, self._tickets.values()))

    def add(self, name: str, address: Address, trust: Trust, ticket: SessionTicket) -> None:
        """Store a ticket for a later connection."""
        key = (name, address, trust)
        with self._lock:
            known = self._tickets.pop(key, None) or deque(maxlen=TICKETS_PER_SERVER)
            known.append(ticket)
            self._tickets[key] = known  # now the newest
            if len(self._tickets) > self._servers:
                self._tickets.popitem(last=False)

    def take(self, name: str, address: Address, trust: Trust) -> SessionTicket | None:
        """Remove and return the newest valid ticket for a server, or None."""
        with self._lock:
            known = self._tickets.get((name, address, trust))
            while known:
                ticket = known.pop()
                if ticket.is_valid:
                    return ticket
            self._tickets.pop((name, address, trust), None)
        return None

    def knows(self, name: str, address: Address, trust: Trust) -> bool:
        """Return whether there is a ticket for a server."""
        return bool(self._tickets.get((name, address, trust)))
