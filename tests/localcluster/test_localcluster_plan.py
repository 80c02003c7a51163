"""The shape, the ports and the files of a local cluster, without starting one."""

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
import yaml

from airflow_provider_kmigrate import spec
from airflow_provider_kmigrate.core.node_files import properties
from airflow_provider_kmigrate.exceptions import Failed, Refused
from tests.kit.localcluster import __main__ as cli
from tests.kit.localcluster import config, export, jaas, jars, plan, runtime
from tests.kit.localcluster.cluster import LocalCluster
from tests.kit.localcluster.plan import Plan, Shape
from tests.waiting import wait_until


def planned(folder: Path, **shape: object) -> Plan:
    return plan.make(folder, Shape(**shape)).identified("q1Sh-9_ISia_zwGINzRvyQ")  # type: ignore[arg-type]


def test_every_process_has_its_own_port_outside_the_ephemeral_range(tmp_path: Path) -> None:
    found = planned(tmp_path, brokers=5, controllers=3)
    assert len(set(found.ports.values())) == 9
    assert max(found.ports.values()) < 32_768


def test_an_ensemble_has_ports_for_its_servers_and_names_all_to_clients(tmp_path: Path) -> None:
    found = planned(tmp_path, brokers=1, controllers=1, zookeepers=3)
    assert len(set(found.ports.values())) == 3 * 3 + 2
    assert list(found.shape.members()) == ["zookeeper", "zookeeper-2", "zookeeper-3", "broker-0", "controller-3000"]
    assert len(found.zookeeper.split(",")) == 3
    keys = [config.zookeeper_properties(found, folder) for folder in found.zookeeper_folders]
    assert len({tuple(own.pop(key) for key in ("dataDir", "dataLogDir", "clientPort")) for own in keys}) == 3
    assert keys[0] == keys[1] == keys[2]
    where = f"127.0.0.1:{found.ports['zookeeper-3 quorum']}:{found.ports['zookeeper-3 election']}"
    assert keys[0]["server.3"] == where


def test_a_single_server_names_no_ensemble(tmp_path: Path) -> None:
    found = planned(tmp_path)
    assert not [key for key in config.zookeeper_properties(found, found.zookeeper_folder) if "server." in key or "Limit" in key]


def test_a_taken_port_is_not_chosen() -> None:
    with socket.socket() as taken:
        taken.bind((plan.HOST, 0))
        assert not plan._is_free(taken.getsockname()[1])


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    found = planned(tmp_path, brokers=2, controllers=1, racks=0, chroot="/a/b")
    found.save()
    assert plan.load(tmp_path) == found


def test_no_file_is_no_cluster(tmp_path: Path) -> None:
    assert plan.load(tmp_path) is None
    with pytest.raises(Refused, match="up"):
        _ = LocalCluster(tmp_path).bootstrap


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"version": 99}', '{"version": 1, "shape": {"size": 1}}'])
def test_a_damaged_file_is_said(tmp_path: Path, content: str) -> None:
    (tmp_path / "cluster.json").write_text(content)
    with pytest.raises(Failed, match=r"cluster\.json|another version"):
        plan.load(tmp_path)


@pytest.mark.parametrize(
    "shape",
    [
        {"brokers": 0},
        {"controllers": 0},
        {"racks": -1},
        {"zookeepers": 2},
        {"log_dirs": 0},
        {"chroot": "kafka"},
        {"chroot": "/kafka/"},
        {"name": "../x"},
        {"name": ""},
    ],
)
def test_an_impossible_shape_is_refused(shape: dict[str, object]) -> None:
    with pytest.raises(Refused):
        Shape(**shape)  # type: ignore[arg-type]


def test_racks_go_round(tmp_path: Path) -> None:
    assert [node.rack for node in planned(tmp_path, brokers=5, racks=2).brokers] == ["a", "b", "a", "b", "a"]
    assert {node.rack for node in planned(tmp_path, racks=0).brokers} == {None}


@pytest.mark.parametrize(("brokers", "replicas", "in_sync"), [(1, "1", "1"), (2, "2", "1"), (3, "3", "2"), (5, "3", "2")])
def test_replication_is_what_the_brokers_allow(tmp_path: Path, brokers: int, replicas: str, in_sync: str) -> None:
    found = planned(tmp_path, brokers=brokers)
    keys = config.broker_properties(found, found.brokers[0])
    assert keys["default.replication.factor"] == keys["offsets.topic.replication.factor"] == replicas
    assert keys["min.insync.replicas"] == in_sync


def test_rendered_properties_are_read_back_as_they_were(tmp_path: Path) -> None:
    found = planned(tmp_path, chroot="/kafka")
    keys = config.broker_properties(found, found.brokers[1])
    assert properties.parse_properties(config.render(keys)) == keys
    assert keys["zookeeper.connect"] == f"{found.zookeeper}/kafka"
    assert keys["broker.rack"] == "b"


def test_the_cluster_file_is_one_that_kmigrate_reads(tmp_path: Path) -> None:
    found = planned(tmp_path, brokers=2, controllers=1, chroot="/kafka")
    export.write(found)
    read = spec.load(found.spec_path)
    assert (read.name, read.cluster_id, read.brokers, read.controllers) == (
        "demo",
        found.cluster_id,
        found.brokers,
        found.controllers,
    )
    assert (read.policy.min_soak, read.policy.canary_bake) == (5.0, 0.0)


def test_the_cluster_file_is_plain_yaml_in_the_users_order(tmp_path: Path) -> None:
    export.write(planned(tmp_path))
    text = (tmp_path / "clusters" / "demo.yaml").read_text()
    assert list(yaml.safe_load(text))[:3] == ["name", "cluster_id", "zookeeper"]


def test_connections_are_in_airflows_form(tmp_path: Path) -> None:
    found = planned(tmp_path, name="x", chroot="/kafka")
    export.write(found)
    read = json.loads(found.connections_path.read_text())
    assert read["x_zookeeper"] == {"conn_type": "kmigrate_zookeeper", "host": found.zookeeper, "extra": {"chroot": "/kafka"}}
    assert read["x_kafka"] == {"conn_type": "kafka", "extra": {"bootstrap.servers": found.bootstrap}}


def test_a_broker_has_the_log_directories_of_its_shape(tmp_path: Path) -> None:
    found = planned(tmp_path, log_dirs=2)
    found.save()
    node, controller = found.brokers[1], found.controllers[0]
    directories = (tmp_path / "broker-1" / "data", tmp_path / "broker-1" / "data-2")
    assert config.broker_properties(found, node)["log.dirs"] == ",".join(map(str, directories))
    assert LocalCluster(tmp_path).log_dirs_of(node) == directories
    assert LocalCluster(tmp_path).log_dirs_of(controller) == (tmp_path / "controller-3000" / "data",)


@pytest.mark.parametrize("login", [True, False])
def test_every_process_logs_in_at_a_zookeeper_that_demands_it(tmp_path: Path, *, login: bool) -> None:
    found = planned(tmp_path, name="x", zookeeper_login=login)
    config.write(found, runtime.Runtime(sys.executable, "kafka.jar"))
    export.write(found)
    launches = {folder.parent.name: folder.read_text() for folder in tmp_path.glob("*/launch.json")}
    agents = "".join(Path(found.agent_config(node.id)).read_text() for node in (*found.brokers, *found.controllers))
    assert len(launches) == 7
    assert {"-Djava.security.auth.login.config=" in text for text in (*launches.values(), agents)} == {login}
    assert ("sessionRequireClientSASLAuth=true" in (found.zookeeper_folder / "zoo.cfg").read_text()) is login
    there = json.loads(found.connections_path.read_text())["x_zookeeper"]
    assert (there.get("login"), there["extra"].get("sasl_mechanism")) == (("kafka", "DIGEST-MD5") if login else (None, None))
    assert jaas.settings(found).sasl_password == there.get("password")
    assert bool(jaas.kazoo_options(found)) is login


# ---- folders that are not ours ----


def test_up_refuses_a_folder_that_holds_something_else(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(Refused, match=r"thesis\.tex"):
        LocalCluster(tmp_path).up()


def test_clean_refuses_a_folder_that_holds_something_else(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(Refused, match=r"thesis\.tex"):
        LocalCluster(tmp_path).clean()
    assert (tmp_path / "thesis.tex").exists()


def test_up_refuses_another_shape(tmp_path: Path) -> None:
    planned(tmp_path).save()
    with pytest.raises(Refused, match="brokers=3"):
        LocalCluster(tmp_path).up(Shape(brokers=5))


def test_down_and_clean_of_nothing_are_harmless(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        LocalCluster(folder).down()
    LocalCluster(tmp_path / "none").clean()
    planned(tmp_path).save()
    LocalCluster(tmp_path).down()
    LocalCluster(tmp_path).clean()
    assert not tmp_path.exists()


# ---- command line ----


def test_status_of_nothing_is_3_as_systemctl_says_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", "--dir", str(tmp_path)]) == 3
    assert "up" in capsys.readouterr().out


def test_status_names_every_node_with_its_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(tmp_path, brokers=1, controllers=1)
    found.save()
    assert cli.main(["status", "--dir", str(tmp_path)]) == 3
    out = capsys.readouterr().out
    for name in ("zookeeper", "broker-0", "controller-3000"):
        assert f"{tmp_path}/{name}/node.log" in out
        assert str(found.ports[name]) in out


def test_a_refusal_is_one_sentence_and_no_stack_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["up", "--dir", str(tmp_path), "--brokers", "0"]) == 1
    assert "at least one broker" in capsys.readouterr().err


def test_what_is_not_given_is_no_contradiction(tmp_path: Path) -> None:
    planned(tmp_path, brokers=5, name="x").save()
    arguments = cli._parser().parse_args(["up", "--dir", str(tmp_path), "--name", "x"])
    assert cli._shape(LocalCluster(tmp_path), arguments) == Shape(name="x", brokers=5)


# ---- Java, Maven and the cache ----

_MAVEN = """#!/bin/sh
echo run >> "{calls}"
test -n "{fails}" && echo "Could not resolve dependencies" && exit 1
for word; do case "$word" in -DoutputDirectory=*) target="${{word#-DoutputDirectory=}}";; esac; done
mkdir -p "$target"
touch "$target/kafka_2.13-3.9.2.jar" "$target/a.jar" "$target/kafka_2.13-3.9.2-sources.jar"
"""


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with a shell's tools only, an empty cache, and no Kafka, Java or Maven."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "mkdir", "touch"):
        found = next(Path(folder) / name for folder in ("/bin", "/usr/bin") if (Path(folder) / name).exists())
        (tools / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setenv("KMIGRATE_CACHE", str(tmp_path / "cache"))
    for name in ("JAVA_HOME", "KAFKA_HOME"):
        monkeypatch.delenv(name, raising=False)
    return tools


def executable(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_missing_java_names_what_to_install(tools: Path) -> None:
    with pytest.raises(Refused, match="apt-get install openjdk-17"):
        jars.java()


def test_java_home_goes_before_path(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path, in_home = executable(tools / "java"), executable(tools / "home" / "bin" / "java")
    assert jars.java() == str(on_path)
    monkeypatch.setenv("JAVA_HOME", str(tools / "home"))
    assert jars.java() == str(in_home)


def test_missing_maven_names_what_to_install(tools: Path) -> None:
    with pytest.raises(Refused, match="apt-get install maven"):
        jars.jars()


def test_jars_are_resolved_once(tools: Path, tmp_path: Path) -> None:
    executable(tools / "mvn", _MAVEN.format(calls=tmp_path / "calls", fails=""))
    first = jars.jars()
    assert [path.name for path in first] == ["a.jar", "kafka_2.13-3.9.2.jar"]
    assert jars.jars() == first
    assert (tmp_path / "calls").read_text() == "run\n"


def test_two_first_starts_resolve_once(tools: Path, tmp_path: Path) -> None:
    executable(tools / "mvn", _MAVEN.format(calls=tmp_path / "calls", fails=""))
    threads = [threading.Thread(target=jars.jars) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert (tmp_path / "calls").read_text() == "run\n"


def test_a_failed_resolution_leaves_nothing_and_says_what_maven_said(tools: Path, tmp_path: Path) -> None:
    executable(tools / "mvn", _MAVEN.format(calls=tmp_path / "calls", fails="yes"))
    with pytest.raises(Failed, match="Could not resolve dependencies"):
        jars.jars()
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["lock"]


def test_kafka_home_is_used_without_maven(tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kafka" / "libs").mkdir(parents=True)
    monkeypatch.setenv("KAFKA_HOME", str(tmp_path / "kafka"))
    with pytest.raises(Refused, match="KAFKA_HOME"):
        jars.jars()
    (tmp_path / "kafka" / "libs" / "kafka_2.13-3.9.2.jar").touch()
    assert [path.name for path in jars.jars()] == ["kafka_2.13-3.9.2.jar"]


def test_what_can_be_done_with_it_can_be_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every path is there, and the Python is the one that has the package: no newcomer's shell has another of that name."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / ".venv/bin/python"))
    monkeypatch.chdir(tmp_path)
    found = planned(tmp_path / "build/here")
    export.write(found)
    message = cli.next_steps(found)
    assert "  .venv/bin/kmigrate preflight build/here/clusters/demo.yaml --connections build/here/conn" in message
    assert "  .venv/bin/python -m tests.kit.localcluster down --dir build/here\n" in f"{message}\n"
    paths = [Path(word) for word in message.replace("=", " ").split() if "build/" in word]
    assert len(paths) == 5
    assert [path for path in paths if not path.exists()] == []


def test_where_no_cluster_is_none_is_said_to_be_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["down", "--dir", str(tmp_path / "none")]) == 0
    assert f"no local cluster in {tmp_path}/none" in capsys.readouterr().out


def test_the_module_runs_without_airflow(tmp_path: Path) -> None:
    """The command line must start quickly, and where there is no Airflow."""
    code = "import sys; from tests.kit.localcluster.__main__ import main; print([m for m in sys.modules if m.split('.')[0] == 'airflow'])"
    answer = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=30, env=dict(os.environ)
    )
    assert answer.stdout == "[]\n"


@pytest.fixture
def broken_java(tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Kafka and a Java that ends at once."""
    executable(tools / "java", "#!/bin/sh\necho no JVM here\nexit 1\n")
    (tmp_path / "kafka" / "libs").mkdir(parents=True)
    (tmp_path / "kafka" / "libs" / "kafka_2.13-3.9.2.jar").touch()
    monkeypatch.setenv("KAFKA_HOME", str(tmp_path / "kafka"))


@pytest.mark.usefixtures("broken_java")
def test_nodes_run_without_class_archives_where_none_can_be_made(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["prepare"]) == 0
    assert "no JVM here" in capsys.readouterr().out
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["lock"]


@pytest.mark.usefixtures("broken_java")
def test_a_class_archive_is_used_once_it_is_there(tmp_path: Path) -> None:
    found = runtime.find()
    archive = f"-XX:SharedArchiveFile={found.archives}/broker.jsa"
    assert archive not in found.command("kafka.Kafka", [], kind="broker", heap="256m", folder=tmp_path)
    found.archives.mkdir(parents=True)
    (found.archives / "broker.jsa").touch()
    assert archive in found.command("kafka.Kafka", [], kind="broker", heap="256m", folder=tmp_path)


@pytest.mark.usefixtures("broken_java")
def test_a_node_that_ends_at_once_is_shown_with_its_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["up", "--dir", str(tmp_path / "c")]) == 1
    error = capsys.readouterr().err
    assert f"{tmp_path}/c/zookeeper/node.log" in error
    assert "no JVM here" in error


STARTS = """
import os, sys
from pathlib import Path
from tests.kit.processes import Launch, NodeProcess
from tests.kit.localcluster import reaper
folder = Path(sys.argv[1])
reaper.tie(folder)
node = NodeProcess(folder / "broker-0")
node.define(Launch((sys.executable, "-c", "import signal; signal.pause()")))
print(node.start().pid, flush=True)
if os.fork() == 0:  # it inherits every pipe
    sys.stdin.read()
    os._exit(0)
sys.stdin.read()
"""


def test_what_a_killed_process_has_started_in_its_folder_ends(tmp_path: Path) -> None:
    """As pytest's watchdog ends it: no exit handler runs. A child that it forked lives on, and holds every pipe."""
    with subprocess.Popen(
        [sys.executable, "-c", STARTS, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        assert psutil.pid_exists(pid)
        starter.kill()
        starter.wait(10)
        wait_until(lambda: not psutil.pid_exists(pid), "it ends")


def test_ports_that_another_process_has_planned_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import sys; from tests.kit.localcluster.plan import free_ports; print(*free_ports(1), flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        port = int(other.stdout.readline())
        monkeypatch.setattr(plan, "_PORTS", range(port, port + 1))
        with pytest.raises(Failed, match="ports between"):
            plan.free_ports(1)
        other.communicate()
    assert plan.free_ports(1) == [port], "it ended"
