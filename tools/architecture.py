"""Write the graph of packages in docs/architecture.md from the import graph."""

from __future__ import annotations

import ast
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "architecture.md"
SOURCES = ROOT / "src" / "aqueduct"
BEGIN = "<!-- begin: written by `python tools/architecture.py` -->\n"
END = "<!-- end -->\n"


def layers() -> list[list[str]]:
    """Return the packages by layer, top first, as import-linter enforces them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = project["tool"]["importlinter"]["contracts"]
    rows = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [[name.strip(" ()") for name in row.split("|")] for row in rows]


def imports() -> dict[str, list[str]]:
    """Return for each package the packages that it imports, top layer first."""
    graph = grimp.build_graph("aqueduct", cache_dir=None)
    order = [name for row in layers() for name in row]
    found: dict[str, list[str]] = {}
    for name in order:
        package = f"aqueduct.{name}"
        targets = {
            imported.split(".")[1]
            for module in {package, *graph.find_descendants(package)}
            for imported in graph.find_modules_directly_imported_by(module)
            if "." in imported
        }
        found[name] = [other for other in order if other in targets - {name}]
    return found


def reduced(edges: dict[str, list[str]]) -> list[tuple[str, str]]:
    """Return the edges that do not follow from others (the transitive reduction)."""
    reach: dict[str, set[str]] = {}
    for name in TopologicalSorter(edges).static_order():
        reach[name] = set(edges[name]).union(*(reach[other] for other in edges[name]))
    return [
        (name, target)
        for name, targets in edges.items()
        for target in targets
        if not any(target in reach[other] for other in targets)
    ]


def source(name: str) -> Path:
    """Return the file with the docstring of a package or module."""
    package = SOURCES / name / "__init__.py"
    return package if package.exists() else SOURCES / f"{name}.py"


def label(name: str) -> str:
    """Return the text of a node: the name, and the folders in it."""
    folders = sorted(path.parent.name for path in (SOURCES / name).glob("*/__init__.py"))
    inside = "".join(f" {folder}/" for folder in folders)
    return f"<b>{name}</b>" + (f"<br/>{inside.strip()}" if folders else "")


def purpose(name: str) -> str:
    """Return the first line of a docstring."""
    text = ast.get_docstring(ast.parse(source(name).read_text())) or ""
    return text.splitlines()[0].replace("``", "`")


def drawing() -> str:
    """Return the generated part of the page: a Mermaid graph and a table."""
    edges = imports()
    lines = ["```mermaid", "flowchart TD"]
    lines += [f'    {name}["{label(name)}"]' for name in edges]
    lines += [f"    {name} --> {target}" for name, target in reduced(edges)]
    lines += ["```", "", "| layer | package | what it is | imports |", "|---:|---|---|---|"]
    for number, row in enumerate(layers(), 1):
        for name in row:
            targets = ", ".join(f"`{target}`" for target in edges[name]) or "nothing"
            lines.append(f"| {number} | `{name}` | {purpose(name)} | {targets} |")
    return "\n".join([*lines, ""])


def page() -> str:
    """Return the page with a new generated part."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{drawing()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page())
