"""Consumer groups in cluster files: what they mean, and what is wrong with them, with line and fix."""

from __future__ import annotations

import pytest

from airflow_provider_kmigrate import spec
from airflow_provider_kmigrate.core.cluster_state.spec import GroupSpec, InstanceSpec
from airflow_provider_kmigrate.exceptions import SpecError
from tests.core.spec_text import GOOD

BEGINS = len(GOOD.splitlines()) + 1  # the line of `groups:`
BILLING = """\
groups:
  - name: billing
    switch: ssh {host} sudo billing-as {kind}
    window: 22:00-04:00
    wave: 2
    bake: 5m
    instances:
      - {name: app0, host: app0.example.org}
      - {name: app1, switch: [restart, "{instance}", "{kind}"]}
      - {name: app2, webhook: deployer}
"""


def test_an_instance_takes_from_its_group_what_it_does_not_say_itself() -> None:
    (group,) = spec.loads(GOOD + BILLING).groups
    assert group == GroupSpec(
        "billing",
        (
            InstanceSpec("app0", "app0.example.org", ("ssh", "{host}", "sudo", "billing-as", "{kind}")),
            InstanceSpec("app1", switch=("restart", "{instance}", "{kind}")),
            InstanceSpec("app2", webhook="deployer"),
        ),
        wave=2,
        window="22:00-04:00",
        bake=300.0,
    )
    assert spec.loads(GOOD + BILLING).groups[0].instance("app1").switch


BY_HAND = """\
groups:
  - name: billing
    way: cutover
    by_hand: true
    instances:
      - {name: app0}
"""


def test_people_restart_the_instances_of_a_cutover() -> None:
    assert spec.loads(GOOD + BY_HAND).groups[0].by_hand is True


@pytest.mark.parametrize(
    ("was", "now", "where"),
    [
        ("    way: cutover\n", "", "groups[0].by_hand"),
        ("{name: app0}", '{name: app0, switch: "x {kind}"}', "groups[0].instances[0].switch"),
        ("by_hand: true\n", "by_hand: true\n    webhook: deployer\n", "groups[0].webhook"),
        ("by_hand: true", "by_hand: false", "groups[0].instances[0].switch"),
    ],
)
def test_people_restart_nothing_else(was: str, now: str, where: str) -> None:
    with pytest.raises(SpecError) as error:
        spec.loads(GOOD + BY_HAND.replace(was, now))
    assert where in str(error.value)


BESIDE = BY_HAND.replace("{name: app0}", "{name: app0}\n      - {name: app1}").replace(
    "by_hand: true", "by_hand: true\n    side_by_side: true"
)


def test_a_cutover_may_begin_with_a_canary_beside_the_old_version() -> None:
    assert spec.loads(GOOD + BESIDE).groups[0].side_by_side is True


@pytest.mark.parametrize("gone", ["    way: cutover\n", "      - {name: app1}\n"])
def test_a_canary_is_beside_another_instance_of_a_cutover(gone: str) -> None:
    with pytest.raises(SpecError, match=r"groups\[0\].side_by_side"):
        spec.loads(GOOD + BESIDE.replace(gone, ""))


def test_a_group_confirms_a_webhook_without_tls() -> None:
    assert spec.loads(GOOD + BILLING.replace("    wave: 2", "    webhook_tls: false")).groups[0].webhook_tls is False


@pytest.mark.parametrize(
    ("was", "now", "code", "line", "where"),
    [
        ("    switch: ssh {host} sudo billing-as {kind}\n", "", "F04", 6, "groups[0].instances[0].switch"),
        ("billing-as {kind}", "billing-as", "F04", 2, "groups[0].switch"),
        ("billing-as {kind}", "billing-as {kind} {port}", "F04", 2, "groups[0].switch"),
        ("{name: app2, webhook: deployer}", '{name: app2, webhook: d, switch: "x {kind}"}', "F04", 9, "groups[0].instances[2].webhook"),
        ("name: app1", "name: app0", "F04", 8, "groups[0].instances[1].name"),
        ("name: billing", "name: done", "F04", 1, "groups[0].name"),
        ("{name: app2, ", "{name: app_1, webhook: d}\n      - {name: app.1, ", "F04", 10, "groups[0].instances[3].name"),
        ("name: app1", "name: app0-1", "F04", 7, "groups[0].instances[0].name"),
        ("name: app1", "name: billing_app0", "F04", 8, "groups[0].instances[1].name"),
        ("name: app1", "name: billing_app0-1", "F04", 8, "groups[0].instances[1].name"),
        ("bake: 5m", "bake: 150s", "F04", 5, "groups[0].bake"),
        ("bake: 5m", "commit_within: 10m", "F04", 5, "groups[0].commit_within"),
        ("22:00-04:00", "22-4", "F04", 3, "groups[0].window"),
        ("wave: 2", "wave: 0", "F04", 4, "groups[0].wave"),
        ("name: billing", "name: bill ing", "F04", 1, "groups[0].name"),
        ("bake: 5m", "backe: 5m", "F04", 5, "groups[0].backe"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_reported_with_its_line(was: str, now: str, code: str, line: int, where: str) -> None:
    with pytest.raises(SpecError) as error:
        spec.loads(GOOD + BILLING.replace(was, now))
    assert [(reason.code, reason.text.split(": found")[0]) for reason in error.value.reasons] == [
        (code, f"cluster file:{BEGINS + line}: {where}")
    ]


def test_a_group_is_listed_once() -> None:
    again = BILLING.replace("groups:\n", "")
    with pytest.raises(SpecError, match=r"groups\[1\].name: found billing, which groups\[0\] also has"):
        spec.loads(GOOD + BILLING + again)


@pytest.mark.parametrize("keys", ["bake: 0s", "bake: 151s", "bake: 10s\n    commit_within: 9s"])
def test_a_canary_bakes_for_longer_than_its_consumers_go_without_a_commit_or_not_at_all(keys: str) -> None:
    assert spec.loads(GOOD + BILLING.replace("bake: 5m", keys)).groups


def test_an_instance_may_be_listed_by_its_whole_id_beside_others() -> None:
    (group,) = spec.loads(GOOD + BILLING.replace("name: app1", "name: billing_app1")).groups
    assert [one.name for one in group.instances] == ["app0", "billing_app1", "app2"]
