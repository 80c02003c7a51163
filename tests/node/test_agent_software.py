"""What the agent says of Kafka's release and Java: of the process that runs, and of the disk that its next start reads."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.node.agent_parts import agent_module, needs_root
from tests.node.machine import SH, Node, program
from tests.waiting import wait_for

OPENS = 'exec 9<"$0"; while :; do sleep 1; done'  # a JVM has the jar of its main class open as long as it runs


def install_java(home: Path, version: str) -> Path:
    """A program named java, in a home with Java's own file of its version."""
    (home / "bin").mkdir(parents=True)
    shutil.copy(SH, home / "bin" / "java")
    (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return home / "bin" / "java"


def install_kafka(home: Path, release: str) -> Path:
    """A folder of Kafka as it is unpacked; returns its core jar."""
    libs = home / "libs"
    libs.mkdir(parents=True)
    for name in (f"kafka_2.13-{release}", f"kafka-clients-{release}", f"kafka_2.13-{release}-sources"):
        (libs / f"{name}.jar").touch()
    return libs / f"kafka_2.13-{release}.jar"


def read_software(node: Node) -> dict[str, str]:
    """What an agent that was just started says: one that runs reads the disk every five seconds."""
    if node.agent is not None:
        node.agent.kill()
        node.agent.communicate()
    software = dict(node.ok("facts")["software"])
    for name in ("switches", "jaas", "unread"):
        software.pop(name)
    return software


@pytest.fixture
def running(make: Callable[..., Node], tmp_path: Path) -> Node:
    """A node whose /opt/kafka and default Java are links, as packages and administrators have them; it runs."""
    install_kafka(tmp_path / "kafka_2.13-3.9.1", "3.9.1")
    java = install_java(tmp_path / "jvm" / "java-17", "17.0.12")
    (tmp_path / "kafka").symlink_to("kafka_2.13-3.9.1")
    (tmp_path / "java").symlink_to(java)
    jar = f"{tmp_path}/kafka/libs/kafka_2.13-3.9.1.jar"
    start = [
        str(tmp_path / "java"),
        "-c",
        OPENS,
        jar,
        "-cp",
        f"/usr/share/absent.jar:{tmp_path}/kafka/bin/../libs/*",
        "kafka.Kafka",
    ]
    node = make(process={"start": start})
    (tmp_path / "kafka" / "bin").mkdir()
    node.ok("start", job="s1")
    node.ended("s1")
    wait_for(lambda: read_software(node)["release"], bool, "it has its jar open", 10)
    return node


def test_a_node_that_never_ran_is_known_by_the_classes_of_its_storage_tool(make: Callable[..., Node], tmp_path: Path) -> None:
    """A controller before its first start, of an installation whose tools have no folder of their own."""
    jar = install_kafka(tmp_path / "kafka", "3.9.1")
    node = make(storage_tool=["/usr/bin/env", f"CLASSPATH=/usr/share/absent.jar:{jar}", SH, "kafka.tools.StorageTool"])
    assert read_software(node)["disk_release"] == "3.9.1"


def test_facts_name_release_and_java_that_run_and_those_on_disk(running: Node, tmp_path: Path) -> None:
    java = str(tmp_path / "jvm" / "java-17" / "bin" / "java")
    assert read_software(running) == {
        "release": "3.9.1",
        "java": java,
        "disk_release": "3.9.1",
        "disk_java": java,
        "disk_java_version": "17.0.12",
    }


def test_a_package_manager_that_replaced_the_jars_shows(running: Node, tmp_path: Path) -> None:
    (tmp_path / "kafka" / "libs" / "kafka_2.13-3.9.1.jar").unlink()
    (tmp_path / "kafka" / "libs" / "kafka_2.13-3.9.2.jar").touch()
    software = read_software(running)
    assert (software["release"], software["disk_release"]) == ("3.9.1", "3.9.2")


def test_a_link_that_leads_to_another_release_shows(running: Node, tmp_path: Path) -> None:
    install_kafka(tmp_path / "kafka_2.13-4.0.0", "4.0.0")
    (tmp_path / "kafka_2.13-4.0.0" / "bin").mkdir()
    (tmp_path / "kafka").unlink()
    (tmp_path / "kafka").symlink_to("kafka_2.13-4.0.0")
    software = read_software(running)
    assert (software["release"], software["disk_release"]) == ("3.9.1", "4.0.0")


def test_two_releases_in_one_class_path_are_both_named(running: Node, tmp_path: Path) -> None:
    (tmp_path / "kafka" / "libs" / "kafka_2.13-3.9.2.jar").touch()
    assert read_software(running)["disk_release"] == "3.9.1, 3.9.2"


def test_java_that_was_replaced_at_the_same_path_or_behind_a_link_shows(running: Node, tmp_path: Path) -> None:
    home = tmp_path / "jvm" / "java-17"
    new = home / "bin" / "java.new"
    shutil.copy(SH, new)
    new.rename(home / "bin" / "java")
    (home / "release").write_text('JAVA_VERSION="17.0.13"\n')
    software = read_software(running)
    assert software["java"] == f"{home}/bin/java (deleted)"
    assert (software["disk_java"], software["disk_java_version"]) == (f"{home}/bin/java", "17.0.13")
    other = install_java(tmp_path / "jvm" / "java-21", "21.0.5")
    (tmp_path / "java").unlink()
    (tmp_path / "java").symlink_to(other)
    assert read_software(running)["disk_java"] == str(other)


@pytest.mark.parametrize(("libs", "release"), [("libs", "3.9.2"), ("share/java/kafka", "7.9.2-ccs")])
def test_of_a_stopped_node_the_storage_tool_names_the_software(
    make: Callable[..., Node], tmp_path: Path, libs: str, release: str
) -> None:
    folder = tmp_path / "usr" / libs
    folder.mkdir(parents=True)
    (folder / f"kafka_2.12-{release}.jar").touch()
    (tmp_path / "usr" / "bin").mkdir()
    java = install_java(tmp_path / "jvm", "17.0.12")
    node = make(
        storage_tool=[str(tmp_path / "usr" / "bin" / "kafka-storage")],
        process={"start": [SH, "-c", "exit 1"], "env": {"JAVA_HOME": str(tmp_path / "jvm")}},
    )
    assert read_software(node) == {
        "release": "",
        "java": "",
        "disk_release": release,
        "disk_java": str(java),
        "disk_java_version": "17.0.12",
    }


def test_what_is_not_known_is_empty_and_delays_no_facts(make: Callable[..., Node]) -> None:
    """A process that is no JVM, as the shell before one, and no storage tool."""
    node = make()
    node.ok("start", job="s1")
    node.ended("s1")
    software = read_software(node)
    assert (software["release"], software["java"], software["disk_release"]) == ("", "", "")
    assert software["disk_java"][:1] in {"", "/"}


def test_observations_within_five_seconds_read_the_disk_once(running: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A roll observes several times a second, and a shell would be most of what each costs."""
    agent = agent_module()
    role = agent.load_roles(str(running.config))["broker"]
    started: list[list[str]] = []
    run = agent.run
    monkeypatch.setitem(vars(agent), "run", lambda argv, *more: (started.append(argv), run(argv, *more))[1])
    pid = role.find().pid
    first = role.software(pid, "{}", 0)
    assert first["disk_release"] == "3.9.1"
    assert [role.software(pid, "{}", 0) == first, len(started)] == [True, 1]
    assert [role.software(pid, "{}", 1) == first, len(started)] == [True, 2]


class Commanded:
    """A node that a script of root starts, a JVM of which a test starts by itself; `said`: what the script's `software` prints."""

    def __init__(self, make: Callable[..., Node], folder: Path) -> None:
        self.folder, self.said, self.code = folder, folder / "said", folder / "code"
        self.said.touch()
        self.code.write_text("0")
        script = folder / "kafka-node"
        script.write_text(f'#!{SH}\ncase $1 in software) cat {self.said}; exit "$(cat {self.code})" ;; esac\n')
        script.chmod(0o755)
        self.commands = {verb: [str(script), verb] for verb in ("start", "stop", "status")}
        self.node = make(storage_tool=[f"{folder}/kafka/bin/kafka-storage.sh"])
        del self.node.entry["process"]
        self.jar = install_kafka(folder / "kafka", "3.9.1")
        self.java = install_java(folder / "jvm", "17.0.12")
        self.configure()

    def configure(self, **more: list[str]) -> None:
        """`more`: further commands."""
        self.node.configure({"broker": self.node.entry | {"commands": self.commands | more}})

    def answers(self) -> None:
        self.configure(software=[self.commands["start"][0], "software"])

    def starts(self, *before: str, file: str = "") -> subprocess.Popen[bytes]:
        """Its Kafka, as the script would start it; `before`: words before it."""
        words = [str(self.java), "-c", OPENS, str(self.jar), "-cp", f"{self.folder}/kafka/libs/*", "kafka.Kafka"]
        return subprocess.Popen([*before, *words, file or str(self.node.properties)], stdin=subprocess.DEVNULL)


@pytest.fixture
def commanded(make: Callable[..., Node], shared: Path) -> Commanded:
    shared.joinpath("node").mkdir()
    return Commanded(make, shared)


def running_release(node: Node) -> str:
    wait_for(lambda: read_software(node)["release"], bool, "it has its jar open", 10)
    return read_software(node)["release"]


@needs_root
def test_what_a_script_started_from_this_disk_is_known_and_a_replaced_release_shows(commanded: Commanded) -> None:
    with ended_at_the_end(commanded.starts()):
        assert running_release(commanded.node) == "3.9.1"
        assert read_software(commanded.node) == {
            "release": "3.9.1",
            "java": str(commanded.java),
            "disk_release": "3.9.1",
            "disk_java": str(commanded.java),
            "disk_java_version": "17.0.12",
        }
        commanded.jar.rename(commanded.jar.with_name("kafka_2.13-4.0.0.jar"))
        assert read_software(commanded.node)["disk_release"] == "4.0.0"


@needs_root
@pytest.mark.parametrize("other", ["none runs", "another file", "two of them"])
def test_what_commands_start_next_is_not_known_without_one_process_of_this_file(commanded: Commanded, other: str) -> None:
    """The storage tool's folder says nothing of what a script starts."""
    with contextlib.ExitStack() as stack:
        if other == "another file":
            (commanded.folder / "other.properties").touch()
            stack.enter_context(ended_at_the_end(commanded.starts(file=str(commanded.folder / "other.properties"))))
        if other == "two of them":
            stack.enter_context(ended_at_the_end(commanded.starts()))
            stack.enter_context(ended_at_the_end(commanded.starts()))
        time.sleep(0.5)  # they would have their jars open by now
        assert set(read_software(commanded.node).values()) == {""}


@needs_root
def test_of_a_container_what_runs_is_known_and_only_its_script_says_what_starts_next(
    commanded: Commanded, tmp_path: Path
) -> None:
    """Another root: the paths that its process shows are not those of this machine."""
    root = tmp_path / "root"
    for name in ("usr", "proc", *commanded.folder.parts[1:2]):
        (root / name).mkdir(parents=True)
    for link in Path("/").iterdir():
        if link.is_symlink() and str(link.readlink()).startswith("usr"):
            (root / link.name).symlink_to(link.readlink())
    inside = f"mount --bind /usr {root}/usr; mount --bind /{commanded.folder.parts[1]} {root}/{commanded.folder.parts[1]}"
    with ended_at_the_end(commanded.starts("unshare", "-m", "sh", "-ec", f'{inside}; exec chroot {root} "$@"', "sh")):
        assert running_release(commanded.node) == "3.9.1"
        found = read_software(commanded.node)
        assert found["java"].endswith(str(commanded.java))
        assert (found["disk_release"], found["disk_java"]) == ("", "")
        commanded.answers()
        commanded.said.write_text("/opt/kafka/libs/kafka_2.13-3.9.2.jar\n/opt/java/bin/java\n17.0.13\n")
        found = read_software(commanded.node)
        assert (found["release"], found["disk_release"], found["disk_java"], found["disk_java_version"]) == (
            "3.9.1",
            "3.9.2",
            "/opt/java/bin/java",
            "17.0.13",
        )
        commanded.code.write_text("1")
        assert read_software(commanded.node)["disk_release"] == "", "a script that failed says nothing"


@needs_root
def test_a_script_that_others_can_change_says_nothing_of_the_software(commanded: Commanded) -> None:
    commanded.answers()
    Path(commanded.commands["start"][0]).chmod(0o777)
    assert commanded.node.ask("facts")["error"]["code"] == "owner"


@contextlib.contextmanager
def ended_at_the_end(process: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        process.kill()
        process.wait(10)


def read_switches(node: Node) -> Any:
    return node.ok("facts")["software"]["switches"]


def test_switches_of_logins_and_of_zookeeper_are_named_without_secrets(make: Callable[..., Node], tmp_path: Path) -> None:
    """Of the Java that runs: its own variables come first, and the last one of a name holds."""
    java = install_java(tmp_path / "jvm", "17.0.12")
    argv = [
        "-Dzookeeper.client.secure=true",
        "-Dzookeeper.ssl.keyStore.password=geheim",
        "-Dzookeeper.ssl.keyStore.location=/etc/kafka/a=b.p12",
        "-Djava.security.auth.login.config=/etc/kafka/jaas.conf",
        "-Djute.maxbuffer=1048575",
        "-Djute.maxbuffer=8388608",
        "-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=https://me:geheim@id.example/token",
        "-Djavax.net.ssl.trustStorePassword=geheim",
        "-Dzookeeper.sasl.client",
        "-Djdk.tls.client.protocols=TLSv1.2",
        "-Dsun.security.krb5.rcache=none",
        "-Djava.net.preferIPv6Addresses=true",
        "-Dhttps.proxyHost=proxy",
        "-Dhttps.proxyPassword=geheim",
        "-DsocksProxyHost=socks",
        "-Dlog4j.configuration=file:/geheim",
        "-Djava.network.word=geheim",
        "-Dcom.example.password=geheim",
    ]
    env = {
        "JAVA_TOOL_OPTIONS": "-Djute.maxbuffer=1 -Djava.security.krb5.conf=/etc/krb5.conf",
        "KAFKA_OPTS": "-Dzookeeper.unused=1",
    }
    node = make(process={"start": [str(java), "-c", OPENS, str(java), *argv, "kafka.Kafka"], "env": env})
    node.ok("start", job="s1")
    node.ended("s1")
    seen = wait_for(lambda: node.ok("facts")["software"], lambda software: software["java"] == str(java), "Java runs", 30)[
        "switches"
    ]
    assert seen == {
        "zookeeper.client.secure": "true",
        "zookeeper.ssl.keyStore.password": "...",
        "zookeeper.ssl.keyStore.location": "/etc/kafka/a=b.p12",
        "java.security.auth.login.config": "/etc/kafka/jaas.conf",
        "java.security.krb5.conf": "/etc/krb5.conf",
        "jute.maxbuffer": "8388608",
        "org.apache.kafka.sasl.oauthbearer.allowed.urls": "https://...@id.example/token",
        "javax.net.ssl.trustStorePassword": "...",
        "zookeeper.sasl.client": "",
        "jdk.tls.client.protocols": "TLSv1.2",
        "sun.security.krb5.rcache": "none",
        "java.net.preferIPv6Addresses": "true",
        "https.proxyHost": "proxy",
        "https.proxyPassword": "...",
        "socksProxyHost": "socks",
    }


def test_of_a_stopped_node_its_services_variables_and_command_name_the_switches(make: Callable[..., Node]) -> None:
    env = {"KAFKA_OPTS": "-Dzookeeper.client.secure=true  -Djute.maxbuffer=4194304", "PASSWORD": "geheim"}
    node = make(process={"start": [SH, "-c", "exit 1", "-Djava.security.krb5.conf=/k"], "env": env})
    assert read_switches(node) == {
        "java.security.krb5.conf": "/k",
        "jute.maxbuffer": "4194304",
        "zookeeper.client.secure": "true",
    }


def test_of_a_node_that_only_commands_start_no_switch_is_known(make: Callable[..., Node]) -> None:
    """A container, perhaps: what it would run with, this machine does not show."""
    commands = {verb: [program("true")] for verb in ("start", "stop", "status")}
    node = make(commands=commands)
    del node.entry["process"]
    node.configure({"broker": node.entry})
    assert read_switches(node) is None


def test_very_many_switches_stay_within_an_answer(make: Callable[..., Node]) -> None:
    env = {"KAFKA_OPTS": " ".join(f"-Dzookeeper.{number:04}={'x' * 10}" for number in range(1_000))}
    assert len(read_switches(make(process={"start": [SH, "-c", "exit 1"], "env": env}))) == 100
