"""docs/architecture.md matches the code: the graph, and the files and functions in its tables."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "src" / "aqueduct"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
HOP = re.compile(r"^\| \d+ \| `([\w/.]+\.py)` \| `([\w.]+)` \| [A-Z].* \|$", re.M)
PATH = re.compile(r"`((?:\w[\w-]*/)*\w[\w-]*(?:/|\.py|\.md))`( \(new\))?")


def section(title: str) -> str:
    """Return the text under a heading."""
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


WALKS = {
    title: HOP.findall(section(title))
    for title in ("The path of a message", "The path of a record")
}
HOPS = sorted({hop for hops in WALKS.values() for hop in hops})
CHANGES = re.findall(r"^\| (?!change |-)(.*) \|$", section("Where does this change go?"), re.M)


def functions(path: Path) -> set[str]:
    """Return the qualified names of all functions in a file."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            members = (
                each
                for each in node.body
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
            )
            found |= {f"{node.name}.{each.name}" for each in members}
    return found


def load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "architecture", ROOT / "tools" / "architecture.py"
    )
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


def test_the_graph_matches_the_import_graph() -> None:
    """Write it again with ``python tools/architecture.py``."""
    assert load_tool().page() == PAGE


def test_both_paths_have_hops_without_gaps() -> None:
    for title, hops in WALKS.items():
        numbers = [int(number) for number in re.findall(r"^\| (\d+) \|", section(title), re.M)]
        assert numbers == list(range(1, len(hops) + 1)), title
        assert len(hops) > 15


@pytest.mark.parametrize(("file", "function"), HOPS)
def test_a_hop_names_a_function_that_exists(file: str, function: str) -> None:
    assert function in functions(SOURCES / file), f"docs/architecture.md: {file} has no {function}"


def test_the_table_of_changes_has_twelve_rows() -> None:
    assert len(CHANGES) == 12


@pytest.mark.parametrize("title", ["The seams", "Where does this change go?"])
def test_the_files_in_a_table_exist_unless_they_are_new(title: str) -> None:
    paths = PATH.findall(section(title))
    assert len(paths) > 10
    for path, is_new in paths:
        exists = any((root / path).exists() for root in (SOURCES, ROOT))
        assert exists is not bool(is_new), f"docs/architecture.md: {path}"
