"""Lists the public API: exported names, and the public attributes of exported classes.

`tests/public_api.txt` is the reviewed list, and `tests/test_exports.py` compares it with the code.
After a change that is meant, write the list again and review its diff like code: does a user need
each new line, and was each removed line never released or announced as removed?

    python -m tests.public_api
"""

from __future__ import annotations

import ast
import inspect
import sys
from functools import cache
from pathlib import Path
from typing import Any

import aqueduct
from aqueduct import blocking, codec, ingest, ipc, observe, spark

MODULES = (aqueduct, blocking, codec, ingest, ingest.blocking, ipc, ipc.blocking, observe, spark)
REVIEWED = Path(__file__).with_suffix(".txt")


def listing() -> list[str]:
    """Return the public names, one per line, sorted; a class with each of its attributes."""
    lines: set[str] = set()
    for module in MODULES:
        for name in module.__all__:
            value = getattr(module, name)
            lines.add(f"{module.__name__}.{name}")
            if isinstance(value, type):
                lines |= {f"{module.__name__}.{name}.{one}" for one in attributes(value)}
    return sorted(lines)


def attributes(kind: type[Any]) -> set[str]:
    """Return the public attributes of a class and its instances, without those of builtins."""
    found: set[str] = set()
    for base in kind.__mro__:
        if base.__module__.startswith("aqueduct"):
            found |= {*vars(base), *inspect.get_annotations(base), *assigned(base)}
            found |= set(getattr(base, "__match_args__", ()))
    return {name for name in found if not name.startswith("_")}


def assigned(kind: type[Any]) -> set[str]:
    """Return the attributes that the methods of a class assign to ``self``, from its source."""
    targets: set[str] = set()
    for node in ast.walk(definitions(kind.__module__).get(kind.__qualname__, ast.Pass())):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
            and node.value.id == "self"
        ):
            targets.add(node.attr)
    return targets


@cache
def definitions(module: str) -> dict[str, ast.AST]:
    """Return the classes of a module by name; its source lies beside it if it is compiled."""
    file = sys.modules[module].__file__
    assert file is not None
    path = Path(file)
    source = path.with_name(path.name.split(".")[0] + ".py").read_text()
    return {node.name: node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}


if __name__ == "__main__":
    REVIEWED.write_text("\n".join(listing()) + "\n")
