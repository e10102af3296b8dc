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


def test_a_client_certificate_opens_a_server_that_asks_for_one(
    run: Run, start: Start, tmp_path: Path
) -> None:
    made = run("cert", "client", "ann", "--out", str(tmp_path), "--json")
    assert made.returncode == 0, made.stderr
    found = json.loads(made.stdout)
    assert (found["subject"], found["names"]) == ("CN=ann", [])
    server = start("echo", "-l", "127.0.0.1:0", "--client-ca", str(tmp_path / "authority.pem"))
    assert server.stdout is not None
    address = server.stdout.readline().strip()
    assert address.startswith("aqueduct+tcp://")
    own = ("--cert", str(tmp_path / "ann.pem"), "--key", str(tmp_path / "ann.key"))
    assert run("ping", address, "-c", "1", *own).returncode == 0
    refused = run("ping", address, "-c", "1")
    assert refused.returncode == 1
    assert "asks for a certificate of the client; present one: --cert FILE" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def test_listen_and_send_take_client_certificates(run: Run, start: Start, tmp_path: Path) -> None:
    assert run("cert", "client", "bob", "--out", str(tmp_path)).returncode == 0
    authority = str(tmp_path / "authority.pem")
    listening = start("listen", "127.0.0.1:0", "-n", "1", "--json", "--client-ca", authority)
    assert listening.stdout is not None
    address = json.loads(listening.stdout.readline())["listening"]
    own = ("--cert", str(tmp_path / "bob.pem"), "--key", str(tmp_path / "bob.key"))
    sent = run("send", address, "hello", *own)
    assert sent.returncode == 0, sent.stderr
    assert json.loads(listening.stdout.readline())["text"] == "hello"


def test_a_client_name_that_is_no_file_name_is_refused(run: Run, tmp_path: Path) -> None:
    for name in ("../ann", "authority", "server", "a" * 65):
        ran = run("cert", "client", name, "--out", str(tmp_path), "--force")
        assert ran.returncode == 2, name
    assert not list(tmp_path.iterdir())
