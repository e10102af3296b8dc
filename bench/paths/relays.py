"""A path through user-space relays on loopback, where network namespaces cannot be used.

python -m bench.paths.relays relay PATH '{"to": "aqueduct+quic://...", "delay": 0.02, ...}'
"""

import asyncio
import json
import sys
from dataclasses import asdict

from aqueduct.testing.relay import Direction, Impairments, Relay
from aqueduct.testing.tcp_relay import TcpPath, TcpRelay
from bench.network.peer import Json
from bench.paths.link import say


async def carry(options: Json) -> None:
    """Relay until stdin says to stop, and then say what was carried."""
    scheme, mark, _ = options["to"].rpartition("://")
    relay: Relay | TcpRelay
    if options["transport"] == "quic":
        impairments = Impairments(loss=options["loss"], delay=options["delay"])
        relay = Relay(options["to"], impairments, seed=options["seed"])
    else:
        relay = TcpRelay(options["to"], TcpPath(delay=options["delay"]), seed=options["seed"])
    async with relay:
        say(address=f"{scheme}{mark}{relay.address}")
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        say(**{way.value: asdict(relay.counts[way]) for way in Direction})


if __name__ == "__main__":
    asyncio.run(carry(json.loads(sys.argv[3])["options"]))
