"""Why something was not read: the errors of machines, nodes and ZooKeeper behind what a decision waits for.

Which cause a reason has is in the reason (`Cause`); which causes explain which is in the tables here. Nothing compares codes or texts.
"""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_kmigrate.core.model import Cause, ClusterView, Reason

OF_THE_CLUSTER = frozenset({Cause.UNREAD, Cause.UNREAD_SLOW, Cause.UNREAD_STORED, Cause.UNREAD_GROUPS})
"""Causes that belong to no single node. One unresponsive node is mostly no news, because it has not been started yet."""
OF_A_HOST = frozenset({Cause.UNREAD_PROCESS, Cause.UNREAD_FILES})
_OWN_ERROR = {Cause.BROKER_UNRESPONSIVE: Cause.UNREAD_BROKER, Cause.CONTROLLER_UNRESPONSIVE: Cause.UNREAD_CONTROLLER}
"""A node that a reason names as unresponsive -> the cause under which its own error is known."""


def why_unread(view: ClusterView, said: Iterable[Reason]) -> tuple[Reason, ...]:
    """The errors behind reasons for which something waits: of the cluster, of every machine, and of nodes if the reasons name unresponsive ones.

    None without reasons. One error of a machine is there once, whatever was not read because of it.
    """
    given = tuple(said)
    if not given:
        return ()
    nodes = {own for unresponsive, own in _OWN_ERROR.items() if any(reason.cause is unresponsive for reason in given)}
    shown = OF_THE_CLUSTER | OF_A_HOST | nodes
    found = {(each.code, each.text, each.node): each for each in view.unknowns if each.cause in shown and each not in given}
    return tuple(found.values())
