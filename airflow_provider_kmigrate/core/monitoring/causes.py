"""Which observation explains which: the errors behind what was not read, and one alarm for each cause.

A dead machine leaves many things unread. What a reason is about is in the reason (its `Cause`, its node), and `_EXPLAINS` says which
causes follow from which; no code and no text is compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_provider_kmigrate.core.cluster_state.model import Cause, ClusterView, Reason
from airflow_provider_kmigrate.core.reasons.entry import AuditCause

OF_THE_CLUSTER = frozenset({Cause.UNREAD, Cause.UNREAD_ZOOKEEPER, Cause.UNREAD_SLOW, Cause.UNREAD_STORED, Cause.UNREAD_GROUPS})
"""Causes that belong to no single node. One unresponsive node is mostly no news, because it has not been started yet."""
OF_A_HOST = frozenset({Cause.UNREAD_PROCESS, Cause.UNREAD_FILES})
_OWN_ERROR = {Cause.BROKER_UNRESPONSIVE: Cause.UNREAD_BROKER, Cause.CONTROLLER_UNRESPONSIVE: Cause.UNREAD_CONTROLLER}
"""A node that a reason names as unresponsive -> the cause under which its own error is known."""

_LATE = frozenset({Cause.NOT_READ, Cause.COORDINATORS_UNKNOWN})
_SLOW = (Cause.UNREAD_SLOW, Cause.UNREAD_STORED, Cause.UNREAD_GROUPS, Cause.UNREAD_COORDINATORS)
_DIFFERENT = frozenset({Cause.SIDES_DIFFER, Cause.ZOOKEEPER_MISSES})
_ANY = _LATE | frozenset(_SLOW) | _DIFFERENT
_BEHIND = frozenset({Cause.DUAL_WRITE_STALLED, Cause.DUAL_WRITE_LAGS})
_QUORUM = _ANY | _BEHIND | {Cause.VOTERS_BEHIND, Cause.NO_LEADER}
_EXPLAINS: Mapping[Cause | AuditCause | None, frozenset[Cause]] = {
    Cause.UNFLAGGED_CONTROLLER: frozenset({Cause.FLAG_IN_FILE_ONLY}),
    Cause.NO_CONTROLLER: _QUORUM | {Cause.CONTROLLER_UNRESPONSIVE, Cause.OUT_OF_ISR, Cause.UNREAD_CONTROLLER},
    Cause.CONTROLLER_UNRESPONSIVE: _QUORUM | OF_A_HOST | {Cause.UNREAD_CONTROLLER, Cause.CONTROLLER_UNRESPONSIVE},
    Cause.BROKER_UNRESPONSIVE: _ANY | OF_A_HOST | {Cause.UNREAD_BROKER, Cause.BROKER_UNRESPONSIVE},
    Cause.NO_LEADER: _QUORUM,
    Cause.UNREAD_ZOOKEEPER: _ANY | _BEHIND | {Cause.UNREAD, Cause.UNREAD_ZOOKEEPER},
    Cause.UNREAD: _ANY | _BEHIND | {Cause.UNREAD},
    Cause.UNREAD_PROCESS: _LATE | OF_A_HOST,
    Cause.UNREAD_FILES: _LATE | OF_A_HOST,
    Cause.DUAL_WRITE_STALLED: frozenset({Cause.DUAL_WRITE_LAGS}),
    **dict.fromkeys(_SLOW, _LATE | frozenset(_SLOW)),
}
"""Cause -> what follows from it, on the same node if both name one. In this order a cause is looked for: the first that explains stays."""
_SAID_AGAIN = (Cause.UNREAD, Cause.UNREAD_ZOOKEEPER, None)
_ORDER = {cause: index for index, cause in enumerate(_EXPLAINS)}


@dataclass(frozen=True, slots=True)
class Grouped:
    """`roots`: one reason for each cause, in the order of the given ones; `follows`: what follows from them."""

    roots: tuple[Reason, ...]
    follows: tuple[Reason, ...] = ()


def errors_behind(view: ClusterView, reasons: Iterable[Reason]) -> tuple[Reason, ...]:
    """The errors behind reasons for which something waits: of the cluster, of every machine, and of nodes if the reasons name unresponsive ones.

    None without reasons. One error of a machine is there once, whatever was not read because of it.
    """
    wait_reasons = tuple(reasons)
    if not wait_reasons:
        return ()
    nodes = {own for unresponsive, own in _OWN_ERROR.items() if any(reason.cause is unresponsive for reason in wait_reasons)}
    shown = OF_THE_CLUSTER | OF_A_HOST | nodes
    errors = {
        (error.code, error.text, error.node): error
        for error in view.unknowns
        if error.cause in shown and error not in wait_reasons
    }
    return tuple(errors.values())


def reduce_to_causes(
    reasons: Sequence[Reason],
    unknowns: Sequence[Reason] = (),
    machines: Mapping[str, str] | None = None,
    expected: Sequence[Reason] = (),
) -> Grouped:
    """Reduce what was observed to one reason for each cause.

    `unknowns`: what was not read, with its errors; one of them is a cause if something that is reported follows from it, or if it is
    certain. `machines`: node -> its machine. `expected`: what kmigrate itself brought about; it explains, and is no reason itself.
    """
    root_reasons: list[Reason] = []
    follows: list[Reason] = []
    useful: set[int] = set()
    unresponsive_nodes = {reason.node for reason in unknowns if reason.cause in OF_A_HOST}
    unreported = [reason for reason in unknowns if reason not in reasons]
    candidates = [*expected, *reasons, *unreported]
    for reason in sorted(
        candidates,
        key=lambda candidate: (_ORDER.get(candidate.cause, len(_ORDER)), candidate not in expected, not candidate.node),
    ):
        root = next(
            (index for index, root in enumerate(root_reasons) if _follows_from(reason, root, machines or {}, unresponsive_nodes)),
            None,
        )
        if root is None:
            root_reasons.append(reason)
        elif reason in reasons:
            useful.add(root)
            follows.append(reason)
    roots = [
        reason
        for index, reason in enumerate(root_reasons)
        if reason not in expected and (reason in reasons or index in useful or (reason.certain and reason.cause in OF_A_HOST))
    ]
    roots.sort(key=candidates.index)
    return Grouped(_merge_by_machine(roots, unknowns, machines or {}, unresponsive_nodes), tuple(follows))


def _follows_from(reason: Reason, root: Reason, machines: Mapping[str, str], unresponsive_nodes: Iterable[str]) -> bool:
    if reason.cause is None:  # nothing but the same thing said again
        return root.cause in _SAID_AGAIN and _alarm_identity(reason) == _alarm_identity(root)
    if reason.cause not in _EXPLAINS.get(root.cause, ()):
        return False
    same_machine = root.node in unresponsive_nodes and machines.get(root.node, root.node) == machines.get(
        reason.node, reason.node
    )
    return not (reason.node and root.node) or reason.node == root.node or (same_machine and reason.cause in OF_A_HOST)


def _alarm_identity(reason: Reason) -> tuple[str, str]:
    """What makes two reasons one alarm."""
    return reason.code, reason.node


def _merge_by_machine(
    roots: Sequence[Reason], unknowns: Sequence[Reason], machines: Mapping[str, str], unresponsive_nodes: Iterable[str]
) -> tuple[Reason, ...]:
    """Nodes that do not answer with their own errors; those of one dead machine, and hosts with one error, are one reason."""
    groups: dict[object, list[Reason]] = {}
    names = _node_name_pattern(machines)
    for index, reason in enumerate(roots):
        key: object = index
        if reason.cause in _OWN_ERROR and reason.node in unresponsive_nodes:
            key = ("dead", machines.get(reason.node, reason.node))
        elif reason.cause in OF_A_HOST:
            key = ("host", reason.code, names.sub("a node", reason.text))
        groups.setdefault(key, []).append(reason)
    return tuple(_merge_alike(alike, unknowns) for alike in groups.values())


def _merge_alike(alike: Sequence[Reason], unknowns: Sequence[Reason]) -> Reason:
    first, *others = alike
    own = {_OWN_ERROR[cause] for cause in (first.cause,) if isinstance(cause, Cause) and cause in _OWN_ERROR}
    errors = [reason for reason in unknowns if own and reason.node == first.node and reason.cause in own | OF_A_HOST]
    texts = dict.fromkeys(f"{f'[{error.code}] ' if error.certain else ''}{error.text.rstrip('.')}." for error in errors)
    nodes = ", ".join(dict.fromkeys(reason.node for reason in others if reason.node != first.node))
    more = f"The same holds for {nodes}." if nodes else ""
    text = " ".join(filter(None, (first.text, *texts, more)))
    return replace(first, text=text, certain=any(reason.certain for reason in alike))


def _node_name_pattern(machines: Mapping[str, str]) -> re.Pattern[str]:
    """The names of nodes and machines, as errors have them."""
    words = sorted({*machines, *machines.values()} - {""}, key=len, reverse=True)
    return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, words))})(?!\w)", re.IGNORECASE) if words else re.compile(r"(?!)")
