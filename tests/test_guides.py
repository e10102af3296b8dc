"""All Python blocks of the guides run, and print what the comments beside them say."""

from __future__ import annotations

import asyncio
import builtins
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import aqueduct
import aqueduct.codec
from aqueduct.runtime.call_headers import INTERNAL, INVALID_REQUEST
from aqueduct.testing import pair, relay, tcp_relay
from tests.guide import blocks_of, run_page

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    "channels",
    "rpc",
    "authentication",
    "deadlines",
    "reconnecting",
    "testing",
    "applications",
    "tcp",
)


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_a_guide_runs_and_prints_its_comments(page: str, tmp_path: Path) -> None:
    path = f"docs/{page}.md"
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.guide", path],
        cwd=ROOT,
        env={**os.environ, "AQUEDUCT_DEV_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    count = (ROOT / path).read_text(encoding="utf-8").count("```python")
    assert ran.stdout == f"{path}: {count} blocks ran\n"
    assert count > 0


@pytest.mark.parametrize("page", PAGES)
def test_the_classes_that_a_guide_names_exist(page: str) -> None:
    text = (ROOT / f"docs/{page}.md").read_text(encoding="utf-8")
    named = set(
        re.findall(r"`([A-Z][a-z]+[A-Za-z]*)[`(.]", re.sub(r"```.*?```", "", text, flags=re.S))
    )
    places = (aqueduct, aqueduct.codec, asyncio, builtins, relay, tcp_relay, pair)
    assert named
    assert {name for name in named if not any(hasattr(place, name) for place in places)} == {
        name for name in named if f"class {name}(" in text
    }


@pytest.mark.parametrize("page", PAGES)
def test_the_codes_in_the_tables_of_a_guide_exist(page: str) -> None:
    text = (ROOT / f"docs/{page}.md").read_text(encoding="utf-8")
    codes = set(re.findall(r"`([A-Z]+(?:_[A-Z]+)*)`", text))
    known = {*aqueduct.CloseCode.__members__, *aqueduct.Mode.__members__}
    assert codes <= known | set(aqueduct.Outcome.__members__) | {"AQUEDUCT_DEV_DIR"}
    assert set(re.findall(r"code `([a-z-]+)`", text)) <= {INTERNAL, INVALID_REQUEST}


def test_the_definitions_on_the_page_of_applications_are_those_of_the_programs() -> None:
    _, *sections = (ROOT / "docs/applications.md").read_text(encoding="utf-8").split("\n## ")
    assert len(sections) == 7
    for section in sections:
        # The last program but for tests that a section links is its own.
        names = re.findall(r"\(\.\./examples/((?!test_)\w+\.py)\)", section)
        program = (ROOT / "examples" / names[-1]).read_text(encoding="utf-8")
        (block,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
        for definition in block.strip().split("\n\n\n"):
            assert f"\n{definition}\n" in program, f"{names[-1]}: {definition}"


@pytest.mark.parametrize("page", PAGES)
def test_the_readme_links_every_guide(page: str) -> None:
    assert f"](docs/{page}.md)" in (ROOT / "README.md").read_text(encoding="utf-8")


def page_with(folder: Path, block: str) -> Path:
    path = folder / "page.md"
    path.write_text(f"A page.\n\n```python\n{block}\n```\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "block",
    [
        "print(1)  # 2",
        "print(1)",
        "None  # nothing\nif False:\n    print(1)  # 1",
        "print(2)  # 2 3",
    ],
)
def test_a_block_that_prints_something_else_fails(
    block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    with pytest.raises(AssertionError, match=re.escape("page.md:4 prints")):
        run_page(page_with(tmp_path, block))


def test_a_block_that_raises_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    with pytest.raises(ZeroDivisionError):
        run_page(page_with(tmp_path, "import asyncio\nawait asyncio.sleep(0)\n1 / 0"))


def test_blocks_share_names_and_know_their_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    page = page_with(tmp_path, "x = 1\n```\n\n```python\nprint(x + 1)  # 2")
    assert [line for line, _ in blocks_of(page)] == [3, 7]
    assert run_page(page) == 2
