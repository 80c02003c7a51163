"""Twelve machines of two clusters over real ssh and sudo: known hosts, install, check, and the role in a real Ansible."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_kmigrate.node.command import main
from tests.kit import ssh_machines
from tests.kit.environments import find_ansible
from tests.kit.fleet_clusters import NUMBER, Clusters
from tests.kit.ssh_machines import USER
from tests.waiting import wait_until

LIMIT_S = 60
pytestmark = [pytest.mark.slow(seconds=90), pytest.mark.skipif(bool(ssh_machines.missing()), reason=ssh_machines.missing())]
FILES = ("/usr/local/sbin/kmigrate-node", "/etc/kmigrate/node.json", "/etc/sudoers.d/kmigrate")


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    folder = tmp_path_factory.mktemp("fleet")
    with ssh_machines.running(folder, NUMBER) as machines:
        yield Clusters(folder, machines)


@pytest.fixture
def known(clusters: Clusters) -> Clusters:
    """With the host keys of all machines."""
    if not clusters.known_hosts.exists():
        assert clusters("known-hosts", "--fingerprints", str(clusters.prints)) == 0
    return clusters


def test_no_key_is_trusted_because_a_machine_sent_it(clusters: Clusters, capsys: pytest.CaptureFixture[str]) -> None:
    assert clusters("known-hosts") == 1, "no terminal is there to answer"
    said = capsys.readouterr()
    assert all(
        f"new   {host}: ssh-ed25519 {clusters.machines.fingerprint(host)}" in said.out for host in clusters.machines.addresses
    )
    assert "Compare each new fingerprint" in said.out
    assert not clusters.known_hosts.exists()
    assert clusters("check") == 1, "ssh verifies host keys"
    assert "Host key verification failed" in capsys.readouterr().out


def test_a_fingerprint_that_differs_keeps_its_machine_out(
    clusters: Clusters, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, *_ = clusters.machines.addresses
    wrong = tmp_path / "prints"
    wrong.write_text(
        clusters.prints.read_text().replace(clusters.machines.fingerprint(first), clusters.machines.fingerprint(second))
    )
    arguments = ["--known-hosts", str(tmp_path / "known"), "--host", first, "--host", second]
    assert (
        main(["known-hosts", *clusters.files, "--inventory", str(clusters.inventory), "--fingerprints", str(wrong), *arguments])
        == 1
    )
    written = (tmp_path / "known").read_text()
    assert (f"[{first}]" in written, f"[{second}]" in written) == (False, True)
    assert (tmp_path / "known").stat().st_mode & 0o777 == 0o600
    assert f"FAIL  {first}: none of its keys has a fingerprint that was given for it" in capsys.readouterr().out


def test_twelve_machines_are_installed_and_checked_within_a_minute(known: Clusters, capsys: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic()
    assert known("install", "--yes", "--brief", "--storage-tool", "/bin/true") == 0
    installed = capsys.readouterr().out.splitlines()
    assert known("check") == 0
    took = time.monotonic() - began
    checked = capsys.readouterr().out.splitlines()
    hosts = known.machines.addresses
    answers = [f"ok    {host}: writes {', '.join(FILES)}, kmigrate-node answers" for host in hosts]
    assert installed[-NUMBER:] == answers, "one line a machine"
    assert [line.partition(" on ")[2].partition(":")[0] for line in checked] == hosts
    assert all(line.startswith("ok    ") for line in checked)
    assert known.machines.read(hosts[0], FILES[2]) == "kmigrate ALL=(root) NOPASSWD: /usr/local/sbin/kmigrate-node serve\n"
    assert took <= LIMIT_S, f"{took:.1f} s"
    assert known("install", "--yes", "--brief", "--storage-tool", "/bin/true") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "Nothing to do."


@pytest.mark.long
def test_the_role_changes_what_install_would_and_nothing_the_second_time(known: Clusters, tmp_path: Path) -> None:
    other_login = ["--storage-tool", "/bin/true", "--login", USER]
    assert known("ansible", "--to", str(tmp_path), *other_login) == 0
    shutil.copy(known.inventory, tmp_path / "hosts.yml")
    environment = os.environ | {"ANSIBLE_HOME": str(tmp_path / "home"), "ANSIBLE_NOCOLOR": "1", "ANSIBLE_FORKS": str(NUMBER),
                                "ANSIBLE_SSH_COMMON_ARGS": f"-o UserKnownHostsFile={known.known_hosts}"}  # fmt: skip

    def play(*words: str) -> str:
        argv = [find_ansible(), "-i", "hosts.yml", *words, "kmigrate.yml"]
        done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=180, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    host = known.machines.addresses[0]
    before = known.machines.read(host, FILES[2])
    assert play("--check").count("changed=1 ") == NUMBER
    assert known.machines.read(host, FILES[2]) == before
    assert play().count("changed=1 ") == NUMBER
    assert known.machines.read(host, FILES[2]) == f"{USER} ALL=(root) NOPASSWD: /usr/local/sbin/kmigrate-node serve\n"
    assert play().count("changed=0 ") == NUMBER


def test_a_machine_with_another_host_key_is_named_and_nothing_is_written_anywhere(
    known: Clusters, capsys: pytest.CaptureFixture[str]
) -> None:
    host, before = known.machines.addresses[-1], known.known_hosts.read_text()
    known.machines.change_host_key(host)
    known.prints.write_text(known.prints.read_text() + f"{host} {known.machines.fingerprint(host)}\n")
    wait_until(lambda: known("known-hosts", "--fingerprints", str(known.prints)) != 0, "the other host key is refused", 20.0)
    assert f"FAIL  {host}: its key CHANGED: ssh-ed25519" in capsys.readouterr().out
    assert known.known_hosts.read_text() == before
    assert known("install", "--yes", "--login", "kafka", "--storage-tool", "/bin/true") == 1
    assert f"FAIL  {host}: " in capsys.readouterr().out
    assert "kafka ALL" not in known.machines.read(known.machines.addresses[0], FILES[2])
