"""No gate of any module opens on a view in which nothing was read; the gates are found in the code, so that a new one is tried too."""

import inspect
from collections.abc import Callable
from types import ModuleType

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import Broker, ClusterView, Controller
from airflow_provider_kmigrate.core.migration import controllers, coordinator, gates, handover, readiness, roll, rollback, waits
from airflow_provider_kmigrate.core.migration.gates import Gate, GateState
from airflow_provider_kmigrate.core.migration.phase import Intent
from airflow_provider_kmigrate.core.migration.readiness import ReadinessAsk
from airflow_provider_kmigrate.core.migration.rollback import RollbackTerms

MODULES = (gates, roll, coordinator, readiness, rollback, waits, controllers, handover)
UNREAD = ClusterView(0.0, brokers={b: Broker(b) for b in range(3)}, controllers={c: Controller(c) for c in (3000, 3001, 3002)})
GIVEN = {
    "view": UNREAD,
    "before": UNREAD,
    "first": UNREAD,
    "node": UNREAD.brokers[1],
    "controller": UNREAD.controllers[3000],
    "broker": 1,
    "ids": (1,),
    "limit": 10,
    "intent": Intent.FINALIZE,
    "stop_seconds": 30.0,
    "ask": ReadinessAsk(),
    "terms": RollbackTerms(),
    "approved": {"files": "x"},
    "compared": True,
    "judged_at": -1e9,  # long ago
    "now": 1.0,
    "began": 0.0,
    "ensemble": None,
}
TYPED = {"Broker": UNREAD.brokers[1]}
OPEN_ON_PURPOSE = {
    "software_unchanged": "what replaced a node's software is not known of an old agent: a restart is not held by it",
    "one_release_runs": "what a node runs is not known of an old agent, or of a container: a restart is not held by it",
    "controllers_unresponsive": "after a handover; a controller that lives writes /migration, which is checked beside it",
    "topics_not_expanded": "`answers_agree`, beside it in `brokers_agree`, says that the answers are not known",
    "files_in_stage": "a node that does not answer has no mode to compare its file with; R01 and G23 name it",
    "no_broker_fenced": "of the brokers that answer; R01 names the others",
    "leaders_moved_by_stop": "the broker is down: partitions that were not read do not keep it down",
}
COMBINES = {"combine_gates", "combine_into_gate", "never", "never_if", "not_yet", "not_yet_if"}  # of gates, not over a view


def is_gate(member: object, module: ModuleType) -> bool:
    """Whether a member of a module is its own public function that answers a `Gate`."""
    if not inspect.isfunction(member) or member.__module__ != module.__name__ or member.__name__.startswith("_"):
        return False
    return str(member.__annotations__.get("return")).split(".")[-1] == Gate.__name__ and member.__name__ not in COMBINES


GATES = {name: member for module in MODULES for name, member in inspect.getmembers(module, lambda m, of=module: is_gate(m, of))}


def ask_blindly(gate: Callable[..., Gate]) -> Gate:
    """What a gate answers about the unread view. An argument that this table does not have fails: say what is unread of it."""
    parameters = inspect.signature(gate).parameters.values()
    positional = [
        TYPED.get(p.annotation) or GIVEN[p.name] for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD
    ]
    keywords = {p.name: GIVEN[p.name] for p in parameters if p.default is p.empty and p.kind is p.KEYWORD_ONLY}
    return gate(*positional, **keywords)


def test_the_gates_of_the_core_are_found():
    assert len(GATES) > 40
    assert set(OPEN_ON_PURPOSE) <= set(GATES)


@pytest.mark.parametrize("name", sorted(GATES))
def test_a_gate_is_closed_while_nothing_was_read(name):
    answer = ask_blindly(GATES[name])
    assert (answer.state is GateState.MET) is (name in OPEN_ON_PURPOSE)
    assert answer.met or answer.reasons
