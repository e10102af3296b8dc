"""Threads and fork: a blocking server, and worker processes whose threads share one connection.

`aqueduct.blocking` runs one event loop in a background thread, and a child process has no thread of
its parent. So fork before you connect: each process makes its own connections. A connection that
was made before the fork raises `ForkedConnectionError` in the child, and stays whole in the parent.
"""

import multiprocessing
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection as Pipe

import aqueduct
from aqueduct import blocking

PROCESSES = 2
THREADS = 4


class Square(aqueduct.Request[int]):
    number: int


def answer(request: Square) -> int:
    """Handle one request. It runs in a thread of the server, so it may block."""
    time.sleep(0.01)
    return request.number**2


def work(pipe: Pipe) -> None:
    """Ask for squares from several threads, and report their sum. Runs in a child process."""
    address, numbers = pipe.recv()
    with (
        blocking.connect(address, Square, trust=aqueduct.dev_trust()) as connection,
        ThreadPoolExecutor(THREADS) as pool,
    ):
        squares = pool.map(
            lambda number: connection.entrypoint.call(Square(number=number), timeout=5), numbers
        )
        pipe.send(sum(squares))


def main() -> None:
    fork = multiprocessing.get_context("fork")
    workers = []
    for _ in range(PROCESSES):  # before the first thread starts
        mine, theirs = fork.Pipe()
        worker = fork.Process(target=work, args=(theirs,))
        worker.start()
        workers.append((worker, mine))

    with blocking.serve("127.0.0.1:0", Square, tls=aqueduct.dev_tls()) as server:
        serving = threading.Thread(target=server.serve, args=(answer,))
        serving.start()
        for index, (_, pipe) in enumerate(workers):
            pipe.send((server.address, range(index, 20, PROCESSES)))
        total = sum(pipe.recv() for _, pipe in workers)
        for worker, _ in workers:
            worker.join()
        print(f"{PROCESSES} processes with {THREADS} threads each: {total}")
    serving.join()  # ends when the server is closed


if __name__ == "__main__":
    main()
