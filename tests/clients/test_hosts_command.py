"""Driver `command`: commands that are real programs, and a runner in their place where a broken network is needed."""

import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_kmigrate.clients.hosts import host_for
from airflow_provider_kmigrate.clients.hosts.command import Answer, CommandHost, LocalRunner, is_absent, is_quiet
from airflow_provider_kmigrate.clients.hosts.files import sha256
from airflow_provider_kmigrate.core.cluster import HostSpec, NodeRole, NodeSpec
from airflow_provider_kmigrate.core.model import ProcessState
from airflow_provider_kmigrate.exceptions import Failed, Fenced, KMigrateError, Refused, TimedOut, Unreachable


def sh(script: str) -> tuple[str, ...]:
    """A user's script; what is filled in arrives as its arguments, never in its text."""
    return ("sh", "-c", script, "sh")


@pytest.fixture
def node(tmp_path: Path) -> NodeSpec:
    """A "service" that runs while the file `running` is there."""
    (tmp_path / "server.properties").write_text(f"node.id=3000\nlog.dirs={tmp_path}/data\n")
    hosts = HostSpec(
        "command",
        properties=f"{tmp_path}/server.properties",
        start=(*sh('echo "start $1 $2" >> $(dirname $3)/calls; touch $(dirname $3)/running'), "{id}", "{host}", "{properties}"),
        stop=(*sh('echo stop >> $(dirname $1)/calls; rm -f "$(dirname $1)/running"'), "{properties}"),
        status=(*sh('test -e "$(dirname $1)/running" || { echo inactive; exit 3; }'), "{properties}"),
        stop_timeout=30.0,
    )
    return NodeSpec(3000, NodeRole.CONTROLLER, "h1", 9093, hosts, log_dir=f"{tmp_path}/data")


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> CommandHost:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return CommandHost(timeout=30.0, poll=0.01)


def having(node: NodeSpec, **fields: tuple[str, ...] | float) -> NodeSpec:
    return replace(node, hosts=replace(node.hosts, **fields))


def remote(node: NodeSpec) -> NodeSpec:
    """The same node, its files reached through commands only."""
    return having(node, read=("cat", "{path}"), write=(*sh('cat > "$1.new" && mv "$1.new" "$1"'), "{path}"))


def calls(node: NodeSpec) -> list[str]:
    return Path(node.hosts.properties).with_name("calls").read_text().splitlines()


def test_a_service_is_started_and_stopped_once(host: CommandHost, node: NodeSpec) -> None:
    assert host.status(node).state is ProcessState.STOPPED
    for _ in range(2):
        host.start(node, 1)
        assert host.status(node).state is ProcessState.RUNNING
    for _ in range(2):
        assert host.stop(node, 1) < 5
        assert host.status(node).state is ProcessState.STOPPED
    assert calls(node) == ["start 3000 h1", "stop"]


@pytest.mark.parametrize(
    ("script", "state"),
    [
        ("exit 0", ProcessState.RUNNING),
        ("echo active", ProcessState.RUNNING),
        ("echo inactive; exit 3", ProcessState.STOPPED),
        ("echo failed; exit 3", ProcessState.STOPPED),
        ("echo deactivating; exit 3", ProcessState.RUNNING),
        ("echo activating; exit 3", ProcessState.RUNNING),
        ("echo Welcome to h1; echo; echo deactivating; exit 3", ProcessState.RUNNING),
        ("echo Welcome to h1; echo inactive; exit 3", ProcessState.STOPPED),
        ("echo '     Active: deactivating (stop-sigterm) since Mon'; echo 'Tasks: 1'; exit 3", ProcessState.RUNNING),
        ("echo '     Active: inactive (dead)'; exit 3", ProcessState.STOPPED),
        ("echo inactive; echo activating; exit 3", ProcessState.RUNNING),
        ("exit 1", ProcessState.UNKNOWN),
        ("exit 4", ProcessState.UNKNOWN),
        ("kill -9 $$", ProcessState.UNKNOWN),
    ],
)
def test_status_follows_systemd(host: CommandHost, node: NodeSpec, script: str, state: ProcessState) -> None:
    assert host.status(having(node, status=sh(script))).state is state


@pytest.mark.parametrize(
    "script", ["exit 3", "echo inactive sessions end after 15 min; exit 3", "echo unknown; exit 3", "echo inactive >&2; exit 3"]
)
def test_stopped_without_the_word_for_it_is_refused(host: CommandHost, node: NodeSpec, script: str) -> None:
    with pytest.raises(Refused, match=r"U04.*inactive"):
        host.status(having(node, status=sh(script)))


@pytest.mark.parametrize(
    "words", [("is-active", "--quiet"), ("systemctl", "-q", "is-active"), ("sudo /usr/bin/systemctl is-active -lq kafka",)]
)
def test_a_quiet_status_command_is_refused_before_anything_is_stopped(
    host: CommandHost, node: NodeSpec, words: tuple[str, ...]
) -> None:
    host.start(node, 1)
    with pytest.raises(Refused, match=r"U04.*--quiet"):
        host.stop(having(node, status=("true", *words)), 1)
    assert calls(node) == ["start 3000 h1"]


@pytest.mark.parametrize("words", ["ssh -q h systemctl is-active kafka", "kafka-state --quiet h"])
def test_who_else_is_quiet_does_not_matter(words: str) -> None:
    assert not is_quiet(words.split())


def test_a_stop_that_cannot_be_seen_says_so_at_once(host: CommandHost, node: NodeSpec) -> None:
    host.start(node, 1)
    wordless = having(node, status=(*sh('test -e "$(dirname $1)/running" || exit 3'), "{properties}"), stop_timeout=500.0)
    with pytest.raises(Refused, match="U04"):
        host.stop(wordless, 1)


def test_a_broken_connection_is_no_state(host: CommandHost, node: NodeSpec) -> None:
    with pytest.raises(Unreachable, match="refused"):
        host.status(having(node, status=sh("echo connection refused >&2; exit 255")))


@pytest.mark.parametrize("verb", ["start", "stop"])
def test_nothing_is_done_while_the_state_is_unknown(host: CommandHost, node: NodeSpec, verb: str) -> None:
    with pytest.raises(Unreachable):
        getattr(host, verb)(having(node, status=sh("exit 1")), 1)
    assert not Path(node.hosts.properties).with_name("calls").exists()


def test_stop_waits_until_status_says_so(host: CommandHost, node: NodeSpec) -> None:
    host.start(node, 1)
    slow = having(node, stop=(*sh('(sleep 0.3; rm "$(dirname $1)/running") &'), "{properties}"))
    assert 0.3 <= host.stop(slow, 1) < 20


def test_a_stop_in_vain_times_out(host: CommandHost, node: NodeSpec) -> None:
    host.start(node, 1)
    with pytest.raises(TimedOut):
        host.stop(having(node, stop=("true",), stop_timeout=0.1), 1)
    assert host.status(node).state is ProcessState.RUNNING


def test_a_command_that_hangs_times_out(node: NodeSpec) -> None:
    with pytest.raises(TimedOut, match="sleep"):
        CommandHost(timeout=0.1).status(having(node, status=("sleep", "60")))


def test_a_child_that_keeps_the_output_open_does_not_hold_the_command(host: CommandHost, node: NodeSpec) -> None:
    began = time.monotonic()
    host.start(having(node, start=(*sh('touch "$(dirname $1)/running"; sleep 20 &'), "{properties}")), 1)
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("verb", ["start", "stop", "status"])
def test_a_missing_command_is_refused_with_its_field(host: CommandHost, node: NodeSpec, verb: str) -> None:
    if verb == "stop":
        host.start(node, 1)
    with pytest.raises(Refused, match=f"M02.*{verb}"):
        getattr(host, verb)(having(node, **{verb: ()}), *([] if verb == "status" else [1]))


def test_a_missing_program_fails(host: CommandHost, node: NodeSpec) -> None:
    with pytest.raises(Failed, match="/no/such/program"):
        host.status(having(node, status=("/no/such/program",)))


def test_a_failed_start_says_why(host: CommandHost, node: NodeSpec) -> None:
    with pytest.raises(Failed, match="no java"):
        host.start(having(node, start=sh("echo no java >&2; exit 1")), 1)


def test_values_stay_one_word_and_are_never_shell(host: CommandHost, node: NodeSpec) -> None:
    evil = replace(node, host="$(touch /tmp/evil); a b")
    with pytest.raises(Failed, match=r"<\$\(touch /tmp/evil\); a b>"):
        host.start(having(evil, start=(*sh('echo "<$1>" >&2; exit 1'), "{host}")), 1)


def test_local_files_are_read_and_replaced_here(host: CommandHost, node: NodeSpec) -> None:
    assert host.put_properties(node, "node.id=2\n", 1) == sha256("node.id=2\n")
    assert host.read_properties(node) == "node.id=2\n"
    assert host.files(node).properties == {"node.id": "2"}


def test_remote_files_are_read_and_replaced_by_commands(host: CommandHost, node: NodeSpec) -> None:
    path = Path(node.hosts.properties)
    old = path.read_text()
    text = "p\xe4ssword=a\\u0020b\n"
    assert host.put_properties(remote(node), text, 1) == sha256(text)
    assert path.read_bytes() == text.encode("iso-8859-1")
    assert [found.read_text() for found in path.parent.glob("*.bak")] == [old]
    assert host.files(remote(node)).properties == {"p\xe4ssword": "a b"}


def test_a_write_command_that_does_not_write_is_noticed(host: CommandHost, node: NodeSpec) -> None:
    with pytest.raises(Failed, match="write"):
        host.put_properties(having(node, read=("cat", "{path}"), write=("true",)), "a=1\n", 1)


def test_absent_is_not_unreadable(host: CommandHost, node: NodeSpec) -> None:
    seen = host.files(remote(node))
    assert seen.meta == {node.log_dir: {}}
    assert seen.has_metadata_log is False
    with pytest.raises(Failed, match="Permission denied"):
        host.files(having(node, read=sh("echo Permission denied >&2; exit 1")))


ENOENT = "No such file or directory"
WARNING = "Warning: Identity file /home/airflow/.ssh/kafka not accessible: No such file or directory."


@pytest.mark.parametrize(
    ("err", "absent"),
    [
        ("cat: /k/x.properties: No such file or directory\n", True),
        ("cat: '/k/x.properties': No such file or directory", True),
        ("cat: can't open '/k/x.properties': No such file or directory", True),
        (f"{WARNING}\ncat: /k/x.properties: No such file or directory", True),
        ("cat: /k/x.properties: No such file or directory\ncommand terminated with exit code 1", True),
        (f"{WARNING}\ncat: /k/x.properties: Permission denied", False),
        (WARNING, False),
        ("cat: /k/x.properties.bak: No such file or directory", False),
        ("cat: /data/k/x.properties: No such file or directory", False),
        ("cat: /k/xxproperties: No such file or directory", False),
        ("cat: /k/x.properties: Datei oder Verzeichnis nicht gefunden", False),
        ("", False),
    ],
)
def test_absent_is_what_is_said_of_the_very_path(err: str, absent: bool) -> None:
    assert is_absent(Answer(1, "", err), "/k/x.properties") is absent


def test_an_unreadable_original_is_never_replaced(host: CommandHost, node: NodeSpec) -> None:
    refused = sh(f"echo '{WARNING}' >&2; echo 'cat: Permission denied' >&2; exit 1")
    before = Path(node.hosts.properties).read_text()
    with pytest.raises(Failed, match="cannot read"):
        host.put_properties(having(remote(node), read=refused), "node.id=1\n", 1)
    assert Path(node.hosts.properties).read_text() == before


def test_a_broker_with_many_disks_is_looked_at_with_few_commands_several_at_a_time(node: NodeSpec) -> None:
    broker = replace(having(node, read=("ssh", "{path}"), write=("true",)), role=NodeRole.BROKER)
    asked: list[str] = []
    four = threading.Barrier(4)

    def slow(argv: Sequence[str], stdin: str, timeout: float) -> Answer:
        asked.append(argv[1])
        if argv[1].endswith("server.properties"):
            return Answer(0, "broker.id=1\nlog.dirs=" + ",".join(f"/d{disk}" for disk in range(11)))
        four.wait(10)  # 11 disks and one metadata log: three times four
        return Answer(0, "broker.id=1\n") if argv[1].endswith("meta.properties") else Answer(1, "", f"{argv[1]}: {ENOENT}")

    seen = CommandHost(slow).files(broker)
    assert len(asked) == 13
    assert [path for path in asked if "quorum-state" in path] == ["/d0/__cluster_metadata-0/quorum-state"]
    assert list(seen.meta or {}) == [f"/d{disk}" for disk in range(11)]
    assert seen.has_metadata_log is False


def test_one_disk_that_cannot_be_read_leaves_the_node_unread(host: CommandHost, node: NodeSpec) -> None:
    script = 'case $1 in *data/meta*) echo "cat: $1: Permission denied" >&2; exit 1;; *) cat "$1";; esac'
    with pytest.raises(Failed, match=r"data/meta\.properties.*Permission denied"):
        host.files(having(remote(node), read=(*sh(script), "{path}")))


@pytest.mark.parametrize("kind", ["here", "remote"])
def test_an_older_run_can_do_nothing_any_more(host: CommandHost, node: NodeSpec, kind: str) -> None:
    node = remote(node) if kind == "remote" else node
    host.start(node, 5)
    for act in (
        lambda: CommandHost().stop(node, 4),
        lambda: CommandHost().start(node, 4),
        lambda: CommandHost().put_properties(node, "a=1", 4),
        lambda: CommandHost().format_storage(node, "id", "3.9-IV0", 4),
    ):
        with pytest.raises(Fenced):
            act()
    assert calls(node) == ["start 3000 h1"]


def test_storage_is_formatted_once(host: CommandHost, node: NodeSpec) -> None:
    script = 'mkdir -p $(dirname $3)/data; printf "node.id=3000\\ncluster.id=%s\\n" "${1#--cluster-id=}" > $(dirname $3)/data/meta.properties; echo "$1 $2" >> $(dirname $3)/calls'
    node = having(remote(node), format=(*sh(script), "--cluster-id={cluster_id}", "{release}", "{properties}"))
    for _ in range(2):
        host.format_storage(node, "-id", "3.9-IV0", 1)
    assert calls(node) == ["--cluster-id=-id 3.9-IV0"]
    with pytest.raises(Refused):
        host.format_storage(node, "other", "3.9-IV0", 1)


def test_a_directory_here_that_holds_something_is_refused(host: CommandHost, node: NodeSpec) -> None:
    Path(f"{node.log_dir}/topic-0").mkdir(parents=True)
    with pytest.raises(Refused, match=r"M01.*topic-0"):
        host.format_storage(having(node, format=("true",)), "id", "3.9-IV0", 1)


class Flaky:
    """Runs commands here; the calls of the numbers in `broken` find no connection."""

    def __init__(self, *broken: int) -> None:
        self.calls, self.broken = 0, broken

    def __call__(self, argv: Sequence[str], stdin: str, timeout: float) -> Answer:
        self.calls += 1
        if self.calls in self.broken:
            raise Unreachable("no route")
        return LocalRunner()(argv, stdin, timeout)


def test_a_connection_that_breaks_while_a_node_stops_is_waited_out(host: CommandHost, node: NodeSpec) -> None:
    host.start(node, 1)
    assert CommandHost(Flaky(3, 4), poll=0.01).stop(node, 1) < 5


def test_a_connection_that_breaks_before_the_act_is_raised(host: CommandHost, node: NodeSpec) -> None:
    host.start(node, 1)
    with pytest.raises(Unreachable):
        CommandHost(Flaky(1), poll=0.01).stop(node, 1)
    assert host.status(node).state is ProcessState.RUNNING


def test_commands_get_the_connections_environment_and_none_of_airflows(node: NodeSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_PROD", "secret")
    host = host_for(having(node, read=sh("env")), {"SSH_KEY": "k"})
    text = host.read_properties(having(node, read=sh("env")))
    assert "SSH_KEY=k" in text
    assert "AIRFLOW" not in text


def test_what_a_command_printed_is_not_in_repr() -> None:
    assert "secret" not in repr(Answer(0, "password=secret", "secret"))


def test_every_error_is_ours(node: NodeSpec) -> None:
    for argv in (("/",), ("",), ("\0",), (sys.executable, "-c", "raise SystemExit(7)")):
        with pytest.raises(KMigrateError):
            CommandHost().start(having(node, status=argv), 1)
    assert not Path(node.hosts.properties).with_name("calls").exists()


def test_a_controllers_directory_is_wiped_by_the_users_command(host: CommandHost, node: NodeSpec) -> None:
    data = Path(node.log_dir or "")
    data.mkdir()
    (data / "meta.properties").write_text("version=1\nnode.id=3000\ncluster.id=c\n")
    wiping = having(remote(node), wipe=("mv", "{path}", "{path}.away"))
    host.wipe_storage(wiping, "c", 1)
    assert (data.with_name("data.away") / "meta.properties").exists()
    host.wipe_storage(wiping, "c", 1)
    data.mkdir()
    (data / "meta.properties").write_text("version=1\nnode.id=3000\ncluster.id=c\n")
    with pytest.raises(Refused, match="M02"):
        host.wipe_storage(remote(node), "c", 1)


@pytest.mark.parametrize("far", [True, False])
def test_meta_properties_are_replaced(host: CommandHost, node: NodeSpec, far: bool) -> None:
    data = Path(node.log_dir or "")
    data.mkdir()
    (data / "meta.properties").write_text("version=1\n")
    host.put_meta(remote(node) if far else node, str(data), "version=0\n", 1)
    assert (data / "meta.properties").read_text() == "version=0\n"
