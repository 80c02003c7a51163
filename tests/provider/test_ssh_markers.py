"""Lines of known_hosts with a marker, over a real sshd and the real `SSHHook`: paramiko knows none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_kmigrate.clients.connections import ssh_settings
from airflow_provider_kmigrate.exceptions import Refused
from airflow_provider_kmigrate.hooks.ssh import SshPipe
from tests.kit.sshd import HOST, Sshd, missing, running

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with running(tmp_path_factory.mktemp("sshd")) as found:
        yield found


@pytest.mark.parametrize(
    "line",
    [
        "@revoked {name} {key}",
        " \t@revoked * {key}",
        "@cert-authority * {key}",
        "{name} ssh-ed25519 AAA",
        "@revoked \x1b[2J,* {key}",
    ],
)
def test_a_line_that_paramiko_cannot_read_is_named_and_a_revoked_key_is_not_trusted(
    server: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    """ssh itself would refuse a revoked key though another line has it."""
    name = f"[{HOST}]:{server.port}"
    file = tmp_path / ".ssh" / "known_hosts"
    file.parent.mkdir(mode=0o700)
    file.write_text(f"{name} {server.host_key}\n{line.format(name=name, key=server.host_key)}\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    settings = ssh_settings("prod_ssh", server.fields(host_key=None))
    with pytest.raises(Refused, match=r"M06.*paramiko cannot read a line of ~/\.ssh/known_hosts") as raised:
        SshPipe(settings, HOST, ("cat",))
    assert str(raised.value).isprintable()
    file.write_text(f"{name} {server.host_key}\n")
    SshPipe(settings, HOST, ("cat",)).close()
