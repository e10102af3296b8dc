"""Zenoh, two peers that are connected directly, over TLS or QUIC.

Scouting is off. Streams go from a publisher that blocks instead of dropping to a subscriber
with a channel, which measured faster than a callback. A round trip is a publication each way,
both express, that is, not batched: faster than a query. A new session makes a query.
Shared memory is off: by default payloads of 3 KiB and more would bypass the measured link.
"""

import json
import socket
import threading
import time
from typing import Any

import zenoh

from bench.network import peer
from bench.network.measures import BULK_SIZE, Manner
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


def publisher(session: Any, name: str, *, express: bool, priority: Any = None) -> Any:
    block = zenoh.CongestionControl.BLOCK
    priority = zenoh.Priority.DEFAULT if priority is None else priority
    return session.declare_publisher(
        name, congestion_control=block, express=express, priority=priority
    )


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
            self._session.declare_subscriber("bench/bulk", on_zenoh_thread(lambda _: None)),
            self._session.declare_subscriber("bench/probe", on_zenoh_thread(self._probe)),
            self._session.declare_queryable("bench/times", on_zenoh_thread(self._tell_times)),
        ]
        self._times: list[int] = []
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

    def _probe(self, sample: Any) -> None:
        self._times.append(time.monotonic_ns() - peer.sent_at(sample.payload.to_bytes()))

    def _tell_times(self, query: Any) -> None:
        times, self._times = self._times, []
        query.reply("bench/times", json.dumps(times))

    def _echo(self, query: Any) -> None:
        query.reply("bench/echo", query.payload.to_bytes(), express=True)


class Client(peer.Client):
    async def open(self, info: Json) -> None:
        self._endpoint = info["endpoint"]
        self._session = self._connect()
        self._push = publisher(self._session, "bench/push", express=False)
        self._pings = publisher(self._session, "bench/ping", express=True)
        has_priorities = self.setting.options.get("priorities", False)
        first, last = zenoh.Priority.REAL_TIME, zenoh.Priority.BACKGROUND
        self._bulk = publisher(
            self._session, "bench/bulk", express=False, priority=last if has_priorities else None
        )
        self._probes = publisher(
            self._session, "bench/probe", express=True, priority=first if has_priorities else None
        )
        queue = zenoh.handlers.FifoChannel(16)
        self._pongs = self._session.declare_subscriber("bench/pong", queue)
        publishers = (self._push, self._pings, self._bulk, self._probes)
        while not all(each.matching_status.matching for each in publishers):
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

    async def probe(self, kind: str, count: int) -> list[int]:
        for _ in range(count):
            time.sleep(peer.PROBE_PAUSE)  # noqa: ASYNC251 -- nothing else runs on this loop
            self._probes.put(peer.probe())
        times: list[int] = []
        while len(times) < count:
            time.sleep(0.02)  # noqa: ASYNC251 -- nothing else runs on this loop
            for reply in self._session.get("bench/times"):
                if reply.ok is not None:
                    times += json.loads(reply.ok.payload.to_bytes())
        return times

    async def start_bulk(self, channels: int) -> None:
        self._is_sending = True
        self._sent = [0] * channels
        self._senders = [
            threading.Thread(target=self._send_bulk, args=[number]) for number in range(channels)
        ]
        for thread in self._senders:
            thread.start()

    def _send_bulk(self, number: int) -> None:
        payload = bytes(BULK_SIZE)
        while self._is_sending:
            self._bulk.put(payload)
            self._sent[number] += BULK_SIZE

    async def stop_bulk(self) -> int:
        self._is_sending = False
        for thread in self._senders:
            thread.join()
        return sum(self._sent)

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
