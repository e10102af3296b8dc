"""Runs one benchmark in its own process, and prints the result as a line of JSON.

The process that starts it chooses the build of the core by PYTHONPATH.
"""

import json
import sys
from dataclasses import asdict

from aqueduct.wire import frames
from bench.catalogue import all_benchmarks
from bench.measure import measure


def main(name: str, repeat: int) -> None:
    measured, ratio = measure(all_benchmarks()[name], repeat)
    result = {
        "measured": asdict(measured),
        "ratio": asdict(ratio) if ratio is not None else None,
        "compiled": not str(frames.__file__).endswith(".py"),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
