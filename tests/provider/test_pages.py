"""The pages in Airflow's API server, on Airflow's own database and authentication: who sees what, how old it is, and that nothing acts."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.models.hitl import HITLDetail
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from fastapi.testclient import TestClient
from sqlalchemy import select, update

from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.migration.plan_document import TITLES, PlanOf, seal
from airflow_provider_kmigrate.core.monitoring.explanation import render_explanation
from airflow_provider_kmigrate.core.monitoring.status import Doing, StepFacts, describe_task_end
from airflow_provider_kmigrate.core.reasons import ENTRIES
from airflow_provider_kmigrate.pages import database
from airflow_provider_kmigrate.pages.plugin import KMigratePlugin
from airflow_provider_kmigrate.pages.text import render_cluster
from airflow_provider_kmigrate.steps.prepare import observe_preflight, plan_from_here
from airflow_provider_kmigrate.utils.status_xcom import PLAN_DOCUMENT, plan_key
from tests.commands.situations import SITUATIONS, observe
from tests.core.next_moves import NEXT, WORDS, count_words_to_next_move
from tests.pages.rules import Tags
from tests.pages.statuses import make_document
from tests.provider.stored_pages import log_in, read, show_plainly
from tests.steps import phases
from tests.steps.sim import SimCluster
from tests.trees import ROOT

pytestmark = pytest.mark.usefixtures("nothing_stored")
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)> {{ 7*7 }}"
VIEWER = SimpleAuthManagerUser(username="user-viewer", role="viewer")
ROUTES = ("fleet", "cluster/sim", "dag/kmigrate_watch__sim", "plan/sim", "runbook/G05")


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return make_document(tmp_path_factory.mktemp("sim"), owner={"run": "kmigrate_zk_to_kraft__sim/manual", "is_alive": True})


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    cluster = SimCluster()
    context = cluster.context(tmp_path_factory.mktemp("plan"))
    phases.untouched(cluster, context)
    return plan_from_here(context, observe_preflight(context))


class TestRights:
    @pytest.mark.parametrize("route", ROUTES)
    def test_without_a_login_nothing_is_served(self, pages: TestClient, route: str) -> None:
        assert "sim" not in read(pages, route, 401)
        pages.headers["Authorization"] = "Bearer forged"
        assert "sim" not in read(pages, route, 403)

    def test_a_user_without_rights_sees_no_cluster(
        self, pages: TestClient, store: Callable[..., None], document: dict[str, Any]
    ) -> None:
        store(document)
        log_in(pages, None)
        assert "sim" not in read(pages, "fleet")
        no_right, none_there = read(pages, "cluster/sim", 403), read(pages, "cluster/none", 403)
        assert no_right == none_there, "it is not said whether there is such a cluster"
        for route in ("plan/sim", "dag/kmigrate_watch__sim"):
            assert "sim" not in read(pages, route, 403)

    def test_rights_are_those_of_each_dag(
        self, pages: TestClient, store: Callable[..., None], document: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store(document)
        store(document | {"cluster": "secret"}, "kmigrate_watch__secret")
        log_in(pages)
        assert "/cluster/secret" in read(pages, "fleet")
        manager = get_auth_manager()
        monkeypatch.setattr(manager, "get_authorized_dag_ids", lambda **_: {"kmigrate_watch__sim"})
        assert "secret" not in read(pages, "fleet"), "although what was read is still kept for others"
        assert "/cluster/sim" in read(pages, "fleet")
        read(pages, "cluster/secret", 403)
        monkeypatch.setattr(manager, "is_authorized_dag", lambda **_: False)
        assert "/cluster/sim" not in read(pages, "fleet"), "who may see a DAG, but not its XComs, sees no status"

    def test_pages_run_nothing_and_are_kept_nowhere(
        self, pages: TestClient, store: Callable[..., None], document: dict[str, Any]
    ) -> None:
        store(document)
        log_in(pages)
        for route in ("fleet", "cluster/sim", "runbook/G05"):
            answer = pages.get(f"/kmigrate/{route}")
            assert answer.headers["content-security-policy"].startswith("default-src 'none'; ")
            assert answer.headers["cache-control"] == "no-store"
            tags = Tags(answer.text)
            assert (tags.wrong, tags.open) == ([], [])
            assert {tag for tag, _ in tags.seen} & {"img", "iframe", "object", "link", "base", "form"} == set()
            assert [attrs for tag, attrs in tags.seen if tag == "script"] == [{}], "one script, of which the policy has the hash"


class TestTheClusterPage:
    def test_it_answers_whether_we_can_go_back_and_draws_the_ten_stations(
        self, pages: TestClient, store: Callable[..., None], document: dict[str, Any]
    ) -> None:
        store(document)
        log_in(pages)
        page = read(pages, "cluster/sim")
        assert '<p class="return well">yes, ' in page
        assert ", loses nothing</p>" in page
        assert page.count('<span class="state">') == 10
        assert page.count("<b>point of no return</b>") == 1
        assert "second roll" in page.split('aria-current="step">')[1][:20]
        assert "Judged by kmigrate_watch__sim/watch, " in page
        assert "No action is required" in page
        assert read(pages, "dag/kmigrate_watch__sim").count("<b>point of no return</b>") == 1

    def test_an_alarm_stands_above_the_stations_with_its_page(
        self, pages: TestClient, store: Callable[..., None], document: dict[str, Any]
    ) -> None:
        alarm = {"code": "R01", "text": "Broker 1 does not answer.", "means": "m", "do": "Start it.", "is_certain": True}
        store(document | {"alarms": [alarm]})
        log_in(pages)
        page = read(pages, "cluster/sim")
        assert page.index('href="/kmigrate/runbook/R01"') < page.index("Stations")
        assert "No action is required" not in page
        fleet = read(pages, "fleet")
        assert 'class="light act"' in fleet
        assert "1 cluster, 1 of which needs you" in fleet
        assert '<a href="/kmigrate/runbook/R01">[R01]</a> Start it.' in fleet

    def test_a_migration_that_no_run_continues_is_not_well(
        self, pages: TestClient, store: Callable[..., None], document: dict[str, Any]
    ) -> None:
        store(document | {"owner": None})
        log_in(pages)
        assert "Next: Start a run of kmigrate_zk_to_kraft__sim to continue" in read(pages, "cluster/sim")
        assert 'href="/dags/kmigrate_zk_to_kraft__sim">Open it</a>' in read(pages, "fleet")

    def test_markup_of_others_is_text(self, pages: TestClient, store: Callable[..., None], document: dict[str, Any]) -> None:
        hostile = copy.deepcopy(document)
        hostile["alarms"] = [{"code": "R01", "text": HOSTILE, "means": HOSTILE, "do": HOSTILE, "is_certain": True}]
        hostile |= {"phase": HOSTILE, "phase_text": HOSTILE, "unread": [HOSTILE], "owner": {"run": HOSTILE, "is_alive": False}}
        hostile["nodes"][0] |= {"state": HOSTILE, "unit": HOSTILE, "node": HOSTILE}
        hostile["rollback"] |= {"text": HOSTILE, "loses": [HOSTILE]}
        store(hostile)
        log_in(pages)
        for page in (read(pages, "cluster/sim"), read(pages, "fleet")):
            assert "&lt;script&gt;" in page
            assert [tag for tag, _ in Tags(page).seen if tag in {"script", "img"}] == ["script"], "its own"
            assert "<script>alert" not in page
            assert "{{ 7*7 }}" in page

    def test_a_forged_status_is_said_to_be_one(
        self, pages: TestClient, store: Callable[..., None], document: dict[str, Any]
    ) -> None:
        store(document | {"cluster": "prod", "phase": "all is well"})
        log_in(pages)
        page = read(pages, "cluster/sim")
        assert "A stored status is not shown" in page
        assert "It names another cluster than its DAG." in page
        assert "all is well" not in page

    @pytest.mark.parametrize(
        ("state", "shown"),
        [
            ("failed", ("act", "Read the log of the task that failed.")),
            ("up_for_retry", ("look", "Nothing yet: broker 1 failed, and Airflow runs it again.")),
            (None, ("look", "Nothing yet: broker 1 failed, and Airflow runs it again.")),
        ],
    )
    def test_a_task_that_was_killed_cleared_or_will_be_tried_again_is_shown_as_airflow_has_it(
        self,
        pages: TestClient,
        store: Callable[..., None],
        document: dict[str, Any],
        state: str | None,
        shown: tuple[str, str],
    ) -> None:
        light, move = shown
        step = StepFacts("broker 1", Doing.WAITS if state == "failed" else Doing.FAILED, "It starts.")
        store(document | {"step": describe_task_end(SimCluster().spec, time.time(), step)["step"]})
        with create_session() as session:
            session.execute(update(TaskInstance).where(TaskInstance.dag_id == "kmigrate_watch__sim").values(state=state))
        log_in(pages)
        fleet = show_plainly(read(pages, "fleet"))
        assert (f'class="light {light}"' in read(pages, "fleet"), move in fleet) == (True, True)
        assert ("Stopped: broker 1" in read(pages, "cluster/sim")) is (state == "failed")

    def test_older_than_an_hour_it_says_nothing_of_now(
        self, pages: TestClient, store: Callable[..., None], document: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store(document)
        log_in(pages)
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now + 7_200)
        page = read(pages, "cluster/sim")
        assert '<p class="return unknown">yes, ' in page
        assert ", as of then</p>" in page
        assert "older than an hour, it says nothing of now" in page
        assert "No action is required" not in page
        assert 'class="light old"' in read(pages, "fleet")

    def test_a_page_from_what_is_kept_takes_less_than_half_a_second(
        self, pages: TestClient, store: Callable[..., None], document: dict[str, Any]
    ) -> None:
        store(document)
        log_in(pages)
        read(pages, "cluster/sim")
        began = time.monotonic()
        read(pages, "cluster/sim")
        assert time.monotonic() - began < 0.5


class TestThePlanPage:
    def test_the_plan_of_a_preflight_is_shown(self, pages: TestClient, store: Callable[..., None], plan: dict[str, Any]) -> None:
        store(plan, "kmigrate_preflight__sim", PLAN_DOCUMENT)
        log_in(pages)
        page = read(pages, "plan/sim")
        assert plan["fingerprint"] in page
        assert "Plan of sim: ZooKeeper to KRaft" in page

    @pytest.mark.slow
    @pytest.mark.parametrize("of", list(PlanOf))
    def test_each_kind_has_its_page_and_the_cluster_links_it(
        self, pages: TestClient, store: Callable[..., None], plan: dict[str, Any], document: dict[str, Any], of: PlanOf
    ) -> None:
        store(document)
        store(seal(plan | {"of": str(of)}), "kmigrate_own__sim", plan_key(of))
        log_in(pages)
        assert f"Plan of sim: {TITLES[of]}" in read(pages, f"plan/sim?of={of}")
        assert f'/plan/sim?of={of}">' in read(pages, "cluster/sim")
        read(pages, "plan/sim?of=other", 422)

    def test_a_kind_that_is_not_stored_is_said_with_the_command_that_makes_it(
        self, pages: TestClient, store: Callable[..., None], document: dict[str, Any]
    ) -> None:
        store(document | {"cluster": "bare"}, "kmigrate_watch__bare")
        log_in(pages)
        for of in PlanOf:
            page = read(pages, f"plan/bare?of={of}")
            assert "no plan is stored" in page
            assert f"kmigrate plan --of {of} " in page

    def test_a_plan_under_the_key_of_another_kind_is_not_shown(
        self, pages: TestClient, store: Callable[..., None], plan: dict[str, Any]
    ) -> None:
        store(plan, "kmigrate_rollback__sim", plan_key(PlanOf.ROLLBACK))
        log_in(pages)
        assert "the stored plan is not shown" in read(pages, "plan/sim?of=rollback")

    @pytest.mark.parametrize(
        "change", [{"inputs": {}}, {"cluster": "prod"}, {"stages": [{"stage": HOSTILE}]}, {"kind": "status"}]
    )
    def test_an_altered_one_is_not(
        self, pages: TestClient, store: Callable[..., None], plan: dict[str, Any], change: dict[str, Any]
    ) -> None:
        store(plan | change, "kmigrate_preflight__sim", PLAN_DOCUMENT)
        log_in(pages)
        page = read(pages, "plan/sim")
        assert "the stored plan is not shown" in page
        assert plan["fingerprint"] not in page

    def test_one_that_no_page_can_show_ends_no_page(
        self, pages: TestClient, store: Callable[..., None], plan: dict[str, Any]
    ) -> None:
        store(seal(plan | {"seconds": dict.fromkeys(plan["seconds"], 10**400)}), "kmigrate_preflight__sim", PLAN_DOCUMENT)
        log_in(pages)
        assert "the stored plan is not shown" in read(pages, "plan/sim")


class TestSituations:
    """Nine situations of an on-call engineer: the page has the next move that the command has, and no other."""

    @pytest.mark.slow
    @pytest.mark.parametrize("name", SITUATIONS)
    def test_the_page_has_the_next_move_of_the_command(
        self, pages: TestClient, store: Callable[..., None], tmp_path: Path, name: str
    ) -> None:
        seen = observe(SITUATIONS[name], tmp_path)
        store(seen.status)
        if seen.step is not None and not seen.status["alarms"]:
            step = StepFacts(seen.step.id, Doing.WAITS, "", getattr(seen.step.decision, "reasons", ()), limit=seen.step.alarm)
            store(describe_task_end(seen.context.spec, time.time(), step), "kmigrate_zk_to_kraft__sim", state="deferred")
        log_in(pages)
        page = show_plainly(read(pages, "cluster/sim"))
        move = NEXT.search(why := render_explanation(seen.document))
        assert ("light act" in read(pages, "fleet")) is bool(seen.status["alarms"])
        for condition in seen.document["conditions"]:
            assert f"[{condition['code']}] {condition['text']}" in page
        if move is None:
            assert "Next: " not in page, why
            assert "An alarm after " in page
        else:
            before, said, _ = page.partition(move.group().strip().replace("`", ""))
            assert said
            assert len((before + said).split()) <= WORDS, before + said

    def test_another_runs_lock_is_shown_with_its_owner_and_the_next_move_of_the_command(
        self, pages: TestClient, store: Callable[..., None], document: dict[str, Any]
    ) -> None:
        owned = Reason("H01", "The cluster is owned by run back; no process of it is alive.")
        spec = SimCluster().spec
        store(document)
        stopped = StepFacts("backup", Doing.FAILED, str(owned), (owned,))
        store(describe_task_end(spec, time.time(), stopped), "kmigrate_zk_to_kraft__sim", state="failed")
        page, command = self._read_both(pages)
        assert "Stopped: backup [H01] The cluster is owned by run back; no process of it is alive. Next: " in page
        move = NEXT.search(command)
        assert move
        assert move.group().strip().replace("`", "") in page
        assert count_words_to_next_move(command) <= WORDS
        assert 'class="light act"' in read(pages, "fleet")

    def test_a_request_that_waits_is_shown_with_the_link_to_its_answer(
        self, pages: TestClient, store: Callable[..., None], document: dict[str, Any]
    ) -> None:
        store(document)
        store(document, "kmigrate_zk_to_kraft__sim")
        with create_session() as session:
            newest = select(TaskInstance).where(
                TaskInstance.dag_id == "kmigrate_zk_to_kraft__sim", TaskInstance.task_id == "watch"
            )
            task = session.scalars(newest.order_by(TaskInstance.start_date)).all()[-1]
            task.state = "deferred"
            asked = {"subject": "Finalize sim?", "options": ["Finalize"], "multiple": False, "params": {}}
            session.add(HITLDetail(ti_id=task.id, **asked))
        page, command = self._read_both(pages)
        assert "An answer is waited for, since " in page
        assert "Finalize sim?" in page
        assert "Next: read the request and answer it" in page
        assert "/tasks/watch/required_actions" in read(pages, "cluster/sim")
        assert "Waits for an answer: Finalize sim?" in command
        assert "Next: read the request and answer it" in command
        assert count_words_to_next_move(command) <= WORDS
        fleet = read(pages, "fleet")
        assert 'class="light answer"' in fleet
        assert "Answer the request: Finalize sim?" in fleet
        assert '/tasks/watch/required_actions">Open it</a>' in fleet

    @staticmethod
    def _read_both(pages: TestClient) -> tuple[str, str]:
        """The page of the cluster, and what `kmigrate status` shows of the same statuses."""
        log_in(pages)
        page = show_plainly(read(pages, "cluster/sim"))
        (status,) = (each for each in database.read_clusters(VIEWER) if each.cluster == "sim")
        return page, render_cluster(status)


@pytest.mark.slow
def test_each_code_has_a_page(pages: TestClient) -> None:
    log_in(pages, None)
    for code, entry in ENTRIES.items():
        assert f"<h1>{code}: " in read(pages, f"runbook/{code}"), entry.title
    assert read(pages, "runbook/g05") == read(pages, "runbook/G05")
    read(pages, "runbook/X99", 404)


def test_airflow_is_told_where_the_pages_are() -> None:
    assert "kmigrate = airflow_provider_kmigrate.pages.plugin:KMigratePlugin" in (ROOT / "setup.cfg").read_text()
    assert {view["destination"] for view in KMigratePlugin.external_views} == {"nav", "dag", "dag_run"}
    assert {view["href"].split("{")[0] for view in KMigratePlugin.external_views} == {"/kmigrate/fleet", "/kmigrate/dag/"}
    json.dumps(KMigratePlugin.external_views)
