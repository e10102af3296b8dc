"""Checks of what users pass to endpoints and their sends."""

from __future__ import annotations

import math

from aqueduct.errors import LocalProtocolError
from aqueduct.ipc.address import parse
from aqueduct.ipc.core.settings import IpcSettings
from aqueduct.ipc.transports.tcp import TcpLimits
from aqueduct.security import ServerTLS, Trust
from aqueduct.settings import LONGEST, check_type


def check_arguments(
    address: str,
    on_message: object,
    tls: ServerTLS | None,
    trust: Trust | None,
    config: IpcSettings | None,
    limits: TcpLimits | None,
) -> None:
    """Raise if the arguments of an endpoint have the wrong type or contradict each other."""
    scheme = parse(address).scheme
    if on_message is not None and not callable(on_message):
        raise TypeError(f"on_message is a function, not {on_message!r}")
    check_type("tls", tls, ServerTLS, "aqueduct.tls(cert, key)")
    check_type("trust", trust, Trust, "aqueduct.trust(…)")
    check_type("config", config, IpcSettings, "ipc.IpcSettings(…)")
    check_type("limits", limits, TcpLimits, "ipc.TcpLimits(…)")
    if scheme != "tls" and (tls is not None or trust is not None or limits is not None):
        raise LocalProtocolError(
            f"tls, trust and limits are for tls:// addresses, not for {address}"
        )
    if scheme == "tls" and (tls is not None) != (address != "tls://"):
        raise LocalProtocolError(
            f"an endpoint listens at an address with a certificate: give tls=… with {address}, "
            "or tls:// alone for one that only connects"
        )


def check_address(to: object) -> None:
    """Raise `TypeError` if an address is no string."""
    if not isinstance(to, str):
        raise TypeError(f"an address is a string such as 'udp://host:port', not {to!r}")


def check_timeout(timeout: float) -> float:
    """Return a timeout in seconds, bounded by what clocks can represent; raise if it is invalid."""
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise TypeError(f"a timeout is a number of seconds, not {timeout!r}")
    if not math.isfinite(timeout) or timeout < 0:
        raise ValueError(f"a timeout is 0 or more seconds, not {timeout}; leave it out for none")
    return min(timeout, LONGEST)
