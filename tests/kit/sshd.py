"""An sshd of its own on a free port of 127.0.0.1, for this user, with keys made for it; it ends with the block.

As root it runs in a mount namespace with an empty /run, where it finds the folder that it wants.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from tests.waiting import wait_until

HOST = "127.0.0.1"
SSHD = "/usr/sbin/sshd"
_CONFIG = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
AuthorizedKeysFile {folder}/authorized_keys
StrictModes no
UsePAM no
PidFile none
PasswordAuthentication no
KbdInteractiveAuthentication no
MaxStartups 100
"""


def missing() -> str:
    """Why no sshd can run here; empty if one can."""
    if shutil.which(SSHD) is None or shutil.which("ssh-keygen") is None:
        return "there is no sshd: apt-get install openssh-server"
    return ""


class Sshd:
    """The server. `key_file` may log in, `other_key_file` may not."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.login = folder, pwd.getpwuid(os.geteuid()).pw_name
        for name in ("host", "key", "other"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        self.key_file, self.other_key_file = str(folder / "key"), str(folder / "other")
        (folder / "authorized_keys").write_text((folder / "key.pub").read_text())
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            self.port: int = probe.getsockname()[1]
        (folder / "sshd_config").write_text(_CONFIG.format(port=self.port, folder=folder))
        self._server: subprocess.Popen[bytes] | None = None

    @property
    def host_key(self) -> str:
        """Its public key, as an `ssh` connection's extra `host_key` has it."""
        return (self.folder / "host.pub").read_text()

    def fields(self, **extra: Any) -> dict[str, Any]:
        """The Airflow connection to it."""
        known = {"key_file": self.key_file, "host_key": self.host_key, "look_for_keys": False}
        given = {name: value for name, value in (known | extra).items() if value is not None}
        return {"conn_type": "ssh", "login": self.login, "port": self.port, "extra": given}

    def start(self) -> None:
        """Returns once it answers."""
        argv = [SSHD, "-D", "-e", "-f", str(self.folder / "sshd_config")]
        if os.geteuid() == 0:
            enter = 'mount -t tmpfs tmpfs /run; mkdir /run/sshd; exec "$@"'
            argv = ["unshare", "--mount", "--propagation", "private", "sh", "-euc", enter, "sh", *argv]
        with (self.folder / "log").open("ab") as log:
            self._server = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=log)
        wait_until(self.answers, f"sshd answers: see {self.folder}/log", 10)

    def answers(self) -> bool:
        """Whether the sshd answers within a second."""
        with contextlib.suppress(OSError), socket.create_connection((HOST, self.port), 1) as connection:
            return connection.recv(4) == b"SSH-"
        return False

    def cut(self) -> None:
        """End every session, and what runs in it."""
        assert self._server is not None
        for child in psutil.Process(self._server.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()

    def stop(self) -> None:
        """It and every session."""
        if self._server is not None:
            self.cut()
            self._server.kill()
            self._server.wait(10)
            self._server = None


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Sshd]:
    """A server, until the block ends."""
    server = Sshd(folder)
    try:
        server.start()
        yield server
    finally:
        server.stop()
