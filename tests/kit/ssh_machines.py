"""Machines that are an sshd each, with a sudo, an /etc and a /usr/local/sbin of their own, in a mount namespace of this machine.

There is no systemd in them: `systemctl` is a program that knows one stopped unit of each node. For what a command does on many machines at once;
what systemd does is asked of `tests.kit.machines`. Needs root, and Debian's openssh-server and sudo.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.kit.sshd import SSHD
from tests.waiting import wait_until

USER = "admin"
_CONFIG = """\
Port {port}
ListenAddress {address}
HostKey {folder}/host
AuthorizedKeysFile /etc/ssh/keys
StrictModes no
UsePAM no
PidFile none
PasswordAuthentication no
KbdInteractiveAuthentication no
MaxStartups 100
Subsystem sftp internal-sftp
"""
_SYSTEMCTL = """\
#!/bin/sh
[ "$1" = show ] || exit 0
printf 'Id=kafka.service\\nLoadState=loaded\\nActiveState=inactive\\nSubState=dead\\nMainPID=0\\nTimeoutStopUSec=10min\\n'
printf 'UnitFileState=static\\nKillMode=control-group\\nSuccessExitStatus=143\\nNRestarts=0\\n'
"""
_ENTER = """\
mount -t tmpfs tmpfs /run; mkdir /run/sshd
cp -a /etc {folder}/etc; mount --bind {folder}/etc /etc
for folder in /usr/local/sbin /var/lib; do mount -t tmpfs tmpfs $folder; done
mkdir -p /var/lib/kafka/data /etc/kafka /etc/sudoers.d; cp {folder}/systemctl /usr/local/sbin; chmod 755 /usr/local/sbin/systemctl
for user in admin kafka kmigrate; do
    grep -q "^$user:" /etc/passwd || {{ echo "$user:x:$((number+=1)):$((number)):$user:/tmp:/bin/sh" >>/etc/passwd; echo "$user:*:19000:0:99999:7:::" >>/etc/shadow; }}
    grep -q "^$user:" /etc/group || echo "$user:x:$number:" >>/etc/group
done
echo 'admin ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/admin; chmod 440 /etc/sudoers.d/admin
printf 'broker.id={number}\\nlog.dirs=/var/lib/kafka/data\\nzookeeper.connect=zk:2181\\n' >/etc/kafka/server.properties
cp {folder}/key.pub /etc/ssh/keys; chmod 644 /etc/ssh/keys; chown kafka /var/lib/kafka/data /etc/kafka/server.properties
exec "$@"
"""


class SshMachines:
    """`addresses`: where they answer, all at `port`. Each has a host key of its own; `key` may log in as `USER`, who may use sudo."""

    def __init__(self, folder: Path, number: int) -> None:
        self.folder, self.addresses = folder, [f"127.0.3.{index + 1}" for index in range(number)]
        self.key = folder / "key"
        _make_key(self.key)
        with socket.socket() as probe:
            probe.bind((self.addresses[0], 0))
            self.port: int = probe.getsockname()[1]
        self._servers = list[subprocess.Popen[bytes]]()

    def start(self) -> None:
        """Returns once all answer."""
        for number, address in enumerate(self.addresses):
            folder = self.folder / address
            folder.mkdir()
            _make_key(folder / "host")
            (folder / "sshd_config").write_text(_CONFIG.format(port=self.port, address=address, folder=folder))
            (folder / "systemctl").write_text(_SYSTEMCTL)
            (folder / "key.pub").write_text(self.key.with_suffix(".pub").read_text())
            enter = "number=40000\n" + _ENTER.format(folder=folder, number=number)
            argv = ["unshare", "--mount", "--propagation", "private", "sh", "-euc", enter, "sh", SSHD, "-D", "-e", "-f"]
            with (folder / "log").open("ab") as log:
                server = subprocess.Popen([*argv, str(folder / "sshd_config")], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            self._servers.append(server)
        for address in self.addresses:
            wait_until(lambda address=address: self._answers(address), f"sshd answers: see {self.folder}/{address}/log", 60)  # type: ignore[misc]

    def fingerprint(self, address: str) -> str:
        """Of its host key, as its console shows it."""
        argv = ["ssh-keygen", "-lf", str(self.folder / address / "host.pub")]
        return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=10).stdout.split()[1]

    def change_host_key(self, address: str) -> None:
        """The machine is installed again: its sshd has another key from its next connection on."""
        host = self.folder / address / "host"
        host.unlink()
        _make_key(host)
        self._servers[self.addresses.index(address)].send_signal(1)

    def read(self, address: str, path: str) -> str:
        """A file of a machine."""
        return Path(f"/proc/{self._servers[self.addresses.index(address)].pid}/root{path}").read_text()

    def _answers(self, address: str) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((address, self.port), 1) as connection:
            return connection.recv(4) == b"SSH-"
        return False

    def stop(self) -> None:
        """All of them."""
        for server in self._servers:
            server.kill()
            server.wait(10)
        self._servers.clear()


def _make_key(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True, timeout=20)


@contextlib.contextmanager
def running(folder: Path, number: int) -> Iterator[SshMachines]:
    """Machines until the block ends."""
    machines = SshMachines(folder, number)
    try:
        machines.start()
        yield machines
    finally:
        machines.stop()


def missing() -> str:
    """Why there are none here; empty if there can be."""
    if os.geteuid() != 0:
        return "mount namespaces need root"
    lacking = [path for path in (SSHD, "/usr/bin/sudo", "/usr/bin/ssh-keyscan", "/usr/bin/python3") if not Path(path).exists()]
    return f"not installed: {', '.join(lacking)}" if lacking else ""
