"""`kmigrate node install|check|accept|known-hosts|inventory|ansible`: `kmigrate-node` on the machines of one cluster file or of many.

`install` shows what it would write on each machine, asks, and writes it, over the connections of the cluster files, or as an inventory
says, if that user may use sudo. Else run what `install --script` prints as root of each machine, or the role that `ansible` writes. `check`
changes nothing. Exit code 0: all is well; 1: a machine or a node is not, or nothing was written because the operator did not agree to it; 2:
a cluster file, the inventory or a connection is wrong.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

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
from airflow_provider_kmigrate.clients.hosts.agent import PATH, AgentHost, Agents, Pipe, Program
from airflow_provider_kmigrate.clients.settings import SshSettings
from airflow_provider_kmigrate.clients.state_folder import StateFolder
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec, NodeSpec, Served, normalize_host
from airflow_provider_kmigrate.core.shared.text import printable
from airflow_provider_kmigrate.exceptions import Failed, KMigrateError, Refused, SpecError, TimedOut
from airflow_provider_kmigrate.node import ansible
from airflow_provider_kmigrate.node.accept import accept, require_cluster, select_node
from airflow_provider_kmigrate.node.check import NodeCheck, check_machine
from airflow_provider_kmigrate.node.inventory import SshAccess, find_access, reach_by_inventory, read_inventory, render_inventory
from airflow_provider_kmigrate.node.known_hosts import collect_known_hosts, read_fingerprints
from airflow_provider_kmigrate.node.script import AGENT, InstallOptions, build_install_script, read_agent_version
from airflow_provider_kmigrate.spec import load

_TIMEOUT = 60.0  # seconds for the script
_LONGEST = 1 << 20  # bytes of its output: a machine says some lines for each file
_AT_ONCE, _MOST_AT_ONCE = 16, 64  # machines
_SHELL = ("/bin/sh", "-s")
_NEEDED = ("start", "stop", "status")  # commands
_BY_HAND = "Run what `install --script` prints as root of that machine, by configuration management or by hand."
Machines = Mapping[str, tuple[Served, ...]]


def group_by_machine(spec: ClusterSpec) -> Machines:
    """The nodes of each machine, and the units of applications, by its `host` as it is written first; none that is declared gone.

    Raises `SpecError` for nodes that no agent can serve.
    """
    nodes_by_host: dict[str, tuple[Served, ...]] = {}
    names: dict[str, str] = {}
    served: list[Served] = [*(node for node in spec.nodes() if node not in list_gone_nodes(spec)), *spec.units()]
    for node in served:
        host = names.setdefault(normalize_host(node.host), node.host)
        if any(other.role == node.role for other in nodes_by_host.get(host, ())):
            text = f"{host} has two {node.role}s: kmigrate-node serves one broker and one controller of a machine."
            raise SpecError.because(Reason("F04", text))
        nodes_by_host[host] = (*nodes_by_host.get(host, ()), node)
    return nodes_by_host


def list_gone_nodes(spec: ClusterSpec) -> tuple[NodeSpec, ...]:
    """The nodes whose machines the cluster file declares dead for good (`driver: gone`): there is nothing to reach."""
    return tuple(node for node in spec.nodes() if node.hosts.driver == "gone")


class Reach(NamedTuple):
    """How the machines of a cluster are reached: the environment of each node's command, and the SSH connections."""

    environments: Mapping[str, Mapping[str, str]]
    ssh: Mapping[str, SshSettings]
    at_once: int = _AT_ONCE

    def agents(self) -> Agents:
        """Connections to `kmigrate-node`, made on first use."""
        return Agents(lambda node: _open_ssh(self.ssh[node.hosts.ssh_conn_id], node.host))

    def environment(self, node: Served) -> Mapping[str, str] | None:
        """What the command of a node gets."""
        return self.environments.get(node.hosts.conn_id)

    def open_root_shell(self, node: Served) -> Pipe:
        """A pipe to a shell of root. Raises `Refused` if the node's command leads to `kmigrate-node` alone."""
        if node.hosts.ssh_conn_id:
            return _open_ssh(self.ssh[node.hosts.ssh_conn_id], node.host, ("sudo", "-n", *_SHELL))
        return Program(build_shell_command(connect_command(node)), command_environment(self.environment(node)))


def _open_ssh(settings: SshSettings, host: str, argv: tuple[str, ...] = ("sudo", "-n", PATH, "serve")) -> Pipe:
    from airflow_provider_kmigrate.hooks.connections import open_ssh  # noqa: PLC0415  # Airflow takes a second to import

    return open_ssh(settings, host, argv)


def build_shell_command(argv: Sequence[str]) -> tuple[str, ...]:
    """The command of a node, with a shell in the place of `kmigrate-node serve`. Raises `Refused` if that is not its end."""
    if argv[-1] == "serve" and argv[-2].endswith("kmigrate-node"):
        return (*argv[:-2], *_SHELL)
    if re.search(r"kmigrate-node serve$", argv[-1]):
        return (*argv[:-1], re.sub(r"\S*kmigrate-node serve$", shlex.join(_SHELL), argv[-1]))
    text = f"the command {shlex.join(argv)} does not end with `kmigrate-node serve`: no script can be sent through it. {_BY_HAND}"
    raise Refused.because(Reason("M03", text))


def build_reach(spec: ClusterSpec, lookup: Lookup) -> Reach:
    """Raises `Refused` for a connection that is missing or wrong."""
    return Reach(
        {conn_id: host_settings(conn_id, lookup(conn_id)).environment for conn_id in host_connections(spec)},
        {conn_id: ssh_settings(conn_id, lookup(conn_id)) for conn_id in ssh_connections(spec)},
    )


class Fleet(NamedTuple):
    """The machines of all given cluster files that were chosen."""

    specs: Mapping[str, ClusterSpec]  # by the cluster's name
    machines_by_cluster: Mapping[str, Machines]

    def merge_machines(self) -> Machines:
        """All machines."""
        return {host: nodes for machines in self.machines_by_cluster.values() for host, nodes in machines.items()}

    def find_specs(self) -> Mapping[str, ClusterSpec]:
        """The cluster file of each machine."""
        return {host: self.specs[name] for name, machines in self.machines_by_cluster.items() for host in machines}


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    options = _build_parser().parse_args(argv)
    try:
        if options.command == "accept":
            return _accept(load(options.cluster), options)
        return _COMMANDS[options.command](_load_fleet(options.cluster, options.host), options)
    except KMigrateError as error:
        sys.stderr.write(f"{error}\n")
        return 2


def _load_fleet(paths: Sequence[Path], hosts: Sequence[str]) -> Fleet:
    """Raises `SpecError` or `Refused` for a cluster file that is wrong, given twice, or shares a machine with another one."""
    specs, machines_by_cluster, owners = dict[str, ClusterSpec](), dict[str, Machines](), dict[str, str]()
    for spec in map(load, paths):
        if spec.name in specs:
            raise SpecError.because(Reason("F04", f"two cluster files have the name {spec.name}."))
        machines = group_by_machine(spec)
        for host in machines:
            other = owners.setdefault(normalize_host(host), spec.name)
            if other != spec.name:
                text = f"{host} stands in the files of {other} and of {spec.name}: kmigrate-node serves one cluster of a machine."
                raise SpecError.because(Reason("F04", text))
        for node in list_gone_nodes(spec):
            sys.stderr.write(f"Skipped: {node.name} on {node.host}, which the cluster file declares gone (driver: gone).\n")
        specs[spec.name], machines_by_cluster[spec.name] = spec, machines
    all_machines = Fleet(specs, machines_by_cluster).merge_machines()
    chosen = _select_machines(all_machines, hosts)
    return Fleet(
        specs,
        {name: {host: machines[host] for host in machines if host in chosen} for name, machines in machines_by_cluster.items()},
    )


def _install(fleet: Fleet, options: argparse.Namespace) -> int:
    """Raises `Refused` for a connection or an inventory that is wrong."""
    scripts = _build_scripts(fleet, options)
    if options.script:
        if len(scripts) > 1:
            raise Refused.because(
                Reason("F04", "--script prints the script of one cluster file; for several: kmigrate node ansible.")
            )
        sys.stdout.write(f'{next(iter(scripts.values()))}main "$@"\n')
        return 0
    reach, machines = _reach_machines(fleet, options)
    texts = {host: scripts[name] for name, named in fleet.machines_by_cluster.items() for host in named}
    confirm = None if options.dry_run else _make_confirmation(options)
    return install(reach, machines, texts, print, confirm, brief=options.brief)


def _build_scripts(fleet: Fleet, options: argparse.Namespace) -> dict[str, str]:
    """The script of each cluster, by its name."""
    agent = AGENT.read_text(encoding="utf-8")
    return {
        name: build_install_script(
            name,
            fleet.machines_by_cluster[name],
            InstallOptions(
                options.unit,
                options.controller_unit,
                options.user,
                options.storage_tool,
                _find_login(spec, options),
                options.drop_in,
                _read_commands(options, fleet.machines_by_cluster[name]),
                options.log or "",
            ),
            agent,
        )
        for name, spec in fleet.specs.items()
    }


def _read_commands(options: argparse.Namespace, machines: Machines) -> dict[str, tuple[str, ...]]:
    """The words of --start, --stop, --status and --software. Raises `Refused` (F04) if one is missing, or would act on both nodes of a machine."""
    given = {verb: tuple(shlex.split(text)) for verb in (*_NEEDED, "software") if (text := getattr(options, verb))}
    if given and not given.keys() >= set(_NEEDED):
        raise Refused.because(Reason("F04", "without systemd --start, --stop and --status are needed, all of them."))
    shared = [host for host, nodes in machines.items() if sum(isinstance(node, NodeSpec) for node in nodes) > 1]
    if shared and any("{role}" not in " ".join(words) for words in given.values()):
        text = f"{', '.join(shared)} has a broker and a controller: write {{role}} where --{', --'.join(given)} name one of them."
        raise Refused.because(Reason("F04", text))
    return given


def _reach_machines(fleet: Fleet, options: argparse.Namespace) -> tuple[Reach, Machines]:
    """How the machines are reached: as the inventory says, else over the connections of their cluster files."""
    machines = fleet.merge_machines()
    if options.inventory:
        by_inventory = reach_by_inventory(machines, read_inventory(options.inventory), options.known_hosts)
        return Reach({}, {}, options.at_once), by_inventory
    reaches = [build_reach(spec, make_lookup(spec, options.connections)) for spec in fleet.specs.values()]
    environments = {conn_id: environment for reach in reaches for conn_id, environment in reach.environments.items()}
    ssh = {conn_id: settings for reach in reaches for conn_id, settings in reach.ssh.items()}
    return Reach(environments, ssh, options.at_once), machines


def _check(fleet: Fleet, options: argparse.Namespace) -> int:
    reach, machines = _reach_machines(fleet, options)
    return check_nodes(reach, machines, fleet.find_specs(), print)


def _print_inventory(fleet: Fleet, _options: argparse.Namespace) -> int:
    sys.stdout.write(render_inventory(fleet.machines_by_cluster))
    return 0


def _write_ansible(fleet: Fleet, options: argparse.Namespace) -> int:
    """Raises `Refused` or `Failed` for a folder that cannot be written."""
    scripts = {name: f'{text}main "$@"\n' for name, text in _build_scripts(fleet, options).items()}
    ansible.write_role(ansible.render_role(scripts, fleet.machines_by_cluster), options.to, print)
    return 0


def _collect_known_hosts(fleet: Fleet, options: argparse.Namespace) -> int:
    """Raises `Refused` for an inventory or a file of fingerprints that is wrong."""
    machines = fleet.merge_machines()
    inventory = read_inventory(options.inventory) if options.inventory else None
    accesses = {host: SshAccess(host, options.port) if inventory is None else find_access(inventory, host) for host in machines}
    expected = read_fingerprints(options.fingerprints) if options.fingerprints else None
    return collect_known_hosts(
        accesses, options.known_hosts, expected, options.at_once, say=print, confirm=_make_confirmation(options)
    )


_COMMANDS: Final = {
    "install": _install,
    "check": _check,
    "known-hosts": _collect_known_hosts,
    "inventory": _print_inventory,
    "ansible": _write_ansible,
}


def _build_parser() -> argparse.ArgumentParser:
    about = "Install kmigrate-node, the agent of kmigrate, on the machines of clusters; check it there; accept a broker's edited file."
    parser = argparse.ArgumentParser(prog="kmigrate node", description=about)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, does in (
        ("install", "write the agent, node.json and sudoers on each machine"),
        (
            "check",
            "see whether a run could work with each node: its agent, files, unit, start at boot, clock and disk; changes nothing",
        ),
        ("accept", "store what a broker's file says now as its original in the backup (O03); run it as Airflow's user"),
        ("known-hosts", "show the host keys of all machines, and write those that you have compared"),
        ("inventory", "print an inventory of the machines, for --inventory and for Ansible"),
        ("ansible", "write an Ansible role that does the same as install, with its inventory and playbook"),
    ):
        command = commands.add_parser(name, help=does)
        many = {} if name == "accept" else {"nargs": "+"}
        command.add_argument("cluster", type=Path, metavar="CLUSTER.yaml", **many)  # type: ignore[arg-type]
        command.set_defaults(yes=False, login=None, script=True, connections=None)
        if name != "accept":
            command.add_argument("--host", action="append", default=[], help="this machine only; may be repeated")
    for name in ("install", "check", "accept"):
        commands.choices[name].add_argument(
            "--connections", type=Path, metavar="FILE", help="of `airflow connections export`; default: ask Airflow"
        )
    for name in ("install", "check", "known-hosts"):
        _add_reach_options(commands.choices[name])
    for name in ("install", "ansible"):
        _add_machine_options(commands.choices[name])
    _add_accept_options(commands.choices["accept"])
    _add_install_options(commands.choices["install"])
    _add_known_hosts_options(commands.choices["known-hosts"])
    commands.choices["ansible"].add_argument("--to", type=Path, required=True, metavar="FOLDER", help="where to write it")
    return parser


def _add_accept_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("node", metavar="NODE", help="a broker of the cluster file, such as broker-1")
    command.add_argument(
        "--folder", type=Path, help="Airflow's [kmigrate] folder, with backup and journals; default: ask Airflow"
    )
    command.add_argument("--yes", action="store_true", help="store it without asking")


def _add_install_options(command: argparse.ArgumentParser) -> None:
    how = command.add_mutually_exclusive_group()
    how.add_argument("--dry-run", action="store_true", help="show what would be written on each machine, and end")
    how.add_argument("--yes", action="store_true", help="write it without asking")
    how.add_argument("--script", action="store_true", help="print the script that does the same as root of a machine, and end")
    command.add_argument("--brief", action="store_true", help="show one line a machine of what would be written")
    command.set_defaults(script=False)


def _add_known_hosts_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--port", type=int, default=22, help="of sshd, without an inventory (%(default)s)")
    command.add_argument(
        "--fingerprints",
        type=Path,
        metavar="FILE",
        help="lines `HOST SHA256:...` that came another way, such as from consoles: write the keys that have one, and ask nothing",
    )
    command.set_defaults(known_hosts=Path("~/.ssh/known_hosts").expanduser())


def _add_reach_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--inventory",
        type=Path,
        metavar="FILE",
        help="of Ansible, in YAML: reach the machines by OpenSSH as it says, with sudo, and not over Airflow's connections",
    )
    command.add_argument("--known-hosts", type=Path, metavar="FILE", help="the file of host keys; default: OpenSSH's own")
    command.add_argument(
        "--at-once",
        type=int,
        choices=range(1, _MOST_AT_ONCE + 1),
        default=_AT_ONCE,
        metavar="N",
        help=f"machines at a time, at most {_MOST_AT_ONCE} (%(default)s)",
    )


def _add_machine_options(command: argparse.ArgumentParser) -> None:
    defaults = InstallOptions()
    command.add_argument("--unit", default=defaults.unit, help="systemd's unit of a node (%(default)s)")
    unit_note = "its unit on a machine with a broker (%(default)s)"
    command.add_argument("--controller-unit", default=defaults.controller_unit, help=f"of a controller: {unit_note}")
    command.add_argument("--user", default=defaults.user, help="Kafka's own user (%(default)s)")
    for verb in _NEEDED:
        text = f"without systemd: the command that root runs for the {verb} of a node, with absolute real paths; {{role}} is broker or controller"
        command.add_argument(f"--{verb}", metavar="COMMAND", help=text if verb != "status" else f"{text}; ends with 0 or 3")
    text = "without systemd: prints, one a line, the path of the Kafka jar that the next start loads, the path of its Java, and Java's version"
    command.add_argument("--software", metavar="COMMAND", help=text)
    command.add_argument("--log", metavar="FILE", help="without systemd: the node's log; {role} as above")
    command.add_argument("--storage-tool", default=defaults.storage_tool, help="the path of kafka-storage.sh (%(default)s)")
    command.add_argument(
        "--drop-in",
        choices=("write", "remove"),
        default=defaults.drop_in,
        help="write or remove a drop-in for each unit whose stop reaches too far or ends too early; default: only show it",
    )
    command.add_argument("--login", help="the user of the connection, who gets the line of sudoers (kmigrate)")


def _accept(spec: ClusterSpec, options: argparse.Namespace) -> int:
    """The exit code. Raises `Refused` for a node that the cluster file does not have, or a connection that is wrong."""
    node = select_node(spec, options.node)
    folder, state = (options.folder, None) if options.folder else _open_state_folder()
    reach = build_reach(spec, make_lookup(spec, options.connections))
    agents = reach.agents()
    try:
        host = AgentHost(agents(node, reach.environment(node)), spec.cluster_id, time.time)
        require_cluster(spec, node, host.files(node))
        return accept(spec, node, host.read_properties(node), folder, say=print, confirm=_make_confirmation(options), state=state)
    except KMigrateError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    finally:
        agents.close()


def _open_state_folder() -> tuple[Path, StateFolder]:
    from airflow_provider_kmigrate.utils.step_context import open_state, refresh_state  # noqa: PLC0415  # Airflow takes a second to import

    return refresh_state(), open_state()


def _select_machines(all_machines: Machines, hosts: Sequence[str]) -> Machines:
    if unknown := sorted(set(hosts) - all_machines.keys()):
        text = f"the cluster file has no host {', '.join(unknown)}; it has {', '.join(all_machines)}."
        raise Refused.because(Reason("F04", text))
    return {host: nodes for host, nodes in all_machines.items() if not hosts or host in hosts}


def make_lookup(spec: ClusterSpec, connections: Path | None) -> Lookup:
    """A lookup in an exported file; None: in Airflow itself."""
    if connections is not None:
        return lookup_in(read_connections(connections), spec)
    os.environ["_AIRFLOW_PROCESS_CONTEXT"] = "server"  # as `airflow connections get`: else it reads no database
    from airflow_provider_kmigrate.hooks.connections import get_connection  # noqa: PLC0415  # Airflow takes a second to import

    types_by_conn_id = named_connections(spec)
    return lambda conn_id: get_connection(conn_id, *types_by_conn_id[conn_id])


def _find_login(spec: ClusterSpec, options: argparse.Namespace) -> str:
    """The user who gets the line of sudoers: the given one, or that of the SSH connection. Raises `Refused` for several."""
    if options.login or options.script or options.inventory or not ssh_connections(spec):
        return str(options.login or InstallOptions().login)
    lookup = make_lookup(spec, options.connections)
    logins = {str(lookup(conn_id).get("login") or "") for conn_id in ssh_connections(spec)}
    if len(logins) != 1 or "" in logins:
        text = f"the SSH connections {', '.join(ssh_connections(spec))} do not name one login: {', '.join(sorted(logins))}."
        raise Refused.because(Reason("N03", f"{text} Name it with --login, and its machines with --host."))
    return logins.pop()


def _make_confirmation(options: argparse.Namespace) -> Callable[[], bool]:
    """Whether to write after the plan was shown."""

    def ask_to_confirm() -> bool:
        if options.yes:
            return True
        if not sys.stdin.isatty():
            sys.stderr.write("Nothing was written. Add --yes to write this without a question.\n")
            return False
        return input("Write this? [y/N] ").strip().lower() in {"y", "yes"}

    return ask_to_confirm


def install(
    reach: Reach,
    selected_machines: Machines,
    texts: Mapping[str, str],
    say: Callable[[str], object],
    confirm: Callable[[], bool] | None,
    *,
    brief: bool = False,
) -> int:
    """Show what the script would write on each machine; if all can be done and it is `confirm`, write it. The exit code.

    `texts`: the script of each machine. `confirm` None: show it only. `brief`: in one line a machine.
    """
    plans = _run_on_each(reach, selected_machines, lambda host, nodes: _run(reach, host, nodes, texts[host], "--dry-run"))
    for host, plan in plans.items():
        say(summarize_output(host, plan) if brief or plan.failed else plan.said)
    if any(plan.failed for plan in plans.values()):
        return 1
    if not any("would write" in plan.said or "would remove" in plan.said for plan in plans.values()):
        say("Nothing to do.")
        return 0
    if confirm is None:
        return 0
    if not confirm():
        return 1
    outcomes = _run_on_each(reach, selected_machines, lambda host, nodes: _run(reach, host, nodes, texts[host], ""))
    for host, outcome in outcomes.items():
        say(summarize_output(host, outcome))
    return int(any(outcome.failed for outcome in outcomes.values()))


class _Ran(NamedTuple):
    said: str
    failed: bool


_ACT: Final = re.compile(r"^\S+: (writes|would write|removes|would remove) (\S+)", re.MULTILINE)


def summarize_output(host: str, ran: _Ran) -> str:
    """One line of what the script did on a machine; of a failure, all that it said."""
    if ran.failed:
        return f"FAIL  {ran.said if ran.said.startswith(f'{host}: ') else f'{host}: {ran.said}'}"
    files = dict[str, list[str]]()
    for verb, file in _ACT.findall(ran.said):
        files.setdefault(verb, []).append(file)
    acts = "; ".join(f"{verb} {', '.join(names)}" for verb, names in files.items()) or "nothing to do"
    needed = "; a unit needs a drop-in (--drop-in write)" if "needs a drop-in" in ran.said else ""
    return f"ok    {host}: {acts}{needed}{', kmigrate-node answers' * ('kmigrate-node answers' in ran.said)}"


def _run_on_each(reach: Reach, selected_machines: Machines, act: Callable[[str, tuple[Served, ...]], _Ran]) -> dict[str, _Ran]:
    """The result of each machine, in the order of the cluster files."""
    with ThreadPoolExecutor(reach.at_once) as pool:
        return dict(zip(selected_machines, pool.map(act, selected_machines.keys(), selected_machines.values()), strict=True))


def _run(reach: Reach, host: str, nodes: tuple[Served, ...], text: str, option: str) -> _Ran:
    """Run the script on one machine."""
    try:
        pipe = reach.open_root_shell(nodes[0])
        try:
            return _Ran(_read_script_output(pipe, f"{text}main {shlex.quote(host)} {option} </dev/null\nexit\n"), failed=False)
        finally:
            pipe.close()
    except KMigrateError as error:
        before = f"{host}: "  # of what the script itself said, too
        return _Ran(before + str(error).removeprefix(before), failed=True)


def _read_script_output(pipe: Pipe, text: str) -> str:
    """What the script printed. Raises `Failed` or `Refused` with what it said if it failed, or said too much, and `TimedOut`."""
    out, end = b"", time.monotonic() + _TIMEOUT
    try:
        pipe.write(text.encode(), _TIMEOUT)
        while chunk := pipe.read(max(0.0, end - time.monotonic())):
            out += chunk
            if len(out) > _LONGEST:
                raise Failed(
                    f"`{pipe.command}` said more than {_LONGEST >> 20} MiB, which the script never does: {_printable_output(out)[:300]}"
                )
    except TimeoutError as error:
        raise TimedOut(f"`{pipe.command}` did not end within {_TIMEOUT:.0f} s") from error
    except OSError:  # it ended before it read all: it says why
        pass
    code, errors = pipe.ending()
    output = _printable_output(out, errors)
    if code == 0 and not output.startswith("{"):
        return output
    if "sudo: " in output or output.startswith("{"):  # a key that may do nothing but `serve`: the agent answers
        text = f"the user of the connection may not run a shell of root there: {output[:300]}. {_BY_HAND}"
        raise Refused.because(Reason("M03", text))
    raise Failed(output or f"`{pipe.command}` ended with {code}")


def _printable_output(out: bytes, errors: str = "") -> str:
    return printable(f"{out.decode(errors='replace')}{errors}".strip(), "\n\t")


def check_nodes(reach: Reach, selected_machines: Machines, specs: Mapping[str, ClusterSpec], say: Callable[[str], object]) -> int:
    """Try every node, and report each one's state in a line. `specs`: of each machine's cluster. The exit code."""
    version = read_agent_version(AGENT.read_text(encoding="utf-8"))
    agents = reach.agents()

    def check_one_machine(host: str) -> list[NodeCheck]:
        nodes = selected_machines[host]
        try:
            return list(check_machine(agents(nodes[0], reach.environment(nodes[0])), nodes, version, specs[host]))
        except KMigrateError as error:
            return [NodeCheck(nodes[0].host, problems=(str(error),))]

    try:
        with ThreadPoolExecutor(reach.at_once) as pool:
            node_checks = [check for checks in pool.map(check_one_machine, selected_machines) for check in checks]
    finally:
        agents.close()
    for node_check in node_checks:
        say(str(node_check))
    return int(any(node_check.problems for node_check in node_checks))
