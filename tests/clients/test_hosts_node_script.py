"""The README's own commands on a node's files: what a service could read before, it can read afterwards, and a second rollback works."""

import getpass
import os
import re
import shutil
import stat
from pathlib import Path

import pytest

import airflow_provider_kmigrate
from airflow_provider_kmigrate.clients.hosts import Host, host_for
from airflow_provider_kmigrate.clients.hosts.files import backup_name
from airflow_provider_kmigrate.core.cluster import HostSpec, NodeRole, NodeSpec
from airflow_provider_kmigrate.core.model import ProcessState
from airflow_provider_kmigrate.exceptions import Failed
from airflow_provider_kmigrate.spec import load

README = Path(__file__).parents[2] / "README.md"
SCRIPT = Path(airflow_provider_kmigrate.__file__).parent / "clients" / "hosts" / "kmigrate-node"
ID = "-1Sh-9_ISia_zwGINzRvyQ"
STORAGE = """#!/bin/sh
folder=$(sed -n 's/^log.dirs=//p' "$6")
printf 'version=1\\nnode.id=3000\\ncluster.id=%s\\n' "${2#--cluster-id=}" >"$folder/meta.properties"
mkdir "$folder/__cluster_metadata-0"
"""
SYSTEMCTL = """#!/bin/sh
[ "$*" = "is-active kafka" ] || exit 1
cat "$STATE"; grep -q ^active "$STATE" || exit 3
"""


def readme(tmp_path: Path) -> HostSpec:
    """The hosts section of the README's cluster file, as it is loaded; its commands run here instead of through ssh."""
    (block,) = re.findall(r"^   ```yaml\n(.*?)^   ```", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (tmp_path / "prod.yaml").write_text(block)
    hosts = load(tmp_path / "prod.yaml").controllers[0].hosts
    here = {name: _here(getattr(hosts, name)) for name in ("status", "read", "write", "format", "wipe")}
    return HostSpec("command", properties=f"{tmp_path}/etc/server.properties", **here)


def _here(command: tuple[str, ...]) -> tuple[str, ...]:
    assert command[:2] == ("ssh", "{host}")
    words = command[3:] if command[2] == "sudo" else command[2:]
    return (words[0].removeprefix("/usr/local/sbin/"), *words[1:])


@pytest.fixture
def node(tmp_path: Path) -> NodeSpec:
    (tmp_path / "etc").mkdir()
    return NodeSpec(3000, NodeRole.CONTROLLER, "h", 9093, readme(tmp_path), log_dir=f"{tmp_path}/var/kraft")


@pytest.fixture
def host(tmp_path: Path, node: NodeSpec, monkeypatch: pytest.MonkeyPatch) -> Host:
    """The README's commands with the package's script, a storage tool and a systemctl on the PATH."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    tools = tmp_path / "bin"
    tools.mkdir()
    shutil.copy(SCRIPT, tools / "kmigrate-node")
    for name, text in (("storage", STORAGE), ("systemctl", SYSTEMCTL)):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    (tmp_path / "is").write_text("inactive\n")
    own = {"KMIGRATE_USER": getpass.getuser(), "KMIGRATE_STORAGE": str(tools / "storage"), "STATE": str(tmp_path / "is")}
    return host_for(node, own | {"PATH": f"{tools}:{os.environ['PATH']}", "LANG": "de_DE.UTF-8"})


def kind(path: Path) -> tuple[int, int, int]:
    seen = path.stat()
    return seen.st_uid, seen.st_gid, stat.S_IMODE(seen.st_mode)


def file_of(node: NodeSpec) -> Path:
    return Path(node.hosts.properties)


def existing(node: NodeSpec, text: str = "process.roles=controller\nnode.id=3000\n") -> Path:
    """A file of the service's user, group-readable; of another user where the test may."""
    path = file_of(node)
    path.write_text(text)
    path.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(path, 1001, 1002)
    return path


def test_a_replaced_file_keeps_owner_and_mode_and_so_does_the_copy_of_the_old_one(host: Host, node: NodeSpec) -> None:
    path = existing(node)
    before, old = kind(path), path.read_text()
    host.put_properties(node, "a=\xe4\n", 1)
    assert path.read_bytes() == b"a=\xe4\n"
    kept = Path(backup_name(str(path), old))
    assert kept.read_text() == old
    assert kind(path) == kind(kept) == before
    assert sorted(found.name for found in path.parent.iterdir()) == sorted([path.name, kept.name])


def test_a_link_stays_a_link_and_its_target_gets_the_text(host: Host, node: NodeSpec, tmp_path: Path) -> None:
    path = existing(node)
    real = tmp_path / "real.properties"
    path.rename(real)
    path.symlink_to(real)
    before, old = kind(real), real.read_text()
    host.put_properties(node, "a=1\n", 1)
    assert path.is_symlink()
    assert real.read_text() == "a=1\n"
    assert kind(real) == kind(Path(backup_name(str(path), old))) == before


def test_a_new_file_is_the_services_own(host: Host, node: NodeSpec) -> None:
    host.put_properties(node, "a=1\n", 1)
    assert kind(file_of(node)) == (os.geteuid(), os.getegid(), 0o640)


def test_nothing_is_no_file(host: Host, node: NodeSpec) -> None:
    path = existing(node)
    before = path.read_text()
    with pytest.raises(Failed, match="standard input is empty"):
        host.put_properties(node, "", 1)
    assert path.read_text() == before


def test_absent_and_unreadable_differ(host: Host, node: NodeSpec) -> None:
    assert host.files(node).properties is None
    file_of(node).mkdir()
    with pytest.raises(Failed, match="Is a directory"):
        host.files(node)


def test_a_controller_is_formatted_and_set_aside_twice(host: Host, node: NodeSpec, tmp_path: Path) -> None:
    host.put_properties(
        node, f"process.roles=controller\nnode.id=3000\nlog.dirs={node.log_dir}\nmetadata.log.dir={node.log_dir}\n", 1
    )
    data = Path(node.log_dir or "")
    for number in (1, 2, 3):
        host.format_storage(node, ID, "3.9-IV0", 1)
        assert f"cluster.id={ID}" in (data / "meta.properties").read_text()
        assert stat.S_IMODE(data.stat().st_mode) == 0o750
        host.wipe_storage(node, ID, 1)
        host.wipe_storage(node, ID, 1)
        assert not data.exists()
        assert (tmp_path / "var" / f"kraft.rolled-back-{number}" / "meta.properties").exists()
    assert len(list(data.parent.iterdir())) == 3


def test_the_script_itself_moves_no_broker_away(host: Host, node: NodeSpec) -> None:
    data = Path(node.log_dir or "")
    data.mkdir(parents=True)
    (data / "meta.properties").write_text(f"version=0\nbroker.id=3000\ncluster.id={ID}\n")
    with pytest.raises(Failed, match="directory of a broker"):
        host.wipe_storage(node, ID, 1)
    assert (data / "meta.properties").exists()


@pytest.mark.parametrize("path", ["/etc/passwd", "etc/server.properties", "/etc/sudoers.d/x.bak"])
def test_the_script_reads_and_writes_what_is_kmigrates_only(host: Host, node: NodeSpec, path: str) -> None:
    with pytest.raises(Failed, match="no file that kmigrate writes"):
        host._write(node, path, "x")  # type: ignore[attr-defined]
    with pytest.raises(Failed, match="no file that kmigrate reads"):
        host._read(node, path)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("active", ProcessState.RUNNING),
        ("activating", ProcessState.RUNNING),
        ("deactivating", ProcessState.RUNNING),
        ("inactive", ProcessState.STOPPED),
        ("failed", ProcessState.STOPPED),
    ],
)
def test_a_unit_on_its_way_is_not_stopped(host: Host, node: NodeSpec, tmp_path: Path, word: str, state: ProcessState) -> None:
    (tmp_path / "is").write_text(f"{word}\n")
    assert host.status(node).state is state


def test_the_script_is_executable_and_shipped() -> None:
    assert os.access(SCRIPT, os.X_OK)
    assert "clients/hosts/kmigrate-node" in (README.parent / "setup.cfg").read_text(encoding="utf-8")
