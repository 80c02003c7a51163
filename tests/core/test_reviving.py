"""What a step does about controllers that are down after an act on a stalled dual-write, and what it observes next."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_kmigrate.core.decision import Act, Done, Refuse, Verb, Wait
from airflow_provider_kmigrate.core.migration.recovery import CONTROLLER_DOWN_FIELDS, StalledDualWrite, recover_dual_write
from airflow_provider_kmigrate.core.model import ClusterView, Fields, NodeFiles, Reason
from airflow_provider_kmigrate.core.rollback import still_down
from tests.core.back_views import DUAL, FLAG_FILE
from tests.core.views import DOWN, with_controller

DONE = Done("All is well.")
WAIT = Wait((Reason("R03", "not yet"),))
REFUSE = Refuse((Reason("P01", "never"),))
ONE_DOWN = with_controller(DUAL, 3001, process=DOWN, answers=False, files=NodeFiles(FLAG_FILE, has_metadata_log=True))
NEVER_ACTED, ACTED = StalledDualWrite(), StalledDualWrite(times=1)


@pytest.mark.parametrize(
    ("view", "standstill", "decision", "verb"),
    [
        (DUAL, ACTED, WAIT, None),
        (ONE_DOWN, NEVER_ACTED, WAIT, None),  # down, and not by this step
        (ONE_DOWN, ACTED, WAIT, Verb.START_CONTROLLER),
        (ONE_DOWN, ACTED, DONE, Verb.START_CONTROLLER),
        (ONE_DOWN, ACTED, REFUSE, None),
    ],
)
def test_a_controller_that_an_earlier_act_left_down_is_started(
    view: ClusterView, standstill: StalledDualWrite, decision: Done | Wait | Refuse, verb: Verb | None
) -> None:
    found = recover_dual_write(view, decision, standstill, still_down(view))[0]
    if verb is None:
        assert found == decision
    else:
        assert isinstance(found, Act)
        assert found.verb is verb


@pytest.mark.parametrize(
    ("view", "standstill", "wants"),
    [
        (DUAL, NEVER_ACTED, Fields(0)),
        (DUAL, ACTED, Fields(0)),  # all answer
        (ONE_DOWN, NEVER_ACTED, Fields(0)),
        (ONE_DOWN, ACTED, CONTROLLER_DOWN_FIELDS),
        (replace(ONE_DOWN, controllers={}), ACTED, Fields(0)),
    ],
)
def test_what_is_observed_beside_the_steps_own(view: ClusterView, standstill: StalledDualWrite, wants: Fields) -> None:
    assert recover_dual_write(view, WAIT, standstill, still_down(view))[2] & CONTROLLER_DOWN_FIELDS == wants
