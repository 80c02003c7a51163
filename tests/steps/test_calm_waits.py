"""A wait that follows kmigrate's own act says what is expected, and what to do only once it lasts; no text is there twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, Reason
from airflow_provider_kmigrate.core.cluster_state.spec import Policy
from airflow_provider_kmigrate.core.migration.plan import MIGRATION
from airflow_provider_kmigrate.exceptions import TimedOut
from airflow_provider_kmigrate.steps.catalog import run_plan
from airflow_provider_kmigrate.steps.journal import EXPECTED_FOR, format_expected_wait, format_reason_lines
from airflow_provider_kmigrate.steps.run import run_step
from tests.steps.canary_broker import CANARY, ready, step
from tests.steps.sim import SimCluster
from tests.steps.sim_nodes import Health, well

TARGET = BrokerMode.MIGRATION


def said_in_a_restart(tmp_path: Path, *, answers_after: int | None) -> list[tuple[float, str]]:
    """The log of a roll of one broker, with the seconds since its restart (below 0 before it); None: it never answers again."""
    cluster = ready(tmp_path, TARGET)
    cluster.spec = replace(cluster.spec, policy=Policy(canary_bake=0.0, start_timeout=300.0))
    begins: list[int] = []
    said: list[tuple[float, str]] = []
    acted_at: list[float] = []

    def starting(broker: int, mode: BrokerMode, observation: int) -> Health:
        if (broker, mode) != (CANARY, TARGET):
            return well(broker, mode, observation)
        begins.append(observation)
        return Health(0.005 if answers_after is not None and observation - begins[0] >= answers_after else None)

    def say(text: str) -> None:
        if text.startswith("Did 'restart"):
            acted_at.append(cluster.clock.time)
        said.append((cluster.clock.time - acted_at[-1] if acted_at else -1.0, text))

    cluster.health = starting
    context = replace(cluster.context(tmp_path), say=say)
    if answers_after is None:
        with pytest.raises(TimedOut):
            run_step(step(cluster, TARGET), context)
    else:
        run_step(step(cluster, TARGET), context)
    return said


def test_a_healthy_restart_prints_no_remedy(tmp_path: Path) -> None:
    after = [text for seconds, text in said_in_a_restart(tmp_path, answers_after=20) if seconds >= 0]
    assert any("expected after kmigrate's own 'restart" in text for text in after)
    assert not [text for text in after if "Next:" in text or "start it" in text]


def test_a_healthy_migration_reports_nothing_as_unread(tmp_path: Path) -> None:
    """What only the end of a soak or a gate needs is read before it is judged: it was never missing."""
    cluster = SimCluster()
    cluster.spec = replace(cluster.spec, policy=Policy(min_soak=60.0))
    said: list[str] = []
    run_plan(replace(cluster.context(tmp_path), say=said.append), MIGRATION)
    assert any("Soaking: healthy for 0 of 60 s" in text for text in said)
    assert not [text for text in said if "[G00]" in text or "[K02]" in text or "not read" in text]


def test_a_broker_that_stays_away_is_a_remedy_after_the_alarm_time(tmp_path: Path) -> None:
    waits = [(seconds, text) for seconds, text in said_in_a_restart(tmp_path, answers_after=None) if text.startswith("Waiting")]
    early = [text for seconds, text in waits if 0 <= seconds < EXPECTED_FOR]
    late = [text for seconds, text in waits if seconds >= EXPECTED_FOR]
    assert early
    assert not [text for text in early if "Next:" in text]
    assert any("[R01]" in text and f"Next: {Reason('R01', '').next_step.partition('?')[0]}" in text for text in late)
    first_late = min(seconds for seconds, text in waits if "Next:" in text and seconds >= 0)
    assert first_late < EXPECTED_FOR + 10, "it is said as soon as the time is over, not with the next change"


def test_what_a_code_means_and_what_to_do_is_said_once() -> None:
    reasons = (Reason("R01", "Broker 1 does not answer."), Reason("R01", "Broker 1 at kafka1:9092 did not answer: refused"))
    text = format_reason_lines(reasons)
    assert text.count("Next:") == 1
    assert text.count(reasons[0].meaning) == 1
    assert "kafka1:9092" in text


def test_a_remedy_of_its_own_is_said_beside_the_other() -> None:
    text = format_reason_lines((Reason("R01", "Broker 1 does not answer."), Reason("R01", "Broker 2.", remedy="Wait for it.")))
    assert text.count("Next:") == 2


def test_an_expected_wait_names_its_usual_time() -> None:
    text = format_expected_wait((Reason("R01", "Broker 1 does not answer."),), "restart broker 1", 6.2)
    assert text == (
        "expected after kmigrate's own 'restart broker 1' (usually over within 6 s, what to do is said after 120 s): "
        "[R01] Broker 1 does not answer."
    )
