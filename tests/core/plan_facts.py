"""What the plan of a migration is made of, from a case of preflight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from airflow_provider_kmigrate.core.cluster_state.model import ServiceUnit, Software
from airflow_provider_kmigrate.core.cluster_state.spec import Policy
from airflow_provider_kmigrate.core.migration.plan_facts import PlanFacts
from tests.core.preflight_views import Case, broker_1, healthy


def facts_of(case: Case, **more: Any) -> PlanFacts:
    """What preflight hands on, of brokers in ZooKeeper mode."""
    view, facts = case
    originals = {node.id: keys for node in facts.spec.brokers if (keys := view.broker(node.id).files.properties) is not None}
    return PlanFacts(facts.spec, view, originals, **{"metadata_version": "3.9-IV0", "made_by": "1.0", "took": 2.0, **more})


def tasks_of(plan: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {task["id"]: task for stage in plan["stages"] for task in stage["tasks"]}


def with_unit(**shown: str) -> PlanFacts:
    view, facts = healthy()
    process = replace(
        view.broker(1).process, unit=ServiceUnit({"KillMode": "control-group", "MainPID": "7", "Starts": "a" * 16, **shown})
    )
    return facts_of(broker_1(process=process)(view, facts))


def with_original(**keys: str) -> PlanFacts:
    facts = facts_of(healthy())
    return replace(facts, originals={**facts.originals, 1: {**facts.originals[1], **keys}})


def with_release(release: str) -> PlanFacts:
    view, facts = healthy()
    process = replace(BEFORE.view.broker(1).process, software=Software(disk_release=release))
    return facts_of(broker_1(process=process)(view, facts))


BEFORE = with_unit()
DRIFTS: dict[str, tuple[PlanFacts, str]] = {
    "the cluster file": (
        replace(BEFORE, spec=replace(BEFORE.spec, policy=Policy(min_soak=1.0))),
        "The cluster file has changed.",
    ),
    "a file": (replace(with_original(**{"num.io.threads": "9"}), view=BEFORE.view), "The original file of broker 1 has changed."),
    "a file that is gone": (
        replace(BEFORE, originals={0: BEFORE.originals[0], 2: BEFORE.originals[2]}),
        "The original file of broker 1 was read then, and is not read now.",
    ),
    "a unit": (with_unit(KillMode="process"), "The unit of broker 1 has changed."),
    "a drop-in that was edited in place": (with_unit(Starts="b" * 16), "The unit of broker 1 has changed."),
    "the release": (replace(BEFORE, metadata_version="3.8-IV0"), "The inter.broker.protocol.version has changed."),
    "the release that is not read": (
        replace(BEFORE, metadata_version=None),
        "The inter.broker.protocol.version was read then, and is not read now.",
    ),
    "the release on a disk": (
        with_release("3.9.2"),
        "The release on the disk of broker 1 was not read then, and is read now.",
    ),
    "kmigrate": (replace(BEFORE, made_by="1.1"), "Kmigrate has changed."),
    "a broker more": (facts_of(healthy(4)), "The original file of broker 3 is new."),
    "a broker less": (facts_of(healthy(2)), "The original file of broker 2 is gone."),
}
"""Each kind of input, changed since `BEFORE`, and the sentence that names it."""
