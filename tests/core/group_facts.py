"""A group of two ZooKeeper consumers and changes of it."""

from __future__ import annotations

from airflow_provider_kmigrate.core.cluster_state.decision import Act, Decision, Done, Refuse
from airflow_provider_kmigrate.core.cluster_state.spec import GroupSpec, InstanceSpec
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.groups.members import GroupObservations
from airflow_provider_kmigrate.core.member.assignors import KafkaMember
from airflow_provider_kmigrate.core.member.group_seen import GroupSeen, KafkaGroup, MemberKind, StoredOffset, ZkGroup
from airflow_provider_kmigrate.core.member.registration import MemberProgress, Mode, Registration
from tests.core.views import codes

ZOOKEEPER, MIGRATING, KAFKA = MemberKind.ZOOKEEPER, MemberKind.MIGRATING, MemberKind.KAFKA
SPEC = GroupSpec("g", (InstanceSpec("a"), InstanceSpec("b")), commit_within=100.0)
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
PLACES = {"a": T0, "b": T1}
STATIC = Registration("static", {"t": 1})


def group(a: str = "", b: str = "", mode: str | None = None, **fields: object) -> GroupSeen:
    """Instances by letters: z(ookeeper), m(igrating), k(afka), empty for none; each holds one partition, and the group is stable."""
    zk = {name: kind for name, kind in (("a", a), ("b", b)) if kind in {"z", "m"}}
    progress = {f"g_{name}": progress_in(mode, zk) for name, kind in zk.items() if kind == "m"}
    tree = ZkGroup(
        {f"g_{name}": STATIC for name in zk},
        progress,
        mode.encode() if mode is not None else None,
        0 if mode is not None else -1,
        7 if mode is not None else 0,
        {PLACES[name]: f"g_{name}-0" for name in zk},
        {where: StoredOffset(10, 0.0) for where in (T0, T1)},
        frozenset(PLACES[name] for name in zk),
    )
    members = [
        KafkaMember(name, f"g_{name}" if kind == "m" else name, frozenset({PLACES[name]}))
        for name, kind in (("a", a), ("b", b))
        if kind in {"m", "k"}
    ]
    known = {"zk": tree, "kafka": KafkaGroup("Stable", tuple(members)), "committed": {T0: 10, T1: 10}, "ends": {T0: 10, T1: 10}}
    return GroupSeen("g", **{**known, **fields})  # type: ignore[arg-type]


def progress_in(mode: str | None, zk: dict[str, str], *, settled: bool = True) -> MemberProgress:
    effective = Mode.KAFKA if mode == "kafka" and set(zk.values()) == {"m"} else Mode.ZOOKEEPER
    return MemberProgress(7 if mode is not None else 0, effective, settled=settled)


def changed(seen: GroupSeen, **fields: object) -> GroupSeen:
    """The same with other fields of its ZooKeeper side."""
    assert seen.zk is not None
    tree = ZkGroup(**{**{name: getattr(seen.zk, name) for name in ZkGroup.__dataclass_fields__}, **fields})  # type: ignore[arg-type]
    return GroupSeen(seen.name, tree, seen.kafka, seen.committed, seen.ends)


def observations(seen: GroupSeen | None, first: GroupSeen | None = None, age: float = 100.0) -> GroupObservations:
    return GroupObservations().with_observation(first or seen, 1000.0, SPEC).with_observation(seen, 1000.0 + age, SPEC)


def verdict(decision: Decision) -> str:
    """`Done`, the act's verb, or the codes of a wait or refusal."""
    if isinstance(decision, Done):
        return "done"
    if isinstance(decision, Act):
        return decision.verb
    return f"{'never' if isinstance(decision, Refuse) else 'wait'} {' '.join(codes(decision.reasons))}"
