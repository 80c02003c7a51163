"""The script that installs the agent: what it holds, what it reads of a properties file, and how it is sent."""

from __future__ import annotations

import io
import json
import os
import pwd
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kmigrate.core.cluster import NodeSpec
from airflow_provider_kmigrate.exceptions import Refused, SpecError
from airflow_provider_kmigrate.node import command
from airflow_provider_kmigrate.node.command import Reach, gone, install, machines, main, shell_in
from airflow_provider_kmigrate.node.script import AGENT, InstallOptions, script, version_of
from airflow_provider_kmigrate.spec import loads
from tests.clients.test_hosts_agent import FakePipe

FILE = """\
name: prod
cluster_id: q1Sh-9_ISia_zwGINzRvyQ
zookeeper: {conn_id: zk}
kafka: {conn_id: kf}
hosts: {properties: /etc/kafka/server.properties, ssh_conn_id: prod_ssh}
brokers: [{id: 0, host: kafka0}, {id: 1, host: kafka1}]
controllers:
  - {id: 3000, host: kafka0, properties: "/etc/kafka/it's.properties", port: 9093, log_dir: /var/lib/kraft}
  - {id: 3001, host: ctl1, log_dir: /var/lib/kraft}
"""
SETUP = InstallOptions(user="root", login="root", storage_tool="/bin/true")
MACHINES = machines(loads(FILE))


def text(setup: InstallOptions = SETUP) -> str:
    return script("prod", MACHINES, setup, AGENT.read_text())


def sourced(*commands: str) -> subprocess.CompletedProcess[str]:
    """Run commands with the functions of the script; systemd knows every unit."""
    lines = (text(), "needs_unit() { echo unit $1 $2; }", "machine=m", *commands)
    return subprocess.run(["sh"], input="\n".join(lines), capture_output=True, text=True, timeout=10, check=False)


def node_json(machine: str) -> Any:
    """What the branch of a machine makes, with these directories in the broker's file."""
    [case] = re.findall(rf"^    {machine}\)\n(.*?) ;;$", text(), re.MULTILINE | re.DOTALL)
    done = sourced('directories_of() { directories=\'["/a", "/b"]\'; }', "must_own() { :; }", case, "printf '%s' \"$json\"")
    units, _, found = done.stdout.partition("{")
    return [line.split()[1:] for line in units.splitlines()], json.loads("{" + found)


def test_a_machine_gets_the_roles_that_the_cluster_file_gives_it() -> None:
    units, config = node_json("kafka0")
    assert units == [["kafka.service", "--unit"], ["kafka-controller.service", "--controller-unit"]]
    shared = {"user": "root", "storage_tool": ["/bin/true"]}
    own = {
        "systemd": "kafka.service",
        "properties": "/etc/kafka/server.properties",
        "log_dirs": ["/a", "/b"],
        "stop_timeout": 330.0,
    }
    beside = {"systemd": "kafka-controller.service", "properties": "/etc/kafka/it's.properties", "log_dirs": ["/var/lib/kraft"]}
    assert config == {"version": 1, "roles": {"broker": shared | own, "controller": shared | beside | {"stop_timeout": 60.0}}}
    assert node_json("ctl1")[0] == [["kafka.service", "--unit"]]
    assert list(node_json("ctl1")[1]["roles"]) == ["controller"]


@pytest.mark.parametrize(
    ("properties", "directories"),
    [
        ("log.dirs=/a\n", ["/a"]),
        ("#log.dirs=/x\nlog.dirs = /b , /a\r\nlog.dir=/c\n", ["/a", "/b"]),
        ("log.dirs=/a\nlog.dirs: /b\n", ["/b"]),
        ("log.dir=/a\nmetadata.log.dir=/m\n", ["/a", "/m"]),
        ("log.dirs=/a,/b\nmetadata.log.dir=/a\n", ["/a", "/b"]),
    ],
)
def test_a_brokers_directories_are_those_of_its_file(tmp_path: Path, properties: str, directories: list[str]) -> None:
    (tmp_path / "server.properties").write_text(properties)
    done = sourced(f"directories_of {tmp_path}/server.properties", "printf '%s' \"$directories\"")
    assert (done.stderr, json.loads(done.stdout)) == ("", directories)


@pytest.mark.parametrize(
    ("properties", "said"), [("a=1\n", "neither log.dirs"), ('log.dirs=/a"b\n', "quote"), ("log.dirs=/a,\\\n", "backslash")]
)
def test_directories_that_cannot_be_read_are_an_error(tmp_path: Path, properties: str, said: str) -> None:
    (tmp_path / "server.properties").write_text(properties)
    done = sourced(f"directories_of {tmp_path}/server.properties")
    assert (done.returncode, said in done.stderr) == (1, True)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives folders to other users: needs root")
@pytest.mark.parametrize(
    ("owner", "group", "mode", "said"),
    [
        ("nobody", 0, 0o750, ""),
        (0, "nobody", 0o770, ""),
        (0, "nobody", 0o750, "belongs to others"),
        (0, 0, 0o755, "belongs to others"),  # such as one of /etc
        (0, 0, 0o775, "belongs to others"),
        (1001, "nobody", 0o770, "belongs to others"),
        ("link", 0, 0, "is a link, or no directory"),
        ("above", 0, 0, "is a link, or no directory"),
        ("absent", 0, 0, "is a link, or no directory"),
        ("file", 0, 0, "is a link, or no directory"),
    ],
)
def test_a_directory_that_the_brokers_file_names_must_be_its_users(
    tmp_path: Path, owner: str | int, group: str | int, mode: int, said: str
) -> None:
    """Whoever may write that file chooses: a folder of root's, named there, would be one in which root writes."""
    user, path, mine = pwd.getpwnam("nobody"), tmp_path / "data", tmp_path / "mine"
    mine.mkdir()
    os.chown(mine, user.pw_uid, user.pw_gid)
    if owner == "link":
        path.symlink_to(mine)
    elif owner == "above":
        (tmp_path / "up").symlink_to(tmp_path)
        path = tmp_path / "up" / "mine"
    elif owner == "file":
        path.touch()
    elif owner != "absent":
        path.mkdir()
        path.chmod(mode)
        named = {"nobody": (user.pw_uid, user.pw_gid)}
        os.chown(path, *(named[one][at] if isinstance(one, str) else one for at, one in enumerate((owner, group))))
    (tmp_path / "server.properties").write_text(f"log.dirs={mine},{path}\n")
    done = sourced(f"directories_of {tmp_path}/server.properties", "must_own nobody", "echo written")
    assert (done.returncode, "written" in done.stdout) == ((1, False) if said else (0, True)), done.stderr
    assert said in done.stderr


def test_it_is_posix_and_holds_the_agent_and_one_line_of_sudoers() -> None:
    whole = text(InstallOptions())
    assert subprocess.run(["sh", "-n"], input=whole, text=True, check=False, timeout=10).returncode == 0
    assert AGENT.read_text() in whole
    assert "printf '%s\\n' 'kmigrate ALL=(root) NOPASSWD: /usr/local/sbin/kmigrate-node serve'" in whole
    assert not re.findall(r"@[A-Z]+@", whole)
    assert f"Installs kmigrate-node {version_of(AGENT.read_text())} on" in whole


BROKER, CONTROLLER = {"systemd": "kafka.service"}, {"systemd": "kafka-controller.service"}


@pytest.mark.parametrize(
    ("old", "kept"),
    [
        ({"broker": BROKER}, 0),
        ({"broker": BROKER | {"systemd": "broker.service"}}, 0),
        ({"controller": CONTROLLER}, 1),  # of another cluster file
        ({"broker": BROKER | {"state": "/srv/kmigrate"}}, 1),  # where the tokens are
        ("broken", 1),
    ],
)
def test_a_node_json_that_has_more_is_not_replaced(tmp_path: Path, old: object, kept: int) -> None:
    for name, roles in (("old", old), ("new", {"broker": BROKER})):
        (tmp_path / name).write_text(json.dumps({"version": 1, "roles": roles}))
    done = sourced(f"keeps {tmp_path}/old {tmp_path}/new", "echo replaced")
    assert (done.returncode, "replaced" in done.stdout, "Edit it by hand" in done.stderr) == (kept, not kept, bool(kept))


def test_the_first_node_json_replaces_nothing(tmp_path: Path) -> None:
    assert sourced(f"keeps {tmp_path}/absent {tmp_path}/new", "echo written").stdout == "written\n"


def test_two_spellings_of_a_host_are_one_machine_with_both_roles() -> None:
    assert machines(loads(FILE.replace("{id: 3000, host: kafka0", "{id: 3000, host: KAFKA0."))).keys() == MACHINES.keys()


def test_no_value_of_the_cluster_file_is_looked_into() -> None:
    odd = machines(loads(FILE.replace("it's.properties", "@SUDOERS@ @AGENT@.properties")))
    whole = script("prod", odd, SETUP, AGENT.read_text())
    assert '"/etc/kafka/@SUDOERS@ @AGENT@.properties"' in whole
    assert subprocess.run(["sh", "-n"], input=whole, text=True, check=False, timeout=10).returncode == 0


def test_half_of_it_does_nothing() -> None:
    """What a connection that breaks leaves of it; its last line alone begins anything."""
    whole = f"{text()}main kafka0\n"
    for part in (whole[: len(whole) // 2], whole[: whole.rindex("main kafka0")]):
        done = subprocess.run(["sh"], input=part, capture_output=True, text=True, timeout=10, check=False)
        assert done.stdout == ""


@pytest.mark.parametrize(
    ("argv", "shell"),
    [
        (("docker", "exec", "-i", "k", "kmigrate-node", "serve"), ("docker", "exec", "-i", "k", "/bin/sh", "-s")),
        (("ssh", "k", "sudo", "-n", "/usr/local/sbin/kmigrate-node", "serve"), ("ssh", "k", "sudo", "-n", "/bin/sh", "-s")),
        (("ssh", "k", "sudo -n /usr/local/sbin/kmigrate-node serve"), ("ssh", "k", "sudo -n /bin/sh -s")),
    ],
)
def test_it_goes_the_way_of_the_agent(argv: tuple[str, ...], shell: tuple[str, ...]) -> None:
    assert shell_in(argv) == shell


@pytest.mark.parametrize("argv", [("ssh", "k"), ("serve",), ("ssh", "k", "kmigrate-node serve --config x")])
def test_a_command_that_leads_elsewhere_is_refused(argv: tuple[str, ...]) -> None:
    with pytest.raises(Refused, match=r"M03.*--script"):
        shell_in(("x", *argv))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "{id: 1, host: kafka1}",
            "{id: 1, host: kafka0, port: 9192, properties: /p, connect: docker exec -i b kmigrate-node serve}",
            "two brokers",
        ),
    ],
)
def test_nodes_that_no_agent_can_serve_are_refused(old: str, new: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        machines(loads(FILE.replace(old, new)))


def test_a_node_that_is_gone_is_skipped_and_the_others_are_not() -> None:
    spec = loads(FILE.replace("host: ctl1,", "host: ctl1, driver: gone,"))
    named = {node.name for nodes in machines(loads(FILE)).values() for node in nodes}
    left = {node.name for nodes in machines(spec).values() for node in nodes}
    assert named - left == {node.name for node in gone(spec)}
    assert len(gone(spec)) == 1


def test_the_commands_say_which_node_is_gone(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(FILE.replace("host: ctl1,", "host: ctl1, driver: gone,"))
    assert main(["install", str(file), "--script"]) == 0
    said = capsys.readouterr()
    assert re.fullmatch(r"Skipped: controller \d+ on ctl1, which the cluster file declares gone \(driver: gone\)\.\n", said.err)
    assert "ctl1" not in said.out


def test_the_help_says_what_each_command_does(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "verb" not in said
    assert "check see whether a run could work with each node: its agent, files, unit, start at boot, clock and disk" in said


class FakeReach(Reach):
    """Machines whose shells answer what the test says, one pipe after another."""

    pipes: list[FakePipe]
    sent: list[bytes]

    def root_shell(self, node: NodeSpec) -> Any:
        pipe = self.pipes.pop(0)
        pipe.write = lambda data, _: self.sent.append(data)  # type: ignore[method-assign]
        return pipe


def reach(*pipes: FakePipe) -> FakeReach:
    made = FakeReach({}, {})
    made.pipes, made.sent = list(pipes), []
    return made


def one(host: str) -> Mapping[str, tuple[NodeSpec, ...]]:
    return {host: MACHINES[host]}


PLAN = b"ctl1: would write /etc/kmigrate/node.json (root, mode 0644)\n"


@pytest.mark.parametrize(
    ("pipes", "agrees", "code", "said", "asked"),
    [
        ([FakePipe(PLAN, code=0)], False, 1, "would write", 1),
        ([FakePipe(PLAN, code=0)], None, 0, "would write", 1),
        ([FakePipe(PLAN, code=0), FakePipe(b"ctl1: writes x\n", code=0)], True, 0, "ctl1: writes x", 2),
        ([FakePipe(PLAN, code=0), FakePipe(b"", code=1, said="ctl1: disk\n")], True, 1, "ctl1: disk", 2),
        ([FakePipe(b"ctl1: x is there\n", code=0)], True, 0, "Nothing to do.", 1),
        ([FakePipe(code=1, said="ctl1: there is no user kafka")], True, 1, "no user kafka", 1),
        ([FakePipe(code=1, said="sudo: a password is required")], True, 1, "[M03] the user of the connection may not", 1),
        ([FakePipe(b'{"v": 1, "id": null, "error": {}}', code=0)], True, 1, "--script", 1),
        ([FakePipe(PLAN, TimeoutError())], True, 1, "did not end within", 1),
        ([FakePipe(PLAN)], True, 1, "would write", 1),
    ],
)  # fmt: skip
def test_it_shows_the_plan_and_writes_only_what_was_agreed(
    pipes: list[FakePipe], agrees: bool | None, code: int, said: str, asked: int
) -> None:
    shown: list[str] = []
    at = reach(*pipes)
    agreed = None if agrees is None else lambda: bool(agrees)
    assert install(at, one("ctl1"), text(), lambda line: shown.append(str(line)), agreed) == code
    assert said in shown[-1]
    assert [sent.splitlines()[-2] for sent in at.sent] == [b"main ctl1 --dry-run </dev/null", b"main ctl1  </dev/null"][:asked]
    assert not any(pipe.open for pipe in pipes)


@pytest.mark.parametrize(("options", "code"), [([], 1), (["--dry-run"], 0), (["--yes"], 0)])
def test_without_a_terminal_nothing_is_written_unless_it_was_agreed_beforehand_and_that_is_no_success(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], code: int
) -> None:
    """A pipeline that goes on after a success would begin a migration without an agent."""
    connections = tmp_path / "connections.json"
    connections.write_text(json.dumps({"prod_ssh": {"conn_type": "ssh", "login": "kmigrate"}}))
    ran: list[str] = []

    def run(_reach: object, host: str, _nodes: object, _text: str, option: str) -> object:
        ran.append(option)
        return command._Ran(f"{host}: would write x", failed=False)

    monkeypatch.setattr(command, "_run", run)
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert main(["install", str(file), "--connections", str(connections), *options]) == code
    assert ("" in ran) is (options == ["--yes"])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "prod.yaml"
    path.write_text(FILE)
    return path


def test_the_script_is_printed_whole_and_needs_no_connection(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["install", str(file), "--script", "--login", "deploy", "--unit", "confluent-kafka.service"]) == 0
    printed = capsys.readouterr().out
    assert printed.endswith('main "$@"\n')
    assert "deploy ALL=(root)" in printed
    assert "needs_unit confluent-kafka.service --unit" in printed
    done = subprocess.run(["sh", "-s", "elsewhere"], input=printed, capture_output=True, text=True, timeout=10, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "one of: kafka0, kafka1, ctl1" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["check", "--host", "kafka9"], "no host kafka9; it has kafka0, kafka1, ctl1"),
        (["check", "--connections", "/none.json"], "N03"),
        (["install", "--connections", "/none.json"], "N03"),
    ],
)
def test_what_is_wrong_before_a_machine_is_asked_ends_with_2(
    file: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main([arguments[0], str(file), *arguments[1:]]) == 2
    assert said in capsys.readouterr().err


def test_the_login_of_the_connection_gets_the_line_of_sudoers(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = tmp_path / "connections.json"
    known.write_text(json.dumps({"prod_ssh": {"conn_type": "ssh", "login": "deploy"}}))
    seen: list[Any] = []
    monkeypatch.setattr(command, "install", lambda *arguments: seen.append(arguments) or 0)
    assert main(["install", str(file), "--connections", str(known), "--host", "ctl1"]) == 0
    [(_, found, sent, _, agreed)] = seen
    assert (list(found), "'deploy ALL=(root) NOPASSWD" in sent) == (["ctl1"], True)
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert not agreed(), "no terminal is there to answer"


@pytest.mark.parametrize(("option", "answer"), [("--yes", True), ("--dry-run", None)])
def test_an_option_answers_the_question(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, answer: bool | None
) -> None:
    known = tmp_path / "connections.json"
    known.write_text(json.dumps({"prod_ssh": {"conn_type": "ssh", "login": "deploy"}}))
    asked = list[bool | None]()
    monkeypatch.setattr(command, "install", lambda *given: asked.append(given[-1] and given[-1]()) or 0)
    assert main(["install", str(file), "--connections", str(known), option]) == 0
    assert asked == [answer]
