"""kmigrate-node as it is installed: a process that is asked over its standard input, with real files, users and processes.

The threat model's rows that concern a node are here: what a link, a properties file, a stale run, a broken connection or a kill may do.
"""

import ast
import contextlib
import hashlib
import itertools
import json
import os
import pwd
import signal
import stat
import struct
import sys
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.node.agent_parts import STORAGE, agent_module, job_pid, left, needs_root, removal
from tests.node.machine import AGENT, CLUSTER, META, NEW, OLD, SH, STUBBORN, Node, file, mounted, program
from tests.waiting import wait_for, wait_until

# Configuration and requests


def test_hello_names_the_roles(unchanged: Node) -> None:
    said = unchanged.ok("hello")
    assert said["protocol"] == 1
    assert said["roles"]["broker"]["properties"] == str(unchanged.properties)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"properties": "/etc/../etc/shadow"}, "plain absolute path"),
        ({"properties": "relative"}, "plain absolute path"),
        ({"log_dirs": ["//etc"]}, "plain absolute path"),
        ({"systemd": "kafka.service"}, "exactly one of"),
        ({"unknown": 1}, "unknown"),
        ({"user": "no-such-user-here"}, "no-such-user-here"),
        ({"log_dirs": 7}, "int"),
    ],
)
def test_a_configuration_that_is_wrong_is_refused(node: Node, change: dict[str, Any], text: str) -> None:
    node.configure({"broker": node.entry | change})
    error = node.ask("hello")["error"]
    assert error["code"] == "config"
    assert text in error["text"]


@pytest.mark.parametrize("unit", ["kafka", "kafka.timer", "-H root@other.service", "a b.service"])
def test_a_unit_must_be_the_name_of_a_service(node: Node, unit: str) -> None:
    node.configure({"broker": {key: value for key, value in node.entry.items() if key != "process"} | {"systemd": unit}})
    assert "is not the name of a unit" in node.ask("hello")["error"]["text"]


@pytest.mark.parametrize("change", [{"state": "/var/lib/other"}, {"version": 2}, {"roles": {"zookeeper": {}}}, {"roles": {}}])
def test_a_configuration_of_another_shape_is_refused(node: Node, change: dict[str, Any]) -> None:
    node.config.write_text(json.dumps(json.loads(node.config.read_text()) | change))
    assert node.refused("hello") == "config"


def test_two_roles_share_nothing(node: Node) -> None:
    own = {
        "properties": str(node.root / "etc" / "controller.properties"),
        "log_dirs": [str(node.root / "var" / "c")],
        "state": str(node.state / "controller"),
        "process": {"start": ["sleep", "600"]},
    }
    node.configure({"broker": node.entry, "controller": node.entry | own})
    assert sorted(node.ok("hello")["roles"]) == ["broker", "controller"]
    for shared in own:
        node.configure({"broker": node.entry, "controller": node.entry | own | {shared: node.entry[shared]}})
        node.close()
        assert "twice" in node.ask("hello")["error"]["text"], shared


@pytest.mark.parametrize("field", ["log_dirs", "state", "properties"])
def test_no_directory_of_a_node_is_inside_another(node: Node, field: str) -> None:
    own = {"properties": "/etc/kafka/c.properties", "process": {"start": ["sleep"]}, "state": str(node.state / "c")}
    inside = f"{node.data}/inside"
    own |= {"log_dirs": ["/var/c"]} | {field: [inside] if field == "log_dirs" else inside}
    node.configure({"broker": node.entry, "controller": node.entry | own})
    assert "inside a directory of log_dirs" in node.ask("hello")["error"]["text"]


def test_no_directory_of_a_role_is_named_twice(node: Node) -> None:
    node.configure({"broker": node.entry | {"log_dirs": [str(node.data)] * 2}})
    assert "twice" in node.ask("hello")["error"]["text"]


@pytest.mark.parametrize("mode", [0o666, 0o664])
def test_a_configuration_that_others_may_write_is_refused(node: Node, mode: int) -> None:
    node.config.chmod(mode)
    assert "only root may write it" in node.ask("hello")["error"]["text"]


def test_a_configuration_behind_a_link_is_refused(node: Node) -> None:
    real = node.config.rename(node.root / "real.json")
    node.config.symlink_to(real)
    assert node.refused("hello") == "config"


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"{\n", "malformed"),
        (b"[1]\n", "malformed"),
        (b"7\n", "malformed"),
        (b"\xff\xfe\n", "malformed"),
        (b"[" * 100_000 + b"\n", "malformed"),
        (b'{"v": 2, "id": 1, "verb": "hello"}\n', "protocol"),
        (b'{"v": 1, "id": 1, "verb": "facts", "role": "zookeeper"}\n', "role"),
        (b'{"v": 1, "id": 1, "verb": "facts", "role": ["broker"]}\n', "role"),
        (b'{"v": 1, "id": 1, "verb": "drop", "role": "broker"}\n', "verb"),
        (b'{"v": 1, "id": 1, "verb": ["facts"], "role": "broker"}\n', "verb"),
        (b'{"v": 1, "id": 1, "verb": "boot", "role": "broker", "enabled": "yes"}\n', "malformed"),
        (b'{"v": 1, "id": 1, "verb": "job", "role": "broker", "wait": "long"}\n', "malformed"),
        (b'{"v": 1, "id": 1, "verb": "job", "role": "broker", "wait": 1%b}\n' % (b"0" * 400), "malformed"),
    ],
)
def test_a_request_that_is_wrong_is_refused_and_the_next_one_answered(unchanged: Node, line: bytes, code: str) -> None:
    assert unchanged.say(line)["error"]["code"] == code
    assert unchanged.ok("hello")


def test_a_frame_that_is_too_large_ends_the_connection(node: Node) -> None:
    assert node.say(b'"' + b"x" * (4 * 1024 * 1024 + 1) + b'"\n')["error"]["code"] == "too_large"
    assert node.agent is not None
    assert node.agent.wait(10) == 0


# Files


def test_a_file_is_replaced_with_its_owner_mode_and_labels(node: Node) -> None:
    node.properties.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(node.properties, 1001, 1002)
    with contextlib.suppress(OSError):  # not every file system has labels
        os.setxattr(node.properties, "user.note", b"kept")
    labels = os.listxattr(node.properties)
    before = node.properties.stat()
    said = node.ok("install_file", **file(NEW + "a=\xe4\n"))
    after = node.properties.stat()
    assert node.properties.read_bytes().decode("iso-8859-1") == NEW + "a=\xe4\n"
    assert (after.st_uid, after.st_gid, after.st_mode) == (before.st_uid, before.st_gid, before.st_mode)
    assert os.listxattr(node.properties) == labels
    assert Path(said["kept"]).read_text() == OLD
    assert stat.S_IMODE(Path(said["kept"]).stat().st_mode) == 0o600
    assert [found.name for found in node.properties.parent.iterdir()] == ["server.properties"]


@pytest.mark.parametrize(
    "change", [{"length": 3}, {"sha256": "0" * 64}, {"content": OLD[:10]}, {"content": ""}, {"content": "\u20ac"}, {"content": 7}]
)
def test_a_file_that_is_not_what_was_sent_is_not_written(unchanged: Node, change: dict[str, Any]) -> None:
    assert unchanged.refused("install_file", **file(NEW) | change) == "content"
    assert unchanged.properties.read_text() == OLD


def test_a_properties_file_that_is_too_large_is_not_read(node: Node) -> None:
    node.properties.write_text("a=b\n" * (256 * 1024) + "c=d\n")
    assert "has more than 1048576 bytes" in node.ask("facts")["error"]["text"]


def test_remains_of_a_killed_writer_are_removed(node: Node) -> None:
    (node.properties.parent / ".kmigrate.server.properties.0123").write_text("secret")
    node.ok("install_file", **file(NEW))
    assert [found.name for found in node.properties.parent.iterdir()] == ["server.properties"]


@pytest.mark.parametrize("where", ["file", "folder", "above"])
def test_no_link_is_followed(node: Node, where: str) -> None:
    secret = node.root / "secret"
    secret.mkdir()
    (secret / "server.properties").write_text("password=canary\n")
    target = {"file": node.properties, "folder": node.properties.parent, "above": node.data.parent}[where]
    target.rename(node.root / "moved")
    target.symlink_to(secret / "server.properties" if where == "file" else secret)
    said = node.ask("facts")
    assert said["error"]["code"] == "link"
    assert "canary" not in json.dumps(said)
    assert node.refused("install_file", **file(NEW)) == "link"
    assert (secret / "server.properties").read_text() == "password=canary\n"


def test_no_link_in_a_log_directory_is_followed(node: Node) -> None:
    (node.root / "secret").write_text("password=canary\n")
    (node.data / "meta.properties").symlink_to(node.root / "secret")
    assert node.refused("facts") == "link"
    assert node.refused("write_meta", folder=str(node.data), **file(META)) == "link"
    assert (node.root / "secret").read_text() == "password=canary\n"


def test_what_log_dirs_of_the_file_says_does_not_matter(node: Node) -> None:
    node.properties.write_text("log.dirs=/etc;touch${IFS}/PWNED\n")
    assert list(node.ok("facts")["log_dirs"]) == [str(node.data)]


@needs_root
def test_the_agent_has_only_the_users_rights_in_a_folder_of_the_services_user(shared: Path) -> None:
    node, nobody = Node(shared, user="nobody"), pwd.getpwnam("nobody")
    os.chown(node.data, nobody.pw_uid, nobody.pw_gid)
    try:
        node.ok("write_meta", folder=str(node.data), **file(META))
        meta = node.data / "meta.properties"
        node.data.chmod(0o700)
        assert node.ok("facts")["log_dirs"][str(node.data)]["meta"] == META
        assert (meta.read_text(), meta.stat().st_uid) == (META, nobody.pw_uid)
        os.chown(meta, 0, 0)
        meta.chmod(0o600)  # a hard link to a file of root, say: its user may not read it, so neither may the agent
        assert node.refused("facts") == "permission"
    finally:
        node.close()


@needs_root
def test_a_folder_of_a_third_user_is_refused(make: Callable[..., Node]) -> None:
    node = make(user="nobody")
    os.chown(node.data, 1001, 1001)
    assert node.refused("facts") == "owner"


def test_a_directory_that_node_json_does_not_name_is_refused(unchanged: Node) -> None:
    assert unchanged.refused("write_meta", folder="/etc", **file(META)) == "path"
    assert unchanged.refused("write_meta", folder=str(unchanged.data.parent), **file(META)) == "path"


# The fence


def test_an_older_token_is_refused_by_every_verb_that_changes_something(node: Node) -> None:
    node.ok("install_file", **file(NEW))
    node.token = 4
    for verb, fields in (
        ("install_file", file(OLD)),
        ("write_meta", file(META) | {"folder": str(node.data)}),
        ("format", {"release": "3.9", "node": 1}),
        ("boot", {"enabled": True}),
        ("remove", {"kinds": ["kept file"], "listed": "0"}),
        ("stop", {"job": "a"}),
        ("start", {"job": "a"}),
        ("restart", file(OLD) | {"job": "a"}),
    ):
        assert node.refused(verb, **fields) == "fenced", verb
    assert node.properties.read_text() == NEW


def test_the_token_outlives_the_agent_and_belongs_to_a_cluster(node: Node) -> None:
    node.ok("install_file", **file(NEW))
    node.close()
    node.token = 4
    assert node.refused("install_file", **file(OLD)) == "fenced"
    node.ok("install_file", **file(OLD) | {"cluster": "another-cluster-on-the-same-host"})


def test_a_damaged_token_is_not_forgotten(node: Node) -> None:
    node.ok("install_file", **file(NEW))
    (node.state / "broker" / "tokens.json").write_text("{")
    assert node.refused("install_file", **file(OLD)) == "state"


def test_directories_of_another_cluster_are_not_touched(node: Node) -> None:
    (node.data / "meta.properties").write_text(META)
    assert node.refused("install_file", **file(NEW) | {"cluster": "other"}) == "other_cluster"


# Jobs


def test_a_restart_stops_installs_and_starts(node: Node) -> None:
    node.ok("start", job="s1")
    assert node.ended("s1")["state"] == "done"
    first = node.pid()
    node.ok("restart", job="r1", **file(NEW))
    record = node.ended("r1")
    assert (record["state"], [act["act"] for act in record["done"]]) == ("done", ["stage", "stop", "install", "start"])
    assert node.pid() not in (0, first)
    facts = node.ok("facts")
    assert facts["file"]["sha256"] == file(NEW)["sha256"]
    node.ok("restart", job="r1", **file(NEW))  # the answer was lost, so the worker asks again
    assert node.ended("r1")["state"] == "done"
    assert node.pid() == facts["process"]["pid"]


def test_a_restart_outlives_its_connection_and_its_agent(make: Callable[..., Node]) -> None:
    node = make(process={"start": STUBBORN})
    node.ok("start", job="s1")
    node.ended("s1")
    first = node.pid()
    node.ok("restart", job="r1", **file(NEW))
    assert node.agent is not None
    node.agent.kill()
    node.agent.wait(10)
    assert node.ended("r1")["state"] == "done"
    assert node.pid() not in (0, first)
    assert node.properties.read_text() == NEW


def test_a_stopped_node_waits_for_its_worker_and_starts_without_it(node: Node) -> None:
    node.ok("start", job="s1")
    node.ended("s1")
    for pause, goes_on in ((60, True), (1, False)):
        job = f"r{pause}"
        node.ok("restart", job=job, pause=pause, metas={str(node.data): file(META)})
        seen = node.ok("job", wait=10, until="pause")
        assert [act["act"] for act in seen["done"]] == ["stop", "write_meta", "pause"]
        assert node.pid() == 0
        if goes_on:
            node.ok("go_on", job=job)
        assert node.ended(job)["state"] == "done"
        assert node.pid() > 0
    assert (node.data / "meta.properties").read_text() == META


def test_contents_of_files_are_in_no_answer(node: Node) -> None:
    node.ok("restart", job="r1", metas={str(node.data): file(META + "secret=canary\n")}, **file(NEW + "password=canary\n"))
    answers = [node.ok("job"), node.ended("r1"), node.ok("facts", known=file(NEW + "password=canary\n")["sha256"])["job"]]
    assert "canary" not in json.dumps(answers)
    assert "canary" not in (node.state / "broker" / "job.json").read_text()


def test_a_job_that_was_killed_is_continued_by_its_id(make: Callable[..., Node]) -> None:
    node = make(process={"start": STUBBORN})
    node.ok("start", job="s1")
    node.ended("s1")
    first = node.pid()
    node.ok("restart", job="r1", **file(NEW))
    wait_until(lambda: [act["act"] for act in node.ok("job")["done"]][-1:] == ["stop"], "the node stops", 10)
    os.kill(job_pid(node), signal.SIGKILL)
    wait_until(lambda: not node.ok("job")["busy"], "the job is gone", 10)
    assert node.ok("job")["state"] == "running"
    node.ok("restart", job="r1", **file(NEW))
    assert node.ended("r1")["state"] == "done"
    assert node.pid() not in (0, first)


def test_a_job_that_was_killed_after_others_restarted_the_node_stops_nothing(node: Node) -> None:
    node.ok("start", job="s1")
    node.ended("s1")
    killed(node, ["stop", "start"], [])
    before = node.pid()
    node.ok("restart", job="r1")
    assert node.ended("r1")["error"]["code"] == "restarted"
    assert node.pid() == before


def test_a_request_during_a_job_is_refused_with_what_the_job_does(make: Callable[..., Node]) -> None:
    node = make(
        process={"start": [sys.executable, "-ISc", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"]},
        stop_timeout=1,
    )
    node.ok("start", job="s1")
    node.ended("s1")
    node.ok("restart", job="r1", **file(NEW))
    record = node.ended("r1")
    assert record["error"]["code"] == "timed_out"
    assert node.pid() > 0
    assert node.properties.read_text() == OLD


@needs_root
def test_a_full_disk_is_found_before_anything_is_stopped(node: Node) -> None:
    node.ok("start", job="s1")
    node.ended("s1")
    before = node.pid()
    small = node.properties.parent
    with mounted(small, "size=16k"):
        node.properties.write_text(OLD)
        with contextlib.suppress(OSError), (small / "core.dump").open("wb") as filler:
            while True:
                filler.write(b"x" * 1024)
                filler.flush()
        node.ok("restart", job="r1", **file(NEW * 200))
        record = node.ended("r1")
        assert record["error"]["code"] == "disk_full"
        assert node.pid() == before
        assert node.properties.read_text() == OLD


def test_a_start_that_fails_says_why(make: Callable[..., Node], tmp_path: Path) -> None:
    node = make(process={"start": [str(tmp_path / "java")]})
    node.ok("start", job="s1")
    record = node.ended("s1")
    assert record["state"] == "failed"
    assert "java" in record["error"]["text"]


@pytest.mark.parametrize("job", ["", "a b", "../job", "a" * 81])
def test_an_id_of_a_job_that_is_malformed_is_refused(unchanged: Node, job: str) -> None:
    assert unchanged.refused("stop", job=job) == "malformed"
    assert unchanged.ok("job") == {"busy": False}


def test_a_program_that_does_not_end_in_time_is_killed(tmp_path: Path) -> None:
    module, mark = agent_module(), tmp_path / "ended"
    with pytest.raises(module.Refusal, match=r"did not end within 0 s"):
        module.run(["/bin/sh", "-c", 'sleep 2; touch "$0"', str(mark)], 0.2)
    assert not mark.exists()


@pytest.mark.parametrize("state", ["running", "stopped"])
def test_a_node_that_does_not_reach_its_state_in_time_is_named(make: Callable[..., Node], tmp_path: Path, state: str) -> None:
    node = make(start_timeout=0.1, stop_timeout=0.1)
    other = {"running": "3", "stopped": "0"}[state]
    count = f'echo >> "$0"; test $(wc -l < "$0") -lt 100 || exit {3 - int(other)}; exit {other}'  # at last, so that it ends
    entry = {key: value for key, value in node.entry.items() if key != "process"}
    entry["commands"] = {
        "start": [program("true")],
        "stop": [program("true")],
        "status": [SH, "-c", count, str(tmp_path / "asked")],
    }
    module = agent_module()
    module.must_succeed = lambda *_: None  # its command has done nothing, in whatever time
    with pytest.raises(module.Refusal, match=f"the broker is not {state} 0 s after its"):
        module.Role("broker", entry, str(node.config)).bring(state)


def test_commands_report_start_and_stop(make: Callable[..., Node], tmp_path: Path) -> None:
    mark = tmp_path / "runs"
    status = [SH, "-c", f"test -e {mark} || exit 3"]
    node = make(
        process=None, commands={"start": [program("touch"), str(mark)], "stop": [program("rm"), str(mark)], "status": status}
    )
    del node.entry["process"]
    node.configure({"broker": node.entry})
    assert node.ok("facts")["process"]["state"] == "stopped"
    node.ok("start", job="s1")
    assert node.ended("s1")["state"] == "done"
    node.ok("stop", job="s2")
    assert node.ended("s2")["state"] == "done"
    assert not mark.exists()


@pytest.fixture
def controller(make: Callable[..., Node], tmp_path: Path) -> Node:
    tool = tmp_path / "storage"
    tool.write_text(STORAGE)
    tool.chmod(0o755)
    node = make(storage_tool=[str(tool)])
    node.data.rmdir()
    node.properties.write_text(f"process.roles=controller\nnode.id=3000\nlog.dirs={node.data}\n")
    node.is_controller()
    return node


def test_a_controller_is_formatted_and_set_aside_again_and_again(controller: Node) -> None:
    for number in (1, 2):
        assert controller.ok("format", release="3.9-IV0", node=3000) == {"formatted": [str(controller.data)]}
        assert controller.ok("format", release="3.9-IV0", node=3000) == {"formatted": []}
        assert stat.S_IMODE(controller.data.stat().st_mode) == 0o750
        aside = f"{controller.data}.rolled-back-{number}"
        assert controller.ok("set_aside", node=3000) == {"moved": [aside]}
        assert controller.ok("set_aside", node=3000) == {"moved": []}
        assert (Path(aside) / "meta.properties").exists()


@needs_root
def test_a_directory_that_is_a_disk_of_its_own_is_emptied(controller: Node) -> None:
    controller.data.mkdir()
    with mounted(controller.data):
        controller.ok("format", release="3.9-IV0", node=3000)
        assert controller.ok("set_aside", node=3000) == {"moved": [f"{controller.data}/kraft.rolled-back-1"]}
        assert controller.ok("facts")["log_dirs"][str(controller.data)]["meta"] is None
        controller.ok("format", release="3.9-IV0", node=3000)
        assert controller.ok("set_aside", node=3000) == {"moved": [f"{controller.data}/kraft.rolled-back-2"]}


@pytest.mark.parametrize("held", ["records", "node", "cluster", "no ids", "no cluster"])
def test_directories_that_hold_anything_else_are_not_formatted(controller: Node, held: str) -> None:
    controller.data.mkdir()
    if held == "records":
        (controller.data / "orders-0").mkdir()
    else:
        lines = {
            "node": f"node.id=3001\ncluster.id={CLUSTER}\n",
            "cluster": "node.id=3000\ncluster.id=other\n",
            "no ids": "version=1\n",
            "no cluster": "version=1\nnode.id=3000\n",
        }
        (controller.data / "meta.properties").write_text(lines[held])
    assert controller.refused("format", release="3.9", node=3000) == ("other_cluster" if held == "cluster" else "holds_data")
    assert controller.refused("set_aside", node=3000) == ("other_cluster" if held == "cluster" else "holds_data")


@pytest.mark.parametrize("release", ["3", "latest", "3.9 --ignore-formatted", "3.9-IV0\n"])
def test_a_metadata_version_that_is_none_is_not_given_to_the_tool(controller: Node, release: str) -> None:
    assert controller.refused("format", release=release, node=3000) == "malformed"
    assert not controller.data.exists()


def test_a_failed_format_says_what_the_tool_said(controller: Node) -> None:
    Path(controller.entry["storage_tool"][0]).write_text("#!/bin/sh\necho no such release >&2\nexit 1\n")
    assert "no such release" in controller.ask("format", release="3.9", node=3000)["error"]["text"]


def test_directories_of_a_node_that_runs_are_not_touched(controller: Node) -> None:
    controller.ok("start", job="s1")
    controller.ended("s1")
    try:
        for verb, fields in (("format", {"release": "3.9", "node": 3000}), ("set_aside", {"node": 3000})):
            assert controller.refused(verb, **fields) == "running"
        assert controller.refused("write_meta", folder=str(controller.data), **file(META)) == "running"
    finally:
        os.kill(controller.pid(), signal.SIGKILL)


def test_a_brokers_directories_are_never_set_aside(unchanged: Node) -> None:
    assert unchanged.refused("set_aside", node=1) == "role"


# Facts


def test_facts_of_a_node(node: Node) -> None:
    (node.data / "meta.properties").write_text(META)
    seen = node.ok("facts")
    folder = seen["log_dirs"][str(node.data)]
    assert seen["file"]["text"] == node.properties.read_text()
    assert (folder["meta"], folder["has_metadata_log"]) == (META, False)
    assert min(folder["free"], seen["file"]["free"]) > 0
    assert abs(seen["clock"] - time.time()) < 60
    assert seen["unit"] == {"TimeoutStopUSec": "infinity"}, "nothing kills a plain process that stops slowly"
    assert node.ok("facts", known=seen["file"]["sha256"])["file"]["text"] is None


def test_facts_name_the_file_that_a_process_was_started_with(make: Callable[..., Node], tmp_path: Path) -> None:
    other = tmp_path / "etc" / "made" / "kafka.properties"
    words = [
        "-Dlog4j.configuration=file:/etc/log4j.properties",
        str(tmp_path / "etc" / "made" / ".." / "server.properties"),
        str(other),
        os.fsdecode(bytes(tmp_path) + b"/\xff.properties"),
    ]
    node = make(process={"start": [sys.executable, "-ISc", "import time; print('up', flush=True); time.sleep(600)", *words]})
    node.ok("start", job="s1")
    node.ended("s1")
    wait_for(lambda: str(node.ok("read_log", lines=5)["log"]).strip(), bool, "it runs", 10)
    seen = node.ok("facts")
    assert seen["process"]["named"] == [str(node.properties), str(other), f"{tmp_path}/\ufffd.properties"]
    assert abs(seen["file"]["written"] - node.properties.stat().st_mtime) < 1e-3


def test_facts_name_the_key_stores_that_the_service_cannot_read(node: Node) -> None:
    store = node.root / "ks.jks"
    store.touch()
    lines = [
        f"ssl.keystore.location={store}",
        f"listener.name.ssl.ssl.keystore.location : {node.root}/gone of 2023.jks  ",
        f"#ssl.truststore.location={node.root}/comment.jks",
        "zookeeper.ssl.truststore.location=/gone/ts.jks\r",
        "ssl.truststore.location=${file:/etc/secrets:store}",
        "ssl.keystore.password=/gone/password",
    ]
    node.properties.write_bytes("\n".join(lines).encode() + b"\n")
    assert node.ok("facts")["unreadable"] == ["/gone/ts.jks", f"{node.root}/gone of 2023.jks"]


@needs_root
def test_a_key_store_is_tried_with_the_rights_of_the_service(shared: Path) -> None:
    node, store = Node(shared, user="nobody"), shared / "ks.jks"
    store.touch(0o600)
    node.properties.write_text(f"ssl.keystore.location={store}\n")
    try:
        assert node.ok("facts")["unreadable"] == [str(store)]
        store.chmod(0o644)
        assert node.ok("facts")["unreadable"] == []
    finally:
        node.close()


def test_facts_show_the_log_of_a_unit_that_is_started_again_and_again(node: Node) -> None:
    systemd = Systemd(agent_module(), node)
    assert systemd.role.facts({})["failing"] is None
    systemd.sub_state, systemd.runs = "auto-restart", False
    seen = systemd.role.facts({})
    assert "the log" in seen["failing"]
    assert seen["unit"]["SubState"] == "auto-restart"


def test_facts_do_not_wait_for_a_journal_or_a_disk_that_does_not_answer(node: Node) -> None:
    systemd = Systemd(agent_module(), node, "--no-pager", "-c")
    systemd.sub_state, systemd.runs = "auto-restart", False
    node.properties.write_text("ssl.keystore.location=/net/ks.jks\n")
    seen = systemd.role.facts({})
    assert seen["failing"] == "no log at the journal: no answer"
    assert seen["unreadable"] == ["/net/ks.jks"]
    assert systemd.limits == {"--no-pager": 5.0, "-c": 5.0}


# What a hostile service user, request or moment may do


@pytest.mark.parametrize("where", ["broker", "."])
def test_records_in_a_folder_that_others_may_write_are_neither_read_nor_written(node: Node, where: str) -> None:
    node.ok("install_file", **file(NEW))
    (node.state / where).chmod(0o777)
    assert node.refused("facts") == "owner"
    assert node.refused("install_file", **file(OLD)) == "owner"
    assert node.properties.read_text() == NEW


def killed(node: Node, acts: list[str], ended: list[str], **more: Any) -> None:
    """The record of the job `r1`, killed after the acts that have ended."""
    folder = node.state / "broker"
    folder.mkdir(parents=True, exist_ok=True)
    files = hashlib.sha256(json.dumps([more.get("content"), None]).encode()).hexdigest()
    record = {"id": "r1", "kind": "restart", "state": "running", "acts": acts, "process": "an-older-boot:7", "metas": {}}
    record |= {"cluster": CLUSTER, "token": node.token, "files": files}
    done = [{"act": act, "began": 1.0, "ended": 2.0} for act in ended]
    (folder / "job.json").write_text(json.dumps(record | {"done": done} | more))


def test_a_job_that_could_not_write_a_file_does_not_become_done_when_it_is_asked_for_again(node: Node) -> None:
    node.ok("start", job="s1")
    node.ended("s1")
    node.data.rmdir()
    for _ in range(2):
        node.ok("restart", job="r1", metas={str(node.data): file(META)})
        record = node.ended("r1")
        assert (record["state"], record["error"]["code"]) == ("failed", "failed")
        assert node.pid() > 0


def test_a_pause_that_fails_leaves_no_node_down(node: Node) -> None:
    node.ok("start", job="s1")
    node.ended("s1")
    (node.state / "broker" / "go_on.json").write_text("{")
    node.ok("restart", job="r1", pause=1)
    assert node.ended("r1")["error"]["code"] == "state"
    assert node.pid() > 0


@needs_root
def test_a_disk_of_records_that_fills_up_leaves_no_node_down(make: Callable[..., Node], tmp_path: Path) -> None:
    mark, state = tmp_path / "runs", tmp_path / "state" / "broker"
    mark.touch()
    fill = f"rm {mark}; dd if=/dev/zero of={state}/fill bs=1k 2>/dev/null; exit 0"
    status = [SH, "-c", f"test -e {mark} || exit 3"]
    node = make(process=None, commands={"start": [program("touch"), str(mark)], "stop": [SH, "-c", fill], "status": status})
    del node.entry["process"]
    node.configure({"broker": node.entry})
    state.mkdir(parents=True)
    with mounted(state, "size=64k,mode=700"):
        node.ok("restart", job="r1")
        wait_until(lambda: not node.ok("job")["busy"] and (state / "fill").exists(), "the job ends", 10)
        assert mark.exists()


def test_a_node_that_others_started_meanwhile_is_not_said_to_have_the_new_file(node: Node) -> None:
    node.ok("start", job="s1")
    node.ended("s1")
    staged = node.properties.parent / ".kmigrate.server.properties.0123"
    staged.write_text(NEW)
    killed(node, ["stage", "stop", "install", "start"], ["stage", "stop"], staged=staged.name, **file(NEW))
    node.ok("restart", job="r1", **file(NEW))
    assert node.ended("r1")["error"]["code"] == "running"
    assert node.properties.read_text() == OLD


def test_a_staged_file_that_is_gone_is_written_again(node: Node) -> None:
    killed(node, ["stage", "stop", "install", "start"], ["stage", "stop"], staged=".kmigrate.server.properties.01", **file(NEW))
    node.ok("restart", job="r1", **file(NEW))
    assert node.ended("r1")["state"] == "done"
    assert node.properties.read_text() == NEW


def test_the_other_roles_staged_file_is_no_remains(node: Node) -> None:
    staged = node.properties.parent / ".kmigrate.server.properties.0123"
    staged.write_text(NEW)
    other = node.entry | {
        "process": {"start": ["sleep", "600"]},
        "properties": str(node.root / "etc" / "controller.properties"),
        "log_dirs": [str(node.root / "var" / "c")],
        "state": str(node.state / "controller"),
    }
    node.configure({"broker": node.entry, "controller": other})
    node.ok("install_file", **file(NEW) | {"role": "controller"})
    assert staged.exists()


def test_a_go_on_of_another_job_takes_nothing_back(node: Node) -> None:
    killed(node, [], [], state="done")
    for job in ("r1", "r2"):
        node.ok("go_on", job=job)
    assert json.loads((node.state / "broker" / "go_on.json").read_text()) == {"job": "r1"}


@needs_root
def test_a_log_that_is_a_link_is_not_written(shared: Path) -> None:
    log, nobody = shared / "log", pwd.getpwnam("nobody")
    log.mkdir()
    os.chown(log, nobody.pw_uid, nobody.pw_gid)
    (shared / "secret").write_text("canary")
    (log / "out").symlink_to(shared / "secret")
    node = Node(shared, user="nobody", log=str(log / "out"))
    try:
        node.ok("start", job="s1")
        assert "is a link" in node.ended("s1")["error"]["text"]
        assert (shared / "secret").read_text() == "canary"
    finally:
        node.close()


def test_a_process_may_have_any_name(make: Callable[..., Node]) -> None:
    named = "import time; open('/proc/self/comm', 'wb').write(b'\\xff) Z 1'); print('named', flush=True); time.sleep(600)"
    node = make(process={"start": [sys.executable, "-ISc", named, os.fsdecode(b"\xff")]})
    node.ok("start", job="s1")
    node.ended("s1")
    wait_for(lambda: str(node.ok("read_log", lines=5)["log"]).strip(), bool, "it has its name", 10)
    assert node.ok("facts")["process"]["state"] == "running"


def test_a_start_command_may_leave_a_process_that_holds_its_output(make: Callable[..., Node], tmp_path: Path) -> None:
    mark = tmp_path / "runs"
    start = [SH, "-c", f"echo {'x' * 100_000}; sleep 15 & touch {mark}"]
    node = make(commands={"start": start, "stop": [program("rm"), str(mark)], "status": [SH, "-c", f"test -e {mark} || exit 3"]})
    del node.entry["process"]
    node.configure({"broker": node.entry})
    began = time.monotonic()
    node.ok("start", job="s1")
    assert node.ended("s1")["state"] == "done"
    assert time.monotonic() - began < 8


def test_tokens_and_kept_files_do_not_grow_without_bound(node: Node) -> None:
    node.ok("install_file", **file(NEW))
    folder = node.state / "broker"
    (folder / "tokens.json").write_text(json.dumps({CLUSTER: 5} | {f"other-{number}": 1 for number in range(99)}))
    node.ok("install_file", **file(OLD))
    assert node.refused("install_file", **file(NEW) | {"cluster": "one-more"}) == "state"
    for number in range(200):
        (folder / f"kept-{number}.properties").touch()
    node.properties.write_text(NEW + "#\n")
    assert node.refused("install_file", **file(NEW)) == "state"
    node.ok("restart", job="r1", **file(NEW))
    assert [act["act"] for act in node.ended("r1")["done"]] == ["stage"]


def test_a_wait_that_is_no_number_does_not_last(node: Node) -> None:
    killed(node, [], [])
    node.ok("hello")
    assert node.agent is not None
    guard = threading.Timer(10, node.agent.kill)
    guard.start()
    assert node.ok("job", wait=float("nan"))["busy"] is False
    guard.cancel()


def test_a_replaced_file_does_not_run_as_its_owner(node: Node) -> None:
    node.properties.chmod(0o4755)
    node.ok("install_file", **file(NEW))
    assert stat.S_IMODE(node.properties.stat().st_mode) == 0o755


@needs_root
@pytest.mark.parametrize("how", ["owner above", "acl"])
def test_root_acts_in_no_directory_that_the_services_user_can_exchange_or_fill(shared: Path, how: str) -> None:
    node, nobody = Node(shared, user="nobody"), pwd.getpwnam("nobody")
    node.is_controller()
    meta = node.data / "meta.properties"
    meta.write_text(META)
    meta.chmod(0o600)
    try:
        assert node.ok("facts")["log_dirs"][str(node.data)]["meta"] == META
        if how == "acl":
            entries = [(1, 7, -1), (2, 7, nobody.pw_uid), (4, 5, -1), (16, 7, -1), (32, 5, -1)]
            acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
            try:
                os.setxattr(node.data, "system.posix_acl_access", acl)
            except OSError as error:
                pytest.skip(f"this file system has no ACLs: {error}")
        else:
            os.chown(node.data.parent, nobody.pw_uid, nobody.pw_gid)
        assert node.refused("facts") == "permission"
    finally:
        node.close()


@needs_root
def test_a_directory_whose_maker_was_killed_gets_its_owner(shared: Path) -> None:
    tool = shared / "storage"
    tool.write_text(STORAGE)
    tool.chmod(0o755)
    node = Node(shared, user="nobody", storage_tool=[str(tool)])
    node.properties.write_text(f"node.id=3000\nlog.dirs={node.data}\n")
    node.is_controller()
    node.data.chmod(0o750)
    try:
        assert node.ok("format", release="3.9", node=3000) == {"formatted": [str(node.data)]}
        assert node.data.stat().st_uid == pwd.getpwnam("nobody").pw_uid
    finally:
        node.close()


def test_a_directory_with_endless_names_is_refused(tmp_path: Path) -> None:
    module = agent_module()
    module.MAX_NAMES = 3
    for name in "abc":
        (tmp_path / name).touch()
    with module.Folder(str(tmp_path)) as folder:
        assert sorted(folder.names()) == ["a", "b", "c"]
        (tmp_path / "d").touch()
        with pytest.raises(module.Refusal, match="more than 3"):
            folder.names()


def test_a_configuration_in_a_folder_of_others_is_refused(node: Node) -> None:
    node.root.chmod(0o777)
    assert "and its folder" in node.ask("hello")["error"]["text"]


def test_a_path_may_have_any_letters(node: Node) -> None:
    path = node.properties.rename(node.properties.parent / "größe.properties")
    config = {"version": 1, "roles": {"broker": node.entry | {"properties": str(path)}}}
    node.config.write_text(json.dumps(config, ensure_ascii=False))
    assert node.ok("facts")["file"]["text"] == OLD


class Systemd:
    """`run` of the agent's module: what systemd answers. `broken`: the commands that fail."""

    def __init__(self, module: Any, node: Node, *broken: str) -> None:
        self.module, self.broken, self.asked = module, broken, list[list[str]]()
        self.runs, self.sub_state, self.result = True, "running", "success"
        self.limits: dict[str, float] = {}
        module.run = self.run
        entry = {name: value for name, value in node.entry.items() if name != "process"} | {"systemd": "kafka.service"}
        self.role = module.Role("broker", entry, "/etc/kmigrate/node.json")
        (node.state / "broker").mkdir(parents=True)
        birth = self.role.find().birth
        self.record = {"id": "r1", "acts": ["stop", "start"], "done": [], "process": birth, "metas": {}}

    def run(self, argv: list[str], timeout: float = 0.0, *_: Any) -> tuple[int, str]:
        self.asked.append(argv)
        if argv[1] in self.broken and len(self.asked) > 1:
            self.limits[argv[1]] = timeout
            raise self.module.Refusal("timed_out", "no answer")
        self.runs = {"stop": False, "start": True}.get(argv[1], self.runs)
        state = "active" if self.runs else "inactive"
        if argv[0] == "journalctl":
            return 0, "the log"
        shown = {
            "ActiveState": state,
            "SubState": self.sub_state,
            "MainPID": os.getpid() if self.runs else 0,
            "Result": self.result,
        }
        return 0, "LoadState=loaded\n" + "".join(f"{name}={value}\n" for name, value in shown.items())


def test_a_unit_that_is_masked_is_named_with_its_remedy_before_anything_stops(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = agent_module()
    systemd = Systemd(module, node)
    monkeypatch.setattr(module, "run", lambda *_: (0, "LoadState=masked\nActiveState=active\n"))
    with pytest.raises(
        module.Refusal, match=r"cannot start the unit kafka.service: masked; run `systemctl unmask kafka.service`"
    ):
        systemd.role.carry_out(systemd.record)
    assert systemd.runs


def test_a_unit_that_stops_too_late_starts_again(node: Node) -> None:
    module = agent_module()
    systemd = Systemd(module, node, "stop")
    with pytest.raises(module.Refusal, match="no answer"):
        systemd.role.carry_out(systemd.record)
    assert systemd.asked[-1] == ["systemctl", "start", "--no-block", "--", "kafka.service"]


def test_a_systemd_that_does_not_answer_leaves_no_node_down(node: Node) -> None:
    module = agent_module()
    systemd = Systemd(module, node)
    systemd.record["done"] = [{"act": "stop", "began": 1.0, "ended": 2.0}]
    systemd.runs, systemd.broken = False, ("show",)
    with pytest.raises(module.Refusal):  # it cannot tell that the unit runs, but the unit does
        systemd.role.carry_out(systemd.record)
    assert systemd.runs


def test_a_job_goes_on_with_no_act_once_a_newer_token_is_known_and_its_node_is_started(node: Node) -> None:
    systemd = Systemd(agent_module(), node)
    systemd.record |= {"acts": ["stop", "write_meta", "start"], "done": [{"act": "stop", "began": 1.0, "ended": 2.0}]}
    systemd.record |= {"cluster": CLUSTER, "token": 5, "metas": {str(node.data): META}}
    systemd.role.save("tokens.json", {CLUSTER: 6})
    systemd.runs = False
    with pytest.raises(systemd.module.Refusal, match="token 5 is older than 6"):
        systemd.role.carry_out(systemd.record)
    assert systemd.runs
    assert not (node.data / "meta.properties").exists()


def test_no_directory_of_a_node_that_others_started_meanwhile_is_written(node: Node) -> None:
    systemd = Systemd(agent_module(), node)
    systemd.record["metas"] = {str(node.data): META}
    with pytest.raises(systemd.module.Refusal, match="the broker is running: nothing of it must be changed now"):
        systemd.role.act_write_meta(systemd.record)
    assert not (node.data / "meta.properties").exists()


def test_a_process_of_which_the_record_is_damaged_is_not_started_a_second_time(node: Node) -> None:
    module, record = agent_module(), node.state / "broker" / "process.json"
    record.parent.mkdir(parents=True)
    record.write_text("{")
    with pytest.raises(module.Refusal, match=r"process.json is damaged"):
        module.Role("broker", node.entry, str(node.config)).act_start({})
    record.unlink()


def test_the_record_of_a_stop_has_what_systemd_says_of_it(node: Node) -> None:
    systemd = Systemd(agent_module(), node)
    systemd.result = "timeout"
    systemd.role.carry_out(systemd.record)
    assert [act["result"] for act in systemd.record["done"] if act["act"] == "stop"] == ["timeout"]


def test_a_folder_of_records_that_others_may_write_leaves_no_node_down(node: Node) -> None:
    systemd = Systemd(agent_module(), node)
    systemd.record["done"] = [{"act": "stop", "began": 1.0, "ended": 2.0}]
    systemd.runs = False
    (node.state / "broker").chmod(0o777)  # between the stop and the start
    systemd.role.carry_out(systemd.record)
    assert systemd.runs


def test_systemd_starts_a_killed_job_again(node: Node) -> None:
    systemd = Systemd(agent_module(), node)
    systemd.role.spawn("r1")
    assert "--property=Restart=on-failure" in systemd.asked[-1]


def test_the_seconds_of_an_act_do_not_jump_with_the_clock(node: Node) -> None:
    module = agent_module()
    systemd = Systemd(module, node)
    clock = itertools.count(1_000.0, 8_000.0)
    module.time = types.SimpleNamespace(monotonic=time.monotonic, sleep=time.sleep, time=lambda: next(clock))
    systemd.role.carry_out(systemd.record)
    assert all(0 <= act["ended"] - act["began"] < 10 for act in systemd.record["done"])


def test_the_agent_needs_python_3_6_and_its_library_only() -> None:
    tree = ast.parse(AGENT.read_text(), feature_version=(3, 6))
    imported = {alias.name for entry in ast.walk(tree) if isinstance(entry, ast.Import) for alias in entry.names}
    imported |= {str(entry.module) for entry in ast.walk(tree) if isinstance(entry, ast.ImportFrom)}
    assert imported <= sys.stdlib_module_names - {"dataclasses", "importlib.resources", "zoneinfo", "graphlib", "tomllib"}
    assert not any(isinstance(entry, ast.NamedExpr | ast.Match) for entry in ast.walk(tree))


def test_the_agent_is_short_enough_to_be_read() -> None:
    assert len(AGENT.read_text().splitlines()) <= 1360


def test_the_agent_is_executable_and_shipped() -> None:
    assert os.access(AGENT, os.X_OK)
    assert "node/kmigrate-node" in (Path(__file__).parents[2] / "setup.cfg").read_text(encoding="utf-8")


# What is left, and its removal


KINDS = ["kept file", "set aside", "metadata log", "controller file"]


def test_a_broker_lists_and_removes_what_is_left_and_nothing_else(node: Node) -> None:
    node.ok("install_file", **file(NEW))
    log = node.data / "__cluster_metadata-0"
    (log / "deeper").mkdir(parents=True)
    (log / "00000000000000000000.log").write_text("records")
    (log / "deeper" / "link").symlink_to(node.root)
    orders = node.data / "orders-0"
    orders.mkdir()
    (orders / "00000000000000000000.log").write_text("records")
    [kept] = (node.state / "broker").glob("kept-*.properties")
    assert left(node) == [["kept file", str(kept)], ["metadata log", str(log)]]
    assert node.ok("remove", **removal(node, "set aside", str(orders)))["removed"] == [], "no path can be named"
    assert node.ok("remove", **removal(node, "metadata log"))["removed"] == [str(log)]
    assert left(node) == [["kept file", str(kept)]]
    assert node.ok("remove", **removal(node, *KINDS))["removed"] == [str(kept)]
    assert (kept.exists(), log.exists()) == (False, False)
    assert (orders / "00000000000000000000.log").read_text() == "records"
    assert node.root.is_dir(), "a link is removed, not what it leads to"


def test_nothing_is_removed_that_was_not_listed(node: Node) -> None:
    node.ok("install_file", **file(NEW))
    listed = removal(node, *KINDS)
    log = node.data / "__cluster_metadata-0"
    log.mkdir()
    assert node.refused("remove", **listed) == "changed"
    assert len(left(node)) == 2


def test_the_metadata_log_of_a_broker_in_kraft_mode_stays(node: Node) -> None:
    log = node.data / "__cluster_metadata-0"
    log.mkdir()
    node.properties.write_text(OLD + " process.roles = broker\n")
    assert node.refused("remove", **removal(node, "metadata log")) == "holds_data"
    assert log.is_dir()


@pytest.mark.parametrize("kinds", ["kept file", [1], None])
def test_a_list_of_something_else_is_refused(node: Node, kinds: object) -> None:
    assert node.refused("remove", **removal(node) | {"kinds": kinds}) == "malformed"


def test_a_controller_lists_what_was_set_aside_and_its_file_once_it_is_not_used(controller: Node) -> None:
    controller.ok("format", node=3000, release="3.9-IV0")
    assert left(controller) == [], "its directory is in use"
    [aside] = controller.ok("set_aside", node=3000)["moved"]
    Path(aside).with_name("other.rolled-back-1").mkdir()
    assert left(controller) == [["controller file", str(controller.properties)], ["set aside", aside]], "not another node's"
    controller.ok("remove", **removal(controller, *KINDS))
    assert left(controller) == []
    assert not Path(aside).exists()
