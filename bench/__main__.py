"""Two kinds of benchmarks: the protocol core by itself, and channels against their peers."""

import sys

from bench import core
from bench.network import command

USAGE = """\
usage: python -m bench core [--help] ...      the protocol core, pure and compiled
       python -m bench channels [--help] ...  channels against zenoh, zmq, grpc and others
"""


def main(words: list[str]) -> int:
    kinds = {"core": core.main, "channels": command.main}
    if words and words[0] in kinds:
        return kinds[words[0]](words[1:])
    asked = "--help" in words or "-h" in words
    print(USAGE, end="", file=sys.stdout if asked else sys.stderr)
    return 0 if asked else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
