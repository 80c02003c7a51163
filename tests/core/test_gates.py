"""Each measured gate opens on the healthy view, closes on its disaster, and never opens on an unknown."""

import math
from dataclasses import replace

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import (
    Age,
    ClusterView,
    LiveMembers,
    Malformed,
    NodeFiles,
    Partition,
    ProbeFigures,
    ProduceLatency,
    PropertyChange,
    Quorum,
    ZkController,
)
from airflow_provider_kmigrate.core.migration import gates
from airflow_provider_kmigrate.core.migration.gates import GateState
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage
from airflow_provider_kmigrate.core.node_files.kafka_keys import HIDDEN
from tests.core.views import (
    CONTROLLERS,
    DUAL,
    DUAL_ZK,
    DUAL_ZK_EARLIER,
    FILES,
    FLAGGED,
    KRAFT,
    MIG,
    PRE,
    UP,
    ZK,
    cluster,
    controller,
    migration,
    with_broker,
    with_controller,
    with_zk,
)

BLIND = ClusterView(taken_at=0.0)
EDITED = with_broker(
    DUAL, 1, files=NodeFiles(FILES[KRAFT], edited=(PropertyChange("a", None, HIDDEN), PropertyChange("log.dirs", "/a", "/b")))
)


def edited(key: str) -> ClusterView:
    return with_broker(DUAL, 1, files=NodeFiles(FILES[KRAFT], edited=(PropertyChange(key, None, HIDDEN),)))


TUNED = with_broker(DUAL, 1, files=NodeFiles(FILES[KRAFT], edited=(PropertyChange("num.io.threads", None, HIDDEN),)))
SET_BACK = with_broker(DUAL, 1, files=NodeFiles(FILES[ZK], edited=()))
FINAL = {"process.roles": "controller"}


def written(most: float, offset: int = 89, epoch: int = 5) -> ClusterView:
    """DUAL_ZK, of which ZooKeeper's clock shows too when /migration was written; its last record is 92."""
    return with_zk(DUAL_ZK, migration=replace(migration(offset, epoch=epoch), age=Age(0.0, most)))


UNUSED = replace(cluster([ZK, ZK, ZK]), controllers={c: controller(c, None, used=False) for c in CONTROLLERS})
USED = replace(cluster([ZK, ZK, ZK]), controllers={c: controller(c, None, used=True) for c in CONTROLLERS})
LEADERLESS = replace(DUAL_ZK, partitions=(Partition("t", 0, -1, (0,), ()),))


def claimed_by_another(view: ClusterView) -> ClusterView:
    """Between the quorum's answer and ZooKeeper's a new leader was elected, which goes through the topics."""
    return with_zk(view, controller=ZkController(3001, 6, ephemeral=False))


BEFORE = {"kmigrate-probe-0": ProduceLatency(5.0, 0.010), "kmigrate-probe-1": ProduceLatency(5.0, 0.100)}


def probed(age: float = 1.0, **second: float) -> ClusterView:
    """With a probe whose first partition is as fast as before; `second`: what changed of the other one."""
    now = {**BEFORE, "kmigrate-probe-1": replace(BEFORE["kmigrate-probe-1"], **second)}
    return replace(PRE, probe=ProbeFigures(age, BEFORE, now))


def behind(records: int) -> ClusterView:
    """DUAL_ZK, with voters that have fetched so many records less than the leader."""
    return replace(DUAL_ZK, quorum=Quorum(3000, 5, 93 + records, dict.fromkeys(CONTROLLERS, 93), {}))


CASES = [
    ("G42 no probe", gates.latency_recovered(PRE), GateState.MET),
    ("G42 as fast as before", gates.latency_recovered(probed()), GateState.MET),
    ("G42 at the limit", gates.latency_recovered(probed(p95=0.55)), GateState.MET),
    ("G42 above it", gates.latency_recovered(probed(p95=0.551)), GateState.NOT_YET),
    ("G42 half as many", gates.latency_recovered(probed(rate=2.5)), GateState.MET),
    ("G42 fewer", gates.latency_recovered(probed(rate=2.4)), GateState.NOT_YET),
    (
        "G42 one partition without records",
        gates.latency_recovered(replace(PRE, probe=ProbeFigures(1.0, BEFORE, dict([*BEFORE.items()][:1])))),
        GateState.NOT_YET,
    ),
    ("the probe has not measured before", gates.latency_recovered(replace(PRE, probe=ProbeFigures(1.0))), GateState.NOT_YET),
    ("figures of a while ago, though good", gates.latency_recovered(probed(age=10.1)), GateState.NOT_YET),
    ("Y05 the probe has ended", gates.latency_recovered(probed(age=60.1)), GateState.NOT_YET),
    ("Y05 the probe never began", gates.latency_recovered(probed(age=math.inf)), GateState.NOT_YET),
    ("P06 fresh", gates.fresh_migration(cluster([ZK, ZK, ZK])), GateState.MET),
    ("P06 controllers already wrote -1", gates.fresh_migration(PRE), GateState.MET),
    ("P06 left over", gates.fresh_migration(with_zk(PRE, migration=migration(97))), GateState.NEVER),
    ("P06 before the first record", gates.fresh_migration(with_zk(PRE, migration=migration(0))), GateState.MET),
    ("P06 with the first record", gates.fresh_migration(with_zk(PRE, migration=migration(1))), GateState.NEVER),
    ("P06 null", gates.fresh_migration(with_zk(PRE, migration=Malformed("/migration", ""))), GateState.NEVER),
    ("G04 empty", gates.empty_controllers(UNUSED, CONTROLLERS), GateState.MET),
    ("G04 used", gates.empty_controllers(USED, CONTROLLERS), GateState.NEVER),
    ("G04 used by this migration", gates.empty_controllers(PRE, CONTROLLERS), GateState.MET),
    ("G04 not in view", gates.empty_controllers(UNUSED, (3009,)), GateState.NOT_YET),
    ("G05 all", gates.all_controllers_flagged(PRE), GateState.MET),
    ("G05 one unresponsive", gates.all_controllers_flagged(cluster([ZK], (True, True, None), -1)), GateState.NOT_YET),
    ("G05 one bare", gates.all_controllers_flagged(cluster([ZK], (True, True, False), -1)), GateState.NEVER),
    ("G07 moved", gates.dual_write_alive(DUAL_ZK, DUAL_ZK_EARLIER), GateState.MET),
    ("G07 frozen", gates.dual_write_alive(DUAL_ZK, DUAL_ZK), GateState.NOT_YET),
    ("G07 first observation", gates.dual_write_alive(DUAL_ZK, None), GateState.NOT_YET),
    ("G07 not copied", gates.dual_write_alive(PRE, None), GateState.NOT_YET),
    ("G07 claimed, with the first record", gates._dual_write_claimed(with_zk(DUAL_ZK, migration=migration(1))), GateState.MET),
    ("G07 claimed, nothing copied", gates._dual_write_claimed(with_zk(DUAL_ZK, migration=migration(0))), GateState.NOT_YET),
    (
        "G07 old epoch",
        gates.dual_write_alive(with_zk(DUAL_ZK, migration=migration(95, epoch=4)), DUAL_ZK_EARLIER),
        GateState.NOT_YET,
    ),
    ("G07 written just now", gates.dual_write_alive(written(0.4), None), GateState.MET),
    ("G07 written a while ago", gates.dual_write_alive(written(gates.JUST_NOW), None), GateState.NOT_YET),
    ("G07 written a while ago, and moved", gates.dual_write_alive(written(9.0), DUAL_ZK_EARLIER), GateState.MET),
    ("G07 written just now, and behind", gates.dual_write_alive(written(0.4, offset=88), None), GateState.NOT_YET),
    ("G07 written just now, before an election", gates.dual_write_alive(written(0.4, epoch=4), None), GateState.NOT_YET),
    (
        "G07 written just now, the quorum unread",
        gates.dual_write_alive(replace(written(0.4), quorum=None), None),
        GateState.NOT_YET,
    ),
    (
        "G07 written just now, claimed by another one",
        gates.dual_write_alive(claimed_by_another(written(0.4)), DUAL_ZK_EARLIER),
        GateState.NOT_YET,
    ),
    ("G07 moved since the copy", gates.dual_write_moves(DUAL_ZK, DUAL_ZK_EARLIER), GateState.MET),
    ("G07 the copy is just over", gates.dual_write_moves(written(0.4), cluster([MIG, MIG, MIG], FLAGGED, -1)), GateState.NOT_YET),
    ("G07 written just now is no movement", gates.dual_write_moves(written(0.4), written(0.4)), GateState.NOT_YET),
    ("G22 all", gates.all_in_migration_mode(DUAL_ZK), GateState.MET),
    ("G22 one plain", gates.all_in_migration_mode(cluster([MIG, MIG, ZK], FLAGGED, -1)), GateState.NOT_YET),
    (
        "G22 one plain, the one to roll",
        gates.all_in_migration_mode(cluster([MIG, MIG, ZK], FLAGGED, -1), excused_brokers=(2,)),
        GateState.MET,
    ),
    (
        "G22 a broker that is not listed",
        gates.all_in_migration_mode(with_zk(DUAL_ZK, broker_ids=(0, 1, 2, 7))),
        GateState.NOT_YET,
    ),
    ("G09 none", gates.no_client_metrics(DUAL_ZK), GateState.MET),
    ("G09 one", gates.no_client_metrics(replace(DUAL_ZK, client_metrics=("sub1",))), GateState.NEVER),
    ("G13 all led", gates.no_leaderless_partition(DUAL_ZK), GateState.MET),
    ("G13 one headless", gates.no_leaderless_partition(LEADERLESS), GateState.NOT_YET),
    ("no groups", gates.no_group_on_zookeeper(DUAL_ZK), GateState.MET),
    ("a live old group", gates.no_group_on_zookeeper(with_zk(DUAL_ZK, live_groups=("g",))), GateState.NEVER),
    ("all KRaft", gates.all_brokers_in_kraft(DUAL), GateState.MET),
    ("one not", gates.all_brokers_in_kraft(DUAL_ZK), GateState.NOT_YET),
    ("one still in ZooKeeper", gates.all_brokers_in_kraft(with_zk(DUAL, broker_ids=(2,))), GateState.NOT_YET),
    ("lag", gates.lag_below(DUAL_ZK, 5), GateState.MET),
    ("too much lag", gates.lag_below(DUAL_ZK, 1), GateState.NOT_YET),
    ("quorum", gates.quorum_healthy(DUAL_ZK), GateState.MET),
    ("voter far behind", gates.quorum_healthy(behind(1001)), GateState.NOT_YET),
    ("voter nearly as far", gates.quorum_healthy(behind(1000)), GateState.MET),
    ("files of their modes", gates.files_in_stage(DUAL), GateState.MET),
    ("an older file", gates.files_in_stage(SET_BACK), GateState.NEVER),
    ("an older file of the node that is restarted", gates.files_in_stage(SET_BACK, restarting_nodes=[1]), GateState.MET),
    ("a file of no mode", gates.files_in_stage(with_broker(DUAL, 1, files=NodeFiles({}))), GateState.NEVER),
    ("a file unread", gates.files_in_stage(with_broker(DUAL, 1, files=NodeFiles())), GateState.NOT_YET),
    ("a flag less", gates.files_in_stage(with_controller(DUAL, 3001, files=NodeFiles(FINAL))), GateState.NEVER),
    ("O03 another content", gates.files_in_stage(EDITED), GateState.NEVER),
    ("O03 another content of the node that is restarted", gates.files_in_stage(EDITED, restarting_nodes=[1]), GateState.NEVER),
    ("O03 another content during a roll", gates.files_in_stage(EDITED, rolling=[FileStage.KRAFT]), GateState.NEVER),
    (
        "G00 a content that was not compared",
        gates.files_in_stage(with_broker(DUAL, 1, files=NodeFiles(FILES[KRAFT]))),
        GateState.NOT_YET,
    ),
    ("a broker's next start as it runs", gates.starts_as_it_runs(DUAL.brokers[1]), GateState.MET),
    ("O03 a broker's next start with another content", gates.starts_as_it_runs(EDITED.brokers[1]), GateState.NEVER),
    ("O06 a broker's next start in another mode", gates.starts_as_it_runs(SET_BACK.brokers[1]), GateState.NEVER),
    ("R01 a broker that does not answer", gates.starts_as_it_runs(replace(DUAL.brokers[1], mode=None)), GateState.NOT_YET),
    ("O03 after the end, directories", gates.files_in_stage(gates.with_decisive_edits(EDITED)), GateState.NEVER),
    ("after the end, threads", gates.files_in_stage(gates.with_decisive_edits(TUNED)), GateState.MET),
    *(
        (f"O03 after the end, {key}", gates.files_in_stage(gates.with_decisive_edits(edited(key))), GateState.NEVER)
        for key in ("controller.listener.names", "inter.broker.listener.name", "security.inter.broker.protocol")
    ),
    ("at boot", gates.controllers_start_at_boot(DUAL), GateState.MET),
    (
        "not at boot",
        gates.controllers_start_at_boot(with_controller(DUAL, 3001, process=replace(UP, at_boot=False))),
        GateState.NOT_YET,
    ),
]


@pytest.mark.parametrize(("gate", "state"), [row[1:] for row in CASES], ids=[row[0] for row in CASES])
def test_gate(gate: gates.Gate, state: GateState) -> None:
    assert gate.state is state
    assert bool(gate.reasons) is (state is not GateState.MET)


OTHER_CODES = {
    "the probe has not measured before": "T01",
    "figures of a while ago, though good": "T01",
    "G04 not in view": "G00",
    "G05 one unresponsive": "G23",
    "G07 written just now, the quorum unread": "G00",
    "a live old group": "G21",
    "one not": "G22",
    "one still in ZooKeeper": "G22",
    "too much lag": "G07",
    "voter far behind": "G20",
    "an older file": "O06",
    "a file of no mode": "O06",
    "a file unread": "G00",
    "a flag less": "O06",
    "not at boot": "O07",
}


@pytest.mark.parametrize(
    ("name", "gate"), [row[:2] for row in CASES if row[1].reasons], ids=[row[0] for row in CASES if row[1].reasons]
)
def test_a_gate_that_is_not_met_says_which_it_is(name: str, gate: gates.Gate) -> None:
    assert {reason.code for reason in gate.reasons} == {OTHER_CODES.get(name) or name.split(maxsplit=1)[0]}


def test_a_controller_whose_directory_was_not_read_is_not_empty() -> None:
    unread = replace(UNUSED, controllers={3000: replace(UNUSED.controllers[3000], files=NodeFiles())})
    assert gates.empty_controllers(unread, (3000,)).state is GateState.NOT_YET


@pytest.mark.parametrize(
    ("rows", "seconds", "state"),
    [
        ((Partition("t", 0, 1, (0, 1), (1,)),), 30.0, GateState.MET),
        ((Partition("t", 0, 0, (0, 1), (0, 1)),), 2.0, GateState.MET),
        ((Partition("t", 0, 0, (0, 1), (0, 1)),), 11.0, GateState.NEVER),
        ((Partition("t", 0, 0, (0,), (0,)),), 11.0, GateState.MET),
        (None, 60.0, GateState.MET),
    ],
    ids=["moved away", "quick", "stuck", "nowhere to go", "unread"],
)
def test_a_slow_stop_that_leaves_leaders_behind_is_an_alarm(
    rows: tuple[Partition, ...] | None, seconds: float, state: GateState
) -> None:
    assert gates.leaders_moved_by_stop(replace(DUAL_ZK, partitions=rows), 0, seconds).state is state


def test_together_is_as_bad_as_its_worst_and_keeps_every_reason() -> None:
    both = gates.combine_gates(
        (gates.no_leaderless_partition(LEADERLESS), gates.no_client_metrics(replace(DUAL_ZK, client_metrics=("s",))), gates.MET)
    )
    assert both.state is GateState.NEVER
    assert [reason.code for reason in both.reasons] == ["G13", "G09"]


def test_groups_are_named_with_their_members() -> None:
    groups = {f"g{number:02}": LiveMembers(number, 1) for number in range(12)}
    named = gates.describe_zookeeper_groups(with_zk(DUAL_ZK, live_groups=tuple(groups), live_members=groups))
    assert named.startswith("g00 (1 migrating), g01 (1 ZooKeeper, 1 migrating), ")
    assert named.endswith(" and 2 more")
    assert gates.describe_zookeeper_groups(with_zk(DUAL_ZK, live_groups=("g",))) == "g", "members unread"
    assert (
        gates.describe_zookeeper_groups(DUAL_ZK),
        gates.describe_zookeeper_groups(BLIND),
        gates.warn_of_zookeeper_groups(BLIND),
    ) == ("", "", "")
    [reason] = gates.no_group_on_zookeeper(
        with_zk(replace(DUAL_ZK, name="prod"), live_groups=("g",), live_members={"g": LiveMembers(3, 0)})
    ).reasons
    assert "g (3 ZooKeeper)" in reason.text
    assert "kmigrate_consumers__prod " in reason.text


def test_groups_without_records_are_named_with_the_remedy() -> None:
    view = with_zk(replace(DUAL_ZK, name="prod"), live_groups=("g",))
    [reason] = gates.no_group_without_coordinator(view).reasons
    assert reason.code == "G21"
    assert "kmigrate_consumers__prod" in reason.text
    assert "they consume nothing" in reason.text
    assert "kmigrate_consumers__prod" in gates.warn_of_zookeeper_groups(view)


def test_a_quorum_without_leader_whose_controllers_all_answer_names_the_first_suspect() -> None:
    wedged = replace(DUAL_ZK, quorum=None)
    down = replace(
        wedged, controllers={i: replace(c, answers=i != min(wedged.controllers)) for i, c in wedged.controllers.items()}
    )
    said = [gates.quorum_healthy(view).reasons[0] for view in (wedged, down)]
    assert [reason.code for reason in said] == ["G20", "G20"]
    assert ["UnknownHostException" in reason.text for reason in said] == [True, False]


def test_an_edit_is_named_by_its_keys_and_by_what_the_next_start_makes_of_it() -> None:
    (reason,) = gates.files_in_stage(EDITED).reasons
    assert (reason.code, reason.node) == ("O03", "broker 1")
    assert "~ log.dirs: /a -> /b, + a=(not shown)" in reason.text
    assert reason.text.endswith("Its next start, after a reboot too, gives it other directories.")
    (tuned,) = gates.files_in_stage(TUNED).reasons
    assert tuned.text.endswith("Its next start, after a reboot too, uses them.")
