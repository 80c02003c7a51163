"""Argument lists with places to fill in: `{id}`, `{host}`, `{properties}` and others of nodes, `{instance}` and others of consumers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from airflow_provider_kmigrate.core.cluster import NodeSpec
from airflow_provider_kmigrate.core.model import Reason
from airflow_provider_kmigrate.exceptions import Refused

_PLACE = re.compile(r"\{(id|host|properties|path|cluster_id|release|group|instance|kind)\}")


def fill(template: Iterable[str], values: Mapping[str, str]) -> tuple[str, ...]:
    """`template` with its places filled; each word stays one word, whatever the values hold.

    Braces around anything else are left alone: Java and JSON arguments have their own. Raises `Refused` for a place that this
    command has no value for (`{cluster_id}` in a start command, say).
    """

    def value(match: re.Match[str]) -> str:
        if match[1] not in values:
            raise no_command(
                f"the command {' '.join(template)!r} has {match[0]}, which has no meaning in it; known: {sorted(values)}"
            )
        return values[match[1]]

    template = tuple(template)
    return tuple(_PLACE.sub(value, word) for word in template)


def no_command(text: str) -> Refused:
    """The refusal where a node's machine cannot be told what to do."""
    return Refused.because(Reason("M02", f"{text}."))


def node_values(node: NodeSpec) -> dict[str, str]:
    """The values that every command of a node may use."""
    return {"id": str(node.id), "host": node.host, "properties": node.hosts.properties}
