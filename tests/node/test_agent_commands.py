"""The backend `commands`: root runs a program only if root alone can change it and exchange it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.node.agent_parts import agent_module, needs_root
from tests.node.machine import SH, Node, program

pytestmark = needs_root
KAFKA = 12345  # the user of Kafka: any other than root


@pytest.fixture
def own(make: Callable[..., Node], shared: Path) -> Node:
    """A node that an own script starts and stops, in a folder of root."""
    script = shared / "opt" / "kafka-ctl"
    script.parent.mkdir()
    mark = shared / "runs"
    script.write_text(f"#!{SH}\ncase $1 in start) touch {mark};; stop) rm -f {mark};; *) test -e {mark} || exit 3;; esac\n")
    script.chmod(0o755)
    node = make(process=None, commands={verb: [str(script), verb] for verb in ("start", "stop", "status")})
    del node.entry["process"]
    node.configure({"broker": node.entry})
    return node


def script_of(node: Node) -> Path:
    return Path(node.entry["commands"]["start"][0])


def test_an_own_script_of_root_starts_and_stops_the_node(own: Node) -> None:
    own.ok("start", job="s1")
    assert own.ended("s1")["state"] == "done"
    assert own.ok("facts")["process"]["state"] == "running"
    own.ok("stop", job="s2")
    assert own.ended("s2")["state"] == "done"
    assert own.ok("facts")["process"]["state"] == "stopped"


@pytest.mark.parametrize("fault", ["owner", "mode", "group", "folder's owner", "folder's mode", "link", "folder's link"])
def test_a_program_that_others_can_change_or_exchange_is_not_run(own: Node, fault: str) -> None:
    script = script_of(own)
    match fault:
        case "owner":
            os.chown(script, KAFKA, KAFKA)
        case "mode":
            script.chmod(0o757)
        case "group":
            script.chmod(0o775)
        case "folder's owner":
            os.chown(script.parent, KAFKA, KAFKA)
        case "folder's mode":
            script.parent.chmod(0o775)
        case "link":
            script.rename(script.with_name("real"))
            script.symlink_to("real")
        case _:
            script.parent.rename(script.parent.with_name("real"))
            script.parent.symlink_to("real")
    answer = own.ask("facts")["error"]
    assert answer["code"] == ("link" if "link" in fault else "owner")
    assert "opt" in answer["text"]
    assert own.refused("start", job="s1") == answer["code"]
    assert not (script.parents[1] / "runs").exists()


@pytest.mark.parametrize(
    ("words", "runs"),
    [
        ([SH, "{script}"], False),  # the shell reads it
        ([program("env"), "A=b", "{script}"], False),
        ([program("timeout"), "60", "{script}"], False),
        ([program("runuser"), "-u", "nobody", "--", "{script}"], True),  # it has no rights of root then
        ([program("true"), "stop", "kafka", "/etc/hostname", "/absent"], True),
    ],
)
def test_a_script_that_a_program_of_root_runs_is_checked_too(own: Node, words: list[str], runs: bool) -> None:
    script = script_of(own)
    bad = script.with_name("of-kafka")
    bad.write_text(script.read_text())
    bad.chmod(0o755)
    os.chown(bad, KAFKA, KAFKA)
    own.entry["commands"]["stop"] = [word.format(script=bad) for word in words]
    own.configure({"broker": own.entry})
    assert ("ok" in own.ask("facts")) is runs


def test_all_programs_are_checked_before_any_of_them_stops_the_node(own: Node) -> None:
    """A start that root may not run must not be found out once the node is down."""
    own.ok("start", job="s1")
    own.ended("s1")
    bad = script_of(own).with_name("starts")
    bad.write_text(script_of(own).read_text())
    bad.chmod(0o777)
    own.entry["commands"]["start"] = [str(bad), "start"]
    own.configure({"broker": own.entry})
    own.close()
    assert own.refused("restart", job="r1") == "owner"
    assert (script_of(own).parents[1] / "runs").exists()


def test_a_program_without_its_path_is_refused(own: Node) -> None:
    own.entry["commands"]["stop"] = ["docker", "stop", "kafka"]
    own.configure({"broker": own.entry})
    assert "'docker' is not a plain absolute path" in own.ask("facts")["error"]["text"]


def test_a_program_that_is_exchanged_after_the_stop_is_not_run(own: Node) -> None:
    """A job starts the node without asking for its state, if that is not known."""
    module = agent_module()
    role = module.Role("broker", own.entry, str(own.config))
    script_of(own).chmod(0o777)
    with pytest.raises(module.Refusal, match="which others can change"):
        role.bring("running")
    assert not (script_of(own).parents[1] / "runs").exists()
