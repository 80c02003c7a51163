"""A group that was taken back is moved forward again only when a person says so."""

from __future__ import annotations

from airflow_provider_kmigrate.core.coordination.group_seen import GroupSeen
from airflow_provider_kmigrate.core.decision import Act, Decision, Done, Verb, Wait
from airflow_provider_kmigrate.core.groups.members import unread
from airflow_provider_kmigrate.core.model import Reason


def held(seen: GroupSeen | None, run: str = "") -> tuple[Reason, ...]:
    """Why the way forward is closed to this run; empty where the group was not taken back, or by this very run: its cleared task goes on."""
    hold = seen.zk.hold if seen is not None and seen.zk is not None else None
    if seen is None or hold is None or (run and hold.run == run):
        return ()
    by = hold.run or "nobody that can be read"
    text = (
        f"Group {seen.name} was rolled back by {by}: {hold.why} To release it: a run with conf "
        f'{{"go_on": ["{seen.name}"]}}, or groups go-on --group {seen.name}.'
    )
    return (Reason("K69", text),)


def go_on(seen: GroupSeen | None, name: str) -> Decision:
    """A person has said that the group may be moved forward again. Act: "go on"."""
    missing = unread(seen, name, offsets=False, kafka=False)
    if missing or seen is None or seen.zk is None:
        return Wait(missing)
    hold = seen.zk.hold
    if hold is None:
        return Done(f"Group {name} is not held: it may be moved forward.")
    return Act(Verb.GO_ON, f"Group {name} may be moved forward again. It was taken back by {hold.run}: {hold.why}")
