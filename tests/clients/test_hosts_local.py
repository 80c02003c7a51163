"""Driver `local` against real small processes: every verb, repeated, fenced, and when things go wrong."""

import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_kmigrate.clients.hosts import host_for
from airflow_provider_kmigrate.clients.hosts.files import sha256
from airflow_provider_kmigrate.clients.hosts.local import Launch, LocalHost, NodeProcess
from airflow_provider_kmigrate.core.cluster import HostSpec, NodeRole, NodeSpec
from airflow_provider_kmigrate.core.files.config_matrix import needs_version_0, version_0
from airflow_provider_kmigrate.core.model import ProcessState
from airflow_provider_kmigrate.exceptions import Failed, Fenced, Refused, SpecError, TimedOut, Unreachable

_RUN = "import signal, sys; print(open(sys.argv[1]).read(), flush=True); signal.pause()"
_DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True)\nwhile True: signal.pause()"
_FORMAT = """\
import pathlib, sys
cluster_id = sys.argv[1].removeprefix("--cluster-id=")
keys = dict(line.split("=") for line in open(sys.argv[2]).read().split())
folder = pathlib.Path(keys["log.dirs"])
if sys.argv[3] == "broken": sys.exit("no such release")
folder.mkdir(exist_ok=True)
(folder / "meta.properties").write_text(f"version=1\\ncluster.id={cluster_id}\\nnode.id={keys['node.id']}\\n")
"""
ID = "-dash-first"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeSpec]:
    state = tmp_path / "controller-3000"
    hosts = HostSpec("local", f"{state}/server.properties", state=str(state), stop_timeout=10.0)
    python = (sys.executable, "-c")
    form = (*python, _FORMAT, "--cluster-id={cluster_id}", "{properties}", "{release}")
    NodeProcess(state).define(Launch((*python, _RUN, "{properties}"), form))
    Path(hosts.properties).write_text(f"node.id=3000\nlog.dirs={state}/data\n")
    yield NodeSpec(3000, NodeRole.CONTROLLER, "127.0.0.1", 9093, hosts, log_dir=f"{state}/data")
    process = NodeProcess(state)
    assert process.wait_gone(process.signal(signal.SIGKILL), 10.0), "the test's own process survives it"


HOST = LocalHost()


def test_start_and_stop(node: NodeSpec) -> None:
    assert HOST.status(node).state is ProcessState.STOPPED
    HOST.start(node, 1)
    assert HOST.status(node).state is ProcessState.RUNNING
    assert 0 < HOST.stop(node, 1) < 10
    assert HOST.status(node).state is ProcessState.STOPPED


def test_every_verb_may_be_repeated(node: NodeSpec) -> None:
    HOST.start(node, 1)
    pid = HOST.status(node).pid
    HOST.start(node, 1)
    assert HOST.status(node).pid == pid
    HOST.stop(node, 1)
    assert HOST.stop(node, 1) < 1


def test_a_stop_that_takes_too_long_is_never_a_kill(node: NodeSpec) -> None:
    NodeProcess(Path(node.hosts.state)).define(Launch((sys.executable, "-c", _DEAF)))
    impatient = replace(node, hosts=replace(node.hosts, stop_timeout=0.2))
    HOST.start(node, 1)
    while "up" not in HOST.log_tail(node):
        assert HOST.status(node).state is ProcessState.RUNNING, "the node ended before it was deaf"
    with pytest.raises(TimedOut, match=r"node\.log"):
        HOST.stop(impatient, 1)
    assert HOST.status(node).state is ProcessState.RUNNING


def test_a_controller_is_waited_for_a_minute_at_most(node: NodeSpec) -> None:
    patient = replace(node, hosts=replace(node.hosts, stop_timeout=330.0))
    assert replace(patient, role=NodeRole.BROKER).stop_timeout == 330.0
    assert replace(patient, role=NodeRole.CONTROLLER).stop_timeout == 60.0
    assert replace(node, role=NodeRole.CONTROLLER, hosts=replace(node.hosts, stop_timeout=5.0)).stop_timeout == 5.0


def test_a_missing_folder_is_not_a_stopped_node(node: NodeSpec) -> None:
    for state in ("", "/no/such/folder"):
        with pytest.raises(Unreachable):
            HOST.status(replace(node, hosts=replace(node.hosts, state=state)))


def test_an_older_run_can_do_nothing_any_more(node: NodeSpec) -> None:
    HOST.start(node, 5)
    before = (HOST.status(node), HOST.files(node))
    for act in (
        lambda: HOST.stop(node, 4),
        lambda: HOST.start(node, 4),
        lambda: HOST.put_properties(node, "a=1", 4),
        lambda: HOST.format_storage(node, ID, "3.9-IV0", 4),
    ):
        with pytest.raises(Fenced):
            act()
    assert (HOST.status(node), HOST.files(node)) == before


def test_properties_are_put_and_read(node: NodeSpec) -> None:
    assert HOST.put_properties(node, "node.id=1\n", 1) == sha256("node.id=1\n")
    assert HOST.read_properties(node) == "node.id=1\n"
    assert HOST.files(node).properties == {"node.id": "1"}


def test_missing_properties_are_said(node: NodeSpec) -> None:
    Path(node.hosts.properties).unlink()
    with pytest.raises(Failed, match=r"server\.properties"):
        HOST.read_properties(node)


def test_a_cluster_id_may_begin_with_a_dash(node: NodeSpec) -> None:
    HOST.format_storage(node, ID, "3.9-IV0", 1)
    assert HOST.files(node).meta == {node.log_dir: {"version": "1", "cluster.id": ID, "node.id": "3000"}}


def test_formatting_twice_is_harmless(node: NodeSpec) -> None:
    HOST.format_storage(node, ID, "3.9-IV0", 1)
    formatted = HOST.files(node).meta
    HOST.format_storage(node, ID, "broken", 1)
    assert HOST.files(node).meta == formatted


def test_another_clusters_directory_is_refused(node: NodeSpec) -> None:
    HOST.format_storage(node, "other", "3.9-IV0", 1)
    with pytest.raises(Refused, match=r"M01.*other"):
        HOST.format_storage(node, ID, "3.9-IV0", 1)


def test_another_nodes_directory_is_refused(node: NodeSpec) -> None:
    HOST.format_storage(node, ID, "3.9-IV0", 1)
    with pytest.raises(Refused, match=r"M01.*3000"):
        HOST.format_storage(replace(node, id=3001), ID, "3.9-IV0", 1)


def test_a_directory_that_holds_something_is_refused(node: NodeSpec) -> None:
    Path(f"{node.log_dir}/topic-0").mkdir(parents=True)
    with pytest.raises(Refused, match=r"M01.*topic-0"):
        HOST.format_storage(node, ID, "3.9-IV0", 1)


def test_a_metadata_log_without_meta_properties_is_refused(node: NodeSpec) -> None:
    log = Path(f"{node.log_dir}/__cluster_metadata-0")
    log.mkdir(parents=True)
    (log / "quorum-state").write_text("{}")
    with pytest.raises(Refused):
        HOST.format_storage(node, ID, "3.9-IV0", 1)


def test_formatting_needs_properties(node: NodeSpec) -> None:
    Path(node.hosts.properties).unlink()
    with pytest.raises(Failed):
        HOST.format_storage(node, ID, "3.9-IV0", 1)


def test_a_failed_format_says_what_the_tool_said(node: NodeSpec) -> None:
    with pytest.raises(Failed, match="no such release"):
        HOST.format_storage(node, ID, "broken", 1)


def test_the_tail_of_the_log_names_the_log(node: NodeSpec) -> None:
    assert HOST.log_tail(node) == ""
    HOST.start(node, 1)
    while "node.id" not in HOST.log_tail(node):
        assert HOST.status(node).state is ProcessState.RUNNING, "the node ended before it wrote"
    assert HOST.log_tail(node).startswith(f"the end of {node.hosts.state}/node.log")


def test_the_driver_comes_from_the_cluster_file(node: NodeSpec) -> None:
    assert isinstance(host_for(node), LocalHost)
    with pytest.raises(SpecError, match="telnet"):
        host_for(replace(node, hosts=replace(node.hosts, driver="telnet")))


def test_a_wiped_directory_is_kept_under_another_name_and_can_be_formatted_again(node: NodeSpec) -> None:
    for _ in range(2):
        HOST.format_storage(node, ID, "3.9-IV0", 1)
        HOST.wipe_storage(node, ID, 1)
        assert HOST.files(node).meta == {node.log_dir: {}}
        HOST.wipe_storage(node, ID, 1)
    data = Path(node.log_dir or "")
    kept = sorted(path.name for path in data.parent.glob("data.*"))
    assert kept == ["data.rolled-back-1", "data.rolled-back-2"]
    assert all((data.parent / name / "meta.properties").exists() for name in kept)


def test_a_running_controller_and_a_broker_are_never_wiped(node: NodeSpec) -> None:
    HOST.format_storage(node, ID, "3.9-IV0", 1)
    HOST.start(node, 1)
    for forbidden in (node, replace(node, role=NodeRole.BROKER)):
        with pytest.raises(Refused, match="G26"):
            HOST.wipe_storage(forbidden, ID, 1)
    HOST.stop(node, 1)
    with pytest.raises(Refused, match="G26"):
        HOST.wipe_storage(replace(node, role=NodeRole.BROKER), ID, 1)
    assert HOST.files(node).meta != {node.log_dir: {}}


@pytest.mark.parametrize("meta", ["version=0\nbroker.id=1\ncluster.id=x\n", "node.id=3001\n"])
def test_the_directory_of_another_node_is_never_wiped(node: NodeSpec, meta: str) -> None:
    path = Path(f"{node.log_dir}/meta.properties")
    path.parent.mkdir(parents=True)
    path.write_text(meta)
    HOST.wipe_storage(node, ID, 1)
    assert path.read_text() == meta


def test_a_directory_of_another_cluster_or_of_nobody_is_refused(node: NodeSpec) -> None:
    path = Path(f"{node.log_dir}/meta.properties")
    path.parent.mkdir(parents=True)
    for meta in (f"node.id={node.id}\ncluster.id=other\n", "version=1\n"):
        path.write_text(meta)
        with pytest.raises(Refused, match="M01"):
            HOST.wipe_storage(node, ID, 1)
        assert path.exists()


def test_meta_properties_are_replaced(node: NodeSpec) -> None:
    HOST.format_storage(node, ID, "3.9-IV0", 1)
    keys = (HOST.files(node).meta or {})[node.log_dir or ""]
    HOST.put_meta(node, node.log_dir or "", version_0(keys), 1)
    assert HOST.files(node).meta == {node.log_dir: {"version": "0", "broker.id": "3000", "cluster.id": ID}}
    assert needs_version_0(HOST.files(node)) == ()
