"""The check of a group before anything is moved: two looks, as far apart as its consumers take between two commits."""

from __future__ import annotations

from airflow_provider_kmigrate.core.cluster import GroupSpec
from airflow_provider_kmigrate.core.coordination.group_seen import GroupSeen
from airflow_provider_kmigrate.core.decision import Decision, Done, Refuse, Wait
from airflow_provider_kmigrate.core.findings.finding import Severity
from airflow_provider_kmigrate.core.groups.members import unread
from airflow_provider_kmigrate.core.groups.scan import TwoObservations, scan
from airflow_provider_kmigrate.core.model import Reason

Look = tuple[GroupSeen, float]  # the group, and when it was seen, in seconds


def whole(seen: GroupSeen | None, at: float, group: GroupSpec) -> Look | None:
    """The look, where nothing in it was unknown."""
    return None if seen is None or unread(seen, group.name, ends=True) else (seen, at)


def waits(seen: GroupSeen | None, at: float, before: Look | None, group: GroupSpec) -> Wait | None:
    """What has to be waited for before two looks can be judged; None where they can. `before`: the first whole look."""
    missing = unread(seen, group.name, ends=True)
    if missing or before is None:
        return Wait(missing)
    gap = at - before[1]
    if gap >= group.commit_within:
        return None
    text = f"Group {group.name} is looked at again in {group.commit_within - gap:.0f} s."
    return Wait((Reason("T01", text),), healthy=True)


def topics(seen: GroupSeen) -> set[str]:
    """Those whose settings the judgement needs."""
    return {where.topic for where in seen.zk.partitions} if seen.zk else set()


def judged(looks: TwoObservations, group: GroupSpec) -> Decision:
    """Refused for what blocks; all else that was found is said."""
    found = scan(looks)
    blocking = tuple(finding.reason for finding in found.findings if finding.severity is Severity.BLOCK)
    if blocking:
        return Refuse(blocking)
    told = " ".join(map(str, found.findings))
    return Done(f"Group {group.name} ({found.standing}) may be moved. {told or 'Nothing speaks against it.'}")
