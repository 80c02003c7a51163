"""`kmigrate node install|check CLUSTER.yaml`: install `kmigrate-node` on each machine, and try it.

`install` shows what it would write on each machine, asks, and writes it, over the connections of the cluster file, if their user may
use sudo. Else run what `install --script` prints as root of each machine. `check` changes nothing. Exit code 0: all is well; 1: a machine
or a node is not, or nothing was written because nobody agreed to it; 2: the cluster file or a connection is wrong.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from airflow_provider_kmigrate.clients.commands import command_environment, connect_command
from airflow_provider_kmigrate.clients.connections import (
    Lookup,
    host_connections,
    host_settings,
    lookup_in,
    named_connections,
    read_connections,
    ssh_connections,
    ssh_settings,
)
from airflow_provider_kmigrate.clients.hosts.agent import PATH, Agents, Pipe, Program
from airflow_provider_kmigrate.clients.settings import SshSettings
from airflow_provider_kmigrate.core.cluster import ClusterSpec, NodeSpec, machine
from airflow_provider_kmigrate.core.model import Reason
from airflow_provider_kmigrate.core.text import printable
from airflow_provider_kmigrate.exceptions import Failed, KMigrateError, Refused, SpecError, TimedOut
from airflow_provider_kmigrate.node.check import NodeCheck, check_machine
from airflow_provider_kmigrate.node.script import AGENT, InstallOptions, script, version_of
from airflow_provider_kmigrate.spec import load

_TIMEOUT = 60.0  # seconds for a line of the script's output
_AT_ONCE = 16  # machines
_SHELL = ("/bin/sh", "-s")
_BY_HAND = "Run what `install --script` prints as root of that machine, by configuration management or by hand."
Machines = Mapping[str, tuple[NodeSpec, ...]]


def machines(spec: ClusterSpec) -> Machines:
    """The nodes of each machine, by its `host` as it is written first; none that is declared gone.

    Raises `SpecError` for nodes that no agent can serve.
    """
    found: dict[str, tuple[NodeSpec, ...]] = {}
    names: dict[str, str] = {}
    for node in (node for node in spec.nodes() if node not in gone(spec)):
        host = names.setdefault(machine(node.host), node.host)
        if any(other.role is node.role for other in found.get(host, ())):
            text = f"{host} has two {node.role}s: kmigrate-node serves one broker and one controller of a machine."
            raise SpecError.because(Reason("F04", text))
        found[host] = (*found.get(host, ()), node)
    return found


def gone(spec: ClusterSpec) -> tuple[NodeSpec, ...]:
    """The nodes whose machines the cluster file declares dead for good (`driver: gone`): there is nothing to reach."""
    return tuple(node for node in spec.nodes() if node.hosts.driver == "gone")


class Reach(NamedTuple):
    """How the machines of a cluster are reached: the environment of each node's command, and the SSH connections."""

    environments: Mapping[str, Mapping[str, str]]
    ssh: Mapping[str, SshSettings]

    def agents(self) -> Agents:
        """Connections to `kmigrate-node`, made on first use."""
        return Agents(lambda node: _open_ssh(self.ssh[node.hosts.ssh_conn_id], node.host))

    def environment(self, node: NodeSpec) -> Mapping[str, str] | None:
        """What the command of a node gets."""
        return self.environments.get(node.hosts.conn_id)

    def root_shell(self, node: NodeSpec) -> Pipe:
        """A pipe to a shell of root. Raises `Refused` if the node's command leads to `kmigrate-node` alone."""
        if node.hosts.ssh_conn_id:
            return _open_ssh(self.ssh[node.hosts.ssh_conn_id], node.host, ("sudo", "-n", *_SHELL))
        return Program(shell_in(connect_command(node)), command_environment(self.environment(node)))


def _open_ssh(settings: SshSettings, host: str, argv: tuple[str, ...] = ("sudo", "-n", PATH, "serve")) -> Pipe:
    from airflow_provider_kmigrate.hooks.connections import open_ssh  # noqa: PLC0415  # Airflow takes a second to import

    return open_ssh(settings, host, argv)


def shell_in(argv: Sequence[str]) -> tuple[str, ...]:
    """The command of a node, with a shell in the place of `kmigrate-node serve`. Raises `Refused` if that is not its end."""
    if argv[-1] == "serve" and argv[-2].endswith("kmigrate-node"):
        return (*argv[:-2], *_SHELL)
    if re.search(r"kmigrate-node serve$", argv[-1]):
        return (*argv[:-1], re.sub(r"\S*kmigrate-node serve$", shlex.join(_SHELL), argv[-1]))
    text = f"the command {shlex.join(argv)} does not end with `kmigrate-node serve`: no script can be sent through it. {_BY_HAND}"
    raise Refused.because(Reason("M03", text))


def reach_of(spec: ClusterSpec, lookup: Lookup) -> Reach:
    """Raises `Refused` for a connection that is missing or wrong."""
    return Reach(
        {conn_id: host_settings(conn_id, lookup(conn_id)).environment for conn_id in host_connections(spec)},
        {conn_id: ssh_settings(conn_id, lookup(conn_id)) for conn_id in ssh_connections(spec)},
    )


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    chosen = _parser().parse_args(argv)
    try:
        spec = load(chosen.cluster)
        found = _chosen(machines(spec), chosen.host)
        for node in gone(spec):
            sys.stderr.write(f"Skipped: {node.name} on {node.host}, which the cluster file declares gone (driver: gone).\n")
        if chosen.command == "check":
            return check(reach_of(spec, _lookup(spec, chosen.connections)), found, spec.cluster_id, print)
        setup = InstallOptions(chosen.unit, chosen.controller_unit, chosen.user, chosen.storage_tool, _login(spec, chosen))
        text = script(spec.name, found, setup, AGENT.read_text(encoding="utf-8"))
        if chosen.script:
            sys.stdout.write(f'{text}main "$@"\n')
            return 0
        reach = reach_of(spec, _lookup(spec, chosen.connections))
    except KMigrateError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return install(reach, found, text, print, None if chosen.dry_run else _agreed(chosen))


def _parser() -> argparse.ArgumentParser:
    about, ours = (
        "Install kmigrate-node, the agent of kmigrate, on the machines of a cluster; or check it there.",
        InstallOptions(),
    )
    parser = argparse.ArgumentParser(prog="kmigrate node", description=about)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, does in (
        ("install", "write the agent, node.json and sudoers on each machine"),
        (
            "check",
            "see whether a run could work with each node: its agent, files, unit, start at boot, clock and disk; changes nothing",
        ),
    ):
        command = commands.add_parser(name, help=does)
        command.add_argument("cluster", type=Path, metavar="CLUSTER.yaml")
        command.add_argument(
            "--connections", type=Path, metavar="FILE", help="of `airflow connections export`; default: ask Airflow"
        )
        command.add_argument("--host", action="append", default=[], help="this machine only; may be repeated")
    install_command = commands.choices["install"]
    how = install_command.add_mutually_exclusive_group()
    how.add_argument("--dry-run", action="store_true", help="show what would be written on each machine, and end")
    how.add_argument("--yes", action="store_true", help="write it without asking")
    how.add_argument("--script", action="store_true", help="print the script that does the same as root of a machine, and end")
    install_command.add_argument("--unit", default=ours.unit, help="systemd's unit of a node (%(default)s)")
    beside = "its unit on a machine with a broker (%(default)s)"
    install_command.add_argument("--controller-unit", default=ours.controller_unit, help=f"of a controller: {beside}")
    install_command.add_argument("--user", default=ours.user, help="Kafka's own user (%(default)s)")
    install_command.add_argument("--storage-tool", default=ours.storage_tool, help="the path of kafka-storage.sh (%(default)s)")
    install_command.add_argument("--login", help="the user of the connection, who gets the line of sudoers (kmigrate)")
    return parser


def _chosen(found: Machines, hosts: Sequence[str]) -> Machines:
    if unknown := sorted(set(hosts) - found.keys()):
        text = f"the cluster file has no host {', '.join(unknown)}; it has {', '.join(found)}."
        raise Refused.because(Reason("F04", text))
    return {host: nodes for host, nodes in found.items() if not hosts or host in hosts}


def _lookup(spec: ClusterSpec, connections: Path | None) -> Lookup:
    if connections is not None:
        return lookup_in(read_connections(connections), spec)
    os.environ["_AIRFLOW_PROCESS_CONTEXT"] = "server"  # as `airflow connections get`: else it reads no database
    from airflow_provider_kmigrate.hooks.connections import get  # noqa: PLC0415  # Airflow takes a second to import

    named = named_connections(spec)
    return lambda conn_id: get(conn_id, *named[conn_id])


def _login(spec: ClusterSpec, chosen: argparse.Namespace) -> str:
    """The user who gets the line of sudoers: the given one, or that of the SSH connection. Raises `Refused` for several."""
    if chosen.login or chosen.script or not ssh_connections(spec):
        return str(chosen.login or InstallOptions().login)
    lookup = _lookup(spec, chosen.connections)
    logins = {str(lookup(conn_id).get("login") or "") for conn_id in ssh_connections(spec)}
    if len(logins) != 1 or "" in logins:
        text = f"the SSH connections {', '.join(ssh_connections(spec))} do not name one login: {', '.join(sorted(logins))}."
        raise Refused.because(Reason("N03", f"{text} Name it with --login, and its machines with --host."))
    return logins.pop()


def _agreed(chosen: argparse.Namespace) -> Callable[[], bool]:
    """Whether to write after the plan was shown."""

    def agreed() -> bool:
        if chosen.yes:
            return True
        if not sys.stdin.isatty():
            sys.stderr.write("Nothing was written. Add --yes to write this without a question.\n")
            return False
        return input("Write this? [y/N] ").strip().lower() in {"y", "yes"}

    return agreed


def install(reach: Reach, found: Machines, text: str, say: Callable[[str], object], agreed: Callable[[], bool] | None) -> int:
    """Show what the script would write on each machine; if all can be done and it is `agreed`, write it. The exit code.

    `agreed` None: show it only.
    """
    plans = _on_each(found, lambda host, nodes: _run(reach, host, nodes, text, "--dry-run"))
    for plan in plans:
        say(plan.said)
    if any(plan.failed for plan in plans):
        return 1
    if not any("would write" in plan.said for plan in plans):
        say("Nothing to do.")
        return 0
    if agreed is None:
        return 0
    if not agreed():
        return 1
    done = _on_each(found, lambda host, nodes: _run(reach, host, nodes, text, ""))
    for each in done:
        say(each.said)
    return int(any(each.failed for each in done))


class _Ran(NamedTuple):
    said: str
    failed: bool


def _on_each(found: Machines, act: Callable[[str, tuple[NodeSpec, ...]], _Ran]) -> list[_Ran]:
    """The results in the order of the cluster file."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(act, found.keys(), found.values()))


def _run(reach: Reach, host: str, nodes: tuple[NodeSpec, ...], text: str, option: str) -> _Ran:
    """Run the script on one machine."""
    try:
        pipe = reach.root_shell(nodes[0])
        try:
            return _Ran(_output(pipe, f"{text}main {shlex.quote(host)} {option} </dev/null\nexit\n"), failed=False)
        finally:
            pipe.close()
    except KMigrateError as error:
        before = f"{host}: "  # of what the script itself said, too
        return _Ran(before + str(error).removeprefix(before), failed=True)


def _output(pipe: Pipe, text: str) -> str:
    """What the script printed. Raises `Failed` or `Refused` with what it said if it failed, and `TimedOut`."""
    out = b""
    try:
        pipe.write(text.encode(), _TIMEOUT)
        while chunk := pipe.read(_TIMEOUT):
            out += chunk
    except TimeoutError as error:
        raise TimedOut(f"`{pipe.command}` did not end within {_TIMEOUT:.0f} s") from error
    except OSError:  # it ended before it read all: it says why
        pass
    code, errors = pipe.ending()
    said = printable(f"{out.decode(errors='replace')}{errors}".strip(), "\n\t")
    if code == 0 and not said.startswith("{"):
        return said
    if "sudo: " in said or said.startswith("{"):  # a key that may do nothing but `serve`: the agent answers
        text = f"the user of the connection may not run a shell of root there: {said[:300]}. {_BY_HAND}"
        raise Refused.because(Reason("M03", text))
    raise Failed(said or f"`{pipe.command}` ended with {code}")


def check(reach: Reach, found: Machines, cluster_id: str, say: Callable[[str], object]) -> int:
    """Try every node, and report each one's state. The exit code."""
    version = version_of(AGENT.read_text(encoding="utf-8"))
    agents = reach.agents()

    def check_one(nodes: tuple[NodeSpec, ...]) -> list[NodeCheck]:
        try:
            return list(check_machine(agents(nodes[0], reach.environment(nodes[0])), nodes, version, cluster_id))
        except KMigrateError as error:
            return [NodeCheck(nodes[0].host, problems=(str(error),))]

    try:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            done = [each for checks in pool.map(check_one, found.values()) for each in checks]
    finally:
        agents.close()
    for each in done:
        say(str(each))
    return int(any(each.problems for each in done))
