"""The generated role in a real Ansible, against a machine with a systemd, an sshd and a sudo of its own that has nothing of kmigrate yet."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from airflow_provider_kmigrate.node.command import main
from tests.kit.environments import find_ansible
from tests.kit.machines import PORT, USER, Machine, Template, booted, missing, stand_in_files
from tests.machines.agent_install import CLUSTER_FILE

pytestmark = [
    pytest.mark.machines,
    pytest.mark.long,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(missing()), reason=missing() or "-"),
]
FILES = ("/usr/local/sbin/kmigrate-node", "/etc/kmigrate/node.json", "/etc/sudoers.d/kmigrate")
DROP_IN = "/etc/systemd/system/kafka.service.d/kmigrate.conf"


@pytest.fixture(scope="module")
def ansible() -> Path:
    """A real `ansible-playbook`."""
    return Path(find_ansible())


class Playbook:
    """The folder that `kmigrate node ansible` writes, for one machine."""

    def __init__(self, program: Path, folder: Path, machine: Machine, key: Path) -> None:
        self._program, self.folder, self.file = program, folder / "role", folder / "prod.yaml"
        self.file.write_text(CLUSTER_FILE.format(cluster="-1Sh-9_ISia_zwGINzRvyQ", node=1, host=machine.address))
        self.known_hosts = folder / "known_hosts"
        self.known_hosts.write_text(machine.known_host)
        assert main(["ansible", str(self.file), "--drop-in", "write", "--to", str(self.folder)]) == 0
        inventory = yaml.safe_load((self.folder / "hosts.yml").read_text())
        ssh = f"-F /dev/null -o UserKnownHostsFile={self.known_hosts} -o GlobalKnownHostsFile=/dev/null"
        inventory["all"]["vars"] |= {
            "ansible_user": USER,
            "ansible_port": PORT,
            "ansible_ssh_private_key_file": str(key),
            "ansible_ssh_common_args": ssh,
        }
        (self.folder / "hosts.yml").write_text(yaml.safe_dump(inventory))

    def __call__(self, *words: str) -> tuple[int, str]:
        """How many tasks changed something, and what Ansible said."""
        done = subprocess.run(
            [str(self._program), "-i", "hosts.yml", *words, "kmigrate.yml"],
            cwd=self.folder,
            env={**os.environ, "HOME": str(self.folder), "ANSIBLE_NOCOLOR": "1", "LC_ALL": "C.UTF-8"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        said = done.stdout + done.stderr
        assert done.returncode == 0, said
        [changed] = re.findall(r"ok=\d+ +changed=(\d+) +unreachable=0 +failed=0", said)
        return int(changed), said


def test_the_role_installs_in_check_mode_nothing_then_all_then_nothing(ansible: Path, tmp_path: Path) -> None:
    files = {path: text for path, text in stand_in_files().items() if path != "etc/kmigrate/node.json"}
    (tmp_path / "template").mkdir()
    template = Template(tmp_path / "template", files, has_agent=False)
    with booted(tmp_path / "machine", template) as machine:
        playbook = Playbook(ansible, tmp_path, machine, template.key)
        changed, said = playbook("--check")
        assert (changed, "would write /usr/local/sbin/kmigrate-node" in said) == (1, True), said
        assert not any(machine.path(path).exists() for path in (*FILES, DROP_IN))
        assert playbook()[0] == 1
        assert all(machine.path(path).exists() for path in (*FILES, DROP_IN))
        assert playbook()[0] == 0
        access = ("--inventory", str(playbook.folder / "hosts.yml"), "--known-hosts", str(playbook.known_hosts))
        machine.run("systemctl", "start", "kafka")
        assert main(["check", str(playbook.file), *access]) == 0
        machine.path("/etc/sudoers.d/kmigrate").unlink()
        changed, said = playbook()
        assert (changed, "writes /etc/sudoers.d/kmigrate" in said) == (1, True), said
