"""The script that installs `kmigrate-node`: one POSIX shell script for all machines of a cluster.

`node install` sends it over the nodes' connections; configuration management runs what `--script` prints. It writes three files of
root, if they are not so already: the agent, its node.json, and one line of sudoers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from airflow_provider_kmigrate.clients.hosts.agent import PATH, PROTOCOL
from airflow_provider_kmigrate.core.cluster import NodeRole, NodeSpec

AGENT = Path(__file__).with_name("kmigrate-node")
_DIRECTORIES = "of its properties file"  # in the place of a broker's log_dirs, which the script reads on the machine
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

needs_unit() {
    systemctl cat -- "$1" >/dev/null 2>&1 || fail "systemd has no unit $1. Name the right one with $2, or write node.json by hand."
}

# The last value of a key in a properties file.
value() {
    sed -n "s/^[[:space:]]*$1[[:space:]]*[=:][[:space:]]*//p" "$2" | tail -n 1
}

# The directories that a broker's properties file names, as JSON, in $directories.
directories_of() {
    [ -f "$1" ] || fail "there is no file $1. Correct hosts.properties in the cluster file."
    directories=$(value 'log\.dirs' "$1")
    [ -n "$directories" ] || directories=$(value 'log\.dir' "$1")
    [ -n "$directories" ] || fail "$1 has neither log.dirs nor log.dir. Write its directories there."
    directories="$directories,$(value 'metadata\.log\.dir' "$1")"
    case $directories in *[\\\"]*) fail "the directories in $1 have a backslash or a quote. Write node.json by hand." ;; esac
    directories=$(printf '%s\n' "$directories" | tr ',' '\n' | sed 's/^[[:space:]]*//; s/[[:space:]]*$//; /^$/d; s/.*/"&"/' | sort -u)
    directories="[$(printf '%s\n' "$directories" | paste -sd, - | sed 's/,/, /g')]"
}

# must_own USER: who may write a broker's file has named its directories, so they must be Kafka's own, not some folder of root.
must_own() {
    printf '%s' "$directories" | /usr/bin/python3 -c '@OWNED@' "$1" || fail "a directory of the broker's file is not one of the user $1, is a link or not there. Correct its owner, or the file, or --user."
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
    install -o root -g root -m "$3" "$1" "$2.$$" # in /etc/sudoers.d, a name with a dot is not read
    mv -f "$2.$$" "$2"
}

# Nothing is taken from a node.json that has more: a role of another cluster file, or keys that were written by hand.
keeps() {
    [ -f "$1" ] || return 0
    /usr/bin/python3 - "$1" "$2" <<'@END@' || fail "$1 has a role or a key that this script would remove. Edit it by hand, or move it away."
import json, sys
old, new = [json.load(open(path))["roles"] for path in sys.argv[1:]]
sys.exit(any(set(role) - set(new.get(name, ())) for name, role in old.items()))
@END@
}

main() {
    machine=${1:-} dry=${2:-} writes=writes
    [ -z "$dry" ] || writes="would write"
    case $machine in
@CASES@
    *) machine=$0 && fail "the first argument is the machine, one of: @MACHINES@" ;;
    esac
    [ "$(id -u)" = 0 ] || fail "run this script as root"
    /usr/bin/python3 -c 'import sys; sys.exit(sys.version_info < (3, 6))' || fail "there is no /usr/bin/python3 of version 3.6 or later. Install it."
    for user in @USER@ @LOGIN@; do id -u "$user" >/dev/null 2>&1 || fail "there is no user $user. Name the right ones with --user and --login."; done
    [ -x @TOOL@ ] || fail "there is no program @TOOL@. Name kafka-storage.sh with --storage-tool."
    [ -d /etc/sudoers.d ] || fail "there is no /etc/sudoers.d. Install sudo."

    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    printf '%s\n' "$json" >"$work/node.json"
    printf '%s\n' @SUDOERS@ >"$work/sudoers"
    cat >"$work/agent" <<'@END@'
@AGENT@@END@
    if command -v visudo >/dev/null; then visudo -cqf "$work/sudoers" >/dev/null || fail "sudo does not accept its line"; fi
    [ -d /etc/kmigrate ] || [ -n "$dry" ] || install -d -o root -g root -m 755 /etc/kmigrate
    keeps /etc/kmigrate/node.json "$work/node.json"
    answer=$(echo '{"v": @PROTOCOL@, "id": 1, "verb": "hello"}' | /usr/bin/python3 -I "$work/agent" serve --config "$work/node.json" 2>&1) || :
    case $answer in *'"ok"'*) ;; *) fail "kmigrate-node would not accept its node.json: $answer" ;; esac
    put "$work/agent" @PATH@ 755
    put "$work/node.json" /etc/kmigrate/node.json 644
    put "$work/sudoers" /etc/sudoers.d/kmigrate 440
    [ -z "$dry" ] || return 0
    answer=$(echo '{"v": @PROTOCOL@, "id": 1, "verb": "hello"}' | @PATH@ serve 2>&1) || :
    case $answer in *'"ok"'*) echo "$machine: kmigrate-node answers" ;; *) fail "kmigrate-node does not answer: $answer" ;; esac
    sudo -n -l -U @LOGIN@ @PATH@ serve >/dev/null 2>&1 || fail "sudo does not read /etc/sudoers.d/kmigrate: see includedir in /etc/sudoers"
}

"""


# On the machine, by Python 3.6; without a single quote. The agent acts there with the rights of this user alone, too.
_OWNED = """
import grp, json, os, pwd, sys
try:
    user = pwd.getpwnam(sys.argv[1])
except KeyError:
    sys.exit()  # the check of the users, which follows, says so and ends the script
groups = [group.gr_gid for group in grp.getgrall() if user.pw_name in group.gr_mem] + [user.pw_gid]
for path in json.load(sys.stdin):
    if os.path.realpath(path) != path or not os.path.isdir(path):
        sys.exit(path + " is a link, or no directory")
    found = os.stat(path)
    if found.st_uid != user.pw_uid and not (found.st_uid == 0 and found.st_gid in groups and found.st_mode & 0o020):
        sys.exit(path + " belongs to others")
"""


@dataclass(frozen=True, slots=True)
class InstallOptions:
    """What the cluster file does not say of the machines. `controller_unit`: of a controller beside a broker."""

    unit: str = "kafka.service"
    controller_unit: str = "kafka-controller.service"
    user: str = "kafka"
    storage_tool: str = "/opt/kafka/bin/kafka-storage.sh"
    login: str = "kmigrate"


def version_of(agent: str) -> str:
    """The version in the text of an agent's file."""
    found = re.search(r'^VERSION = "(.+)"$', agent, re.MULTILINE)
    return found[1] if found else "unknown"


def script(cluster: str, machines: Mapping[str, tuple[NodeSpec, ...]], setup: InstallOptions, agent: str) -> str:
    """All functions of the script; it runs once `main MACHINE [--dry-run]` is added."""
    values = {
        "VERSION": version_of(agent),
        "CLUSTER": cluster,
        "MACHINES": ", ".join(machines),
        "CASES": "\n".join(_case(host, nodes, setup) for host, nodes in machines.items()),
        "USER": quote(setup.user),
        "LOGIN": quote(setup.login),
        "TOOL": quote(setup.storage_tool),
        "SUDOERS": quote(f"{setup.login} ALL=(root) NOPASSWD: {PATH} serve"),
        "PATH": PATH,
        "PROTOCOL": str(PROTOCOL),
        "END": _END,
        "OWNED": _OWNED,
        "AGENT": agent,
    }
    return re.sub("@([A-Z]+)@", lambda place: values[place[1]], _SCRIPT)  # in one pass: values are not expanded


def _case(host: str, nodes: tuple[NodeSpec, ...], setup: InstallOptions) -> str:
    """The branch of one machine, which sets $json."""
    units = _units(nodes, setup)
    lines = [f"    {quote(host)})"]
    lines += [f"        needs_unit {quote(unit)} {option}" for unit, option in units.values()]
    for node in (node for node in nodes if node.role is NodeRole.BROKER):
        lines += [f"        directories_of {quote(node.hosts.properties)}", f"        must_own {quote(setup.user)}"]
    lines += [f"        json={_as_shell(_node_json(nodes, units, setup))} ;;"]
    return "\n".join(lines)


def _units(nodes: tuple[NodeSpec, ...], setup: InstallOptions) -> dict[NodeRole, tuple[str, str]]:
    """The unit of each role, and the option that names it."""
    beside = len(nodes) > 1
    own = (setup.controller_unit, "--controller-unit")
    return {node.role: own if beside and node.role is NodeRole.CONTROLLER else (setup.unit, "--unit") for node in nodes}


def _node_json(nodes: tuple[NodeSpec, ...], units: Mapping[NodeRole, tuple[str, str]], setup: InstallOptions) -> dict[str, Any]:
    roles = {
        str(node.role): {
            "systemd": units[node.role][0],
            "properties": node.hosts.properties,
            "log_dirs": _DIRECTORIES if node.role is NodeRole.BROKER else [node.log_dir],
            "user": setup.user,
            "storage_tool": [setup.storage_tool],
            "stop_timeout": int(node.stop_timeout) if node.stop_timeout.is_integer() else node.stop_timeout,
        }
        for node in nodes
    }
    return {"version": 1, "roles": roles}


def _as_shell(config: Mapping[str, Any]) -> str:
    """JSON as a word of the shell, with the broker's directories put in."""
    return '"$directories"'.join(quote(part) for part in json.dumps(config, indent=1).split(json.dumps(_DIRECTORIES)))
