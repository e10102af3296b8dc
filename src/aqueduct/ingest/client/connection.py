"""The connection to an ingest server: shared by producers, and retried with backoff."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from typing import TypeVar

from aqueduct.api.client import CONNECT_TIMEOUT, ClientConnection, Connecting, connect
from aqueduct.errors import (
    ChannelError,
    ConnectError,
    ConnectionLost,
    EndOfChannel,
    Refused,
    TLSError,
    Unauthenticated,
)
from aqueduct.ingest.dedup.scope import Fingerprint
from aqueduct.ingest.errors import IngestError, refusal_error
from aqueduct.ingest.identity import MAX_POSITIONS, TopicPosition
from aqueduct.ingest.protocol import AUTHORIZATION, EndStep, Refusal, Request
from aqueduct.ingest.settings import CLIENT_QUIC_SETTINGS
from aqueduct.security import Trust

T = TypeVar("T")

GIVE_UP_AFTER = 60.0
"""Seconds without a connection after which a client stops retrying."""
MIN_PAUSE = 0.05
MAX_PAUSE = 2.0
FATAL = (TLSError, Refused, Unauthenticated)
"""Errors that a retry does not resolve."""
LOST = (ChannelError, ConnectError, EndOfChannel, OSError)
"""Errors that another connection may resolve."""


def connect_to(
    address: str, trust: Trust | None, token: str | None, timeout: float = CONNECT_TIMEOUT
) -> Connecting[Request]:
    """Connect to an ingest server, with settings that detect a killed server soon."""
    return connect(
        address,
        Request,
        trust=trust or Trust(),
        headers={AUTHORIZATION: f"Bearer {token}"} if token else None,
        timeout=timeout,
        options=CLIENT_QUIC_SETTINGS,
    )


def accepted(answer: T | Refusal) -> T:
    """Return the answer of a server; raise its error if it refused the request."""
    if isinstance(answer, Refusal):
        raise refusal_error(answer)
    return answer


class Retry:
    """Retries of calls to a server: exponential backoff with jitter, up to a deadline."""

    def __init__(self, address: str, give_up_after: float) -> None:
        self._address = address
        self._give_up_after = give_up_after
        self.connect_timeout = min(CONNECT_TIMEOUT, max(give_up_after, MIN_PAUSE))
        """Seconds for one attempt to connect."""
        self.reset()

    def reset(self) -> None:
        """Start over, after a success."""
        self._pause = MIN_PAUSE
        self._since = time.monotonic()

    async def wait(self, error: Exception) -> None:
        """Wait before the next attempt; raise if ``error`` is fatal, or after the deadline."""
        if isinstance(error, FATAL):
            raise error
        if time.monotonic() - self._since > self._give_up_after:
            raise IngestError(
                f"{self._address} could not be reached for {self._give_up_after:g} s: "
                f"{explain(self._address, error)}"
            ) from None
        await asyncio.sleep(self._pause * random.uniform(0.5, 1.0))
        self._pause = min(2 * self._pause, MAX_PAUSE)


def explain(address: str, error: Exception) -> str:
    """Return the text of an error, with the address if the connection was lost."""
    if isinstance(error, ConnectionLost):
        return f"the connection to {address} was lost: {error.reason or error}"
    return str(error)


class Client:
    """A connection to an ingest server that producers share.

    ::

        async with ingest.Client("localhost:4434") as client:
            async with ingest.Producer(client.address, "telemetry", client=client) as producer:
                await producer.send(b"21.5")

    The client connects when the connection is first needed, and again after it was lost.
    """

    def __init__(
        self,
        address: str,
        *,
        trust: Trust | None = None,
        token: str | None = None,
        give_up_after: float = GIVE_UP_AFTER,
    ) -> None:
        """``give_up_after``: seconds after which `end_step` fails if there is no connection."""
        self.address = address
        self._trust = trust
        self._token = token
        self._give_up_after = give_up_after
        self._turn = asyncio.Lock()
        self._connection: ClientConnection[Request] | None = None
        self._is_closed = False

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; producers that still use it fail."""
        self._is_closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _connected(self, connect_timeout: float) -> ClientConnection[Request]:
        """Return the open connection, or connect; raise after ``connect_timeout`` seconds."""
        async with self._turn:
            self._check_open()
            connection = self._connection
            if connection is None or not connection.is_open:
                self._connection = None
                if connection is not None:
                    await connection.close()  # frees its socket
                connection = await connect_to(
                    self.address, self._trust, self._token, connect_timeout
                )
                try:
                    self._check_open()
                except IngestError:
                    await connection.close()
                    raise
                self._connection = connection
            return connection

    def _check_open(self) -> None:
        if self._is_closed:
            raise IngestError("this client was closed")

    async def end_step(
        self,
        topic: str,
        job: str,
        step: int,
        run: str,
        *,
        positions: Sequence[TopicPosition] = (),
        rows: Fingerprint | None = None,
        allow_extra: bool = False,
    ) -> None:
        """End a step of a job: producers opened for it later find `is_done`.

        Every part of the step has to be complete. ``rows`` is the sum of `Producer.fingerprint`
        over all parts. The server compares it with what is stored, and raises `StepConflict` if
        the step has ended before with other rows, or has rows that this run does not have; the
        latter are accepted with ``allow_extra``. Without ``rows`` nothing is compared. Ending a
        step again with the same rows is a no-op. ``positions`` are those of its producers
        (`Producer.position`): if the topic has lost the rows before them, this raises
        `TopicReplaced`, and the step does not end. The server checks the last 16: pass one for
        each start of the server, with the largest offsets.
        """
        retry = Retry(self.address, self._give_up_after)
        while True:
            try:
                connection = await self._connected(retry.connect_timeout)
                answer = await connection.entrypoint.call(
                    EndStep,
                    topic=topic,
                    job=job,
                    step=step,
                    run=run,
                    positions=list(positions)[-MAX_POSITIONS:],
                    rows=rows,
                    allow_extra=allow_extra,
                )
            except LOST as error:
                await retry.wait(error)
            else:
                accepted(answer)
                return


async def end_step(
    address: str,
    topic: str,
    job: str,
    step: int,
    run: str,
    *,
    rows: Fingerprint | None = None,
    allow_extra: bool = False,
    trust: Trust | None = None,
    token: str | None = None,
) -> None:
    """End a step of a job over a new connection; see `Client.end_step`."""
    async with Client(address, trust=trust, token=token) as client:
        await client.end_step(topic, job, step, run, rows=rows, allow_extra=allow_extra)
