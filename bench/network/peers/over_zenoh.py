"""Zenoh, two peers that are connected directly, over TLS or QUIC.

Scouting is off. Streams go from a publisher that blocks instead of dropping to a subscriber
with a channel, which measured faster than a callback. A round trip is a publication each way,
both express, that is, not batched: faster than a query. A new session makes a query.
Shared memory is off: by default payloads of 3 KiB and more would bypass the measured link.
"""

import json
import socket
import time
from typing import Any

import zenoh

from bench.network import peer
from bench.network.measures import Manner
from bench.network.peer import Closing, Counted, Json, Setting

SUBSCRIBED = 1024
"""Messages in the channel of the subscriber."""


def configuration(setting: Setting, *, listen: list[str], connect: list[str]) -> Any:
    config = zenoh.Config()
    tls = "transport/link/tls"
    values = {
        "mode": "peer",
        "scouting/multicast/enabled": False,
        "scouting/gossip/enabled": False,
        "transport/shared_memory/enabled": False,
        f"{tls}/root_ca_certificate": setting.authority,
        f"{tls}/listen_certificate": setting.certificate,
        f"{tls}/listen_private_key": setting.key,
        f"{tls}/verify_name_on_connect": True,
        "listen/endpoints": listen,
        "connect/endpoints": connect,
    }
    for path, value in values.items():
        config.insert_json5(path, json.dumps(value))
    return config


def on_zenoh_thread(function: Any) -> Any:
    """A callback without a queue in between: the lowest latency."""
    return zenoh.handlers.Callback(function, indirect=False)


def publisher(session: Any, name: str, *, express: bool) -> Any:
    block = zenoh.CongestionControl.BLOCK
    return session.declare_publisher(name, congestion_control=block, express=express)


class Server(peer.Server):
    async def start(self) -> Json:
        endpoint = f"{self.setting.options['link']}/{peer.HOST}:{free_port()}"
        self._session = zenoh.open(configuration(self.setting, listen=[endpoint], connect=[]))
        self._pongs = publisher(self._session, "bench/pong", express=True)
        queue = zenoh.handlers.FifoChannel(SUBSCRIBED)
        self._stream = self._session.declare_subscriber("bench/push", queue)
        self._answering = [
            self._session.declare_subscriber("bench/ping", on_zenoh_thread(self._pong)),
            self._session.declare_queryable("bench/echo", on_zenoh_thread(self._echo)),
        ]
        return {"endpoint": endpoint}

    async def receive(self, manner: Manner, size: int, count: int) -> Counted:
        total = 0
        receive = self._stream.recv
        for _ in range(count):
            total += len(receive().payload.to_bytes())
        return Counted(count, total, time.monotonic_ns())

    async def stop(self) -> None:
        self._session.close()

    def _pong(self, sample: Any) -> None:
        self._pongs.put(sample.payload.to_bytes())

    def _echo(self, query: Any) -> None:
        query.reply("bench/echo", query.payload.to_bytes(), express=True)


class Client(peer.Client):
    async def open(self, info: Json) -> None:
        self._endpoint = info["endpoint"]
        self._session = self._connect()
        self._push = publisher(self._session, "bench/push", express=False)
        self._pings = publisher(self._session, "bench/ping", express=True)
        queue = zenoh.handlers.FifoChannel(16)
        self._pongs = self._session.declare_subscriber("bench/pong", queue)
        while not all(each.matching_status.matching for each in (self._push, self._pings)):
            time.sleep(0.01)  # noqa: ASYNC251 -- nothing else runs on this loop
        # The server's publisher must discover this subscriber as well.
        while True:
            self._pings.put(b"hello")
            time.sleep(0.05)  # noqa: ASYNC251 -- nothing else runs on this loop
            if self._pongs.try_recv() is not None:
                break
        while self._pongs.try_recv() is not None:
            pass

    async def send(self, manner: Manner, payload: bytes, count: int) -> None:
        put = self._push.put
        for _ in range(count):
            put(payload)

    async def trip(self, payload: bytes) -> bytes:
        self._pings.put(payload)
        answer: bytes = self._pongs.recv().payload.to_bytes()
        return answer

    async def fresh(self, payload: bytes) -> tuple[bytes, Closing]:
        session = self._connect()

        async def close() -> None:
            session.close()

        while True:
            # Right after the session opened, the queryable may not have been announced.
            for reply in session.get("bench/echo", payload=payload, express=True):
                if reply.ok is not None:
                    return reply.ok.payload.to_bytes(), close

    async def close(self) -> None:
        self._session.close()

    def _connect(self) -> Any:
        return zenoh.open(configuration(self.setting, listen=[], connect=[self._endpoint]))


def free_port() -> int:
    """Return a free port for TCP, which is almost always free for UDP as well."""
    with socket.socket() as chosen:
        chosen.bind((peer.HOST, 0))
        port: int = chosen.getsockname()[1]
        return port
