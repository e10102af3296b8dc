"""The network of the pipeline passes packets both ways, and loses the share it is told to."""

from __future__ import annotations

import asyncio
import socket

from aqueduct.spark.jobs.pipeline.network import LossyNetwork

PACKETS = 2_000


def a_socket() -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setblocking(False)
    sock.bind(("127.0.0.1", 0))
    return sock


async def test_a_share_of_the_packets_is_lost() -> None:
    loop = asyncio.get_running_loop()
    with a_socket() as server, a_socket() as client:
        network = LossyNetwork(server.getsockname(), 0.1, seed=1)
        host, _, port = network.address.rpartition(":")
        for number in range(PACKETS):
            await loop.sock_sendto(client, b"%d" % number, (host, int(port)))
            if number % 50 == 0:
                await asyncio.sleep(0.001)
        for _ in range(1_000):
            if network.passed + network.lost == PACKETS:
                break
            await asyncio.sleep(0.005)
        network.close()
        assert 0.07 < network.lost / PACKETS < 0.13


async def test_answers_come_back_to_who_asked() -> None:
    loop = asyncio.get_running_loop()
    with a_socket() as server, a_socket() as one, a_socket() as other:
        network = LossyNetwork(server.getsockname(), 0.0, seed=1)
        host, _, port = network.address.rpartition(":")
        for sock, word in ((one, b"one"), (other, b"other")):
            await loop.sock_sendto(sock, word, (host, int(port)))
        for _ in range(2):
            data, where = await asyncio.wait_for(loop.sock_recvfrom(server, 100), 5)
            await loop.sock_sendto(server, data, where)
        assert await asyncio.wait_for(loop.sock_recv(one, 100), 5) == b"one"
        assert await asyncio.wait_for(loop.sock_recv(other, 100), 5) == b"other"
        network.close()
