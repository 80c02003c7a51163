"""One cause, one alarm: a dead machine, a lost quorum or another host key explains what was not read because of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import (
    Cause,
    ClusterView,
    Controller,
    NodeFiles,
    Process,
    ProcessState,
    Reason,
)
from airflow_provider_kmigrate.core.migration import readiness
from airflow_provider_kmigrate.core.migration.readiness import ReadinessAsk
from airflow_provider_kmigrate.core.monitoring import watch
from airflow_provider_kmigrate.core.monitoring.causes import reduce_to_causes
from airflow_provider_kmigrate.core.monitoring.journal_lines import ActSpan
from airflow_provider_kmigrate.core.monitoring.watch import Alarms, KnownActs
from tests.core.views import (
    AGREEING,
    BARE,
    CONTROLLERS,
    DOWN,
    DUAL,
    DUAL_ZK,
    FLAGGED,
    KRAFT,
    MIG,
    PRE,
    SERVERS,
    ZK,
    cluster,
    computing,
    migration,
    readable,
    shrunk,
    with_controller,
    with_zk,
)

NOW = 10_000.0
NONE = (None, None, None)
SSH = "no SSH connection: No route to host"
PHASES = {
    "zookeeper": cluster([ZK, ZK, ZK], NONE),
    "pre-migration": PRE,
    "first roll": cluster([MIG, ZK, ZK], FLAGGED, -1),
    "copied": DUAL_ZK,
    "hybrid": cluster([KRAFT, MIG, MIG], FLAGGED, 90),
    "dual-write": DUAL,
    "finalized": cluster([KRAFT, KRAFT, KRAFT], BARE, 90),
}
MACHINES = {f"broker {number}": f"kafka{number}" for number in range(3)} | {f"controller {c}": f"ctl{c}" for c in CONTROLLERS}
SHARED = MACHINES | {"controller 3001": "kafka1"}


def healthy(phase: str) -> ClusterView:
    view = readable(computing(PHASES[phase], AGREEING))
    never_started = {c: replace(seen, files=NodeFiles(None, has_metadata_log=False)) for c, seen in view.controllers.items()}
    return replace(view, controllers=never_started, quorum=None) if phase == "zookeeper" else view


@dataclass
class Broken:
    """A view as an observer makes it when these nodes and machines do not answer."""

    view: ClusterView

    def unread(self, *reasons: Reason) -> None:
        self.view = replace(self.view, unknowns=(*self.view.unknowns, *reasons))

    def host(self, name: str, code: str = "U04", why: str = SSH, *, certain: bool = False) -> None:
        """The machine of a node does not answer ssh."""
        role, number = name.split()
        text = f"The host of {name} did not answer: {why}"
        causes = (Cause.UNREAD_PROCESS, Cause.UNREAD_FILES)
        self.unread(*(Reason(code, text, cause=cause, node=name, certain=certain) for cause in causes))
        nodes = dict(self.view.brokers if role == "broker" else self.view.controllers)
        nodes[int(number)] = replace(nodes[int(number)], process=Process(), files=NodeFiles())
        self.view = replace(self.view, **{f"{role}s": nodes})

    def broker(self, number: int) -> None:
        """The broker's process is down."""
        view, name = self.view, f"broker {number}"
        self.unread(
            Reason("R01", f"Broker {number} at kafka:9092 did not answer: refused", cause=Cause.UNREAD_BROKER, node=name),
            Reason("U05", f"Broker {number} did not report coordinators", cause=Cause.UNREAD_COORDINATORS, node=name),
        )
        gone = replace(view.brokers[number], mode=None, listed_by=frozenset(), in_zookeeper=False, process=DOWN)
        facts = view.coordinators
        if facts is not None:
            counts = {topic: {b: c for b, c in known.items() if b != number} for topic, known in facts.counts.items()}
            facts = replace(facts, counts=counts)
        others = [each for each in view.brokers if each != number and view.has_answered(each)]
        rows = shrunk(view.partitions or (), others)
        self.view = replace(self.view, brokers={**view.brokers, number: gone}, partitions=rows, coordinators=facts)
        if view.zk is not None:
            self.view = with_zk(self.view, broker_ids=tuple(each for each in view.zk.broker_ids if each != number))

    def controller(self, number: int) -> None:
        """The controller's process is down; another one leads."""
        name, quorum = f"controller {number}", self.view.quorum
        self.unread(Reason("G23", f"Controller {number} did not answer: refused", cause=Cause.UNREAD_CONTROLLER, node=name))
        self.view = with_controller(self.view, number, answers=False, migration_flag=None, process=DOWN)
        if quorum is not None:
            voters = {voter: 0 if voter == number else quorum.high_watermark for voter in quorum.voters}
            high = quorum.high_watermark + 5_000
            voters = {voter: high if offset else 0 for voter, offset in voters.items()}
            led = next((each.id for each in self.view.controllers.values() if each.answers), quorum.leader_id)
            self.view = replace(self.view, quorum=replace(quorum, leader_id=led, high_watermark=high, voters=voters))

    def no_leader(self) -> None:
        self.unread(Reason("G20", "No controller answered as the leader of the quorum: refused", cause=Cause.NO_LEADER))
        self.view = replace(self.view, quorum=None)

    def zookeeper(self) -> None:
        """No server answers: nothing that only ZooKeeper tells is known."""
        texts = {
            Cause.UNREAD_ZOOKEEPER: "ZooKeeper was not read",
            Cause.UNREAD_SLOW: "The topics",
            Cause.UNREAD_STORED: "Metadata",
        }
        codes = {Cause.UNREAD_ZOOKEEPER: "U01"}
        self.unread(*(Reason(codes.get(cause, "U05"), f"{text}: refused", cause=cause) for cause, text in texts.items()))
        unread = {number: replace(each, in_zookeeper=None) for number, each in self.view.brokers.items()}
        missing = dict.fromkeys(("zk", "topics", "stored", "state_epoch", "ensemble"))
        self.view = replace(self.view, brokers=unread, **missing)  # type: ignore[arg-type]


def dead_broker(broken: Broken) -> None:
    broken.broker(1)
    broken.host("broker 1")


def dead_controller(broken: Broken, number: int = 3001) -> None:
    broken.controller(number)
    broken.host(f"controller {number}")


def lost_quorum(broken: Broken) -> None:
    dead_controller(broken, 3000)
    dead_controller(broken, 3001)
    broken.no_leader()


def other_key(broken: Broken, name: str = "broker 1") -> None:
    broken.host(name, "M06", "its host key is new", certain=True)


def full_disk(broken: Broken) -> None:
    broken.host("broker 1", "U04", "/var/lib/kmigrate: no space left (disk_full)", certain=True)


def no_sudo(broken: Broken) -> None:
    broken.host("controller 3001", "M03", "sudo: a password is required", certain=True)


def ensemble_member(broken: Broken) -> None:
    broken.view = replace(broken.view, ensemble=(*SERVERS[:2], replace(SERVERS[2], mode=None)))


def every_host(broken: Broken) -> None:
    """Airflow's own key is gone."""
    for name in MACHINES:
        broken.host(name, "M06", f"{MACHINES[name]}: no such file /etc/kmigrate/id", certain=True)


def topics_unread(broken: Broken) -> None:
    broken.unread(Reason("U05", "The topics were not both read: too slow", cause=Cause.UNREAD_SLOW))
    broken.view = replace(broken.view, topics=None)


BEFORE = ("zookeeper", "pre-migration", "first roll")  # ZooKeeper owns the cluster
#: A cause -> how it shows, the phases in which it is no fault at all, and the code and node of its only alarm.
CAUSES = {
    "a broker's process": (lambda b: b.broker(1), (), "R01", "broker 1"),
    "a broker's machine": (dead_broker, (), "R01", "broker 1"),
    "a controller's process": (lambda b: b.controller(3001), ("zookeeper",), "G23", "controller 3001"),
    "a controller's machine": (dead_controller, ("zookeeper",), "G23", "controller 3001"),
    "the active controller's machine": (lambda b: dead_controller(b, 3000), ("zookeeper",), "G23", "controller 3000"),
    "ssh of a broker's machine": (lambda b: b.host("broker 1"), ("zookeeper",), "U04", "broker 1"),
    "the host key of a broker": (other_key, (), "M06", "broker 1"),
    "the host key of a controller": (lambda b: other_key(b, "controller 3001"), ("zookeeper",), "M06", "controller 3001"),
    "the agent's full disk": (full_disk, (), "U04", "broker 1"),
    "sudo on a machine": (no_sudo, ("zookeeper",), "M03", "controller 3001"),
    "Airflow's own key": (every_host, (), "M06", "broker 0"),
    "ZooKeeper": (Broken.zookeeper, ("finalized",), "U01", ""),
    "a ZooKeeper server": (ensemble_member, ("zookeeper", "finalized"), "Z05", ""),
    "a quorum without a leader": (Broken.no_leader, ("zookeeper", "pre-migration", "first roll"), "G45", ""),
    "the majority of the controllers": (lost_quorum, BEFORE, "G45", ""),
    "topics that take too long": (topics_unread, ("zookeeper", "pre-migration", "first roll", "finalized"), "U05", ""),
}  # fmt: skip


NO_ACTS = KnownActs(now=NOW)


def alarms_of(view: ClusterView, acts: KnownActs = NO_ACTS, machines: dict[str, str] = MACHINES, gone: float = 300.0):
    """What a watch reports of this view, as `steps.waits.run_watch` puts it together; without a controller since `gone` seconds."""
    verdict = readiness.judge_rollback(view, ReadinessAsk(before=view), NOW)
    at_once = (
        *watch.find_immediate_alarms(view, 1e9, NOW),
        *watch.lost_rollback_reasons(verdict),
        *watch.no_controller_reasons(view, acts, NOW - gone),
    )
    staying = watch.find_debounced_alarms(view, acts)
    staying = (*staying, *watch.find_rollback_alarms(view, staying, verdict, acts))
    reported = tuple(dict.fromkeys((*(replace(reason, certain=True) for reason in at_once), *staying)))
    return reduce_to_causes(reported, watch.unread_reasons(view), machines, watch.expected_reasons(view, acts)).roots


@pytest.mark.parametrize("phase", PHASES)
def test_a_healthy_cluster_raises_no_alarm(phase):
    assert alarms_of(healthy(phase)) == ()


@pytest.mark.parametrize(("phase", "cause"), product(PHASES, CAUSES))
def test_a_single_cause_is_a_single_alarm_that_names_it(phase, cause):
    breaks, quiet, code, node = CAUSES[cause]
    broken = Broken(healthy(phase))
    breaks(broken)
    found = alarms_of(broken.view)
    code = "G40" if code == "G23" and phase == "finalized" else code
    expected = [] if phase in quiet else [(code, node)]
    if breaks is lost_quorum and phase in BEFORE[1:]:  # two dead machines, and a controller all the same
        expected = [("G23", "controller 3000"), ("G23", "controller 3001")]
    assert [(reason.code, reason.node) for reason in found] == expected
    for reason in found:
        errors = [each for each in broken.view.unknowns if each.node == reason.node and (each.node or cause == "ZooKeeper")]
        assert not errors or any(each.text.partition(": ")[2] in reason.text for each in errors), "with its own error"


@pytest.mark.parametrize(("one", "other"), [("a broker's machine", "a ZooKeeper server"), ("a broker's machine", "a controller's machine"),
                                            ("the host key of a broker", "a controller's process"), ("a ZooKeeper server", "sudo on a machine")])  # fmt: skip
def test_two_causes_are_two_alarms(one, other):
    broken = Broken(healthy("dual-write"))
    for cause in (one, other):
        CAUSES[cause][0](broken)
    assert sorted(reason.code for reason in alarms_of(broken.view)) == sorted(CAUSES[cause][2] for cause in (one, other))


@pytest.mark.parametrize("cause", ["a broker's process", "a broker's machine", "the host key of a broker", "a ZooKeeper server"])
def test_a_stalled_dual_write_is_not_explained_by_a_broker_or_a_machine(cause):
    broken = Broken(with_zk(healthy("dual-write"), migration=replace(migration(90), kraft_controller_epoch=4, metadata_epoch=4)))
    CAUSES[cause][0](broken)
    assert sorted({reason.code for reason in alarms_of(broken.view)}) == sorted({"G07", CAUSES[cause][2]})


def test_the_nodes_of_one_dead_machine_are_one_alarm_and_two_processes_on_a_live_one_are_two():
    machine, processes = Broken(healthy("dual-write")), Broken(healthy("dual-write"))
    dead_broker(machine)
    dead_controller(machine)
    [alarm] = alarms_of(machine.view, machines=SHARED)
    assert (alarm.code, alarm.node) == ("R01", "broker 1")
    assert "The same holds for controller 3001." in alarm.text
    processes.broker(1)
    processes.controller(3001)
    assert [reason.code for reason in alarms_of(processes.view, machines=SHARED)] == ["R01", "G23"]


def test_one_error_of_every_machine_is_one_alarm():
    broken = Broken(healthy("dual-write"))
    every_host(broken)
    [alarm] = alarms_of(broken.view)
    assert alarm.certain
    assert "The same holds for broker 1, broker 2, controller 3000" in alarm.text


def test_an_unread_file_of_another_node_is_not_explained_by_a_dead_broker():
    broken = Broken(healthy("dual-write"))
    dead_broker(broken)
    broken.host("broker 2", why="Connection refused")
    assert [(reason.code, reason.node) for reason in alarms_of(broken.view)] == [("R01", "broker 1"), ("U04", "broker 2")]


def test_what_no_later_look_would_show_gone_is_certain_and_a_node_that_may_restart_is_not():
    certain = {}
    for cause in ("a broker's machine", "a controller's process", "ssh of a broker's machine", "the host key of a broker", "sudo on a machine",
                  "the majority of the controllers"):  # fmt: skip
        broken = Broken(healthy("dual-write"))
        CAUSES[cause][0](broken)
        [alarm] = alarms_of(broken.view)
        certain[cause] = alarm.certain
    assert list(certain.values()) == [False, False, False, True, True, True]


@pytest.mark.parametrize(
    ("taken", "codes"), [(frozenset(), ["G05"]), (frozenset({3001}), ["G43", "O06"])], ids=["another's", "in our finalization"]
)
def test_a_controller_that_lost_its_flag_is_not_told_to_keep_its_file_and_not_to_restart_it(taken, codes):
    """Its file has the flag: G05 restarts it with that file, and O06 beside it would say "do not restart the node"."""
    view = with_controller(healthy("dual-write"), 3001, migration_flag=False)
    view = with_controller(view, 3001, files=replace(healthy("hybrid").controllers[3000].files))
    alarms = alarms_of(with_zk(view, unflagged=taken))
    assert list(dict.fromkeys(reason.code for reason in alarms if reason.code in {"G05", "G43", "O06"})) == codes


@pytest.mark.parametrize(("restarting", "certain"), [(False, True), (True, False)])
def test_a_file_of_another_stage_is_certain_unless_a_node_is_being_restarted(restarting, certain):
    """A roll writes a broker's file before it stops the broker."""
    view = healthy("hybrid")
    brokers = {
        **view.brokers,
        1: replace(view.brokers[1], files=replace(view.brokers[1].files, properties={"process.roles": "broker"})),
    }
    span = ActSpan("run", "broker 1 to kraft", "restart", round(1000 * (NOW - 5)))
    acts = KnownActs({"broker 1": span}, NOW, 600.0) if restarting else NO_ACTS
    assert [(reason.code, reason.certain) for reason in alarms_of(replace(view, brokers=brokers), acts)] == [("O06", certain)]


ROLLBACK = "kmigrate_rollback__prod/r1"


def stopped(*controllers: int, seconds_ago: float = 30.0) -> KnownActs:
    """A rollback has stopped these controllers, one after the other, the last one so long ago."""
    spans = {}
    for place, number in enumerate(reversed(controllers)):
        at = round(1000 * (NOW - seconds_ago - 5 * place))
        spans[f"controller {number}"] = ActSpan(ROLLBACK, "handover to ZooKeeper", f"stop controller {number}", at, at + 900)
    return KnownActs(spans, NOW, 600.0)


def down(view: ClusterView, *controllers: int) -> Broken:
    broken = Broken(view)
    for number in controllers:
        broken.controller(number)
    return broken


def test_what_a_rollback_stopped_is_no_alarm_and_the_machine_that_died_meanwhile_is():
    broken = down(healthy("copied"), 3000, 3001)
    broken.no_leader()
    acts = stopped(3000, 3001)
    assert alarms_of(broken.view, acts, gone=0.0) == ()
    dead_broker(broken)
    [alarm] = alarms_of(broken.view, acts, gone=0.0)
    assert (alarm.code, alarm.node) == ("R01", "broker 1")
    assert SSH in alarm.text


def test_a_controller_that_died_after_the_rollback_stopped_it_is_named():
    """Its machine does not say that it is stopped: the rollback needs it to move its directory away."""
    broken = down(healthy("copied"), 3001)
    broken.host("controller 3001")
    [alarm] = alarms_of(broken.view, stopped(3001))
    assert (alarm.code, alarm.node) == ("G23", "controller 3001")
    assert "The last act on it was 'stop controller 3001' in step 'handover to ZooKeeper'" in alarm.text


def test_a_controller_that_somebody_else_stopped_is_an_alarm_beside_those_of_the_rollback():
    broken = down(healthy("copied"), 3001, 3002)
    assert [reason.node for reason in alarms_of(broken.view, stopped(3001))] == ["controller 3002"]


@pytest.mark.parametrize(("gone", "code"), [(0.0, "G20"), (59.0, "G20"), (60.0, "G45")])
def test_a_quorum_without_a_leader_is_a_lost_controller_once_it_lasts_longer_than_an_election(gone, code):
    broken = Broken(healthy("dual-write"))
    broken.no_leader()
    [alarm] = alarms_of(broken.view, gone=gone)
    assert alarm.code == code
    assert "UnknownHostException" in alarm.text


@pytest.mark.parametrize(("seconds", "codes"), [(10.0, []), (59.0, []), (61.0, ["G46"]), (240.0, ["G46"])])
def test_the_seconds_without_a_controller_are_an_alarm_once_they_last(seconds, codes):
    """Counted from the stop that cost the quorum, by kmigrate's own journal, although this watch has only just seen it."""
    broken = down(healthy("copied"), 3000, 3001)
    broken.no_leader()
    found = alarms_of(broken.view, stopped(3000, 3001, seconds_ago=seconds), gone=0.0)
    assert [reason.code for reason in found] == codes
    for alarm in found:
        assert f"no controller for {seconds:.0f} s" in alarm.text
        assert f"Run {ROLLBACK} stopped controllers 3000, 3001" in alarm.text
        assert alarm.next_step.startswith("A task of the run in the text is running: let it work.")


def test_without_a_run_that_stopped_them_the_alarm_says_to_start_the_missing_controllers():
    broken = Broken(healthy("dual-write"))
    lost_quorum(broken)
    [alarm] = alarms_of(broken.view)
    assert "Controllers 3000, 3001 do not answer." in alarm.text
    assert alarm.next_step.startswith("Start the controllers that do not answer")


def test_a_finalized_cluster_that_lost_its_quorum_is_never_told_to_give_a_flag_back():
    broken = Broken(healthy("finalized"))
    lost_quorum(broken)
    assert [reason.code for reason in alarms_of(broken.view)] == ["G45"]


@pytest.mark.parametrize(("view", "missing"), [
    (healthy("zookeeper"), False), (healthy("dual-write"), False), (with_zk(healthy("zookeeper"), controller=None), True),
    (replace(healthy("dual-write"), quorum=None), True), (replace(healthy("first roll"), quorum=None), False),
    (replace(healthy("finalized"), zk=None), False), (replace(healthy("finalized"), zk=None, quorum=None), True),
    (replace(healthy("zookeeper"), zk=None, quorum=None), False),
])  # fmt: skip
def test_a_cluster_has_no_controller_if_neither_kraft_nor_zookeeper_has_one(view, missing):
    assert watch.has_no_controller(view) is missing


def test_since_when_there_is_no_controller_is_kept_from_watch_to_watch():
    alarms = Alarms().with_controller(5.0, missing=True)
    again = Alarms.from_json(alarms.to_json()).with_controller(9.0, missing=True)
    assert again.no_controller_since == 5.0
    assert again.with_controller(10.0, missing=False).no_controller_since is None
    old = {key: value for key, value in alarms.to_json().items() if key != "no_controller_since"}
    assert Alarms.from_json(old).no_controller_since is None, "kept by an earlier release"


def test_what_follows_from_another_cause_now_begins_no_alarm_and_ends_none():
    lag = Reason("G07", "It lags.", cause=Cause.DUAL_WRITE_LAGS)
    dead = Reason("G23", "It does not answer.", cause=Cause.CONTROLLER_UNRESPONSIVE, node="controller 3001")
    first = Alarms().compare([lag])
    change = first.after_reporting(first.begun, 1.0).compare([dead], hidden=[lag])
    assert (list(change.begun.values()), dict(change.ended)) == ([dead], {})


def test_an_alarm_that_has_ended_repeats_no_remedy():
    dead = Reason("G23", "It does not answer.", cause=Cause.CONTROLLER_UNRESPONSIVE, node="controller 3001")
    first = Alarms().compare([dead])
    [alarm] = first.after_reporting(first.begun, 1.0).compare([]).ended.values()
    assert alarm.text == "[G23] It does not answer."


def test_a_controller_whose_machine_does_not_say_that_it_is_down_was_not_just_stopped():
    acts = stopped(3001)
    known = [Process(state) for state in (ProcessState.STOPPED, ProcessState.UNKNOWN, ProcessState.RUNNING)]
    assert [acts.has_stopped(Controller(3001, process)) for process in known] == [True, False, False]
    assert not acts.has_stopped(Controller(3000, DOWN))
