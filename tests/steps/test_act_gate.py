"""Every act passes one gate: what it asks, when, and that no act and no request without a token goes round it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import airflow_provider_kmigrate
from airflow_provider_kmigrate.clients import brokers_admin, offsets_log, tools
from airflow_provider_kmigrate.clients.holding import UNFENCED_GAP
from airflow_provider_kmigrate.core.cluster_state.decision import Act, Decision, Done, Verb, Wait
from airflow_provider_kmigrate.core.cluster_state.model import ClusterView, Fields, Reason
from airflow_provider_kmigrate.core.migration.gates import MAX_VIEW_AGE, SETTLING
from airflow_provider_kmigrate.exceptions import Fenced, KMigrateError, Refused, TimedOut, Unavailable, WrongCluster
from airflow_provider_kmigrate.steps.run import Step, StepContext, pass_gate, pass_gate_again, run_step
from tests.steps.sim import SimCluster
from tests.steps.sim_hands import SimJournal

PACKAGE = Path(airflow_provider_kmigrate.__file__).parent


class Asked:
    """What the gate asked for."""

    def __init__(self, fence: Any, switch: str = "") -> None:
        self.fence, self.switch, self.path, self.token, self.asked = fence, switch, fence.path, fence.token, list[str]()

    def check(self) -> None:
        self.asked.append("fence")
        self.fence.check()

    def release(self) -> None:
        raise AssertionError

    def stopped(self) -> str:
        self.asked.append("switch")
        return self.switch


@dataclass
class Place:
    """A cluster, a context of a run that holds it, and a view of it."""

    cluster: SimCluster
    context: StepContext
    asked: Asked
    journal: SimJournal

    def view(self, **changes: Any) -> ClusterView:
        return replace(self.cluster.observe(Fields.POSITION), **changes)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    cluster, journal = SimCluster(), SimJournal()
    context = cluster.context(tmp_path)
    asked = Asked(context.fence)
    return Place(cluster, replace(context, fence=asked, stopped=asked.stopped, journal=journal), asked, journal)


def no_ids(view: ClusterView) -> ClusterView:
    return replace(view, zk=view.zk and replace(view.zk, cluster_id=""), kafka_cluster_id=None, brokers={}, controllers={})


def test_the_run_that_holds_the_cluster_passes(place: Place) -> None:
    assert pass_gate("step", place.context, place.view()) == ""
    assert place.asked.asked == ["fence", "switch"]


def test_a_view_that_is_too_old_must_be_taken_again(place: Place) -> None:
    old = place.view(taken_at=place.cluster.clock.monotonic() - MAX_VIEW_AGE - 1)
    assert "s old, and at most 5 s are allowed" in pass_gate("step", place.context, old)
    assert place.asked.asked == [], "nothing else is asked for it"
    with pytest.raises(Unavailable, match=r"6\.\d s old"):
        pass_gate_again("step", place.context, old)


def test_a_view_that_names_no_cluster_must_be_taken_again(place: Place) -> None:
    assert "No source reported the cluster id" in pass_gate("step", place.context, no_ids(place.view()))


def test_a_view_of_another_cluster_is_refused(place: Place) -> None:
    with pytest.raises(WrongCluster, match="I01"):
        pass_gate("step", place.context, place.view(kafka_cluster_id="zzzzzzzzzzzzzzzzzzzzzz"))


def test_a_process_that_another_one_has_fenced_is_refused(place: Place) -> None:
    place.cluster.token += 1
    with pytest.raises(Fenced):
        pass_gate("step", place.context, place.view())
    assert place.asked.asked == ["fence"]


def test_a_fence_or_a_switch_that_cannot_be_read_lets_nothing_pass(place: Place) -> None:
    def unread() -> str:
        raise Unavailable("no answer")

    with pytest.raises(Unavailable):
        pass_gate("step", replace(place.context, stopped=unread), place.view())
    place.asked.check = unread  # type: ignore[assignment,method-assign]
    with pytest.raises(Unavailable):
        pass_gate("step", place.context, place.view())


def test_the_kill_switch_refuses_and_is_in_the_journal(place: Place) -> None:
    place.asked.switch = "Ann: disk full"
    with pytest.raises(Refused, match=r"H05.*Ann: disk full"):
        pass_gate("step", place.context, place.view())
    assert place.journal.lines == [("stopped", "Ann: disk full")]


def test_within_an_act_it_takes_a_new_view(place: Place) -> None:
    place.cluster.clock.sleep(60.0)
    pass_gate_again("step", place.context)
    assert place.asked.asked == ["fence", "switch"]


# Steps


class ActOnce(Step):
    """Acts whenever it is asked, and is done then."""

    name, fields = "act once", Fields.POSITION

    def __init__(self, verb: Verb = Verb.STOP) -> None:
        self.verb, self.acted = verb, list[float]()

    def decide(self, view: ClusterView, first: ClusterView) -> Decision:
        if view.zk is None:
            return Wait((Reason("U01", "ZooKeeper does not answer"),))
        return Done("all") if self.acted else Act(self.verb, "now")

    def act(self, context: StepContext, act: Act) -> None:
        self.acted.append(context.clock.monotonic())


def observes(place: Place, change: Callable[[ClusterView], ClusterView]) -> None:
    """Each observation from now on is changed."""
    take = place.cluster.observe
    place.cluster.observe = lambda *what: change(take(*what))  # type: ignore[method-assign]


def other_cluster(place: Place) -> None:
    observes(place, lambda view: replace(view, kafka_cluster_id="z" * 22))


def no_cluster(place: Place) -> None:
    observes(place, no_ids)


def slow_machine(place: Place) -> None:
    observes(place, lambda view: replace(view, taken_at=place.cluster.clock.monotonic() - MAX_VIEW_AGE - 1))


def newer_run(place: Place) -> None:
    place.cluster.token += 1


def switched_off(place: Place) -> None:
    place.asked.switch = "Ann"


@pytest.mark.parametrize(
    ("happens", "error"),
    [
        (other_cluster, WrongCluster),
        (no_cluster, TimedOut),
        (slow_machine, TimedOut),
        (newer_run, Fenced),
        (switched_off, Refused),
    ],
)
def test_no_step_acts_past_it(place: Place, happens: Callable[[Place], None], error: type[KMigrateError]) -> None:
    happens(place)
    step = ActOnce()
    with pytest.raises(error):
        run_step(step, place.context)
    assert (step.acted, [kind for kind, _ in place.journal.lines if kind == "act"]) == ([], [])


@pytest.mark.parametrize("verb", [Verb.STOP, Verb.START])
def test_a_stop_waits_for_the_effects_of_a_moment_without_zookeeper(place: Place, verb: Verb) -> None:
    """A start does not: it only adds."""
    blind = [True]
    observes(place, lambda view: replace(view, zk=None) if blind and blind.pop() else view)
    step, began = ActOnce(verb), place.cluster.clock.monotonic()
    step.fields |= Fields.ZOOKEEPER
    run_step(step, place.context)
    [acted] = step.acted
    assert (acted - began >= SETTLING) is (verb is Verb.STOP)


# Requests that carry no token

WRITES = {
    "elect_leaders", "create_partitions", "create_topics", "delete_topics", "delete_records", "incremental_alter_configs", "alter_configs",
    "alter_consumer_group_offsets", "delete_consumer_groups", "delete_groups", "produce",
    "DeleteGroupsRequest", "OffsetCommitRequest", "CreatePartitionsRequest", "ElectLeadersRequest", "DeleteTopicsRequest",
}  # fmt: skip
"""What changes a cluster through Kafka: of librdkafka's clients and of the wire protocol."""


def writers() -> Iterator[tuple[str, ast.FunctionDef]]:
    """The functions of the clients and steps that send one of these."""
    for folder in ("clients", "steps", "observe", "hooks", "operators"):
        for path in sorted((PACKAGE / folder).rglob("*.py")):
            for function in (each for each in ast.walk(ast.parse(path.read_text())) if isinstance(each, ast.FunctionDef)):
                sent = {each.attr for each in ast.walk(function) if isinstance(each, ast.Attribute)}
                sent |= {each.id for each in ast.walk(function) if isinstance(each, ast.Name)}
                if sent & WRITES:
                    yield f"{path.stem}.{function.name}", function


def test_each_request_that_carries_no_token_is_sent_by_a_function_that_reads_the_fence_again() -> None:
    found = dict(writers())
    assert len(found) >= 5
    for name, function in found.items():
        if name in {"offsets_log._produced", "wire_groups._commits"}:  # their only callers do
            continue
        text = ast.unparse(function)
        assert "holding.check()" in text, f"{name} sends what it may not after another run has taken the cluster"
        assert "holding" in {argument.arg for argument in function.args.args}, name


def test_no_such_request_may_arrive_later_than_the_named_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    assert brokers_admin.Admin(brokers_admin.KafkaSettings({}))._timeout <= UNFENCED_GAP
    assert tools.WIRE_TIMEOUT <= UNFENCED_GAP
    assert offsets_log._ADMIN["message.timeout.ms"] <= 1000 * UNFENCED_GAP
