"""The locks, the list of dependencies and the build requirements are consistent."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LOCKS = sorted((ROOT / "requirements").glob("*.lock"))
PIN = re.compile(r"([a-z0-9][a-z0-9-]*)==[0-9][0-9a-z.]*( ; [^\\]+)? \\")
HASH = re.compile(r" {4}--hash=sha256:[0-9a-f]{64}( \\)?")


def direct_dependencies() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = list(project["dependencies"])
    for inputs in (ROOT / "requirements").glob("*.in"):
        lines += [line for line in inputs.read_text().splitlines() if line[0] not in "#-"]
    return {re.split(r"[^A-Za-z0-9-]", line)[0] for line in lines}


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_a_lock_has_only_versions_and_hashes(lock: Path) -> None:
    for line in lock.read_text().splitlines():
        assert PIN.fullmatch(line) or HASH.fullmatch(line) or line.lstrip().startswith("#"), line
        assert "://" not in line


def test_every_direct_dependency_is_locked() -> None:
    pins = (PIN.match(line) for lock in LOCKS for line in lock.read_text().splitlines())
    assert direct_dependencies() <= {pin[1] for pin in pins if pin}


def test_the_documentation_gives_a_reason_for_every_direct_dependency() -> None:
    reasons = (ROOT / "docs" / "dependencies.md").read_text()
    assert [name for name in direct_dependencies() if f"| `{name}` |" not in reasons] == []


def test_the_sources_contain_no_compiled_modules() -> None:
    compiled = [path for path in (ROOT / "src").rglob("*") if path.suffix in {".so", ".pyd"}]
    assert compiled == []


def pins_of(lock: str) -> dict[str, str]:
    """Return the pinned requirements of a lock by name."""
    lines = (ROOT / "requirements" / lock).read_text().splitlines()
    pinned = [line.removesuffix("\\").strip() for line in lines if PIN.fullmatch(line)]
    return {re.split("==", line)[0]: line for line in pinned}


def test_a_build_uses_exactly_the_versions_of_its_lock() -> None:
    system = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]
    assert sorted(system["requires"]) == sorted(pins_of("build.lock").values())


def test_the_development_environment_builds_with_the_same_versions() -> None:
    """``make setup`` and ``make compile`` build without isolation."""
    build, dev = pins_of("build.lock"), pins_of("dev.lock")
    assert {name: dev.get(name) for name in build} == build
