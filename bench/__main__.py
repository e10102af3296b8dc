"""Kinds of benchmarks: the protocol core; channels, many, paths, ScalableIPC, ingest and Spark."""

import sys
from collections.abc import Callable
from functools import partial

from bench import core, survival
from bench.many import command as many
from bench.network import command, suite
from bench.paths import command as paths

USAGE = """\
usage: python -m bench core [--help] ...      the protocol core, pure and compiled
       python -m bench channels [--help] ...  channels against zenoh, zmq, grpc and others
       python -m bench many [--help] ...      many connections, subscribers and channels
       python -m bench survival [--help] ...  connections that survive loss and address changes
       python -m bench paths [--help] ...     long and lossy paths: QUIC, TCP and plain streams
       python -m bench ipc [--help] ...       ScalableIPC against zmq and a UNIX socket
       python -m bench ingest [--help] ...    records made durable, against NATS JetStream
       python -m bench spark [--help] ...     Spark's source and sink, against Spark's own files
"""


def main(words: list[str]) -> int:
    kinds: dict[str, Callable[[list[str]], int]] = {
        "core": core.main,
        "channels": partial(command.main, suite.CHANNELS),
        "many": many.main,
        "survival": survival.main,
        "paths": paths.main,
        "ipc": partial(command.main, suite.IPC),
        "ingest": partial(command.main, suite.INGEST),
        "spark": partial(command.main, suite.SPARK),
    }
    if words and words[0] in kinds:
        return kinds[words[0]](words[1:])
    asked = "--help" in words or "-h" in words
    print(USAGE, end="", file=sys.stdout if asked else sys.stderr)
    return 0 if asked else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
