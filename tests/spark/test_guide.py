"""The guide to Spark: its first example runs, and its tables have exactly all options."""

import re
import subprocess
import sys

import pytest

from aqueduct.spark import errors
from aqueduct.spark.options import SERVER_OPTIONS, SINK_OPTIONS, SOURCE_OPTIONS
from aqueduct.spark.source.rows import row_schema
from tests.test_readme import ROOT, examples_of

PAGE = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")


def cells(heading: str, column: int) -> list[str]:
    """Return a column of the table whose first row begins with the heading."""
    lines = PAGE[PAGE.index(f"| {heading} |") :].splitlines()[2:]
    rows = lines[: next(at for at, line in enumerate(lines) if not line.startswith("|"))]
    return [row.split("|")[column] for row in rows]


def code(texts: list[str]) -> set[str]:
    return {name for text in texts for name in re.findall(r"`(\w+)`", text)}


def test_the_first_example_of_the_guide_to_spark_prints_the_sum() -> None:
    command = [sys.executable, "-c", examples_of("docs/spark.md")[0]]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=180)
    assert done.stdout == "499500\n"


def test_the_table_of_the_source_has_exactly_all_options() -> None:
    # The remark about servers mentions directories, because Kafka has none.
    assert code(cells("Kafka's source", 2)) | {"path"} == set(SOURCE_OPTIONS)
    assert "`path`" in cells("Kafka's source", 3)[0]


def test_the_table_of_the_sink_has_exactly_all_options() -> None:
    named = code(cells("Kafka's sink", 2))
    assert named | set(SERVER_OPTIONS) == set(SINK_OPTIONS)


def test_the_table_of_trust_has_exactly_all_options() -> None:
    assert code(cells("option", 1)) | {"token"} == set(SERVER_OPTIONS)


def test_the_table_of_columns_has_exactly_all_columns() -> None:
    rows = zip(cells("Kafka", 1), cells("Kafka", 2), strict=True)
    named = code([kafka if "the same" in here else here for kafka, here in rows])
    # The table also names the fields of a header.
    assert named - {"name"} == set(row_schema(True).names)


@pytest.mark.parametrize("error", sorted(code(cells("error", 1))))
def test_the_errors_of_the_guide_exist(error: str) -> None:
    assert issubclass(getattr(errors, error), Exception)


def test_the_guide_has_all_errors() -> None:
    there = {name for name, kind in vars(errors).items() if isinstance(kind, type)}
    assert there - {"AqueductError"} <= code(cells("error", 1))


def test_options_in_examples_exist() -> None:
    text = "\n".join(examples_of("docs/spark.md"))
    given = set(re.findall(r'\.option\("(\w+)"', text)) - {"checkpointLocation"}
    assert given <= {*SOURCE_OPTIONS, *SINK_OPTIONS}
