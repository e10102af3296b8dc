"""`aqueduct cert`."""

import json
from pathlib import Path

from aqueduct.security import fingerprint
from tests.cli.conftest import Run, Start


def test_a_created_certificate_is_trusted_by_its_authority_or_a_pin(
    run: Run, start: Start, tmp_path: Path
) -> None:
    made = run(
        "cert", "make", "localhost", "127.0.0.1", "--out", str(tmp_path), "--json", fresh=True
    )
    assert made.returncode == 0, made.stderr
    found = json.loads(made.stdout)
    assert found["names"] == ["localhost", "127.0.0.1"]
    certificate, key = tmp_path / "server.pem", tmp_path / "server.key"
    server = start("echo", "--listen", "127.0.0.1:0", "--cert", str(certificate), "--key", str(key))
    assert server.stdout is not None
    address = server.stdout.readline().strip()
    authority = str(tmp_path / "authority.pem")
    assert run("ping", address, "-c", "1", "--ca", authority).returncode == 0
    assert run("ping", address, "-c", "1", "--pin", found["fingerprint"]).returncode == 0
    untrusted = run("ping", address, "-c", "1")
    assert untrusted.returncode == 1
    assert "Traceback" not in untrusted.stderr


def test_keys_are_private_and_files_are_not_overwritten(run: Run, tmp_path: Path) -> None:
    assert run("cert", "make", "localhost", "--out", str(tmp_path)).returncode == 0
    for name in ("server.key", "authority.key"):
        assert (tmp_path / name).stat().st_mode & 0o077 == 0
    before = (tmp_path / "authority.pem").read_bytes()
    again = run("cert", "make", "localhost", "--out", str(tmp_path))
    assert again.returncode == 1
    assert "--force" in again.stderr
    forced = run("cert", "make", "localhost", "--out", str(tmp_path), "--force", "--days", "5")
    assert forced.returncode == 0
    assert (tmp_path / "authority.pem").read_bytes() == before


def test_cert_show_prints_the_development_certificate(run: Run, dev_directory: Path) -> None:
    found = json.loads(run("cert", "show", "--json", fresh=True).stdout)
    assert "localhost" in found["names"]
    assert found["fingerprint"] == fingerprint((dev_directory / "server.pem").read_bytes())
    assert found["days_left"] > 14


def test_a_file_without_a_certificate_is_an_error_in_one_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "not.pem").write_text("hello")
    for name in ("not.pem", "missing.pem"):
        ran = run("cert", "show", str(tmp_path / name))
        assert ran.returncode == 1
        assert len(ran.stderr.splitlines()) == 1
