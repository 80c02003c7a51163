"""What `node install` finds behind paths before it writes anything: plain paths, links that are pinned, and what it refuses."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kmigrate.clients.hosts.files import log_dirs
from airflow_provider_kmigrate.core.cluster_state.spec import HostSpec, NodeRole, NodeSpec
from airflow_provider_kmigrate.core.node_files.properties import parse_properties
from airflow_provider_kmigrate.core.preflight.agent import find_node_problems
from airflow_provider_kmigrate.node.script import AGENT
from airflow_provider_kmigrate.spec import loads
from tests.node.machine import CLUSTER, META, NEW, Node, file
from tests.node.script_text import FILE, text

USER = pwd.getpwuid(os.geteuid()).pw_name
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives folders to other users: needs root")


class Machine:
    """A folder in the place of `/`, Kafka's file and directory in it, and the draft that the script would have."""

    def __init__(self, root: Path, user: str = USER) -> None:
        self.root, self.user = root, user
        self.properties, self.data = root / "opt" / "kafka" / "server.properties", root / "data"
        self.properties.parent.mkdir(parents=True)
        self.data.mkdir()
        self.give(self.data)
        self.write(f"log.dirs={self.data}\n")

    def give(self, path: Path) -> None:
        os.chown(path, pwd.getpwnam(self.user).pw_uid, -1, follow_symlinks=False)

    def write(self, properties: str) -> None:
        self.properties.write_bytes(properties.encode("iso-8859-1"))

    def pin(self, role: str = "broker", **fields: Any) -> subprocess.CompletedProcess[str]:
        entry = {
            "process": {"start": ["/bin/sleep", "600"]},
            "properties": str(self.properties),
            "log_dirs": None,
            "user": self.user,
        }
        entry |= {"state": str(self.root / "state")} | fields
        draft = self.root / "draft.json"
        draft.write_text(json.dumps({"version": 1, "roles": {role: entry}}))
        argv = [sys.executable, "-I", str(AGENT.with_name("pin.py")), str(AGENT), str(draft)]
        return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)

    def pinned(self, role: str = "broker", **fields: Any) -> dict[str, Any]:
        done = self.pin(role, **fields)
        assert done.returncode == 0, done.stdout + done.stderr
        return dict(json.loads(done.stdout)["roles"][role])

    def refused(self, role: str = "broker", **fields: Any) -> str:
        done = self.pin(role, **fields)
        assert done.returncode == 1, done.stdout
        return done.stdout


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def below_root() -> Iterator[Path]:
    """A folder directly below `/`, as many installations have one for their data."""
    path = Path(f"/kmigrate-test-{os.getpid()}")
    path.mkdir()
    yield path
    shutil.rmtree(path)


@pytest.mark.parametrize(
    ("written", "directories"),
    [
        ("log.dirs={0}\n", ["/a"]),
        ("#log.dirs=/x\nlog.dirs = {1} , {0}\r\nlog.dir=/c\n", ["/a", "/b"]),
        ("log.dirs={0}\nlog.dirs: {1}\n", ["/b"]),
        ("log.dir={0}\nmetadata.log.dir={1}\n", ["/a", "/b"]),
        ("log.dirs={0},{1}\nmetadata.log.dir={0}\n", ["/a", "/b"]),
        ("log.dirs {0}\n", ["/a"]),
        ("log.dirs={0},\\\n   {1}\n", ["/a", "/b"]),
        ("log.dirs={0},\\\r\n\t{1}\r\n", ["/a", "/b"]),
        ("\xef\xbb\xbf# a mark of Windows' editors\nlog.dirs={0}\n", ["/a"]),
        ("log\\.dirs={0}\n", ["/a"]),
        ("log.dirs={0}/,{1}//\n", ["/a", "/b"]),
        ("log.dirs=/{0},{1}/.\n", ["/a", "/b"]),
        ("log.dirs={0}/my\\ data\n", ["/a/my data"]),
        ("log.dirs={0}/my data\n", ["/a/my data"]),
        ("log.dirs={0}/d\\u0061ta\n", ["/a/data"]),
    ],
)
def test_a_brokers_directories_are_those_that_kafka_reads_in_its_file(
    machine: Machine, written: str, directories: list[str]
) -> None:
    for name in ("a", "b", "a/my data", "a/data"):
        (machine.root / name).mkdir()
    machine.write(written.format(machine.root / "a", machine.root / "b"))
    pinned = machine.pinned()
    assert pinned["log_dirs"] == [f"{machine.root}{path}" for path in directories]
    assert "links" not in pinned
    node = NodeSpec(1, NodeRole.BROKER, "kafka1", 9092, HostSpec("agent"))
    keys = parse_properties(machine.properties.read_bytes().decode("iso-8859-1"))
    assert sorted(log_dirs(node, keys)) == pinned["log_dirs"], "what kmigrate asks the agent for"


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("a=1\n", "neither log.dirs nor log.dir"),
        ("\xef\xbb\xbflog.dirs=/data\n", "neither log.dirs nor log.dir"),  # Java, too, reads a key with three letters more
        ("log.dirs=data\n", "which is relative"),
        ("log.dirs=${{env:DATA}}\n", "which is relative"),
        ("log.dirs=/absent/data\n", "is no directory"),
        ("log.dirs=/etc/hostname\n", "is no directory"),
        ("log.dirs=/\n", "is not a plain absolute path"),
        ("log.dirs=/etc\n", "is no place for Kafka's data"),
        ("log.dirs=/var/lib/../spool\n", "is no place for Kafka's data"),
        ("log.dirs=/root\n", "is no place for Kafka's data"),
        ("log.dirs=/var/log\n", "is no place for Kafka's data"),
        ("log.dirs={0}\\u0000\n", "null byte"),
        ("log.dirs={0}\\t\n", ""),  # a tabulator at the end is none, as for Kafka
    ],
)
def test_directories_that_are_none_for_data_are_refused_with_what_to_correct(machine: Machine, written: str, said: str) -> None:
    machine.write(written.format(machine.data))
    if said:
        assert said in machine.refused()
    else:
        assert machine.pinned()["log_dirs"] == [str(machine.data)]


def test_a_file_that_is_not_there_is_named_before_anything_is_written(machine: Machine) -> None:
    machine.properties.unlink()
    assert f"there is no file {machine.properties}. Correct hosts.properties" in machine.refused()


def test_a_directory_may_be_directly_below_the_root(machine: Machine, below_root: Path) -> None:
    machine.give(below_root)
    machine.write(f"log.dirs={below_root}\n")
    assert machine.pinned()["log_dirs"] == [str(below_root)]
    absent = f"{below_root}-kraft"
    assert machine.pinned("controller", log_dirs=[f"{absent}/"])["log_dirs"] == [absent]


def test_a_mount_point_is_a_directory_as_any_other(machine: Machine, below_root: Path) -> None:
    machine.give(below_root)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(below_root)], check=False, timeout=10).returncode:
        pytest.skip("no file system may be mounted here")
    try:
        machine.give(below_root)
        machine.write(f"log.dirs={below_root}\n")
        assert machine.pinned()["log_dirs"] == [str(below_root)]
    finally:
        subprocess.run(["umount", str(below_root)], check=True, timeout=10)


@needs_root
@pytest.mark.parametrize(
    ("owner", "group", "mode", "said"),
    [
        ("nobody", 0, 0o750, ""),
        (0, "nobody", 0o770, ""),
        (0, "nobody", 0o750, "belongs to others"),
        (0, 0, 0o755, "belongs to others"),  # such as one of /etc
        (0, 0, 0o775, "belongs to others"),
        (1001, "nobody", 0o770, "belongs to others"),
        ("link", 0, 0o755, "belongs to others"),
    ],
)
def test_a_directory_that_the_brokers_file_names_must_be_its_users(
    tmp_path: Path, owner: str | int, group: str | int, mode: int, said: str
) -> None:
    """Whoever may write that file chooses: a folder of root's, named there, would be one in which root writes."""
    machine, user, path = Machine(tmp_path, "nobody"), pwd.getpwnam("nobody"), tmp_path / "more"
    path.mkdir()
    path.chmod(mode)
    named = {"nobody": (user.pw_uid, user.pw_gid), "link": (0, 0)}
    os.chown(path, *(named[one][at] if isinstance(one, str) else one for at, one in enumerate((owner, group))))
    if owner == "link":
        path.rename(tmp_path / "roots")
        path.symlink_to(tmp_path / "roots")
    machine.write(f"log.dirs={machine.data},{path}\n")
    if said:
        assert said in machine.refused()
    else:
        assert machine.pinned()["log_dirs"] == [str(machine.data), str(path)]


# Links: where they lead is pinned


def link_the_release(machine: Machine) -> Path:
    """/opt/kafka -> kafka_2.13-3.9.2, as most tutorials have it."""
    machine.properties.parent.rename(machine.root / "opt" / "kafka_2.13-3.9.2")
    (machine.root / "opt" / "kafka").symlink_to("kafka_2.13-3.9.2")
    return machine.root / "opt" / "kafka_2.13-3.9.2" / "server.properties"


def link_the_file(machine: Machine) -> Path:
    """/opt/kafka/server.properties -> /etc/kafka/broker.properties."""
    real = machine.root / "etc" / "broker.properties"
    real.parent.mkdir()
    machine.properties.rename(real)
    machine.properties.symlink_to(real)
    return real


def link_in_a_chain(machine: Machine) -> Path:
    link_the_release(machine)
    (machine.root / "srv").symlink_to(machine.root / "opt")
    machine.properties = machine.root / "srv" / "kafka" / "server.properties"
    return machine.root / "opt" / "kafka_2.13-3.9.2" / "server.properties"


@pytest.mark.parametrize("link", [link_the_release, link_the_file, link_in_a_chain])
def test_a_file_behind_links_of_root_is_pinned_where_they_lead(machine: Machine, link: Callable[[Machine], Path]) -> None:
    real = link(machine)
    pinned = machine.pinned()
    assert (pinned["properties"], pinned["links"]) == (str(machine.properties), {str(machine.properties): str(real)})


def test_a_directory_behind_links_is_pinned_and_named_as_kafka_names_it(machine: Machine) -> None:
    (machine.root / "log").symlink_to(machine.data)
    machine.write(f"log.dirs={machine.root}/log/\n")
    pinned = machine.pinned()
    assert (pinned["log_dirs"], pinned["links"]) == ([f"{machine.root}/log"], {f"{machine.root}/log": str(machine.data)})


def test_two_dots_lead_where_the_kernel_says(machine: Machine) -> None:
    (machine.root / "far" / "away").mkdir(parents=True)
    (machine.root / "far" / "data").mkdir()
    (machine.root / "near").symlink_to("far/away")
    written = f"{machine.root}/near/../data"
    machine.write(f"log.dirs={written}\n")
    assert machine.pinned()["links"] == {written: f"{machine.root}/far/data"}


def test_a_controllers_directory_that_is_yet_to_be_made_may_be_behind_a_link(machine: Machine) -> None:
    (machine.root / "disk").mkdir()
    (machine.root / "kraft").symlink_to("disk")
    pinned = machine.pinned("controller", log_dirs=[f"{machine.root}/kraft/meta"])
    assert pinned["links"] == {f"{machine.root}/kraft/meta": f"{machine.root}/disk/meta"}


def test_two_names_of_one_directory_are_refused(machine: Machine) -> None:
    """Kafka itself does not start with them."""
    (machine.root / "log").symlink_to(machine.data)
    machine.write(f"log.dirs={machine.root}/log,{machine.data}\n")
    assert "names are one" in machine.refused()


def test_a_circle_of_links_is_an_error(machine: Machine) -> None:
    (machine.root / "a").symlink_to("b")
    (machine.root / "b").symlink_to("a")
    assert "circle" in machine.refused("controller", log_dirs=[f"{machine.root}/a/meta"])


# What the service's user may not gain by a link


@needs_root
@pytest.mark.parametrize("at", ["file", "folder", "chain"])
def test_a_link_that_kafkas_user_may_exchange_does_not_lead_root_to_a_file_of_root(tmp_path: Path, at: str) -> None:
    machine = Machine(tmp_path, "nobody")
    roots = tmp_path / "etc" / "cron.d"
    roots.mkdir(parents=True)
    (roots / "server.properties").write_text(f"log.dirs={machine.data}\n")
    if at == "file":
        machine.properties.unlink()
        machine.properties.symlink_to(roots / "server.properties")
        machine.give(machine.properties.parent)
    elif at == "folder":
        shutil.rmtree(machine.properties.parent)
        machine.properties.parent.symlink_to(roots)
        machine.give(machine.properties.parent.parent)
    else:  # root's own link leads to one of Kafka's
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "kafka").symlink_to(roots)
        machine.give(tmp_path / "mine")
        (tmp_path / "kafka").symlink_to(tmp_path / "mine" / "kafka")
        machine.properties = tmp_path / "kafka" / "server.properties"
    said = machine.refused()
    assert "by a link that others than root may change" in said
    assert f"name {roots}/server.properties in the cluster file" in said, "the way out"


@needs_root
def test_a_link_of_kafkas_user_to_a_folder_that_this_user_may_write_is_followed_with_its_rights(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    machine = Machine(tmp_path, "nobody")
    own = tmp_path / "own"
    own.mkdir()
    machine.properties.rename(own / "server.properties")
    machine.properties.symlink_to(own / "server.properties")
    for path in (own, own / "server.properties", machine.properties.parent):
        machine.give(path)
    assert machine.pinned()["links"] == {str(machine.properties): str(own / "server.properties")}


@needs_root
@pytest.mark.parametrize("sibling", ["hard link", "folder", "device"])
def test_what_is_no_plain_file_behind_a_link_is_refused(tmp_path: Path, sibling: str) -> None:
    machine = Machine(tmp_path)
    real = link_the_file(machine)
    real.unlink()
    if sibling == "folder":
        real.mkdir()
    elif sibling == "device":
        os.mknod(real, 0o20666, os.makedev(1, 3))
    else:
        machine.write("log.dirs=/x\n")
        real.unlink()
        secret = tmp_path / "secret"
        secret.write_text("log.dirs=/x\n")
        os.link(secret, real)
        real.parent.chmod(0o777)
    assert machine.refused()


@needs_root
def test_a_group_that_may_write_a_links_folder_may_exchange_it(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "nobody")
    link_the_release(machine)
    (tmp_path / "opt").chmod(0o775)
    os.chown(tmp_path / "opt", 0, 12_345)
    assert "may change" in machine.refused()


def test_a_controllers_directory_behind_anothers_link_is_refused(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    (tmp_path / "disk").mkdir()
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    (shared / "kraft").symlink_to(tmp_path / "disk")
    assert "may change" in machine.refused("controller", log_dirs=[f"{shared}/kraft/meta"])


# The agent with pinned links


@pytest.fixture
def linked(tmp_path: Path) -> Iterator[Node]:
    """A node whose file is behind a link of its release's folder, and whose data is behind another link."""
    node = Node(tmp_path)
    node.properties.parent.rename(tmp_path / "release-1")
    node.properties.parent.symlink_to("release-1")
    node.data.rename(tmp_path / "disk")
    node.data.symlink_to(tmp_path / "disk")
    (tmp_path / "disk" / "meta.properties").write_text(META)
    links = {str(node.properties): f"{tmp_path}/release-1/server.properties", str(node.data): f"{tmp_path}/disk"}
    node.configure({"broker": node.entry | {"links": links}})
    yield node
    node.close()


def test_an_agent_with_pinned_links_answers_with_the_paths_of_kafkas_files_and_acts_on_the_real_ones(linked: Node) -> None:
    real = linked.root / "release-1" / "server.properties"
    [role] = linked.ok("hello")["roles"].values()
    assert (role["properties"], role["log_dirs"]) == (str(linked.properties), [str(linked.data)])
    facts = linked.ok("facts")
    assert facts["log_dirs"][str(linked.data)]["meta"] == META
    node = NodeSpec(1, NodeRole.BROKER, "kafka1", 9092, HostSpec("agent", properties=str(linked.properties)))
    assert [found.code for found in find_node_problems(node, role, facts, 0)] == ["W7"]
    linked.ok("install_file", **file(NEW))
    assert real.read_text() == NEW
    assert linked.properties.parent.is_symlink()
    linked.ok("write_meta", folder=str(linked.data), **file(META + "node.id=1\n"))
    assert (linked.root / "disk" / "meta.properties").read_text().endswith("node.id=1\n")
    assert linked.refused("write_meta", folder="/elsewhere", **file(META)) == "path"
    linked.ok("restart", job="j", **file(NEW + "a=1\n"))
    assert linked.ended("j")["state"] == "done"
    assert real.read_text() == NEW + "a=1\n"


@pytest.mark.parametrize("link", ["release", "data", "gone"])
def test_once_a_link_leads_elsewhere_nothing_is_read_or_written_until_it_is_installed_again(linked: Node, link: str) -> None:
    linked.ok("facts")
    other = linked.root / "release-2"
    other.mkdir()
    (other / "server.properties").write_text(NEW)
    changed = linked.data if link == "data" else linked.properties.parent
    changed.unlink()
    if link != "gone":
        changed.symlink_to(other)
    for verb, fields in (
        ("facts", {}),
        ("install_file", file(NEW)),
        ("restart", {"job": "j", **file(NEW)}),
        ("stop", {"job": "s"}),
    ):
        said = linked.ask(verb, **fields)["error"]
        assert said["code"] == "link", verb
        assert "led to" in said["text"]
        assert "`kmigrate node install` again" in said["text"]
    assert (linked.root / "release-1" / "server.properties").read_text() != NEW
    assert (other / "server.properties").read_text() == NEW
    linked.ok("start", job="up")
    assert linked.ended("up")["state"] == "done", "a node that is down is started all the same"


@needs_root
def test_a_link_that_is_exchanged_between_the_look_and_the_act_changes_nothing_elsewhere(linked: Node) -> None:
    """The pinned path is opened component by component, without links: the look alone is no guard."""
    outside = linked.root / "outside"
    outside.mkdir()
    release = linked.root / "release-1"
    release.rename(linked.root / "kept")
    release.symlink_to(outside)
    linked.properties.parent.unlink()
    linked.properties.parent.symlink_to("release-1")
    assert linked.refused("install_file", **file(NEW)) == "link"
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("links", [{"/opt/x": "../etc/shadow"}, {"/opt/x": "/etc/../x"}, {"/opt/x": "/a//b"}, {"/opt/x": 7}])
def test_a_pinned_path_that_is_not_plain_is_refused(linked: Node, links: dict[str, Any]) -> None:
    linked.configure({"broker": linked.entry | {"properties": "/opt/x", "links": links}})
    assert linked.refused("hello") == "config"


# The script: nothing is written before all is known


def test_the_script_pins_before_it_writes_anything() -> None:
    script = text()
    body = script[script.index("main() {") :]
    begin, written = (
        body.index('"$work/pin" "$work/agent" "$work/draft.json"'),
        body.index("install -d -o root -g root -m 755 /etc/kmigrate"),
    )
    assert begin < body.index("keeps /etc/kmigrate/node.json") < body.index('put "$work/agent"')
    assert begin < written


@needs_root
def test_an_installation_that_is_refused_leaves_no_file_of_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole script, as root, of a broker whose file is not there."""
    places = [Path("/usr/local/sbin/kmigrate-node"), Path("/etc/kmigrate"), Path("/etc/sudoers.d/kmigrate")]
    if any(path.exists() for path in places):
        pytest.skip("kmigrate-node is installed on this machine")
    needs = "needs_unit() { :; }"
    script = text().replace("main() {", f"{needs}\nmain() {{", 1) + "main kafka1\n"
    done = subprocess.run(["sh"], input=script, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 1
    if Path("/etc/sudoers.d").is_dir():
        assert "there is no file /etc/kafka/server.properties" in done.stderr
    assert not any(path.exists() for path in places)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("/var/lib/kraft/", "/var/lib/kraft"),
        ("//data//kraft", "/data/kraft"),
        ("/data/./kraft", "/data/kraft"),
        ("/a/../b", "/a/../b"),
        ("/kraft", "/kraft"),
    ],
)
def test_the_cluster_file_has_plain_paths(written: str, read: str) -> None:
    spec = loads(
        FILE.replace("/etc/kafka/server.properties", "/etc//kafka/server.properties").replace(
            "log_dir: /var/lib/kraft}", f"log_dir: {written}}}"
        )
    )
    assert {node.log_dir for node in spec.controllers} == {read}
    assert {node.hosts.properties for node in spec.brokers} == {"/etc/kafka/server.properties"}
    assert CLUSTER


@needs_root
def test_what_a_broker_may_not_read_itself_is_not_shown(shared: Path) -> None:
    """A file of root in a folder of Kafka's user: only with that user's rights is it read."""
    machine = Machine(shared / "machine", "nobody")
    machine.write("log.dirs=/canary-S3CRET\n")
    machine.properties.chmod(0o600)
    machine.give(machine.properties.parent)
    assert "S3CRET" not in machine.refused()
