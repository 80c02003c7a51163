"""The rights that kmigrate's own user needs in Kafka, for what one cluster file asks for, as rules and as commands of Kafka's own tool.

docs/operators-guide.md has the same in words; a test compares them.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec

PROBE: Final = "kmigrate-probe"
OFFSETS_TOPIC: Final = "__consumer_offsets"
_FLAGS: Final = {
    "cluster": "--cluster",
    "topic": "--topic",
    "group": "--group",
    "delegation token": "--delegation-token",
    "transactional id": "--transactional-id",
}


@dataclass(frozen=True, slots=True)
class Permission:
    """Operations on one resource. `name`: `*` is every one of them, empty: there is only one. `why`: what they are for."""

    resource: str
    name: str
    operations: tuple[str, ...]
    why: str


_ALWAYS: Final = (
    Permission("cluster", "", ("DESCRIBE", "DESCRIBE_CONFIGS", "ALTER"), "observe nodes and settings; elect leaders"),
    Permission("topic", "*", ("DESCRIBE", "DESCRIBE_CONFIGS"), "observe every partition and its ISR"),
    Permission("group", "*", ("DESCRIBE",), "see that consumer groups continue after each restart"),
    Permission("delegation token", "*", ("DESCRIBE",), "compare both sides"),
    Permission("transactional id", "*", ("DESCRIBE",), "see who coordinates transactions"),
)
_PROBE: Final = (
    Permission("topic", PROBE, ("CREATE", "ALTER", "READ", "WRITE"), "send and read the probe's records"),
    Permission("group", PROBE, ("READ",), "read the probe's records"),
)
_EXPANSION: Final = (
    Permission("topic", OFFSETS_TOPIC, ("ALTER",), "expand the topic"),
    Permission("topic", "*", ("READ",), "copy the offsets of the groups that move"),
    Permission("group", "*", ("READ", "DELETE"), "copy the offsets of the groups that move"),
)


def list_permissions(spec: ClusterSpec, *, expansion: bool = False) -> tuple[Permission, ...]:
    """What a user without `super.users` needs. `expansion`: also to expand `__consumer_offsets`."""
    return (*_ALWAYS, *(_PROBE if spec.probe_folder else ()), *(_EXPANSION if expansion else ()))


def render_commands(permissions: tuple[Permission, ...], principal: str, bootstrap: str) -> Iterator[str]:
    """One command of `kafka-acls.sh` for each; a name of others is one argument of a shell."""
    for permission in permissions:
        words = ["kafka-acls.sh", "--bootstrap-server", bootstrap, "--command-config", "admin.properties", "--add"]
        words += ["--allow-principal", principal]
        words += [word for operation in permission.operations for word in ("--operation", _as_tool_writes(operation))]
        words += [_FLAGS[permission.resource], *([permission.name] if permission.name else [])]
        yield shlex.join(words)


def _as_tool_writes(operation: str) -> str:
    """`DESCRIBE_CONFIGS` as `DescribeConfigs`."""
    return "".join(word.capitalize() for word in operation.split("_"))
