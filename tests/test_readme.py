"""The README's example does what the README says."""

import re
from pathlib import Path

import pytest

README = Path(__file__).resolve().parent.parent / "README.md"


def test_the_example_prints_the_squares(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(example, str(README), "exec"), {})
    assert capsys.readouterr().out == "[b'0', b'1', b'4', b'9', b'16']\n"
