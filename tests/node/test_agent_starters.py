"""The guide's examples of who starts Kafka without systemd, with real processes: restarts, a slow stop, a kill, an unknown state."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kit.environments import find_supervisord
from tests.node.agent_parts import needs_root
from tests.node.machine import NEW, OLD, SH, Node, file
from tests.waiting import wait_for, wait_until

GUIDE = (Path(__file__).parents[2] / "docs" / "operators-guide.md").read_text(encoding="utf-8")
USER = "nobody"
pytestmark = [needs_root, pytest.mark.slow(seconds=60)]

# What kafka-server-start.sh becomes: a process with Kafka's words, which takes its time to stop.
STAND_IN = f"""\
#!{SH}
exec /usr/bin/python3 -ISc 'import os, signal, sys, time
open(sys.argv[3], "a").write("started with " + str(len(open(sys.argv[2]).read())) + "\\n")
signal.signal(15, lambda *_: (time.sleep(1.5), os._exit(143)))
sys.argv[2:] = []
while True: time.sleep(600)' kafka.Kafka "$1" {{trace}} kafka.Kafka "$1"
"""


def block(language: str, holds: str) -> str:
    """The example of the guide in this language that holds a text."""
    [text] = [found for found in re.findall(rf"^```{language}\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL) if holds in found]
    return text


class Starter:
    """A folder for one example, and the node that it starts."""

    def __init__(self, make: Callable[..., Node], folder: Path) -> None:
        self.folder, self.trace, self.properties = folder, folder / "trace", folder / "etc" / "server.properties"
        self.trace.touch()
        self.trace.chmod(0o666)
        self.program = self.write("kafka-server-start.sh", STAND_IN.format(trace=self.trace))
        self._make = make

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def fill(self, text: str) -> str:
        """An example with this folder's paths and user."""
        text = text.replace("/opt/kafka/bin/kafka-server-start.sh", str(self.program)).replace(
            "/etc/kafka/server.properties", str(self.properties)
        )
        text = (
            text.replace("-u kafka ", f"-u {USER} ")
            .replace("user=kafka", f"user={USER}")
            .replace("/var/log/kafka-node", str(self.folder))
        )
        return text.replace("--reuid=kafka --regid=kafka", f"--reuid={USER} --regid=nogroup")

    def node(self, **commands: list[str]) -> Node:
        node = self._make(commands=commands, log=str(self.folder / "broker.log"))
        del node.entry["process"]
        node.configure({"broker": node.entry})
        self.properties = node.properties
        self.properties.parents[0].chmod(0o755)
        return node

    def pids(self) -> list[int]:
        """Kafka's processes of this folder."""
        found = subprocess.run(
            ["pgrep", "-f", f"kafka.Kafka {self.properties}$"], capture_output=True, text=True, check=False, timeout=10
        )
        return [int(pid) for pid in found.stdout.split()]

    def starts(self) -> list[str]:
        return self.trace.read_text().splitlines()


@pytest.fixture
def make(shared: Path) -> Iterator[Callable[..., Node]]:
    """Machines in a folder that the service's user can read."""
    made: list[Node] = []

    def build(**fields: object) -> Node:
        made.append(Node(shared, **fields))
        return made[-1]

    yield build
    for node in made:
        node.close()


def own_script(starter: Starter) -> Node:
    script = starter.folder / "kafka-node"
    node = starter.node(**{verb: [str(script), verb, "broker"] for verb in ("start", "stop", "status")})
    starter.write("kafka-node", starter.fill(block("sh", "pgrep")))
    return node


@contextlib.contextmanager
def supervisord(starter: Starter) -> Iterator[Node]:
    """A real supervisord with the guide's program and the guide's commands."""
    configuration, socket, program = starter.folder / "supervisord.conf", starter.folder / "socket", find_supervisord()
    words = re.findall(r"--(start|stop|status) '/usr/bin/supervisorctl -c \S+ (.*?)'", GUIDE)
    control = str(Path(os.path.realpath(program)).with_name("supervisorctl"))
    node = starter.node(
        **{verb: [control, "-c", str(configuration), *rest.format(role="broker").split()] for verb, rest in words}
    )
    head = f"[supervisord]\nlogfile={starter.folder}/log\npidfile={starter.folder}/pid\n[unix_http_server]\nfile={socket}\n"
    head += "[rpcinterface:supervisor]\nsupervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface\n"
    head += f"[supervisorctl]\nserverurl=unix://{socket}\n"
    configuration.write_text(head + starter.fill(block("ini", "program:kafka-broker")) + "autostart=false\n")
    with (starter.folder / "out").open("ab") as out:
        server = subprocess.Popen([program, "-n", "-c", str(configuration)], stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        wait_until(socket.exists, "supervisord answers", 20)
        yield node
    finally:
        server.terminate()
        server.wait(30)


def runs_in(folder: Path) -> bool:
    """Whether a process was started with a path in this folder."""
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if str(folder).encode() in command.read_bytes():
                return True
    return False


@contextlib.contextmanager
def podman(starter: Starter) -> Iterator[Node]:
    """A real container, with the guide's script; podman keeps all that it has in this folder."""
    folder, root, options = starter.folder, starter.folder / "rootfs", "--cgroup-manager=cgroupfs --runtime runc"
    docker = starter.write("docker", f'#!{SH}\nexec podman --root {folder}/store --runroot {folder}/run {options} "$@"\n')
    script = starter.write("kafka-node", block("sh", "docker inspect").replace("/usr/bin/docker", str(docker)))
    node = starter.node(**{verb: [str(script), verb, "broker"] for verb in ("start", "stop", "status", "software")})
    for name in ("usr", "proc", "sys", "dev", "tmp", "run", "etc", "opt/kafka/libs"):
        (root / name).mkdir(parents=True)
    (root / "opt/kafka/libs/kafka_2.13-3.9.2.jar").touch()
    for link in Path("/").iterdir():
        if link.is_symlink() and str(link.readlink()).startswith("usr"):
            (root / link.name).symlink_to(link.readlink())
    limits = ("--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096", "--network=host")
    mounts = ("-v", "/usr:/usr:ro", "-v", "/etc:/etc:ro", "-v", f"{folder}:{folder}", "--rootfs", str(root))
    create = [docker, "create", "--name", "kafka-broker", *limits, *mounts, starter.program, starter.properties]
    try:
        for argv in (create, [docker, "start", "kafka-broker"], [docker, "stop", "--time", "20", "kafka-broker"]):
            done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
            if done.returncode:
                pytest.skip(f"podman runs no container here: {done.stderr[-500:]}")
        starter.trace.write_text("")
        yield node
    finally:
        subprocess.run([docker, "rm", "-f", "kafka-broker"], capture_output=True, timeout=120, check=False)
        # A container's monitor ends as one more podman, which makes the folder again, and binds that of its layers to itself.
        wait_until(lambda: not runs_in(folder / "store"), "podman's own clean-up is over", 60)
        for mount in reversed(Path("/proc/self/mounts").read_text().splitlines()):
            if (point := Path(mount.split()[1])).is_relative_to(folder):
                subprocess.run(["umount", str(point)], check=True, timeout=10)


@pytest.fixture(
    params=[
        "own script",
        pytest.param(
            "podman",
            marks=pytest.mark.skipif(
                not (shutil.which("podman") and shutil.which("runc")), reason="there is no podman: apt-get install podman runc"
            ),
        ),
        "supervisord",
    ]
)
def started(request: pytest.FixtureRequest, make: Callable[..., Node], shared: Path) -> Iterator[tuple[Starter, Node]]:
    """A node that was started by the agent, and runs."""
    starter, servers = Starter(make, shared), {"supervisord": supervisord, "podman": podman}
    server = servers.get(request.param)
    with server(starter) if server else contextlib.nullcontext(own_script(starter)) as node:
        assert node.ok("facts")["process"]["state"] == "stopped"
        node.ok("start", job="s1")
        assert node.ended("s1")["state"] == "done", node.ok("job")
        wait_until(lambda: bool(starter.starts()), "it runs", 10)
        try:
            yield starter, node
        finally:
            for pid in starter.pids():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def test_a_restart_waits_for_the_stop_and_starts_with_the_new_file(started: tuple[Starter, Node]) -> None:
    starter, node = started
    [before] = starter.pids()
    node.ok("restart", job="r1", **file(NEW))
    record = node.ended("r1")
    assert record["state"] == "done", record
    wait_until(lambda: len(starter.starts()) == 2, "it runs again", 10)
    assert starter.starts() == [f"started with {len(OLD)}", f"started with {len(NEW)}"]
    [after] = starter.pids()
    assert after != before
    [stop] = [act for act in record["done"] if act["act"] == "stop"]
    assert stop["ended"] - stop["began"] >= 1.5, "it was not killed"


def test_a_node_is_running_while_it_stops_and_a_start_that_is_repeated_does_nothing(started: tuple[Starter, Node]) -> None:
    starter, node = started
    node.ok("start", job="s2")
    assert node.ended("s2")["state"] == "done"
    [pid] = starter.pids()
    assert len(starter.starts()) == 1
    node.ok("stop", job="s3")
    wait_for(lambda: node.ok("job", wait=1), lambda seen: seen["state"] != "running" or seen["done"], "it stops", 10)
    assert node.ok("facts")["process"]["state"] == "running" or not starter.pids()
    assert node.ended("s3")["state"] == "done"
    assert (node.ok("facts")["process"]["state"], starter.pids()) == ("stopped", [])
    assert pid


@pytest.mark.parametrize("started", ["podman"], indirect=True)
@pytest.mark.skipif(
    not (shutil.which("podman") and shutil.which("runc")), reason="there is no podman: apt-get install podman runc"
)
def test_the_containers_script_tells_the_release_in_the_container(started: tuple[Starter, Node]) -> None:
    facts = wait_for(lambda: started[1].ok("facts"), lambda seen: seen["software"]["disk_release"], "the container answers", 30)
    assert facts["software"]["disk_release"] == "3.9.2"
    assert facts["software"]["disk_java"].endswith("/bin/java")


@pytest.mark.parametrize(
    ("said", "code"),
    [("running", 0), ("stopping", 0), ("exited", 3), ("created", 3), ("unknown", 4), ("", 4)],
)
def test_the_containers_script_says_what_docker_says(shared: Path, said: str, code: int) -> None:
    docker = shared / "docker"
    docker.write_text(f'#!{SH}\n[ "$1 $4" = "inspect kafka-broker" ] || exit 9\n' + (f"echo {said}\n" if said else "exit 1\n"))
    docker.chmod(0o755)
    script = shared / "kafka-node"
    script.write_text(block("sh", "docker inspect").replace("/usr/bin/docker", str(docker)))
    assert subprocess.run([SH, str(script), "status", "broker"], check=False, timeout=10).returncode == code


@pytest.mark.parametrize(("verb", "words"), [("start", "start kafka-broker"), ("stop", "stop --time 600 kafka-broker")])
def test_the_containers_script_never_lets_docker_kill_kafka(shared: Path, verb: str, words: str) -> None:
    docker, script = shared / "docker", shared / "kafka-node"
    docker.write_text(f'#!{SH}\necho "$*"\n')
    docker.chmod(0o755)
    script.write_text(block("sh", "docker inspect").replace("/usr/bin/docker", str(docker)))
    done = subprocess.run([SH, str(script), verb, "broker"], check=True, timeout=10, capture_output=True, text=True)
    assert done.stdout.strip() == words
