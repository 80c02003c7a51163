"""Machines with a systemd, an sshd and a sudo of their own, on this one: systemd-nspawn boots each of them from an overlay of `/`.

Each has an address 127.0.1.N, on which alone its sshd listens, and a disk: an ext4 file system in a file. A power cut ends that file
system at once, so what was not synced is lost. All mounts are in a namespace that ends with its last process, and that process ends when
its standard input does: nothing is left of a machine whose test was killed.

Needs root, and Debian's systemd-container, openssh-server and sudo (`missing` names what is not there).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

import airflow_provider_kmigrate
from tests.kit.localcluster import clocks
from tests.waiting import wait_until

AGENT = Path(airflow_provider_kmigrate.__file__).parent / "node" / "kmigrate-node"
CLUSTER = "-1Sh-9_ISia_zwGINzRvyQ"
USER = "kmigrate"
PORT = 2022
NODE = 1
_NEEDED = {
    "systemd-nspawn": "systemd-container",
    "/usr/sbin/sshd": "openssh-server",
    "ssh": "openssh-client",
    "sudo": "sudo",
    "mkfs.ext4": "e2fsprogs",
    "/usr/bin/python3": "python3",
}
_TIMEOUT = 90.0  # seconds for a boot or the end of a machine
_EXT4_SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN (linux/ext4.h) with flag 2: the journal is not flushed
_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "HOME": "/root"}

# A stand-in for Kafka and its storage tool: takes `stop.seconds` to stop, and formats as kafka-storage.sh does.
STAND_IN = """\
#!/usr/bin/python3 -I
import hashlib, os, signal, sys, time

def read(path):
    with open(path) as file:
        text = file.read()
    return text, dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))

def serve(path):
    text, keys = read(path)
    signal.signal(signal.SIGTERM, lambda *_: (time.sleep(float(keys.get("stop.seconds", "1"))), os._exit(0)))
    print("started with", hashlib.sha256(text.encode()).hexdigest(), flush=True)
    while True:
        signal.pause()

def format_directories(arguments):
    cluster = next(word for word in arguments if word.startswith("--cluster-id=")).partition("=")[2]
    keys = read(arguments[arguments.index("--config") + 1])[1]
    for folder in keys["log.dirs"].split(","):
        with open(folder + "/meta.properties", "w") as file:
            file.write("version=1\\nnode.id=%s\\ncluster.id=%s\\n" % (keys["node.id"], cluster))

if sys.argv[1] == "format":
    format_directories(sys.argv)
elif sys.argv[1] != "random-uuid":
    serve(sys.argv[1])
"""
_UNIT = """\
[Unit]
Description=Apache Kafka ({role})
[Service]
User=kafka
ExecStart=/opt/kafka/bin/kafka-storage.sh {properties}
Restart=on-failure
TimeoutStopSec=60
[Install]
WantedBy=multi-user.target
"""
_SSHD = """\
Port {port}
ListenAddress {address}
HostKey /etc/ssh/ssh_host_ed25519_key
PermitRootLogin no
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM yes
UseDNS no
"""
# What a machine does not see of this one: every directory but /usr and /etc, and in these what would start or name something.
_MAKE = r"""
mkdir disk root
mount -o loop disk.img disk
mkdir -p disk/up/usr disk/up/etc/systemd disk/work
for name in $(ls /); do [ -L "/$name" ] || case $name in usr | etc) ;; *) mknod "disk/up/$name" c 0 0 ;; esac; done
for name in usr/local etc/ssh etc/sudoers.d etc/systemd/system etc/init.d etc/rc0.d etc/rc1.d etc/rc2.d etc/rc3.d etc/rc4.d etc/rc5.d \
    etc/rc6.d etc/rcS.d etc/fstab etc/environment etc/kafka etc/kmigrate etc/machine-id etc/hostname etc/hosts; do
    [ ! -e "/$name" ] || mknod "disk/up/$name" c 0 0
done
mount -t overlay overlay -o lowerdir=/,upperdir=disk/up,workdir=disk/work root
cd root
mkdir -p dev proc sys run var root home mnt opt usr/local/sbin etc/ssh etc/systemd/system/multi-user.target.wants etc/kafka var/lib/kafka/data
mkdir -m 1777 tmp
mknod -m 666 dev/null c 1 3
cp -r ../new/. .
for name in systemd-udevd systemd-sysctl systemd-binfmt systemd-timesyncd console-getty; do ln -s /dev/null "etc/systemd/system/$name.service"; done
for name in systemd-journald-audit ssh; do ln -s /dev/null "etc/systemd/system/$name.socket"; done
ln -s /usr/lib/systemd/system/multi-user.target etc/systemd/system/default.target
ln -s /usr/lib/systemd/system/ssh.service etc/systemd/system/multi-user.target.wants/ssh.service
[ $# = 0 ] || systemctl --quiet --root=. enable "$@"
chroot . /bin/sh -ec '
    id kafka >/dev/null 2>&1 || useradd --system --no-create-home --shell /usr/sbin/nologin kafka
    useradd --create-home --shell /bin/bash kmigrate
    ssh-keygen -q -t ed25519 -N "" -f /etc/ssh/ssh_host_ed25519_key
    chown -R kafka: /var/lib/kafka
    chown -R root:kafka /etc/kafka; chmod -R u=rwX,g=rX,o= /etc/kafka
    install -d -m 700 -o kmigrate -g kmigrate /home/kmigrate/.ssh
    install -m 600 -o kmigrate -g kmigrate /key.pub /home/kmigrate/.ssh/authorized_keys
    rm /key.pub
    chmod -R a+x /opt /usr/local/sbin
    chmod 440 /etc/sudoers.d/*'
cp etc/ssh/ssh_host_ed25519_key.pub ..
cd ..
umount root
umount disk
"""
# A machine ends in order when standard input does. Two systemds need two cgroups; under a systemd, nspawn gets one from it.
_BOOT = r"""
mount -o loop,commit=300 disk.img disk
mount -t overlay overlay -o lowerdir=/,upperdir=disk/up,workdir=disk/work root
mkdir -p /run/systemd/nspawn
mount -t tmpfs tmpfs /run/systemd/nspawn
set -- systemd-nspawn --quiet --directory=root --boot --register=no --resolv-conf=off --timezone=off --link-journal=no "$@"
cgroups=
if [ ! -d /run/systemd/system ]; then
    set -- "$@" --keep-unit
    for tree in /sys/fs/cgroup/systemd /sys/fs/cgroup/unified /sys/fs/cgroup; do
        [ ! -e $tree/cgroup.procs ] || { mkdir $tree/kmigrate-$$; cgroups="$cgroups $tree/kmigrate-$$"; }
    done
fi
sh -ec 'for each in $0; do echo $$ > $each/cgroup.procs; done; exec "$@"' "$cgroups" "$@" </dev/null &
set +e
read -r _
kill -TERM $!
wait $!
umount root || umount -l root
umount disk || umount -l disk
[ -z "$cgroups" ] || find $cgroups -depth -type d -exec rmdir {} ';'
"""


def missing() -> str:
    """Why no machine can be booted here, with the packages to install; empty if one can."""
    if os.geteuid() != 0:
        return "real machines need root"
    if not Path("/dev/loop-control").exists():
        return "real machines need loop devices: this container has none"
    packages = sorted({package for program, package in _NEEDED.items() if shutil.which(program) is None})
    return f"real machines need {' '.join(packages)}: apt-get install them" if packages else ""


def properties(role: str = "broker", **keys: object) -> str:
    """A properties file of the stand-in; `stop_seconds` is its key `stop.seconds`."""
    given = {"node.id": NODE, "log.dirs": _data(role)} | {name.replace("_", "."): value for name, value in keys.items()}
    return "".join(f"{name}={value}\n" for name, value in given.items())


def properties_path(role: str) -> str:
    """The path of a node's properties file on its machine."""
    return "/etc/kafka/server.properties" if role == "broker" else "/etc/kafka/controller.properties"


def _data(role: str) -> str:
    return "/var/lib/kafka/data" if role == "broker" else "/var/lib/kafka/controller"


def node_config() -> dict[str, object]:
    """node.json of a machine with a broker and a controller."""
    units = {"broker": "kafka.service", "controller": "kafka-controller.service"}
    shared = {"user": "kafka", "storage_tool": ["/opt/kafka/bin/kafka-storage.sh"], "stop_timeout": 60, "start_timeout": 30}
    own = {
        role: {"systemd": unit, "properties": properties_path(role), "log_dirs": [_data(role)]} for role, unit in units.items()
    }
    return {"version": 1, "roles": {role: shared | entry for role, entry in own.items()}}


def clock_files(seconds: int) -> dict[str, str]:
    """Files of a machine on which Kafka and the agent see a clock that is so far ahead (or behind: negative).

    Machines share the kernel's clock with this one. So libfaketime is loaded into these processes: by their units, and by sudo.
    """
    file = Path("/etc/clock")
    agent, java = clocks.of_program(file), clocks.of_java(file)
    units = {"kafka": java, "kafka-controller": java, "kmigrate-": agent}  # the last ones are the agent's jobs
    found = {
        f"etc/systemd/system/{unit}.service.d/clock.conf": "[Service]\n" + _lines(env, "Environment=")
        for unit, env in units.items()
    }
    return found | {
        "etc/clock": f"{seconds:+d}\n",
        "etc/clock.env": _lines(agent),
        "etc/sudoers.d/clock": "Defaults env_file=/etc/clock.env\n",
    }


def _lines(env: Mapping[str, str], before: str = "") -> str:
    return "".join(f"{before}{name}={value}\n" for name, value in env.items())


def pid_inside(pid: int) -> str:
    """The number that a process has on its own machine. Raises OSError if it is gone."""
    return next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("NSpid:")).split()[-1]


def _free_address() -> str:
    first = os.getpid() % 100  # two test processes that begin at the same time
    for number in range(100 + first, 250):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((f"127.0.1.{number}", PORT))
            return f"127.0.1.{number}"
    raise AssertionError(f"port {PORT} is taken on every address from 127.0.1.{100 + first}")


def _unshared(folder: Path, script: str) -> list[str]:
    return ["unshare", "--mount", "--propagation", "private", "--wd", str(folder), "sh", "-euc", script, "sh"]


class Template:
    """The disk of a new machine. `address`: of all machines that are made of it, one after another.

    `files`: its own, by their paths without the first slash. `enabled`: its units that start at boot. `shown`: files and directories of
    this machine that it sees, read-only, at the same path; `shared`: those into which it may also write. Without `has_agent` nothing of
    kmigrate is on it, and the user of its key may use sudo for everything.
    """

    def __init__(
        self,
        folder: Path,
        files: Mapping[str, str] | None = None,
        *,
        name: str = "kafka0",
        address: str = "",
        key: Path | None = None,
        enabled: Sequence[str] = ("kafka.service",),
        shown: Sequence[Path] = (),
        shared: Sequence[Path] = (),
        megabytes: int = 256,
        has_agent: bool = True,
    ) -> None:
        self.folder, self.address, self.name, self._has_agent = folder, address or _free_address(), name, has_agent
        binds = [("bind-ro", path) for path in shown] + [("bind", path) for path in shared]
        self.binds = [f"--{how}={path}:{path}:norbind" for how, path in binds]  # else with the mounts of the machine itself in it
        self.disk, self.key = folder / "disk.img", key or new_key(folder)
        for path, text in (self._common_files() | dict(stand_in_files() if files is None else files)).items():
            (folder / "new" / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / "new" / path).write_text(text)
        with self.disk.open("wb") as disk:
            disk.truncate(megabytes * 1024 * 1024)
        subprocess.run(["mkfs.ext4", "-q", "-F", self.disk], check=True)
        argv = [*_unshared(folder, _MAKE), *enabled]
        made = subprocess.run(argv, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
        assert made.returncode == 0, made.stderr
        self.host_key = (folder / "ssh_host_ed25519_key.pub").read_text()

    def _common_files(self) -> dict[str, str]:
        agent = AGENT.read_text()
        sudoers = re.search(rf"^ +({USER} ALL=.*)$", agent, re.MULTILINE)  # the line that the agent's own head names
        assert sudoers is not None
        own = (
            {"etc/sudoers.d/kmigrate": f"{sudoers[1]}\n", "usr/local/sbin/kmigrate-node": agent}
            if self._has_agent
            else {"etc/sudoers.d/admin": f"{USER} ALL=(ALL) NOPASSWD: ALL\n"}
        )
        return own | {
            "etc/hostname": f"{self.name}\n",
            "etc/machine-id": f"{uuid.uuid4().hex}\n",  # without one, systemd enables every unit that is installed
            "etc/hosts": f"127.0.0.1 localhost\n{self.address} {self.name}\n",
            "etc/ssh/sshd_config": _SSHD.format(port=PORT, address=self.address),
            "etc/systemd/logind.conf.d/kill.conf": "[Login]\nKillUserProcesses=yes\n",
            "etc/tmpfiles.d/tmp.conf": "",  # at its boot it must not empty what it shares with this machine below /tmp
            "key.pub": self.key.with_suffix(".pub").read_text(),
        }


def new_key(folder: Path) -> Path:
    """A key pair for ssh without a passphrase; the path of its private half."""
    path = folder / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return path


def stand_in_files() -> dict[str, str]:
    """A broker and a controller that are stand-ins."""
    files = {
        "etc/kmigrate/node.json": json.dumps(node_config()),
        "opt/kafka/bin/kafka-storage.sh": STAND_IN,
        "var/lib/kafka/data/meta.properties": f"version=0\nbroker.id={NODE}\ncluster.id={CLUSTER}\n",
    }
    for role, unit in (("broker", "kafka"), ("controller", "kafka-controller")):
        files[f"usr/local/lib/systemd/system/{unit}.service"] = _UNIT.format(role=role, properties=properties_path(role))
        files[properties_path(role)[1:]] = properties(role)
    return files


class Machine:
    """One machine with a disk of its own."""

    def __init__(self, folder: Path, template: Template) -> None:
        self.folder, self.address, self._template = folder, template.address, template
        self._holder: subprocess.Popen[bytes] | None = None
        self.leader = 0  # its process 1, seen from here
        for name in ("disk", "root"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        self.known_host = f"[{self.address}]:{PORT} {template.host_key}"
        (folder / "known_hosts").write_text(self.known_host)
        subprocess.run(["cp", "--sparse=always", template.disk, folder / "disk.img"], check=True)

    def boot(self) -> None:
        """Returns once sshd answers; the other units may still start."""
        options = [f"--machine={self._template.name}", *self._template.binds]
        argv = [*_unshared(self.folder, _BOOT), *options]
        with (self.folder / "console").open("ab") as console:
            self._holder = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=console, stderr=console, start_new_session=True)
        wait_until(self._finds_leader, f"{self.folder} boots: see `console` there", _TIMEOUT)
        wait_until(self.has_sshd, f"sshd of {self.folder} answers: see `console` there", _TIMEOUT)

    def _finds_leader(self) -> bool:
        assert self._holder is not None
        assert self._holder.poll() is None, (self.folder / "console").read_text()
        for child in psutil.Process(self._holder.pid).children(recursive=True):
            with contextlib.suppress(OSError):
                if pid_inside(child.pid) == "1":
                    self.leader = child.pid
        return self.leader > 0

    def has_sshd(self) -> bool:
        """Whether an sshd answers within a second."""
        with contextlib.suppress(OSError), socket.create_connection((self.address, PORT), 1) as connection:
            return connection.recv(4) == b"SSH-"
        return False

    def power_off(self) -> None:
        """In order: systemd stops every unit."""
        holder, leader, self._holder, self.leader = self._holder, self.leader, None, 0
        if holder is None:
            return
        assert holder.stdin is not None
        holder.stdin.close()
        try:
            holder.wait(_TIMEOUT)
        except subprocess.TimeoutExpired:
            os.kill(leader, signal.SIGKILL)
            holder.wait(_TIMEOUT)
            raise

    def cut_power(self) -> None:
        """At once: what is not on the disk now never gets there."""
        assert self._holder is not None
        disk = os.open(f"/proc/{self._holder.pid}/root{self.folder}/disk", os.O_RDONLY | os.O_DIRECTORY)
        self._holder.send_signal(signal.SIGSTOP)  # it would unmount the disk, which writes what is not there yet
        try:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.leader, signal.SIGKILL)
            # no process may live to tell that its disk fails
            wait_until(lambda: not psutil.pid_exists(self.leader), f"{self.folder} has ended", _TIMEOUT)
            fcntl.ioctl(disk, _EXT4_SHUTDOWN, struct.pack("I", 2))
        finally:
            os.close(disk)
            self._holder.send_signal(signal.SIGCONT)
        self.power_off()

    def reboot(self) -> None:
        """Cut the power and boot again."""
        self.power_off()
        self.boot()

    @property
    def is_on(self) -> bool:
        """Whether it was booted and not ended since."""
        return self._holder is not None

    def keep_disk(self, name: str) -> None:
        """Copy the disk of a machine that is off, by this name."""
        self._copy_disk("disk", name)

    def put_disk_back(self, name: str) -> None:
        """The disk of a machine that is off becomes the copy of this name."""
        self._copy_disk(name, "disk")

    def _copy_disk(self, source: str, target: str) -> None:
        assert not self.is_on, f"{self.folder} is on"
        subprocess.run(["cp", "--sparse=always", self.folder / f"{source}.img", self.folder / f"{target}.img"], check=True)

    def close(self) -> None:
        """End it and remove its disk; `console` stays."""
        if self._holder is not None and self.leader:
            self.cut_power()
        self.power_off()
        (self.folder / "disk.img").unlink(missing_ok=True)

    def run(self, *argv: str, fails: bool = False, seconds: float = _TIMEOUT) -> str:
        """What a command of its root prints within `seconds`."""
        entered = ["nsenter", "-t", str(self.leader), "-m", "-u", "-i", "-p", "--", *argv]
        done = subprocess.run(entered, capture_output=True, text=True, env=_ENVIRONMENT, timeout=seconds, check=False)
        assert fails or done.returncode == 0, (argv, done.returncode, done.stdout, done.stderr)
        return done.stdout

    def path(self, path: str) -> Path:
        """A file of the machine that runs, to be read or written here."""
        return Path(f"/proc/{self.leader}/root{path}")

    def ssh(self, *command: str) -> tuple[str, ...]:
        """The argument list of a command over ssh, by default of the agent."""
        options = (
            "BatchMode=yes",
            f"UserKnownHostsFile={self.folder / 'known_hosts'}",
            "GlobalKnownHostsFile=/dev/null",
            "IdentitiesOnly=yes",
            "ConnectTimeout=5",
        )
        chosen = [word for option in options for word in ("-o", option)]
        argv = ("ssh", "-T", "-F", "/dev/null", *chosen, "-i", str(self._template.key), "-p", str(PORT), f"{USER}@{self.address}")
        return (*argv, *(command or ("sudo", "-n", "/usr/local/sbin/kmigrate-node", "serve")))

    def write(self, files: Mapping[str, str]) -> None:
        """Write files of its root, by their paths without the first slash, and have systemd read its own."""
        for name, text in files.items():
            path = self.path(f"/{name}")
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        self.run("systemctl", "daemon-reload")

    def sets_stop_timeout(self, value: str) -> None:
        """After how long systemd kills a node that does not stop."""
        override = f"[Service]\nTimeoutStopSec={value}\n"
        self.write({f"etc/systemd/system/{unit}.service.d/stop.conf": override for unit in ("kafka", "kafka-controller")})

    def processes(self, command: str) -> list[int]:
        """Its processes whose command line begins so; their pids on this machine."""
        found = []
        for child in psutil.Process(self.leader).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if " ".join(child.cmdline()).startswith(command):
                    found.append(child.pid)
        return found

    def signal(self, command: str, number: int) -> int:
        """Send a signal to all of these processes; returns how many there were."""
        found = self.processes(command)
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return len(found)


@contextlib.contextmanager
def booted(folder: Path, template: Template) -> Iterator[Machine]:
    """A new machine that runs, until the block ends."""
    machine = Machine(folder, template)
    try:
        machine.boot()
        yield machine
    finally:
        machine.close()
