"""Run the Python blocks of a page of documentation, one after another, as ``python -m asyncio``.

    python -W error -m tests.guide docs/rpc.md

The blocks of a page share their names and one event loop; a block may use ``await``. A block that
does not is run outside of the loop, so it may call ``asyncio.run``. The comment behind each
``print(...)`` is what it prints: a block has to print exactly its comments, from top to bottom.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import re
import sys
import types
from pathlib import Path
from typing import Any

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PROMISE = re.compile(r"^ *print\(.*\)  # (.*)$", re.MULTILINE)


def blocks_of(page: Path) -> list[tuple[int, str]]:
    """Return the Python blocks of a page, each with the line that it begins in."""
    text = page.read_text(encoding="utf-8")
    return [(text.count("\n", 0, found.start(1)), found[1]) for found in BLOCK.finditer(text)]


def promised(block: str) -> list[str]:
    """Return the lines that a block says it prints."""
    return PROMISE.findall(block)


def run_page(page: Path) -> int:
    """Run all blocks of a page; return how many, or raise the error of the first that fails."""
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module  # types of messages are looked up in their module
    names: dict[str, Any] = vars(module)
    blocks = blocks_of(page)
    with asyncio.Runner() as runner:
        for line, block in blocks:
            # Keeps the numbers of the page's lines in tracebacks.
            source = "\n" * line + block
            code = compile(source, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            with contextlib.redirect_stdout(io.StringIO()) as output:
                if code.co_flags & inspect.CO_COROUTINE:
                    runner.run(eval(code, names))
                else:
                    exec(code, names)
            printed, expected = output.getvalue().splitlines(), promised(block)
            if printed != expected:
                where = f"{page}:{line + 1}"
                raise AssertionError(f"{where} prints {printed}, and promises {expected}")
    return len(blocks)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        count = run_page(Path(argument))
        print(f"{argument}: {count} blocks ran")
