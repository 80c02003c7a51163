"""Which groups of an organisation may switch their mode now, in which waves, and why the others stay."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_kmigrate.core.groups.mode_switch import describe_mode_plan, plan_mode_switch
from airflow_provider_kmigrate.core.member.group_seen import GroupSeen, KafkaGroup
from airflow_provider_kmigrate.core.member.registration import GroupHold, Mode, Registration
from tests.core.group_facts import changed, group

NOW, DAY = 1_000_000.0, 86_400.0


def joined(hours_ago: float | None, observed: GroupSeen | None = None) -> GroupSeen:
    """A group of two migrating consumers, or another one, whose members joined then; None: they do not say when."""
    seen = observed or group("m", "m")
    assert seen.zk is not None
    stamp = "" if hours_ago is None else str(int((NOW - hours_ago * 3600) * 1000))
    return changed(seen, registrations={name: Registration("static", {"t": 1}, stamp) for name in seen.zk.registrations})


@pytest.mark.parametrize(
    ("observed", "mode", "stable_for", "expected"),
    [
        (joined(25), Mode.KAFKA, DAY, "ready"),
        (joined(23), Mode.KAFKA, DAY, "K52"),
        (joined(None), Mode.KAFKA, DAY, "K52"),
        (joined(None), Mode.KAFKA, 0.0, "ready"),
        (joined(25, group("m", "m", "kafka")), Mode.KAFKA, DAY, "done"),
        (joined(25, group("z", "m")), Mode.KAFKA, DAY, "K58"),
        (joined(25, group("k", "m")), Mode.KAFKA, DAY, "K58"),
        (joined(25, group("z", "z")), Mode.KAFKA, DAY, "none"),
        (joined(25, group("k", "k")), Mode.KAFKA, DAY, "none"),
        (replace(joined(25), kafka=None), Mode.KAFKA, DAY, "K30"),
        (GroupSeen("g"), Mode.KAFKA, DAY, "K30"),
        (changed(joined(25), hold=GroupHold("run", "an operator")), Mode.KAFKA, DAY, "K69"),
        (changed(joined(25), owners={}), Mode.KAFKA, DAY, "K44"),
        (joined(1, group("m", "m", "kafka")), Mode.ZOOKEEPER, 0.0, "ready"),
        (joined(1, group("m", "k", "kafka")), Mode.ZOOKEEPER, 0.0, "K58"),
        (joined(1), Mode.ZOOKEEPER, 0.0, "done"),
    ],
)
def test_one_group(observed: GroupSeen, mode: Mode, stable_for: float, expected: str) -> None:
    plan = plan_mode_switch({"g": observed}, mode, now=NOW, stable_for=stable_for)
    if expected == "ready":
        assert plan.waves == (("g",),)
    elif expected == "done":
        assert plan.done == ("g",)
    else:
        codes = [reason.code for reasons in (plan.left or {}).values() for reason in reasons]
        assert codes[:1] == ([] if expected == "none" else [expected])
        assert not plan.waves


def test_a_member_whose_name_begins_with_that_of_another_is_an_instance_of_its_own() -> None:
    """Names that teams gave: no cluster file was checked."""
    seen = group("m", "m")
    assert seen.zk is not None
    registrations = {name: Registration("static", {"t": 1}) for name in ("g_app", "g_app-1")}
    owners = {place: f"{name}-0" for place, name in zip(seen.zk.owners, registrations, strict=True)}
    progress = dict(zip(registrations, seen.zk.progress.values(), strict=True))
    longer = replace(changed(seen, registrations=registrations, progress=progress, owners=owners), kafka=KafkaGroup("Empty"))
    plan = plan_mode_switch({"g": longer}, Mode.KAFKA, now=NOW)
    assert (plan.waves, plan.left) == ((("g",),), {})


def test_the_waves_have_the_groups_in_order_and_the_plan_says_all() -> None:
    groups = {name: replace(joined(25), name=name) for name in "edcba"} | {"late": replace(joined(1), name="late")}
    plan = plan_mode_switch(groups, Mode.KAFKA, now=NOW, stable_for=DAY, wave_size=2)
    assert plan.waves == (("a", "b"), ("c", "d"), ("e",))
    *_, stays, summary = describe_mode_plan(plan, Mode.KAFKA)
    assert stays.startswith("late stays: [K52] Group late: a member joined 1.0 h ago")
    assert summary == "mode kafka: 5 groups in 3 waves to set, 0 in it already, 1 stay"
