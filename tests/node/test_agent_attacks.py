"""What was tried against kmigrate-node, with the agent as processes: each attack, and what a node that is odd or broken leaves behind."""

from __future__ import annotations

import ast
import contextlib
import grp
import hashlib
import json
import os
import pwd
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kmigrate.core.shared.foreign_json import read_json
from tests.node.agent_parts import STORAGE, agent_module, job_pid, needs_root, removal
from tests.node.machine import AGENT, CLUSTER, META, NEW, OLD, SH, STUBBORN, Node, file, mounted, program
from tests.waiting import wait_for, wait_until


@pytest.fixture
def make(shared: Path) -> Iterator[Callable[..., Node]]:
    made: list[Node] = []

    def build(**fields: Any) -> Node:
        made.append(Node(shared, **fields))
        return made[-1]

    yield build
    for one in made:
        one.close()


def give(*paths: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    for path in paths:
        os.chown(path, nobody.pw_uid, nobody.pw_gid)


def as_nobody(*argv: str) -> None:
    nobody = pwd.getpwnam("nobody")
    drop = ["setpriv", f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups"]
    subprocess.run([*drop, *argv], check=True, timeout=10)


def started(node: Node) -> int:
    node.ok("start", job="s1")
    assert node.ended("s1")["state"] == "done"
    return node.pid()


# An older run's job, and a newer run


OLDER, NEWER = "broker.id=1\nrun=older\n", "broker.id=1\nrun=newer\n"


@pytest.mark.parametrize("verb", ["restart", "stop"])
def test_a_job_that_was_admitted_does_nothing_once_a_newer_run_has_acted(make: Callable[..., Node], verb: str) -> None:
    """Its process begins some tenth of a second later: time for the other one's connection, which is open."""
    node = make()
    before = started(node)
    with contextlib.closing(Connection(node)) as other:
        node.ok(verb, job="j1", **(file(OLDER) if verb == "restart" else {}))
        said = other.ask("install_file", token=node.token + 1, **file(NEWER))
    if "ok" in said:  # else the job had the lock before
        assert node.ended("j1")["error"]["code"] == "fenced"
        assert (node.properties.read_text(), node.pid()) == (NEWER, before)
    else:
        assert said["error"]["code"] == "busy"


class Connection:
    """A second agent of a node, as another worker has one."""

    def __init__(self, node: Node) -> None:
        self.node = node
        argv = [sys.executable, "-I", str(AGENT), "serve", "--config", str(node.config)]
        self.agent = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/")
        self.ask("hello")

    def ask(self, verb: str, **fields: Any) -> dict[str, Any]:
        request = {"v": 1, "id": 1, "verb": verb, "role": self.node.role, "cluster": CLUSTER, "token": self.node.token} | fields
        assert self.agent.stdin is not None
        assert self.agent.stdout is not None
        self.agent.stdin.write(json.dumps(request).encode() + b"\n")
        self.agent.stdin.flush()
        return json.loads(self.agent.stdout.readline())  # type: ignore[no-any-return]

    def close(self) -> None:
        self.agent.kill()
        self.agent.communicate()


def test_a_killed_job_that_is_started_again_does_nothing_once_a_newer_run_has_acted(make: Callable[..., Node]) -> None:
    """systemd starts it again; what it was stopping is started, by the first request of the newer run."""
    node = make(process={"start": STUBBORN})
    before = started(node)
    node.ok("restart", job="r1", **file(OLDER))
    # not once the record names the stop: it is written before the signal, and a job killed between both stops nothing
    wait_until(lambda: "asked to stop" in (node.state / "broker" / "log").read_text(), "the node stops", 10)
    os.kill(job_pid(node), signal.SIGKILL)
    wait_until(lambda: not node.ok("job")["busy"], "the job is gone", 10)
    node.token += 1
    assert node.refused("install_file", **file(NEWER)) == "restarted", "the newer run observes again: the node was started"
    assert node.pid() not in (0, before)
    node.ok("install_file", **file(NEWER))
    up = node.pid()
    subprocess.run([sys.executable, "-I", AGENT, "run", "broker", "r1", "--config", node.config], timeout=30, check=True)
    assert (node.properties.read_text(), node.pid()) == (NEWER, up)
    assert node.ok("job")["error"]["code"] == "fenced"


@pytest.mark.slow
@pytest.mark.parametrize("acts", range(3))
def test_a_restart_that_was_killed_after_any_act_is_continued(make: Callable[..., Node], acts: int) -> None:
    node = make(process={"start": STUBBORN})
    before = started(node)
    node.ok("restart", job="r1", **file(NEW))
    wait_until(lambda: len(node.ok("job")["done"]) > acts or not node.ok("job")["busy"], "the job acts", 10)
    with contextlib.suppress(ProcessLookupError):
        os.kill(job_pid(node), signal.SIGKILL)
    node.ok("restart", job="r1", **file(NEW))
    assert node.ended("r1")["state"] == "done"
    assert node.properties.read_text() == NEW
    assert node.pid() not in (0, before)
    assert [each.name for each in node.properties.parent.iterdir()] == ["server.properties"]


# A state that is not known


@pytest.fixture
def unknown(make: Callable[..., Node], tmp_path: Path) -> Node:
    """A broker whose status command ends with neither 0 nor 3."""
    mark = tmp_path / "done"
    node = make(
        commands={"start": [program("touch"), str(mark)], "stop": [program("touch"), str(mark)], "status": [SH, "-c", "exit 4"]}
    )
    del node.entry["process"]
    node.configure({"broker": node.entry})
    return node


def test_a_state_that_is_not_known_is_neither_running_nor_stopped(unknown: Node) -> None:
    assert unknown.ok("facts")["process"]["state"] == "unknown"


def test_no_job_begins_on_a_node_whose_state_is_not_known(unknown: Node, tmp_path: Path) -> None:
    for verb in ("stop", "restart", "start"):
        assert unknown.refused(verb, job="j1") == "unknown", verb
    assert unknown.ok("job") == {"busy": False}
    assert not (tmp_path / "done").exists()


def test_no_directory_of_a_node_whose_state_is_not_known_is_touched(unknown: Node) -> None:
    (unknown.data / "__cluster_metadata-0").mkdir()
    assert unknown.refused("write_meta", folder=str(unknown.data), **file(META)) == "running"
    assert unknown.refused("remove", **removal(unknown, "metadata log")) == "holds_data"
    unknown.is_controller()
    unknown.close()
    for verb, more in (("format", {"release": "3.9"}), ("set_aside", {})):
        assert unknown.refused(verb, node=1, **more) == "running", verb
    assert [each.name for each in unknown.data.iterdir()] == ["__cluster_metadata-0"]


# Links, names and folders


@needs_root
def test_what_a_group_may_have_linked_is_not_read_by_root(make: Callable[..., Node], shared: Path) -> None:
    """A folder of root that a group may write in which the service's user is not."""
    node = make(user="nobody")
    (shared / "secret").write_text("password=canary\n")
    (shared / "secret").chmod(0o600)
    folder = node.properties.parent
    group = next(
        each.gr_gid for each in grp.getgrall() if each.gr_gid and not each.gr_mem and each.gr_gid != pwd.getpwnam("nobody").pw_gid
    )
    os.chown(folder, 0, group)
    folder.chmod(0o775)
    node.ok("install_file", **file(NEW))
    assert node.ok("facts")["file"]["text"] == NEW, "its own file stays one"
    node.properties.unlink()
    os.link(shared / "secret", node.properties)
    assert node.refused("facts") == "link"
    assert node.refused("install_file", **file(OLD)) == "link"
    assert (shared / "secret").read_text() == "password=canary\n"


@needs_root
@pytest.mark.parametrize("how", ["fifo", "device", "folder", "link", "hard link"])
def test_nothing_but_a_file_of_its_own_is_read_in_a_directory_of_the_services_user(
    make: Callable[..., Node], shared: Path, how: str
) -> None:
    node, secret = make(user="nobody"), shared / "secret"
    secret.write_text("password=canary\n")
    secret.chmod(0o600)
    give(node.data)
    meta = node.data / "meta.properties"
    {
        "fifo": lambda: os.mkfifo(meta),
        "device": lambda: os.mknod(meta, 0o20666, os.makedev(1, 5)),
        "folder": meta.mkdir,
        "link": lambda: as_nobody("ln", "-s", str(secret), str(meta)),
        "hard link": lambda: os.link(secret, meta),
    }[how]()  # fmt: skip
    said = node.ask("facts")
    assert said["error"]["code"] in {"file", "link", "permission"}
    assert "canary" not in json.dumps(said)
    if how != "folder":
        node.ask("write_meta", folder=str(node.data), **file(META))
        assert secret.read_text() == "password=canary\n"


def test_a_name_that_is_no_utf_8_leaves_every_answer_readable(make: Callable[..., Node]) -> None:
    node = make()
    node.is_controller()
    for name in (
        b"log\xff.rolled-back-2",
        b"data.rolled-back-1",
        b"data/\xffx",
        b"data/\xff.rolled-back-3",
        b"data/\n.rolled-back-4",
    ):
        (node.data.parent / os.fsdecode(name)).mkdir()
    lines = [{"verb": "leftovers"}, {"verb": "format", "node": 1, "release": "3.9"}]
    asked = [
        json.dumps({"v": 1, "id": 1, "role": "controller", "cluster": CLUSTER, "token": 9} | line).encode() for line in lines
    ]
    argv = [sys.executable, "-I", str(AGENT), "serve", "--config", str(node.config)]
    out = subprocess.run(argv, input=b"\n".join(asked) + b"\n", capture_output=True, timeout=30, check=True).stdout
    assert out.isascii()
    left, formatted = map(read_json, out.splitlines())
    aside = ["set aside", f"{node.data}.rolled-back-1"]
    assert [each for each in left["ok"]["left"] if each[0] == "set aside"] == [aside], "the agent made no other"
    assert formatted["error"]["text"].endswith("it holds ?x")
    node.token = 9
    assert node.ok("remove", **removal(node, "set aside"))["removed"] == [f"{node.data}.rolled-back-1"]


# Directories


@needs_root
def test_root_removes_nothing_where_a_group_that_only_the_unit_gives_kafka_may_write(
    make: Callable[..., Node], shared: Path
) -> None:
    """A unit's `SupplementaryGroups=` are not the user's: with them Kafka's user puts another folder in the place of its own."""
    node = make(user="nobody")
    node.is_controller()
    (node.data / "secret.rolled-back-1").mkdir()  # beside the log directory of a controller
    log_dir = node.data / "log"
    log_dir.mkdir()
    os.chown(node.data, 0, 54_321)
    node.data.chmod(0o775)
    document = json.loads(node.config.read_text())
    document["roles"]["controller"]["log_dirs"] = [str(log_dir)]
    node.config.write_text(json.dumps(document))
    (node.data / "secret.rolled-back-1").rename(node.data / "log.rolled-back-1")
    (node.data / "log.rolled-back-1").chmod(0o700)
    node.token = 9
    assert node.refused("remove", **removal(node, "set aside")) == "permission"
    assert (node.data / "log.rolled-back-1").exists()


@needs_root
@pytest.mark.parametrize("kind", ["disk", "bind"])
def test_a_directory_that_is_a_mount_point_is_emptied(make: Callable[..., Node], shared: Path, kind: str) -> None:
    """A bind mount of the same file system has the device number of its parent."""
    node = make()
    node.is_controller()
    (shared / "elsewhere").mkdir()
    with mounted(node.data) if kind == "disk" else bound(shared / "elsewhere", node.data):
        (node.data / "meta.properties").write_text(f"node.id=1\ncluster.id={CLUSTER}\n")
        assert node.ok("set_aside", node=1) == {"moved": [f"{node.data}/kraft.rolled-back-1"]}
        assert (node.data / "kraft.rolled-back-1" / "meta.properties").exists()
        assert node.ok("set_aside", node=1) == {"moved": []}


@contextlib.contextmanager
def bound(source: Path, folder: Path) -> Iterator[None]:
    done = subprocess.run(["mount", "--bind", str(source), str(folder)], capture_output=True, text=True, timeout=10, check=False)
    if done.returncode:
        pytest.skip(f"nothing may be mounted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True, timeout=10)


@needs_root
def test_a_mount_point_inside_a_directory_is_named_before_anything_is_moved_or_removed(
    make: Callable[..., Node], shared: Path
) -> None:
    """What is mounted there is no part of the directory: its content would have been deleted with it, and its own place is busy for ever."""
    node, others = make(), shared / "others"
    node.is_controller()
    (others / "orders-0").mkdir(parents=True)
    (node.data / "meta.properties").write_text(f"node.id=1\ncluster.id={CLUSTER}\n")
    (node.data / "a b").mkdir()
    with bound(others, node.data / "a b"):
        answer = node.ask("set_aside", node=1)["error"]
        assert (answer["code"], f"umount {node.data}/a b" in answer["text"]) == ("holds_data", True)
        assert (node.data / "meta.properties").exists()
    assert node.ok("set_aside", node=1) == {"moved": [f"{node.data}.rolled-back-1"]}
    with bound(others, node.data.parent / f"{node.data.name}.rolled-back-1" / "a b"):
        left = node.ok("leftovers")["left"]
        listed = {"kinds": ["set aside"], "listed": hashlib.sha256(json.dumps(left).encode()).hexdigest()}
        assert node.refused("remove", **listed) == "holds_data"
        assert (others / "orders-0").is_dir(), "another's data"
    assert node.ok("remove", **listed) == {"removed": [f"{node.data}.rolled-back-1"]}


KILLED = """#!/bin/sh
folder=$(sed -n 's/^log.dirs=//p' "$6")
: >"$folder/bootstrap.checkpoint"
kill -9 $$
"""


@pytest.fixture
def controller(make: Callable[..., Node], shared: Path) -> Node:
    tool = shared / "storage"
    tool.write_text(KILLED)
    tool.chmod(0o755)
    node = make(storage_tool=[str(tool)])
    node.properties.write_text(f"log.dirs={node.data}\n")
    node.is_controller()
    return node


def test_a_format_that_was_killed_is_done_again(controller: Node, shared: Path) -> None:
    """Kafka writes bootstrap.checkpoint before meta.properties."""
    asked = {"release": "3.9-IV0", "node": 3000}
    assert controller.refused("format", **asked) == "failed"
    assert [each.name for each in controller.data.iterdir()] == ["bootstrap.checkpoint"]
    assert controller.ok("set_aside", node=3000) == {"moved": []}, "it is no dead end of a rollback either"
    assert controller.refused("format", release="3.9-IV0", node=3001) == "holds_data", "of another node"
    (shared / "storage").write_text(STORAGE)
    assert controller.ok("format", **asked) == {"formatted": [str(controller.data)]}
    (controller.data / "meta.properties").unlink()
    assert controller.refused("format", **asked) == "holds_data", "a format that ended leaves no note"


def test_what_lay_there_before_a_format_is_no_remains_of_it(controller: Node) -> None:
    (controller.data / "orders-0").mkdir()
    for _ in range(2):
        assert controller.refused("format", release="3.9-IV0", node=3000) == "holds_data"


def test_a_second_directory_is_formatted_beside_one_that_is(controller: Node, shared: Path) -> None:
    second = shared / "var" / "second"
    second.mkdir()
    controller.entry["log_dirs"] = [str(controller.data), str(second)]
    controller.configure({"controller": controller.entry})
    (controller.data / "meta.properties").write_text(f"node.id=3000\ncluster.id={CLUSTER}\n")
    (shared / "storage").write_text('#!/bin/sh\necho "$@" >&2\nexit 1\n')
    assert "--ignore-formatted" in controller.ask("format", release="3.9-IV0", node=3000)["error"]["text"]


def test_a_brokers_directory_is_never_formatted(make: Callable[..., Node]) -> None:
    assert make().refused("format", release="3.9", node=1) == "role"


SPELLED = [
    "process.roles=broker\n",
    " process.roles : broker\n",
    "process\\u002eroles=broker\n",
    "process\\.roles=broker\n",
    "a=b\rprocess.roles=broker\n",
    "a=b\r\n\tprocess.roles broker\r\n",
    "proc\\\n   ess.roles=broker\n",
    "proc\\\r\n#ess.roles=broker\nprocess.roles=broker",
    "a=b\\\\\nprocess.roles=broker\n",
    "#a\\\nprocess.roles=broker\n",
    "\\u0070rocess.roles=broker\n",
    "process.roles\n",
]
OTHERS = [
    "#process.roles=broker\n",
    "! process.roles=broker\n",
    "a=b\\\nprocess.roles=broker\n",
    "my.process.roles=broker\n",
    "a=process.roles\n",
]


@pytest.mark.parametrize("text", SPELLED)
def test_the_metadata_log_of_a_broker_stays_however_its_file_says_that_it_is_in_kraft_mode(
    make: Callable[..., Node], text: str
) -> None:
    node = make()
    node.properties.write_bytes(text.encode())
    (node.data / "__cluster_metadata-0").mkdir()
    assert node.refused("remove", **removal(node, "metadata log")) == "holds_data"
    assert (node.data / "__cluster_metadata-0").is_dir()


def test_keys_are_those_that_java_reads() -> None:
    pairs = agent_module().pairs
    for text in SPELLED:
        assert "process.roles" in pairs(text), text
    for text in OTHERS:
        assert "process.roles" not in pairs(text), text


def test_the_metadata_log_of_a_broker_that_runs_by_an_earlier_file_stays(make: Callable[..., Node]) -> None:
    """The worker's key alone: a file without process.roles is installed, and the broker not restarted."""
    node = make()
    log = node.data / "__cluster_metadata-0"
    log.mkdir()
    started(node)
    node.ok("install_file", **file(NEW))
    assert node.refused("remove", **removal(node, "metadata log")) == "holds_data"
    node.ok("restart", job="r1")
    node.ended("r1")
    assert node.ok("remove", **removal(node, "metadata log"))["removed"] == [str(log)], "a broker in ZooKeeper mode may run"


def test_a_metadata_log_that_a_process_has_open_stays(make: Callable[..., Node]) -> None:
    """Whatever its file says: it may have been started with another one."""
    node = make()
    log = node.data / "__cluster_metadata-0"
    log.mkdir()
    with (log / "00000000000000000000.log").open("w"):
        assert node.refused("remove", **removal(node, "metadata log")) == "holds_data"
    node.ok("remove", **removal(node, "metadata log"))


# What a broker's own file may have named


@needs_root
def test_root_writes_in_no_folder_of_root_that_a_brokers_file_has_named(make: Callable[..., Node], shared: Path) -> None:
    node = make(user="nobody")
    dropin = shared / "etc" / "logrotate.d"
    dropin.mkdir()
    node.configure({"broker": node.entry | {"log_dirs": [str(dropin)]}})
    assert node.refused("write_meta", folder=str(dropin), **file(META)) == "permission"
    assert list(dropin.iterdir()) == []


@pytest.mark.parametrize(
    "place",
    ["/etc/logrotate.d", "/usr/lib/systemd", "/usr/share/kafka", "/lib/systemd/system", "/lib64/x", "/boot/x", "/proc/sys", "/dev/shm",
     "/var/spool/cron", "/var/lib/kmigrate/broker", "/run/systemd", "/var/run/kafka", "/sbin/x"],
)  # fmt: skip
def test_directories_of_the_system_are_no_place_for_data(make: Callable[..., Node], place: str) -> None:
    module, entry = agent_module(), make().entry | {"log_dirs": [place]}
    for role in ("broker", "controller"):
        with pytest.raises(ValueError, match="no place for Kafka's data"):
            module.Role(role, entry, "/etc/kmigrate/node.json")


@pytest.mark.parametrize(
    "place", ["/usr/local/kafka/data", "/var/lib/kafka", "/data/etc", "/libs/kafka", "/opt/kafka/logs", "/home/kafka/run"]
)
def test_other_places_are(make: Callable[..., Node], place: str) -> None:
    assert agent_module().Role("broker", make().entry | {"log_dirs": [place]}, "/etc/kmigrate/node.json").log_dirs == [place]


# Limits


def patterns() -> list[tuple[str, str]]:
    """Each pattern of the agent, with the function that it is given to."""
    tree = ast.parse(AGENT.read_text())
    found = []
    for call in (each for each in ast.walk(tree) if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute)):
        owner = call.func.value  # type: ignore[attr-defined]
        if isinstance(owner, ast.Name) and owner.id == "re":
            first = call.args[0]
            assert isinstance(first, ast.Constant), f"line {call.lineno}: a pattern that is made when it runs"
            found.append((call.func.attr, first.value))  # type: ignore[attr-defined]
    return found


def letters(pattern: str | bytes) -> set[str]:
    """Texts of which a pattern can be made to repeat itself: blanks, and each part of itself."""
    text = pattern.decode() if isinstance(pattern, bytes) else pattern
    words = re.findall(r"[A-Za-z0-9_-]+", re.sub(r"\\[a-zA-Z]", "", text))
    return {" ", "\t", "\\", "/", "a", "0", ".", ":", "=", "\n", "\r", "\r\n", "a ", "a.", "/a", "\\u0041", *words}


@pytest.mark.parametrize(("function", "pattern"), patterns())
def test_no_pattern_takes_more_than_linear_time(function: str, pattern: str | bytes) -> None:
    """A quadratic one needs a minute of a processor for such a text; all of these together need less than one of its seconds."""
    compiled: Any = re.compile(pattern)
    ask = {"compile": "search", "sub": "findall"}.get(function, function)

    def too_slow(*_: object) -> None:
        raise AssertionError(f"{pattern!r} takes more than linear time for {text[:20]!r}")

    before, began = signal.signal(signal.SIGVTALRM, too_slow), time.process_time()
    signal.setitimer(signal.ITIMER_VIRTUAL, 5.0)
    try:
        for letter in letters(pattern):
            for text in (
                letter * 40_000,
                f"/a{letter * 40_000}\\",
                f"a.{letter * 40_000}!",
                f"ssl.keystore.location{letter * 40_000}x\0",
            ):
                getattr(compiled, ask)(text.encode() if isinstance(pattern, bytes) else text)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    assert time.process_time() - began < 5.5, "seconds of a processor: also what a pattern holds back the signal for"


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    ["ssl.keystore.location=/a" + " " * 900_000 + "\\", "ssl.keystore.location" + " " * 900_000, " " * 900_000 + "x", "a\\\n" * 300_000, "\\" * 900_000,
     "\r" * 900_000, "a" * 900_000, "\\u0041" * 150_000, "a=b\n" * 200_000, "." * 900_000],
    ids=range(10),
)  # fmt: skip
def test_a_file_of_any_shape_is_read_within_the_limit_of_a_request(make: Callable[..., Node], line: str) -> None:
    """The largest file that the agent reads; more time than `MAX_CPU` would end the agent without an answer."""
    node = make()
    node.properties.write_text(line)
    assert node.ok("facts")["file"]["sha256"] == file(line)["sha256"]


def test_a_request_that_takes_too_long_ends_the_agent(make: Callable[..., Node], tmp_path: Path) -> None:
    """As a pattern would that is quadratic; here a limit of one second and a search that never ends."""
    node = make()
    slow = AGENT.read_text().replace("= 60, 1 << 30", "= 1, 1 << 30")
    slow = slow.replace(
        "    def facts(self, request: Json) -> Json:\n",
        "    def facts(self, request: Json) -> Json:\n        while True: pass\n",
        1,
    )
    agent = tmp_path / "slow"
    agent.write_text(slow)
    argv = [sys.executable, "-I", str(agent), "serve", "--config", str(node.config)]
    asked = b'{"v": 1, "id": 1, "verb": "facts", "role": "broker"}\n'
    done = subprocess.run(argv, input=asked, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGXCPU, b"")


LIMITS = "import resource; print([resource.getrlimit(each) for each in (resource.RLIMIT_CPU, resource.RLIMIT_AS, resource.RLIMIT_FSIZE)], flush=True)"


def test_the_agent_has_limits_and_the_broker_that_it_starts_has_those_of_the_machine(make: Callable[..., Node]) -> None:
    node = make(process={"start": [sys.executable, "-ISc", f"{LIMITS}; import time; time.sleep(600)"]})
    started(node)
    here = [resource.getrlimit(each) for each in (resource.RLIMIT_CPU, resource.RLIMIT_AS, resource.RLIMIT_FSIZE)]
    said = wait_for(lambda: str(node.ok("read_log", lines=5)["log"]).strip(), bool, "it runs", 10)
    assert said == str(here)
    assert node.agent is not None
    limits = Path(f"/proc/{node.agent.pid}/limits").read_text()
    assert re.search(r"Max address space +1073741824 ", limits)
    assert re.search(r"Max file size +67108864 ", limits)
    assert re.search(r"Max cpu time +[56]\d ", limits) or re.search(r"Max cpu time +6\d ", limits)


def test_a_request_that_needs_more_memory_than_the_limit_is_refused_and_the_next_one_answered(
    make: Callable[..., Node], tmp_path: Path
) -> None:
    node = make()
    agent = tmp_path / "small"
    agent.write_text(AGENT.read_text().replace("1 << 30", "100 << 20"))
    argv = [sys.executable, "-I", str(agent), "serve", "--config", str(node.config)]
    asked = b"[" + b"{}," * 1_300_000 + b'{}]\n{"v": 1, "id": 1, "verb": "hello"}\n'
    done = subprocess.run(argv, input=asked, capture_output=True, timeout=60, check=False)
    first, second = map(json.loads, done.stdout.splitlines())
    assert (first["error"]["code"], "ok" in second) == ("malformed", True)


# Frames


FRAMES = {
    "digits": b'{"v":' + b"9" * 1_000_000 + b"}",
    "a list of pairs": b'[["v",1],["verb","hello"]]',
    "NaN": b'{"v":1,"id":NaN,"verb":"job","role":"broker","wait":NaN}',
    "a method": b'{"v":1,"id":1,"verb":"__init__","role":"broker"}',
    "a role of another type": b'{"v":1,"verb":"facts","role":["broker"]}',
    "an option": json.dumps(
        {"v": 1, "verb": "start", "role": "broker", "job": "--config x", "token": 1, "cluster": CLUSTER}
    ).encode(),
    "a path": json.dumps({"v": 1, "verb": "start", "role": "broker", "job": "../../x", "token": 1, "cluster": CLUSTER}).encode(),
    "a token that is too high": json.dumps(
        {"v": 1, "verb": "boot", "role": "broker", "enabled": True, "token": 2**63, "cluster": CLUSTER}
    ).encode(),
    "a token that is true": json.dumps(
        {"v": 1, "verb": "boot", "role": "broker", "enabled": True, "token": True, "cluster": CLUSTER}
    ).encode(),
    "half a letter": b'{"v":1,"verb":"install_file","role":"broker","token":1,"cluster":"c","content":"\\ud800","length":1,"sha256":"x"}',
    "half a letter that is echoed": b'{"v":1,"verb":"facts","role":"\\ud800"}',
    "half a letter as a verb": b'{"v":1,"verb":"\\ud800","role":"broker"}',
}


@pytest.mark.parametrize("frame", FRAMES)
def test_every_frame_gets_one_answer_that_can_be_read(unchanged: Node, frame: str) -> None:
    said = unchanged.say(FRAMES[frame] + b"\n")
    assert ("ok" in said) is (frame in {"NaN", "a list of pairs"})
    assert unchanged.ok("hello")


@pytest.mark.parametrize(
    ("name", "text"), [("tokens.json", '{"abc'), ("tokens.json", f'{{"{CLUSTER}": "7"}}'), ("job.json", "[1]"), ("job.json", "7")]
)
def test_a_record_that_is_damaged_is_named_and_nothing_is_written(make: Callable[..., Node], name: str, text: str) -> None:
    node = make()
    node.ok("install_file", **file(NEW))
    (node.state / "broker" / name).write_text(text)
    said = node.ask("install_file", **file(OLD))
    assert said["error"]["code"] in {"state", "malformed"}
    assert node.properties.read_text() == NEW


@needs_root
def test_a_state_folder_that_is_full_keeps_the_node_as_it_is(make: Callable[..., Node]) -> None:
    node = make()
    state = node.state / "broker"
    state.mkdir(parents=True)
    with mounted(state, "size=128k,mode=700"):
        before = started(node)
        try:
            with contextlib.suppress(OSError), (state / "fill").open("wb") as filler:
                while True:
                    filler.write(b"x" * 1024)
                    filler.flush()
            assert node.refused("restart", job="r1", **file(NEW + "#" + "x" * 3000)) == "disk_full"
            assert (node.pid(), node.properties.read_text()) == (before, OLD)
        finally:
            node.close()
