"""The first example of the guide does what it says, in a process of its own."""

import subprocess
import sys

from tests.test_readme import examples_of


def test_the_first_example_of_the_guide_to_spark_prints_the_sum() -> None:
    command = [sys.executable, "-c", examples_of("docs/spark.md")[0]]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=180)
    assert done.stdout == "499500\n"
