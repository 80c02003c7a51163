"""Consumer groups in cluster files: what they mean, and what is wrong with them, with line and fix."""

from __future__ import annotations

import pytest

from airflow_provider_kmigrate import spec
from airflow_provider_kmigrate.core.cluster_state.spec import GroupSpec, GroupWay, InstanceSpec, UnitSpec
from airflow_provider_kmigrate.exceptions import SpecError
from tests.core.spec_text import GOOD, changed

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
        ("way: cutover", "way: migrating", "groups[0].by_hand"),
        ("{name: app0}", '{name: app0, switch: "x {kind}"}', "groups[0].instances[0].switch"),
        ("by_hand: true\n", "by_hand: true\n    webhook: deployer\n", "groups[0].webhook"),
        ("by_hand: true", "by_hand: false", "groups[0].instances[0].switch"),
    ],
)
def test_people_restart_nothing_else(was: str, now: str, where: str) -> None:
    with pytest.raises(SpecError) as error:
        spec.loads(GOOD + BY_HAND.replace(was, now))
    assert where in str(error.value)


UNITS = """\
groups:
  - name: billing
    way: cutover
    switch_timeout: 90s
    units: {zookeeper: billing@old.service, kafka: billing@new.service}
    instances:
      - {name: app0, host: app0.example.org}
      - {name: app1, host: app1.example.org, units: {zookeeper: old.service, kafka: new.service}}
      - {name: app2, webhook: deployer}
"""


def test_an_agent_switches_the_units_of_instances() -> None:
    loaded = spec.loads(GOOD + UNITS)
    app0, app1, app2 = loaded.groups[0].instances
    hosts = loaded.brokers[0].hosts
    assert app0.units == {
        "zookeeper": UnitSpec("billing@old.service", "app0.example.org", hosts, 90.0),
        "kafka": UnitSpec("billing@new.service", "app0.example.org", hosts, 90.0),
    }
    assert [unit.unit for unit in app1.units.values()] == ["old.service", "new.service"]
    assert (app2.units, app2.webhook) == ({}, "deployer")
    assert len(list(loaded.units())) == 4


@pytest.mark.parametrize(
    ("was", "now", "where"),
    [
        ("{name: app0, host: app0.example.org}", "{name: app0}", "groups[0].instances[0].host"),
        ("way: cutover", "way: migrating", "groups[0].units.migrating"),
        ("kafka: billing@new", "migrating: both.service, kafka: billing@new", "groups[0].units.migrating"),
        ("kafka: billing@new", "kafka: billing@old", "groups[0].units"),
        ("host: app1.example.org, units: {zookeeper: old.service, kafka: new.service}", "host: APP0.example.org.", "groups[0].instances[1]"),
        ("zookeeper: old.service", "zookeeper: old.timer", "groups[0].instances[1].units.zookeeper"),
        ("zookeeper: old.service, ", "", "groups[0].instances[1].units.zookeeper"),
        ("zookeeper: old.service", "zookeeper: old@.service", "groups[0].instances[1].units.zookeeper"),
        ("    units:", '    switch: "x {kind}"\n    units:', "groups[0].units"),
        ("    units:", "    webhook: deployer\n    units:", "groups[0].units"),
        ("    units:", "    by_hand: true\n    units:", "groups[0].units"),
    ],
)  # fmt: skip
def test_units_that_could_not_be_told_apart_or_found_are_refused(was: str, now: str, where: str) -> None:
    assert was in UNITS
    with pytest.raises(SpecError) as error:
        spec.loads(GOOD + UNITS.replace(was, now))
    assert where in str(error.value)


SHARED = """\
groups:
  - name: billing
    switch: ssh {host} as {kind}
    instances: [{name: app0, host: h0}, {name: app1, host: h1}]
  - {name: orders, way: cutover, switch: "pods {group} {kind}", instances: [{name: pod-0}, {name: pod-1}]}
  - {name: mail, switch: [x, "{instance}", "{kind}"], instances: [{name: a}, {name: b}]}
  - {name: news, switch: [x, "{group}", "{kind}"], instances: [{name: a, switch: "y {kind}"}, {name: b}]}
"""


def test_instances_that_are_switched_at_once_may_share_a_command_and_all_others_have_their_own() -> None:
    assert len(spec.loads(GOOD + SHARED).groups) == 4


@pytest.mark.parametrize(
    ("was", "now", "where", "owner"),
    [
        ("host: h1", "host: H0.", "groups[0].switch", "app0 of group billing"),
        ("way: cutover, ", "", "groups[1].switch", "pod-0 of group orders"),
        ("way: cutover,", "way: cutover, side_by_side: true,", "groups[1].switch", "pod-0 of group orders"),
        ('"{instance}", ', "", "groups[2].switch", "a of group mail"),
        ("pods {group} {kind}", "y {kind}", "groups[3].instances[0].switch", "pod-0 of group orders"),
        ("{name: b}]}\n  - {name: news", '{name: b, switch: "pods orders {kind}"}]}\n  - {name: news', "groups[2].instances[1].switch", "pod-0 of group orders"),
    ],
)  # fmt: skip
def test_a_command_that_would_switch_another_instance_too_is_refused(was: str, now: str, where: str, owner: str) -> None:
    assert was in SHARED
    with pytest.raises(SpecError) as error:
        spec.loads(GOOD + SHARED.replace(was, now))
    assert f"{where}: found a command that is also that of {owner}" in str(error.value)


@pytest.mark.parametrize("name", [".", ".."])
def test_a_group_that_zookeeper_cannot_have_is_refused(name: str) -> None:
    with pytest.raises(SpecError, match=r"groups\[0\].name: found \.+; expected the id of a group that ZooKeeper can have"):
        spec.loads(GOOD + BILLING.replace("name: billing", f'name: "{name}"'))


@pytest.mark.parametrize("name", ["a/b", "a b", "größe", "a:b"])
def test_the_id_of_a_group_has_the_letters_of_kafkas_zookeeper_consumers(name: str) -> None:
    with pytest.raises(SpecError, match=r"of letters, digits, -, _ and \. as Kafka's ZooKeeper consumers allow"):
        spec.loads(GOOD + BILLING.replace("name: billing", f'name: "{name}"'))


@pytest.mark.parametrize("placeholder", ["{id}", "{properties}"])
def test_units_are_reached_by_their_host_alone(placeholder: str) -> None:
    with pytest.raises(SpecError, match=r"by \{host\} alone"):
        spec.loads(changed('"{host}"', f'"{{host}}{placeholder}"') + UNITS)


BESIDE = BY_HAND.replace("{name: app0}", "{name: app0}\n      - {name: app1}").replace(
    "by_hand: true", "by_hand: true\n    side_by_side: true"
)


def test_a_cutover_may_begin_with_a_canary_beside_the_old_version() -> None:
    assert spec.loads(GOOD + BESIDE).groups[0].side_by_side is True


@pytest.mark.parametrize(("was", "now"), [("way: cutover", "way: migrating"), ("      - {name: app1}\n", "")])
def test_a_canary_is_beside_another_instance_of_a_cutover(was: str, now: str) -> None:
    with pytest.raises(SpecError, match=r"groups\[0\].side_by_side"):
        spec.loads(GOOD + BESIDE.replace(was, now))


@pytest.mark.parametrize(
    ("text", "way"),
    [
        (BILLING, GroupWay.MIGRATING),
        (BY_HAND.replace("    way: cutover\n", ""), GroupWay.CUTOVER),
        (BESIDE.replace("    way: cutover\n", "").replace("by_hand: true", "switch: x {instance} {kind}"), GroupWay.CUTOVER),
        (BILLING.replace("    wave: 2", "    way: cutover"), GroupWay.CUTOVER),
    ],
)
def test_a_cutover_is_the_way_of_instances_that_can_be_no_migrating_consumers(text: str, way: GroupWay) -> None:
    assert spec.loads(GOOD + text).groups[0].way is way


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
