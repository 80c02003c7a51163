"""The script that installs the agent: what it holds, what it reads of a properties file, and how it is sent."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kmigrate.core.cluster_state.spec import NodeSpec
from airflow_provider_kmigrate.exceptions import Refused, SpecError
from airflow_provider_kmigrate.node import command, pin
from airflow_provider_kmigrate.node.command import Reach, build_shell_command, group_by_machine, install, list_gone_nodes, main
from airflow_provider_kmigrate.node.script import AGENT, InstallOptions, build_install_script, read_agent_version
from airflow_provider_kmigrate.spec import loads
from tests.clients.fake_pipe import FakePipe
from tests.node.script_text import FILE, MACHINES, SETUP, text


def sourced(*commands: str) -> subprocess.CompletedProcess[str]:
    """Run commands with the functions of the script; systemd knows every unit."""
    lines = (text(), "needs_unit() { echo unit $1 $2; }", "machine=m", *commands)
    return subprocess.run(["sh"], input="\n".join(lines), capture_output=True, text=True, timeout=10, check=False)


def draft(machine: str) -> Any:
    """The units that the branch of a machine needs, and the draft of its node.json."""
    [case] = re.findall(rf"^    {machine}\)\n(.*?) ;;$", text(), re.MULTILINE | re.DOTALL)
    done = sourced(case, "printf '%s' \"$json\"")
    units, _, found = done.stdout.partition("{")
    return [line.split()[1:] for line in units.splitlines()], json.loads("{" + found)


def test_a_machine_gets_the_roles_that_the_cluster_file_gives_it() -> None:
    units, config = draft("kafka0")
    assert units == [["kafka.service", "--unit"], ["kafka-controller.service", "--controller-unit"]]
    shared = {"user": "root", "storage_tool": ["/bin/true"]}
    own = {
        "systemd": "kafka.service",
        "properties": "/etc/kafka/server.properties",
        "log_dirs": None,  # its file names them, on the machine
        "stop_timeout": 330.0,
    }
    beside = {"systemd": "kafka-controller.service", "properties": "/etc/kafka/it's.properties", "log_dirs": ["/var/lib/kraft"]}
    assert config == {"version": 1, "roles": {"broker": shared | own, "controller": shared | beside | {"stop_timeout": 60.0}}}
    assert draft("ctl1")[0] == [["kafka.service", "--unit"]]
    assert list(draft("ctl1")[1]["roles"]) == ["controller"]


def test_the_install_script_is_posix_and_holds_the_agent_and_one_line_of_sudoers() -> None:
    whole = text(InstallOptions())
    assert subprocess.run(["sh", "-n"], input=whole, text=True, check=False, timeout=10).returncode == 0
    assert AGENT.read_text() in whole
    assert "printf '%s\\n' 'kmigrate ALL=(root) NOPASSWD: /usr/local/sbin/kmigrate-node serve'" in whole
    assert not re.findall(r"@[A-Z]+@", whole)
    assert f"Installs kmigrate-node {read_agent_version(AGENT.read_text())} on" in whole


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
    assert group_by_machine(loads(FILE.replace("{id: 3000, host: kafka0", "{id: 3000, host: KAFKA0."))).keys() == MACHINES.keys()


def test_no_value_of_the_cluster_file_is_looked_into() -> None:
    odd = group_by_machine(loads(FILE.replace("it's.properties", "@SUDOERS@ @AGENT@.properties")))
    whole = build_install_script("prod", odd, SETUP, AGENT.read_text())
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
def test_the_install_script_is_sent_over_the_same_connection_as_the_agent(argv: tuple[str, ...], shell: tuple[str, ...]) -> None:
    assert build_shell_command(argv) == shell


@pytest.mark.parametrize("argv", [("ssh", "k"), ("serve",), ("ssh", "k", "kmigrate-node serve --config x")])
def test_a_command_that_leads_elsewhere_is_refused(argv: tuple[str, ...]) -> None:
    with pytest.raises(Refused, match=r"M03.*--script"):
        build_shell_command(("x", *argv))


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
        group_by_machine(loads(FILE.replace(old, new)))


def test_a_node_that_is_gone_is_skipped_and_the_others_are_not() -> None:
    spec = loads(FILE.replace("host: ctl1,", "host: ctl1, driver: gone,"))
    named = {node.name for nodes in group_by_machine(loads(FILE)).values() for node in nodes}
    left = {node.name for nodes in group_by_machine(spec).values() for node in nodes}
    assert named - left == {node.name for node in list_gone_nodes(spec)}
    assert len(list_gone_nodes(spec)) == 1


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

    def open_root_shell(self, node: NodeSpec) -> Any:
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
        ([FakePipe(PLAN, code=0), FakePipe(b"ctl1: writes x\n", code=0)], True, 0, "ok    ctl1: writes x", 2),
        ([FakePipe(PLAN, code=0), FakePipe(b"", code=1, said="ctl1: disk\n")], True, 1, "ctl1: disk", 2),
        ([FakePipe(b"ctl1: x is there\n", code=0)], True, 0, "Nothing to do.", 1),
        ([FakePipe(code=1, said="ctl1: there is no user kafka")], True, 1, "no user kafka", 1),
        ([FakePipe(code=1, said="sudo: a password is required")], True, 1, "[M03] the user of the connection may not", 1),
        ([FakePipe(b'{"v": 1, "id": null, "error": {}}', code=0)], True, 1, "--script", 1),
        ([FakePipe(PLAN, TimeoutError())], True, 1, "did not end within", 1),
        ([FakePipe(*[b"x" * 65_536] * 17, code=0)], None, 1, "said more than 1 MiB", 1),
        ([FakePipe(PLAN)], True, 1, "would write", 1),
    ],
)  # fmt: skip
def test_an_installation_shows_the_plan_and_writes_only_what_was_agreed(
    pipes: list[FakePipe], agrees: bool | None, code: int, said: str, asked: int
) -> None:
    shown: list[str] = []
    at = reach(*pipes)
    agreed = None if agrees is None else lambda: bool(agrees)
    assert install(at, one("ctl1"), {"ctl1": text()}, lambda line: shown.append(str(line)), agreed) == code
    assert said in shown[-1]
    assert [sent.splitlines()[-2] for sent in at.sent] == [b"main ctl1 --dry-run </dev/null", b"main ctl1  </dev/null"][:asked]
    assert not any(pipe.open for pipe in pipes)


def test_a_machine_that_always_says_one_more_byte_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would hold the command for ever, and what it says is kept."""
    monkeypatch.setattr(command, "_TIMEOUT", 0.2)
    shown: list[str] = []
    assert install(reach(Late()), one("ctl1"), {"ctl1": text()}, lambda line: shown.append(str(line)), None) == 1
    assert "did not end within" in shown[-1]


class Late(FakePipe):
    """Each of its bytes is in time."""

    def read(self, timeout: float) -> bytes:
        if timeout <= 0:
            raise TimeoutError
        return b"x"


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
    monkeypatch.setattr(command, "install", lambda *arguments, **_: seen.append(arguments) or 0)
    assert main(["install", str(file), "--connections", str(known), "--host", "ctl1"]) == 0
    [(_, found, sent, _, agreed)] = seen
    assert (list(found), "'deploy ALL=(root) NOPASSWD" in sent["ctl1"]) == (["ctl1"], True)
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert not agreed(), "no terminal is there to answer"


@pytest.mark.parametrize("login", ["root", "", None])
def test_without_one_login_of_all_connections_it_must_be_named(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], login: str | None
) -> None:
    file.write_text(FILE.replace("{id: 1, host: kafka1}", "{id: 1, host: kafka1, ssh_conn_id: other_ssh}"))
    other = {"conn_type": "ssh"} | ({} if login is None else {"login": login})
    known = tmp_path / "connections.json"
    known.write_text(json.dumps({"prod_ssh": {"conn_type": "ssh", "login": "deploy"}, "other_ssh": other}))
    assert main(["install", str(file), "--connections", str(known), "--yes"]) == 2
    assert "[N03] the SSH connections other_ssh, prod_ssh do not name one login" in capsys.readouterr().err


@pytest.mark.parametrize(("option", "answer"), [("--yes", True), ("--dry-run", None)])
def test_an_option_answers_the_question(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, answer: bool | None
) -> None:
    known = tmp_path / "connections.json"
    known.write_text(json.dumps({"prod_ssh": {"conn_type": "ssh", "login": "deploy"}}))
    asked = list[bool | None]()
    monkeypatch.setattr(command, "install", lambda *given, **_: asked.append(given[-1] and given[-1]()) or 0)
    assert main(["install", str(file), "--connections", str(known), option]) == 0
    assert asked == [answer]


def test_python_takes_no_module_of_the_folder_in_which_root_stands() -> None:
    assert re.findall(r"/usr/bin/python3 (?!-I\b)(?!of version).*", text()) == []


def test_a_name_of_others_moves_no_cursor_of_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "draft").write_text(
        json.dumps({"roles": {"\x1b]0;broker\n": {"properties": "/absent", "log_dirs": None, "user": "nobody"}}})
    )
    assert pin.main(str(AGENT), str(tmp_path / "draft")) == 1
    said = capsys.readouterr().out
    assert said.count("\n") == 1
    assert said.strip().isprintable()


WITHOUT_SYSTEMD = [
    "--start",
    "/usr/bin/ctl start {role}",
    "--stop",
    "/usr/bin/ctl stop {role}",
    "--status",
    "/usr/bin/ctl status {role}",
]


def test_without_systemd_node_json_has_the_commands_of_each_role(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["install", str(file), "--script", *WITHOUT_SYSTEMD, "--log", "/var/log/kafka/{role}.log"]) == 0
    printed = capsys.readouterr().out
    [case] = re.findall(r"^    kafka0\)\n(.*?) ;;$", printed, re.MULTILINE | re.DOTALL)
    assert "needs_unit" not in case
    roles = json.loads(
        subprocess.run(["sh"], input=f"{case}\nprintf '%s' \"$json\"", capture_output=True, text=True, check=True).stdout
    )["roles"]
    for role in ("broker", "controller"):
        assert roles[role]["commands"] == {verb: ["/usr/bin/ctl", verb, role] for verb in ("start", "stop", "status")}
        assert (roles[role]["log"], "systemd" in roles[role]) == (f"/var/log/kafka/{role}.log", False)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (WITHOUT_SYSTEMD[:4], "all of them"),
        ([word.replace(" {role}", "") for word in WITHOUT_SYSTEMD], "kafka0 has a broker and a controller"),
    ],
)
def test_commands_that_are_not_whole_or_would_act_on_two_nodes_are_refused(
    file: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["install", str(file), "--script", *words]) == 2
    assert said in capsys.readouterr().err
