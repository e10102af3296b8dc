"""Development certificates of the tests' own."""

import pytest


@pytest.fixture(autouse=True)
def own_certificates(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AQUEDUCT_DEV_DIR", str(tmp_path_factory.getbasetemp() / "certificates"))
