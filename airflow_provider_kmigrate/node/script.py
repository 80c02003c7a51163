"""The script that installs `kmigrate-node`: one POSIX shell script for all machines of a cluster.

`node install` sends it over the nodes' connections; configuration management runs what `--script` prints. It writes three files of
root, if they are not so already: the agent, its node.json, and one line of sudoers. With `--drop-in write` also a drop-in for each unit
that needs one; without, it only shows it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any

from airflow_provider_kmigrate.clients.hosts.agent import PATH, PROTOCOL
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole, NodeSpec, Served, UnitSpec
from airflow_provider_kmigrate.core.node_files import service_unit

AGENT, _PIN = Path(__file__).with_name("kmigrate-node"), Path(__file__).with_name("pin.py")
_END = "END_OF_KMIGRATE_NODE"

_SCRIPT = r"""#!/bin/sh
# Installs kmigrate-node @VERSION@ on a machine of cluster @CLUSTER@. It changes nothing if all is there. As root:
#   sh FILE MACHINE [--dry-run]     MACHINE is a `host` of the cluster file: @MACHINES@
set -eu
umask 022
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C
export PATH LC_ALL

fail() {
    echo "$machine: $1" >&2
    exit 1
}

# needs_unit UNIT OPTION SECONDS: the unit is there; kmigrate waits so long for its stop.
needs_unit() {
    systemctl cat -- "$1" >/dev/null 2>&1 || fail "systemd has no unit $1. Name the right one with $2, or write node.json by hand."
    units="$units $1:$3"
}

# has_unit UNIT: the unit of an application is there.
has_unit() {
    systemctl cat -- "$1" >/dev/null 2>&1 || fail "systemd has no unit $1. Correct units in the cluster file."
}

# drop_in_of UNIT SECONDS [needed]: the text of the unit's drop-in, empty if it needs none. It ends with 1 if another one would win. `needed`: what systemd is missing now.
drop_in_of() {
    systemctl show --property=@ASKED@ -- "$1" | /usr/bin/python3 -I "$work/unit.py" "/etc/systemd/system/$1.d/@NAME@" "$2" "${3:-}"
}

# plan_drop_ins: write $work/UNIT.conf, before anything of the machine is written.
plan_drop_ins() {
    for each in $units; do
        unit=${each%:*}
        drop_in_of "$unit" "${each##*:}" >"$work/$unit.conf" || [ "$drop_in" != write ] || fail "$unit gets no drop-in"
    done
}

# put_drop_ins: write, remove or only show what each unit needs. A running Kafka is not touched: systemd reads its units again.
put_drop_ins() {
    reload=
    for each in $units; do
        unit=${each%:*} file=/etc/systemd/system/${each%:*}.d/@NAME@
        if [ "$drop_in" = remove ]; then
            [ -f "$file" ] || continue
            echo "$machine: $removes $file"
            sed 's/^/    /' "$file"
            [ -n "$dry" ] || rm -f "$file"
        elif [ ! -s "$work/$unit.conf" ]; then
            continue
        elif [ "$drop_in" = write ]; then
            [ -n "$dry" ] || install -d -o root -g root -m 755 "${file%/*}"
            put "$work/$unit.conf" "$file" 644
        elif cmp -s "$work/$unit.conf" "$file"; then
            continue
        else
            echo "$machine: $unit needs a drop-in, which --drop-in write writes. Kafka is not restarted for it:"
            sed 's/^/    /' "$work/$unit.conf"
            continue
        fi
        reload=1
    done
    [ -z "$reload" ] || [ -n "$dry" ] || systemctl daemon-reload
    [ "$drop_in" = write ] && [ -z "$dry" ] || return 0
    for each in $units; do # what is needed still was set by ours, and something else sets it back
        file=/etc/systemd/system/${each%:*}.d/@NAME@
        [ ! -f "$file" ] || [ -z "$(drop_in_of "${each%:*}" "${each##*:}" needed)" ] || fail "systemd does not take $file as it is: see systemctl cat ${each%:*}"
    done
}

# put SOURCE FILE MODE: SOURCE becomes FILE, of root.
put() {
    if [ -f "$2" ] && [ ! -L "$2" ] && cmp -s "$1" "$2" && [ "$(stat -c %u:%g:%a "$2")" = "0:0:$3" ]; then
        echo "$machine: $2 is there"
        return
    fi
    echo "$machine: $writes $2 (root, mode 0$3)"
    [ "$2" = @PATH@ ] || diff -u "$2" "$1" 2>/dev/null | sed '1,2d; s/^/    /' | grep . || sed 's/^/    /' "$1"
    [ -z "$dry" ] || return 0
    # In /etc/sudoers.d a name with a dot is not read, nor one that does not end with .conf among drop-ins.
    install -o root -g root -m "$3" "$1" "$2.$$" && mv -f "$2.$$" "$2" && return
    rm -f "$2.$$"
    fail "$2 could not be written, and is as it was. Correct what is said above, then run this again: what is there is not written twice."
}

# Nothing is taken from a node.json that has more: a role of another cluster file, or keys that were written by hand.
keeps() {
    [ -f "$1" ] || return 0
    /usr/bin/python3 -I - "$1" "$2" <<'@END@' || fail "$1 has a role or a key that this script would remove. Edit it by hand, or move it away."
import json, sys
old, new = [json.load(open(path))["roles"] for path in sys.argv[1:]]
sys.exit(any(set(role) - {"links"} - set(new.get(name, ())) for name, role in old.items()))
@END@
}

main() {
    machine=${1:-} dry=${2:-} writes=writes removes=removes units= kafka= drop_in=@DROP@
    [ -z "$dry" ] || writes="would write" removes="would remove"
    case $machine in
@CASES@
    *) machine=$0 && fail "the first argument is the machine, one of: @MACHINES@" ;;
    esac
    [ "$(id -u)" = 0 ] || fail "run this script as root"
    /usr/bin/python3 -I -c 'import sys; sys.exit(sys.version_info < (3, 6))' || fail "there is no /usr/bin/python3 of version 3.6 or later. Install it."
    for user in ${kafka:+@USER@} @LOGIN@; do id -u "$user" >/dev/null 2>&1 || fail "there is no user $user. Name the right ones with --user and --login."; done
    [ -z "$kafka" ] || [ -x @TOOL@ ] || fail "there is no program @TOOL@. Name kafka-storage.sh with --storage-tool."
    [ -d /etc/sudoers.d ] || fail "there is no /etc/sudoers.d. Install sudo."
    [ ! -f /etc/sudoers ] || grep -q '^[#@]include' /etc/sudoers || fail "sudo reads no file but /etc/sudoers. Add the line @includedir /etc/sudoers.d there."

    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    printf '%s\n' "$json" >"$work/draft.json"
    printf '%s\n' @SUDOERS@ >"$work/sudoers"
    cat >"$work/agent" <<'@END@'
@AGENT@@END@
    cat >"$work/unit.py" <<'@END@'
@UNIT@@END@
    plan_drop_ins
    if command -v visudo >/dev/null; then visudo -cqf "$work/sudoers" >/dev/null || fail "sudo does not accept its line"; fi
    cat >"$work/pin" <<'@END@'
@PIN@@END@
    # Before anything is written: where the paths lead, and each that the agent would refuse.
    /usr/bin/python3 -I "$work/pin" "$work/agent" "$work/draft.json" >"$work/node.json" 2>&1 || fail "$(cat "$work/node.json")"
    sed -n '/"links": {/,/}/ s/^ *\("[^"]*"\): \("[^"]*"\),\{0,1\}$/'"$machine"': \1 leads to \2, which alone is used/p' "$work/node.json"
    keeps /etc/kmigrate/node.json "$work/node.json"
    answer=$(echo '{"v": @PROTOCOL@, "id": 1, "verb": "hello"}' | /usr/bin/python3 -I "$work/agent" serve --config "$work/node.json" 2>&1) || :
    case $answer in *'"ok"'*) ;; *) fail "kmigrate-node would not accept its node.json: $answer" ;; esac
    [ -d /etc/kmigrate ] || [ -n "$dry" ] || install -d -o root -g root -m 755 /etc/kmigrate
    put "$work/agent" @PATH@ 755
    put "$work/node.json" /etc/kmigrate/node.json 644
    put "$work/sudoers" /etc/sudoers.d/kmigrate 440
    put_drop_ins
    [ -z "$dry" ] || return 0
    answer=$(echo '{"v": @PROTOCOL@, "id": 1, "verb": "hello"}' | @PATH@ serve 2>&1) || :
    case $answer in *'"ok"'*) echo "$machine: kmigrate-node answers" ;; *) fail "kmigrate-node does not answer: $answer" ;; esac
    sudo -n -l -U @LOGIN@ @PATH@ serve >/dev/null 2>&1 || fail "sudo does not read /etc/sudoers.d/kmigrate: see includedir in /etc/sudoers"
}

"""


# On the machine, after the text of `service_unit`: reads what systemd shows, and prints the drop-in's text.
_DROP_IN = """
import sys

def read(path):
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return ""

own, seconds, only = sys.argv[1:]
shown = join_repeated(line.rstrip() for line in sys.stdin)
settings = find_settings(shown, float(seconds))
others = {path: read(path) for path in shown.get("DropInPaths", "").split() if path != own}
said = find_contradictions(settings, others)
if said:
    sys.exit("systemd reads this after " + DROP_IN + ", so it wins. Take it out there: " + "; ".join(said))
sys.stdout.write(render_drop_in(settings, "" if only else read(own)))
"""


@dataclass(frozen=True, slots=True)
class InstallOptions:
    """What the cluster file does not say of the machines. `controller_unit`: of a controller beside a broker.

    `drop_in`: `write` or `remove` the units' drop-ins; empty: only show what they need. `commands`: the words of `start`, `stop`, `status` and perhaps
    `software`, in which `{role}` is `broker` or `controller`, and `log`: where there is no systemd; empty: there is.
    """

    unit: str = "kafka.service"
    controller_unit: str = "kafka-controller.service"
    user: str = "kafka"
    storage_tool: str = "/opt/kafka/bin/kafka-storage.sh"
    login: str = "kmigrate"
    drop_in: str = ""
    commands: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    log: str = ""


def read_agent_version(agent: str) -> str:
    """The version in the text of an agent's file."""
    version_match = re.search(r'^VERSION = "(.+)"$', agent, re.MULTILINE)
    return version_match[1] if version_match else "unknown"


def build_install_script(cluster: str, machines: Mapping[str, tuple[Served, ...]], setup: InstallOptions, agent: str) -> str:
    """All functions of the script; it runs once `main MACHINE [--dry-run]` is added."""
    values = {
        "VERSION": read_agent_version(agent),
        "CLUSTER": cluster,
        "MACHINES": ", ".join(machines),
        "CASES": "\n".join(_render_case(host, nodes, setup) for host, nodes in machines.items()),
        "USER": quote(setup.user),
        "LOGIN": quote(setup.login),
        "TOOL": quote(setup.storage_tool),
        "SUDOERS": quote(f"{setup.login} ALL=(root) NOPASSWD: {PATH} serve"),
        "PATH": PATH,
        "PROTOCOL": str(PROTOCOL),
        "END": _END,
        "AGENT": agent,
        "ASKED": service_unit.ASKED,
        "NAME": service_unit.DROP_IN,
        "DROP": setup.drop_in,
        "UNIT": Path(service_unit.__file__).read_text(encoding="utf-8") + _DROP_IN,
        "PIN": _PIN.read_text(encoding="utf-8"),
    }
    return re.sub("@([A-Z]+)@", lambda match: values[match[1]], _SCRIPT)  # in one pass: values are not expanded


def _render_case(host: str, served: tuple[Served, ...], setup: InstallOptions) -> str:
    """The branch of one machine, which sets $json."""
    nodes = tuple(node for node in served if isinstance(node, NodeSpec))
    applications = tuple(unit for unit in served if isinstance(unit, UnitSpec))
    units = _select_units(nodes, setup)
    lines = [f"    {quote(host)})"]
    lines += [f"        has_unit {quote(unit.unit)}" for unit in applications]
    lines += [
        f"        needs_unit {quote(units[node.role][0])} {units[node.role][1]} {max(1, int(node.stop_timeout))}"
        for node in nodes
        if not setup.commands
    ]
    lines += [
        f"        kafka={'yes' if nodes else ''} json={quote(json.dumps(_build_draft(nodes, applications, units, setup)))} ;;"
    ]
    return "\n".join(lines)


def _select_units(nodes: tuple[NodeSpec, ...], setup: InstallOptions) -> dict[NodeRole, tuple[str, str]]:
    """The unit of each role, and the option that names it."""
    shares_machine = len(nodes) > 1
    controller_unit = (setup.controller_unit, "--controller-unit")
    return {
        node.role: controller_unit if shares_machine and node.role is NodeRole.CONTROLLER else (setup.unit, "--unit")
        for node in nodes
    }


def _build_backend(role: NodeRole, unit: str, setup: InstallOptions) -> dict[str, Any]:
    """Who starts and stops a role."""
    if not setup.commands:
        return {"systemd": unit}
    commands = {verb: [word.replace("{role}", role) for word in words] for verb, words in setup.commands.items()}
    return {"commands": commands, **({"log": setup.log.replace("{role}", role)} if setup.log else {})}


def _build_draft(
    nodes: tuple[NodeSpec, ...],
    applications: tuple[UnitSpec, ...],
    units: Mapping[NodeRole, tuple[str, str]],
    setup: InstallOptions,
) -> dict[str, Any]:
    """node.json without what only the machine knows: a broker's directories, which its file names, and where links lead (`pin`)."""
    roles: dict[str, dict[str, Any]] = {
        str(node.role): {
            **_build_backend(node.role, units[node.role][0], setup),
            "properties": node.hosts.properties,
            "log_dirs": None if node.role is NodeRole.BROKER else [node.log_dir],
            "user": setup.user,
            "storage_tool": [setup.storage_tool],
            "stop_timeout": _as_written(node.stop_timeout),
        }
        for node in nodes
    }
    roles |= {unit.role: {"systemd": unit.unit, "stop_timeout": _as_written(unit.stop_timeout)} for unit in applications}
    return {"version": 1, "roles": roles}


def _as_written(seconds: float) -> float:
    return int(seconds) if seconds.is_integer() else seconds
