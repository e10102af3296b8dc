"""``help()`` shows the docstrings of the sources, compiled or not, and links in docs resolve."""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
import pydoc
import re
from pathlib import Path
from typing import Any

import pytest

import aqueduct
from aqueduct import ipc

CORE = ("wire", "protocol", "ipc/core")
SOURCES = Path(aqueduct.__file__).parent
ROOT = Path(__file__).resolve().parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
MODULES = {
    f"aqueduct.{path.relative_to(SOURCES).with_suffix('')}".replace("/", "."): path
    for folder in CORE
    for path in sorted((SOURCES / folder).rglob("*.py"))
}


def classes(path: Path) -> dict[str, str]:
    """The docstring of each class in a source file."""
    return {
        node.name: text
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and (text := ast.get_docstring(node))
    }


def test_the_core_has_docstrings() -> None:
    assert sum(len(classes(path)) for path in MODULES.values()) > 50


@pytest.mark.parametrize("name", MODULES)
def test_every_class_of_the_core_has_the_docstring_of_its_source(name: str) -> None:
    module = importlib.import_module(name)
    for kind, text in classes(MODULES[name]).items():
        assert (inspect.getdoc(getattr(module, kind)) or "").startswith(text), kind


@pytest.mark.parametrize("kind", [aqueduct.Mode, aqueduct.Limits, ipc.IpcSettings, ipc.Statistics])
def test_help_shows_the_summary_of_a_class(kind: type[Any]) -> None:
    text = pydoc.plain(pydoc.render_doc(kind))
    assert (inspect.getdoc(kind) or "?").splitlines()[0] in text
    assert "filler" not in text


@pytest.mark.parametrize("name", MODULES)
def test_enums_have_the_members_of_the_source(name: str) -> None:
    module = importlib.import_module(name)
    for node in ast.parse(MODULES[name].read_text()).body:
        if not isinstance(node, ast.ClassDef):
            continue
        kind = getattr(module, node.name)
        is_enum = isinstance(kind, enum.EnumMeta)
        if not is_enum:
            continue
        written = {
            target.id
            for line in node.body
            if isinstance(line, ast.Assign)
            for target in line.targets
            if isinstance(target, ast.Name) and not target.id.startswith("_")
        }
        members: dict[str, Any] = {**kind.__members__}
        assert written == set(members)
        for label, member in members.items():
            assert kind(member.value) is member
            assert (member.name, str(member.value) in repr(member)) == (label, True)
        with pytest.raises(ValueError, match="is not a valid"):
            kind("nothing like it")


def test_a_mode_is_found_by_its_name_and_by_its_value() -> None:
    assert [mode.name for mode in aqueduct.Mode] == ["ORDERED", "UNORDERED", "UNRELIABLE"]
    for mode in aqueduct.Mode:
        assert aqueduct.Mode[mode.name] is mode
        assert aqueduct.Mode(mode.value) is mode


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {text.replace(" ", "-") for text in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for path, anchor in LINK.findall(page.read_text()):
        target = page.parent / path if path else page
        assert target.exists(), path
        if anchor:
            assert anchor in anchors(target), f"{path}#{anchor}"
