"""Whose a node's files and directories are, and what is said of a node that hangs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from airflow_provider_kmigrate.core.cluster_state.decision import Act, Verb, Wait
from airflow_provider_kmigrate.core.cluster_state.model import Controller, NodeFiles, could_not_read
from airflow_provider_kmigrate.core.cluster_state.spec import HostSpec, NodeRole, NodeSpec
from airflow_provider_kmigrate.core.migration.controllers import advise_after_stop_timeout, unresponsive_controller
from airflow_provider_kmigrate.core.node_files.config_matrix import (
    FileStage,
    decide_file_rewrite,
    describe_foreign_file,
    directories_in_use,
    find_foreign_owners,
    foreign_directory_reason,
    read_owner,
    render_version_0,
    version_1_directories,
)
from airflow_provider_kmigrate.core.reasons import ENTRIES
from tests.core.views import FILES, KRAFT, UP, ZK

MINE = {"cluster.id": "c", "node.id": "3000"}
OTHER = {"cluster.id": "c", "node.id": "3001"}
BROKER = {"cluster.id": "c", "broker.id": "1", "version": "0"}


@pytest.mark.parametrize(
    ("meta", "found"),
    [
        (MINE, ("c", "3000")),
        (BROKER, ("c", "1")),
        ({**BROKER, "node.id": "2"}, ("c", "2")),
        ({"cluster.id": "c"}, ("c", None)),
        ({}, (None, None)),
    ],
)
def test_owner(meta: Mapping[str, str], found: tuple[str | None, str | None]) -> None:
    assert read_owner(meta) == found


@pytest.mark.parametrize(
    ("meta", "log", "theirs", "used"),
    [
        (None, True, {}, ()),
        ({}, True, {}, ()),
        ({"/a": {}}, False, {}, ()),
        ({"/a": {}}, True, {}, ("/a",)),
        ({"/a": MINE}, False, {}, ("/a",)),
        ({"/a": MINE}, None, {}, ("/a",)),
        ({"/a": {"version": "1"}}, False, {}, ("/a",)),  # formatted, and of no other node
        ({"/a": OTHER}, True, {"/a": "3001"}, ()),
        ({"/a": BROKER, "/b": MINE}, True, {"/a": "1"}, ("/b",)),
    ],
)
def test_whose_directories(meta: Any, log: bool | None, theirs: dict[str, str], used: tuple[str, ...]) -> None:
    found = Controller(3000, files=NodeFiles(meta=meta, has_metadata_log=log))
    assert find_foreign_owners(3000, meta) == theirs
    assert directories_in_use(found) == used
    reason = foreign_directory_reason(found)
    assert (reason is not None) is bool(theirs)
    if reason is not None:
        assert (reason.code, bool(reason.next_step)) == ("M01", True)
        assert f"node {next(iter(theirs.values()))}" in reason.text


def test_meta_properties_of_version_1_are_written_again_for_zookeeper_mode() -> None:
    files = NodeFiles(meta={"/a": {"version": "1"}, "/b": {"version": "0"}, "/c": {}})
    assert version_1_directories(files) == ("/a",)
    assert version_1_directories(NodeFiles()) == ()
    assert render_version_0({"version": "1", "node.id": "4", "cluster.id": "c", "directory.id": "d"}) == (
        "version=0\nbroker.id=4\ncluster.id=c\ndirectory.id=d\n"
    )
    assert render_version_0({"version": "1", "broker.id": "7", "node.id": "4"}) == "version=0\nbroker.id=7\n"


def test_a_node_with_the_file_of_another_stage_gets_its_own() -> None:
    unread = decide_file_rewrite("broker 3", NodeFiles(), FileStage.KRAFT)
    assert isinstance(unread, Wait)
    assert [reason.code for reason in unread.reasons] == ["G00"]
    assert decide_file_rewrite("broker 3", NodeFiles(FILES[KRAFT]), FileStage.KRAFT) is None
    other = decide_file_rewrite("broker 3", NodeFiles(FILES[ZK]), FileStage.KRAFT)
    assert isinstance(other, Act)
    assert other.verb is Verb.REWRITE
    assert other.text.startswith("Broker 3 ")


@pytest.mark.parametrize(
    ("properties", "found"),
    [
        (None, None),
        ({"process.roles": "controller", "node.id": "3000"}, None),
        ({"process.roles": "controller", "node.id": "3001"}, "the file of controller 3001"),
        ({"process.roles": "broker", "node.id": "3000"}, "the file of broker 3000"),
        ({"broker.id": "1", "zookeeper.connect": "z"}, "the file of broker 1"),
        ({"process.roles": "controller"}, "not a controller's file"),
        ({"unknown": "x"}, "not a controller's file"),
    ],
)
def test_whose_file_lies_at_a_controllers_place(properties: dict[str, str] | None, found: str | None) -> None:
    assert describe_foreign_file(3000, properties) == found


def test_what_is_said_of_a_node_that_hangs() -> None:
    reason = unresponsive_controller(Controller(3000, UP))
    assert (reason.code, "kill -9" in ENTRIES[reason.code].markdown()) == ("G23", True)
    hosts = HostSpec("agent", "server.properties")
    nodes = {role: NodeSpec(1, role, "h", 1, hosts, None, None) for role in NodeRole}
    assert {role: "kill -9" in advise_after_stop_timeout(node) for role, node in nodes.items()} == {
        NodeRole.BROKER: False,
        NodeRole.CONTROLLER: True,
    }
    assert could_not_read("it").code == "G00"
