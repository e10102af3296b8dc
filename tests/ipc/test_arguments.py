"""The arguments of an endpoint, and the errors for invalid ones."""

from typing import Any

import pytest

from aqueduct import ipc
from aqueduct.ipc.arguments import check_timeout
from aqueduct.settings import LONGEST


@pytest.mark.parametrize("kind", [ipc.Endpoint, ipc.blocking.Endpoint])
@pytest.mark.parametrize(
    ("address", "given", "advice"),
    [
        (5, {}, "an address is a string"),
        (b"udp://127.0.0.1:0", {}, "an address is a string"),
        ("udp://127.0.0.1:0", {"on_message": 5}, "on_message is a function, not 5"),
        ("udp://127.0.0.1:0", {"config": {}}, "config is what ipc.IpcSettings"),
        ("tls://127.0.0.1:0", {"tls": "cert.pem"}, "tls is what aqueduct.tls"),
        ("tls://", {"trust": "ca.pem"}, "trust is what aqueduct.trust"),
        ("tls://", {"limits": 5}, "limits is what ipc.TcpLimits"),
    ],
)
def test_a_wrong_type_raises_at_once(
    kind: Any, address: Any, given: dict[str, Any], advice: str
) -> None:
    with pytest.raises(TypeError, match=advice):
        kind(address, **given)


def test_a_timeout_is_capped_at_what_a_clock_can_represent() -> None:
    assert check_timeout(1) == 1
    assert check_timeout(1e300) == LONGEST
