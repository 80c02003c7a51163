"""Every kind of metadata compared: topics, and what `ClusterView.stored` holds of the others.

A kind of which one side was not read is unknown, and unknown is not equal. What nobody can tell of KRaft's side is *not compared*:
that is said with its reason, and does not count. A difference that lasts means that a rollback would bring something else back than
what is in force: the way back is not whole any more.
"""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_kmigrate.core.gates import MET, Gate, never, not_yet
from airflow_provider_kmigrate.core.metadata import equivalence
from airflow_provider_kmigrate.core.metadata.equivalence import Difference, Kind
from airflow_provider_kmigrate.core.metadata.stored import HIGHEST, PRODUCER_IDS
from airflow_provider_kmigrate.core.model import Cause, ClusterView, Reason, Stored, StoredKind
from airflow_provider_kmigrate.core.unread import could_not_read

_CODES = {
    StoredKind.BROKER_SETTINGS: Kind.BROKER_SETTING,
    StoredKind.QUOTAS: Kind.QUOTA,
    StoredKind.CREDENTIALS: Kind.CREDENTIAL,
    StoredKind.ACLS: Kind.ACL,
    StoredKind.TOKENS: Kind.DELEGATION,
}


def differences(view: ClusterView) -> tuple[Difference, ...]:
    """All differences of all kinds that were read, explained ones too."""
    pending = view.zk.pending_deletions if view.zk else ()
    topics = equivalence.compare(*view.topics, pending) if view.topics else ()
    stored = view.stored or {}
    return (*topics, *(found for kind in StoredKind if kind in stored for found in compare_kinds(kind, stored[kind])))


def compare_kinds(kind: StoredKind, stored: Stored) -> tuple[Difference, ...]:
    """The differences of one kind, without what KRaft does not tell."""
    if kind is StoredKind.PRODUCER_IDS:
        return _ids_beyond(stored)
    if Stored.EVERY in stored.untold:
        return ()
    told = {entity: settings for entity, settings in stored.zookeeper.items() if entity not in stored.untold}
    return equivalence.compare_settings(_CODES[kind], told, stored.kraft)


def _ids_beyond(stored: Stored) -> tuple[Difference, ...]:
    """All that can be told of producer ids: none in use may lie beyond the newest block that ZooKeeper knows."""
    last, used = (int(side.get(PRODUCER_IDS, {}).get(HIGHEST, -1)) for side in (stored.zookeeper, stored.kraft))
    if used <= last:
        return ()
    given = f"none after {last}" if last >= 0 else "none given out"
    return (Difference(Kind.PRODUCER_IDS, PRODUCER_IDS, given, f"{used} in use"),)


def unread_kinds(view: ClusterView) -> tuple[Reason, ...]:
    """What cannot be compared because a side of it was not read; why, is among the view's unknowns."""
    topics = () if view.topics is not None else (could_not_read("the topics of both sides"),)
    missing = [str(kind) for kind in StoredKind if kind not in (view.stored or {})]
    if not missing:
        return topics
    why = [reason.text for reason in view.unknowns if reason.cause is Cause.UNREAD_STORED]
    told = f" {'; '.join(why)}." if why else ""
    return (*topics, Reason("G00", f"Could not read both sides of: {', '.join(missing)}.{told}"))


def found(view: ClusterView) -> tuple[Reason, ...]:
    """One reason for each kind that differs."""
    return equivalence.reasons(differences(view))


def lost(earlier: ClusterView, later: ClusterView) -> Gate:
    """Never while a difference was in both of two looks: the dual-write does not repeat what it lost, so waiting does not help.

    Not yet where neither look could compare everything; met for what only one of them showed.
    """
    lasting = equivalence.reasons(equivalence.lasting_differences(differences(earlier), differences(later)))
    if lasting:
        return never(*lasting)
    gaps = unread_kinds(later) if unread_kinds(earlier) else ()
    return not_yet(*gaps) if gaps else MET


def same(view: ClusterView) -> str:
    """What is equal, counted, and what was not compared, with its reason; for a view without differences."""
    counted = [f"{len(view.topics[0])} topics"] if view.topics else []
    counted += [f"{_count(kind, stored)} {kind}" for kind, stored in _known(view) if Stored.EVERY not in stored.untold]
    text = f"ZooKeeper and KRaft store the same {_listed(counted)}."
    reasons = list(_untold(view))
    return f"{text} Not compared: {'; '.join(reasons)}." if reasons else text


def _known(view: ClusterView) -> Iterator[tuple[StoredKind, Stored]]:
    stored = view.stored or {}
    return ((kind, stored[kind]) for kind in StoredKind if kind in stored)


def _untold(view: ClusterView) -> Iterator[str]:
    """Reasons, each once, with what they are reasons for."""
    for kind, stored in _known(view):
        by_reason: dict[str, list[str]] = {}
        for entity, why in sorted(stored.untold.items()):
            by_reason.setdefault(why, []).append(entity)
        for why, entities in by_reason.items():
            named = f" of {', '.join(entities)}" if Stored.EVERY not in entities else ""
            yield f"{kind}{named} ({why})"


def _count(kind: StoredKind, stored: Stored) -> int:
    """Tokens are counted, of everything else its settings: a user with two quotas has two."""
    sizes = [len(settings) for entity, settings in stored.zookeeper.items() if entity not in stored.untold]
    return sum(map(bool, sizes)) if kind is StoredKind.TOKENS else sum(sizes)


def _listed(parts: list[str]) -> str:
    return f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else "".join(parts)
