"""A path between two network namespaces that delays and drops IP packets, in user space.

Each end is a process in a namespace of its own, with a TUN device. This process reads the packets
of one device and writes them to the other one, after the delay of the path. So the UDP and the TCP
of the kernel see a real path, with its round-trip time and its losses, and `tc netem` is not
needed. Both need the rights of root.

python -m bench.paths.link link PATH '{"delay": 0.02, "loss": 0.001, ...}'
"""

import array
import ctypes
import fcntl
import json
import os
import select
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from bench.network.peer import Json

CLIENT, SERVER = "10.99.0.1", "10.99.0.2"
PREFIX = 24
MTU = 1_500
QUEUE = 20_000
"""Packets that wait in a device for this process: it must not drop any by itself."""
MAX_PACKET = 2_048
PACKETS_PER_TURN = 64
DEVICE = "aqueduct0"

_NEW_NETWORK = 0x40000000
_SET_DEVICE = 0x400454CA
_TUN_WITHOUT_HEADER = 0x1001
_AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")


@dataclass(frozen=True)
class Ways:
    """What a path does to packets, both ways."""

    delay: float
    """Seconds, one way."""
    loss: float
    """The probability that a packet is lost."""
    seed: int = 1


def missing() -> str | None:
    """Return why no path can be emulated here, or None."""
    if not sys.platform.startswith("linux"):
        return "network namespaces are a feature of Linux"
    probe = [sys.executable, "-m", "bench.paths.link", "probe"]
    done = subprocess.run(probe, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no network namespace could be made"]
        return lines[-1]
    return None


def controls() -> list[str]:
    """Return the congestion controls of the kernel's TCP."""
    try:
        return _AVAILABLE.read_text().split()
    except OSError:
        return []


def enter(address: str) -> int:
    """Move this process to a network of its own; return the descriptor of its TUN device."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_NETWORK):
        number = ctypes.get_errno()
        raise OSError(number, f"no network namespace: {os.strerror(number)}")
    device = os.open("/dev/net/tun", os.O_RDWR)
    name = struct.pack("16sH22x", DEVICE.encode(), _TUN_WITHOUT_HEADER)
    fcntl.ioctl(device, _SET_DEVICE, name)
    for words in (
        ["link", "set", "lo", "up"],
        ["addr", "add", f"{address}/{PREFIX}", "dev", DEVICE],
        ["link", "set", DEVICE, "mtu", str(MTU), "txqueuelen", str(QUEUE)],
        ["link", "set", DEVICE, "up"],
    ):
        subprocess.run(["ip", *words], check=True)
    return device


def hand_over(device: int, where: str, address: str) -> None:
    """Give the device to the process that carries the packets."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.connect(where)
        socket.send_fds(sock, [address.encode()], [device])
        sock.recv(1)  # it has it
    os.close(device)


def take_devices(where: str) -> list[int]:
    """Return the devices of the client and of the server."""
    found: dict[bytes, int] = {}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(where)
        listening.listen(2)
        say(ready=True)
        while len(found) < 2:
            sock, _ = listening.accept()
            with sock:
                name, descriptors, _, _ = socket.recv_fds(sock, 64, 1)
                found[name] = descriptors[0]
                sock.send(b".")
    return [found[address.encode()] for address in (CLIENT, SERVER)]


def carry(devices: Sequence[int], ways: Ways) -> Json:
    """Carry packets until stdin ends; return what was carried and dropped."""
    for device in devices:
        os.set_blocking(device, False)
    waiting: tuple[deque[tuple[float, bytes]], ...] = (deque(), deque())
    rngs = [Random(f"{ways.seed}/{way}") for way in range(2)]
    carried, dropped = array.array("q", [0, 0]), array.array("q", [0, 0])
    longest = 0.0
    clock, delay, loss = time.monotonic, ways.delay, ways.loss
    while True:
        due = min((queue[0][0] for queue in waiting if queue), default=None)
        timeout = None if due is None else max(0.0, due - clock())
        readable, _, _ = select.select([*devices, sys.stdin], [], [], timeout)
        if sys.stdin in readable:
            return {"carried": list(carried), "dropped": list(dropped), "late": longest}
        for way, device in enumerate(devices):
            if device in readable:
                draw, queue = rngs[way].random, waiting[way]
                at = clock() + delay
                for _ in range(PACKETS_PER_TURN):
                    try:
                        packet = os.read(device, MAX_PACKET)
                    except BlockingIOError:
                        break
                    if draw() < loss:
                        dropped[way] += 1
                    else:
                        queue.append((at, packet))
        now = clock()
        for way, queue in enumerate(waiting):
            target = devices[1 - way]
            while queue and queue[0][0] <= now:
                at, packet = queue.popleft()
                longest = max(longest, now - at)
                os.write(target, packet)
                carried[way] += 1


def say(**answer: object) -> None:
    print(json.dumps(answer), flush=True)


def main(words: list[str]) -> int:
    if words == ["probe"]:
        enter(CLIENT)
        return 0
    setting = json.loads(words[2])["options"]
    ways = Ways(setting["delay"], setting["loss"], setting["seed"])
    devices = take_devices(setting["link"])
    say(ready=True)
    say(**carry(devices, ways))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(str(error))
