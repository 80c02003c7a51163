"""What was stored in Airflow is checked before it is shown: its age, its schema, and whether it can be a task's own."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import jsonschema  # type: ignore[import-untyped]
import pytest

from airflow_provider_kmigrate.cli import main
from airflow_provider_kmigrate.commands import status as status_command
from airflow_provider_kmigrate.core.cluster_state.model import Cause, Fields, Reason, ServiceUnit
from airflow_provider_kmigrate.core.migration.durations import Work
from airflow_provider_kmigrate.core.migration.migration_plan import plan_migration
from airflow_provider_kmigrate.core.migration.plan_facts import PlanFacts
from airflow_provider_kmigrate.core.monitoring.status import (
    MOST_BYTES,
    Doing,
    StepFacts,
    describe_step_status,
    describe_task_end,
    shorten_document,
)
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, Failed, KMigrateError, Unavailable
from airflow_provider_kmigrate.pages import rest
from airflow_provider_kmigrate.pages.rest import read_statuses
from airflow_provider_kmigrate.pages.stored import ClusterStatus, Light, StoredStatus, check_stored, combine, status_schema
from airflow_provider_kmigrate.pages.text import render_cluster, render_table
from airflow_provider_kmigrate.utils.status_xcom import STATUS, StatusTimer, StatusXCom
from tests.core.preflight_views import healthy
from tests.pages.statuses import FakeAirflow, make_document, make_row
from tests.steps.sim import SimCluster
from tests.trees import ROOT

NOW = round(1000 * time.time())
PROGRESS = {"done": 1, "of": 2, "next": "broker 1", "stage": "roll", "soak_seconds": 0.0}
FAILED_STEP = {
    "name": "roll", "doing": "failed", "text": "x", "reasons": [], "since_ms": NOW, "usual_seconds": None, "alarm_seconds": None,
    "seconds_left": None,
}  # fmt: skip
HOSTILE = "evil\x1b[31m <script>alert(1)</script>\n[R01] forged"


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    owner = {"run": "kmigrate_zk_to_kraft__sim/manual", "is_alive": True}
    return make_document(tmp_path_factory.mktemp("sim"), at_ms=NOW, owner=owner)


def only(*rows: StoredStatus, **more: Any) -> ClusterStatus:
    (status,) = combine([check_stored(row, NOW) for row in rows], more.get("requests", ()), NOW)
    return status


class TestTheSchema:
    def test_the_file_is_that_of_the_code(self) -> None:
        kept = json.loads((ROOT / "airflow_provider_kmigrate/pages/status_schema.json").read_text())
        assert kept == status_schema(), "write it again: pages.stored.status_schema"

    @pytest.mark.parametrize("phase", ["untouched", "controllers", "some_in_migration", "some_kraft", "all_kraft", "forward"])
    def test_each_phase_fits_it_and_the_limit(self, tmp_path: Path, phase: str) -> None:
        made = make_document(tmp_path, phase, at_ms=NOW)
        jsonschema.validate(made, status_schema())
        assert check_stored(make_row(made, NOW), NOW).problem == ""
        assert len(json.dumps(made)) < MOST_BYTES

    def test_the_status_of_a_step_and_of_a_task_fit_it(self, tmp_path: Path) -> None:
        cluster = SimCluster()
        context = cluster.context(tmp_path)
        step = StepFacts(
            "broker 1 to kraft",
            Doing.WAITS,
            "",
            (Reason("R05", "out of 2 ISRs", cause=Cause.OUT_OF_ISR),),
            4.0,
            6.0,
            float("inf"),
        )
        view = context.observer.observe(~type(step.fields)(0))
        for made in (
            describe_step_status(context.spec, view, NOW / 1000, replace(step, fields=~type(step.fields)(0))),
            describe_step_status(context.spec, view, NOW / 1000, step),
            describe_task_end(context.spec, NOW / 1000, step),
        ):
            json.loads(json.dumps(made, allow_nan=False))
            jsonschema.validate(made, status_schema())
            assert check_stored(make_row(made, NOW), NOW).problem == ""

    def test_what_is_left_goes_by_the_restarts_that_the_journals_have(self) -> None:
        view, facts = healthy(3)
        step = StepFacts("broker 1 to kraft", Doing.WAITS, fields=Fields.POSITION)
        assumed, measured = (
            describe_step_status(facts.spec, view, 0.0, each)["progress"]["seconds_left"]
            for each in (step, replace(step, task_seconds={Work.RESTART: [100.0, 110.0, 400.0]}))
        )
        each = plan_migration(PlanFacts(facts.spec, view, {}, None))["restart_seconds"]["expected"]
        assert measured - assumed == pytest.approx(6 * (110.0 - each))

    def test_no_secret_of_a_nodes_file_or_unit_is_in_it(self) -> None:
        view, facts = healthy(3)
        canary = "canary-5up3r-s3cret"
        broker = view.broker(1)
        files = replace(broker.files, properties={**(broker.files.properties or {}), "ssl.keystore.password": canary})
        unit = ServiceUnit({"Id": "kafka.service", "Environment": canary, "ExecStart": canary})
        broker = replace(broker, files=files, process=replace(broker.process, unit=unit))
        step = StepFacts("broker 1 to kraft", Doing.WAITS, fields=Fields.POSITION)
        made = describe_step_status(facts.spec, replace(view, brokers={**view.brokers, 1: broker}), NOW / 1000, step)
        assert "kafka.service" in json.dumps(made), "the unit's name was read from where the secret stands, too"
        assert canary not in json.dumps(made)

    def test_a_large_one_is_cut_to_the_limit_and_says_so(self, document: dict[str, Any]) -> None:
        nodes = [document["nodes"][0] | {"node": f"broker {number}", "is_well": number != 7} for number in range(200)]
        alarms = [{"code": "R01", "text": "x" * 3000, "means": "m" * 900, "do": "d" * 900, "is_certain": True}] * 60
        short = shorten_document(document | {"nodes": nodes, "alarms": alarms})
        assert len(json.dumps(short).encode()) <= MOST_BYTES
        assert [node["node"] for node in short["nodes"]] == ["broker 7"], "what is not well stays"
        assert short["left_out"] >= 199
        jsonschema.validate(short, status_schema())

    @pytest.mark.parametrize("sign", ["a", "é", "群", "😀", '"', "\x01"])
    def test_whatever_names_are_made_of_it_fits_and_is_its_clusters(self, document: dict[str, Any], sign: str) -> None:
        """JSON writes one character of a group's name as up to twelve bytes."""
        text, name = sign * 3_000, "c" * 100
        alarms = [{"code": "R01", "text": text, "means": text, "do": text, "is_certain": True}] * 60
        rollback = document["rollback"] | {
            "text": text,
            "loses": [text] * 60,
            "reasons": [{"code": "R01", "text": text, "fixed_by": text}] * 60,
        }
        step = FAILED_STEP | {"text": text, "reasons": [{"code": "R01", "text": text, "do": text}] * 60}
        nodes = [node | {"is_well": False, "state": text, "unit": text} for node in document["nodes"]] * 20
        full = {"alarms": alarms, "rollback": rollback, "step": step, "nodes": nodes, "unread": [text] * 60}
        full |= {"under_way": [{"node": "broker 1", "text": text}] * 60, "owner": {"run": text, "is_alive": True}}
        short = shorten_document(document | full | {"cluster": name})
        entry = check_stored(make_row(short, NOW, f"kmigrate_watch__{name}"), NOW)
        assert (entry.problem, short["cluster_id"]) == ("", document["cluster_id"])


BROKEN: dict[str, tuple[Any, str]] = {
    "text": ("hello", "no JSON"),
    "a number": (7, "malformed"),
    "none": (None, "malformed"),
    "another kind": ({"kind": "migration plan"}, "malformed"),
    "another cluster": ({"cluster": "prod"}, "another cluster"),
    "another version": ({"version": 1}, "malformed"),
    "more than the schema": ({"script": "<script>"}, "malformed"),
    "a wrong type": ({"nodes": "all well"}, "malformed"),
    "a level of no one": ({"rollback": {"level": "perfect", "text": "", "seconds": 0, "loses": [], "reasons": []}}, "malformed"),
    "of the future": ({"at_ms": NOW + 7_200_000}, "differ"),
    "a copy of yesterday's": ({"at_ms": NOW - 86_400_000}, "differ"),
    "too large": ({"unread": ["x" * MOST_BYTES]}, "larger"),
    "deep": ("[" * 100_000, "no JSON"),
    "more seconds than any page can show": ({"progress": PROGRESS | {"seconds_left": 1e308}}, "malformed"),
    "no number of seconds": ({"progress": PROGRESS | {"seconds_left": float("nan")}}, "malformed"),
    "a step that takes for ever": ({"step": FAILED_STEP | {"seconds_left": float("inf")}}, "malformed"),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_what_cannot_be_a_tasks_own_is_shown_as_such_and_nothing_of_it(document: dict[str, Any], broken: str) -> None:
    change, problem = BROKEN[broken]
    value = document | change if isinstance(change, dict) else change
    status = only(make_row(value, NOW), make_row(document, NOW - 60_000, task_id="earlier"))
    assert problem in status.problems[0].problem
    assert status.light is Light.LOOK, "the valid one of before is shown, and it is not well"
    shown = render_cluster(status)
    assert "A stored status of kmigrate_watch__sim/watch is not shown" in shown
    assert "<script>" not in shown
    assert only(make_row(value, NOW)).light is Light.UNKNOWN


class TestTheLight:
    def test_a_good_one_is_well(self, document: dict[str, Any]) -> None:
        assert only(make_row(document, NOW)).light is Light.WELL

    def test_older_than_an_hour_it_says_nothing_of_now(self, document: dict[str, Any]) -> None:
        then = NOW - 3_600_001
        status = only(make_row(document | {"at_ms": then}, then))
        assert status.light is Light.OLD
        assert "older than an hour" in render_cluster(status)
        assert only(make_row(document | {"at_ms": then + 2}, then + 2)).light is Light.WELL

    def test_an_alarm_wants_an_operator(self, document: dict[str, Any]) -> None:
        alarm = {"code": "R01", "text": "Broker 1 does not answer.", "means": "m", "do": "Start it.", "is_certain": True}
        status = only(make_row(document | {"alarms": [alarm]}, NOW))
        assert status.light is Light.ACT
        assert render_cluster(status).index("[R01]") < render_cluster(status).index("Rollback")

    def test_what_was_not_judged_is_not_well(self, document: dict[str, Any]) -> None:
        assert only(make_row(document | {"rollback": None}, NOW)).light is Light.LOOK
        assert only(make_row(document | {"unread": ["the partitions"]}, NOW)).light is Light.LOOK
        degraded = document["rollback"] | {"level": "degraded"}
        assert only(make_row(document | {"rollback": degraded}, NOW)).light is Light.LOOK

    def test_the_judgement_of_the_watch_stands_beside_the_newer_step_of_another_task(self, document: dict[str, Any]) -> None:
        step = {
            "name": "broker 1 to kraft", "doing": "waits", "text": "", "reasons": [{"code": "R05", "text": "Broker 1 is out of 2 ISRs.", "do": ""}],
            "since_ms": NOW - 4_000, "usual_seconds": 6.0, "alarm_seconds": 600.0, "seconds_left": 90.0,
        }  # fmt: skip
        of_task = document | {"rollback": None, "alarms": None, "unread": None, "owner": None, "under_way": None, "step": step}
        rows = make_row(document, NOW - 120_000), make_row(of_task, NOW, "kmigrate_zk_to_kraft__sim", "second_roll.broker_1")
        status = only(*rows)
        shown = render_cluster(status)
        assert "judged by kmigrate_watch__sim/watch, 2 min ago" in shown
        assert "Broker 1 is out of 2 ISRs. For 4.0 s. Usual: 6.0 s. An alarm after 10 min." in shown

    def test_a_node_that_is_not_well_is_expected_only_while_a_task_works_on_it(self, document: dict[str, Any]) -> None:
        step = {
            "name": "broker 1 to kraft", "doing": "waits", "text": "", "reasons": [], "since_ms": NOW,
            "usual_seconds": None, "alarm_seconds": None, "seconds_left": None,
        }  # fmt: skip
        for number, doing, light in ((1, "waits", Light.WELL), (1, "done", Light.LOOK), (2, "waits", Light.LOOK)):
            nodes = [node | {"is_well": node["node"] != f"broker {number}"} for node in document["nodes"]]
            of_task = document | {"nodes": nodes, "step": step | {"doing": doing}}
            assert only(make_row(of_task, NOW)).light is light

    def test_names_of_others_move_no_cursor(self, document: dict[str, Any]) -> None:
        alarm = {"code": "R01", "text": HOSTILE, "means": HOSTILE, "do": HOSTILE, "is_certain": True}
        status = only(make_row(document | {"alarms": [alarm], "phase_text": HOSTILE}, NOW))
        for shown in (render_cluster(status), render_table([status])):
            assert "\x1b" not in shown
            assert not any(line.startswith("[R01] forged") for line in shown.splitlines())


class TestByRest:
    @pytest.fixture
    def airflow(self, document: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> FakeAirflow:
        monkeypatch.setenv(rest.TOKEN, "canary-token")
        return FakeAirflow([make_row(document, NOW)], dags=("kmigrate_watch__sim", "kmigrate_preflight__late"))

    def read(self, airflow: FakeAirflow, *names: str) -> rest.Answer:
        return read_statuses("https://airflow.example", names, httpx.MockTransport(airflow))

    def test_it_has_the_token_in_the_header_and_shows_also_who_has_no_status(self, airflow: FakeAirflow) -> None:
        answer = self.read(airflow)
        assert [(status.cluster, status.light) for status in answer.clusters] == [("late", Light.UNKNOWN), ("sim", Light.WELL)]
        assert {request.headers["authorization"] for request in airflow.seen} == {"Bearer canary-token"}
        assert not any("canary" in str(request.url) for request in airflow.seen)

    def test_a_cluster_that_the_user_may_not_read_is_said_to_be_not_shown(self, airflow: FakeAirflow) -> None:
        answer = self.read(airflow, "prod")
        assert answer.clusters == []
        assert answer.notes == ["Airflow shows no DAG of prod to this user."]

    @pytest.mark.parametrize("names", [(), ("sim",)])
    def test_a_dag_of_a_users_own_with_a_clusters_name_is_a_row_of_its_own(
        self, airflow: FakeAirflow, document: dict[str, Any], names: tuple[str, ...]
    ) -> None:
        """Who may write its XComs would else speak for the cluster, and hide that it has no status."""
        airflow.rows.append(make_row(document | {"phase_text": "forged"}, NOW + 1_000, "sim", "roll"))
        airflow.rows.append(make_row(document | {"cluster": "late"}, NOW, "late", "roll"))
        airflow.dags += ("sim",)
        rows = {status.cluster: status for status in self.read(airflow, *names).clusters}
        assert rows.keys() == ({"DAG sim", "sim"} if names else {"DAG late", "DAG sim", "late", "sim"})
        assert "forged" not in render_cluster(rows["sim"])
        assert "forged" in render_cluster(rows["DAG sim"])
        if not names:
            assert rows["late"].light is Light.UNKNOWN

    def test_a_dag_of_a_users_own_is_read_by_its_id_and_names_the_dags_of_its_cluster(
        self, airflow: FakeAirflow, document: dict[str, Any]
    ) -> None:
        of_task = document | {"rollback": None, "alarms": None, "unread": None, "owner": None, "under_way": None}
        airflow.rows.append(make_row(of_task, NOW, "ours", "roll"))
        answer = self.read(airflow, "ours", "gone")
        assert [status.cluster for status in answer.clusters] == ["DAG ours"]
        assert answer.notes == ["Airflow shows no DAG of gone to this user."]
        assert "kmigrate_watch__sim" in render_table(answer.clusters)

    @pytest.mark.parametrize("code", [401, 403])
    def test_without_rights_nothing_is_shown(self, airflow: FakeAirflow, code: int) -> None:
        airflow.status = code
        with pytest.raises(AuthenticationFailed, match=str(code)):
            self.read(airflow)

    @pytest.mark.parametrize("failure", ["down", "500", "large", "another API"])
    def test_an_airflow_that_gives_no_usable_answer_is_said_to(self, airflow: FakeAirflow, failure: str) -> None:
        def answer(request: httpx.Request) -> httpx.Response:
            if failure == "down":
                raise httpx.ConnectTimeout("late", request=request)
            bodies = {"500": "{}", "large": json.dumps("x" * (5 << 20)), "another API": '{"items": []}'}
            return httpx.Response(500 if failure == "500" else 200, text=bodies[failure])

        said = {"down": "does not answer", "500": "with 500", "large": "larger than", "another API": "not what its API describes"}
        with pytest.raises(Unavailable, match=said[failure]):
            read_statuses("https://airflow.example", (), httpx.MockTransport(answer))

    @pytest.mark.parametrize(
        ("key", "row"),
        [
            *((key, row) for key in ("dags", "xcom_entries") for row in (7, None, "x", dict[str, Any]())),
            ("xcom_entries", {"dag_id": "d", "run_id": "r", "task_id": "t", "timestamp": 7}),
        ],
        ids=repr,
    )
    def test_rows_of_another_form_are_said_to_be_of_another_api(self, airflow: FakeAirflow, key: str, row: Any) -> None:
        def answer(request: httpx.Request) -> httpx.Response:
            is_asked = request.url.path.endswith("/dags" if key == "dags" else "/xcomEntries")
            return httpx.Response(200, json={key: [row], "total_entries": 1}) if is_asked else airflow(request)

        with pytest.raises(Unavailable, match="not what its API describes"):
            read_statuses("https://airflow.example", (), httpx.MockTransport(answer))

    @pytest.mark.parametrize("row", [7, None, {}, {"task_instance": {"state": "deferred", "dag_id": "kmigrate_x"}}], ids=repr)
    def test_requests_of_another_form_hide_no_status(self, airflow: FakeAirflow, row: Any) -> None:
        airflow.requests = [row]
        answer = self.read(airflow)
        assert len(answer.clusters) == 2
        assert "Whether a request for an approval waits was not read" in " ".join(answer.notes)

    @pytest.mark.parametrize("value", [7, None, []])
    def test_a_value_of_another_form_is_no_status(self, airflow: FakeAirflow, value: Any) -> None:
        def answer(request: httpx.Request) -> httpx.Response:
            return httpx.Response(200, json=value) if "/xcomEntries/" in request.url.path else airflow(request)

        statuses = read_statuses("https://airflow.example", (), httpx.MockTransport(answer)).clusters
        assert {status.light for status in statuses} == {Light.UNKNOWN}

    @pytest.mark.parametrize(
        ("state", "light", "notes"),
        [
            ("failed", Light.ACT, 0),
            ("up_for_retry", Light.LOOK, 0),
            ("", Light.LOOK, 0),
            ("403", Light.ACT, 1),
            ("404", Light.ACT, 0),
            ("another API", Light.ACT, 0),
        ],
    )
    def test_what_the_newest_task_does_is_told_by_airflow_too(
        self, airflow: FakeAirflow, document: dict[str, Any], state: str, light: Light, notes: int
    ) -> None:
        """Without its state it is what the task has written itself: here that it failed."""
        earlier = {**document, "step": {**FAILED_STEP, "doing": "acts"}}
        airflow.rows = [
            make_row(earlier, NOW - 5, "kmigrate_watch__sim", "earlier"),
            replace(make_row({**document, "step": FAILED_STEP}, NOW, "kmigrate_rollback__sim", "roll"), state=state),
        ]

        def answer(request: httpx.Request) -> httpx.Response:
            if request.url.path.endswith("/taskInstances/roll"):
                if state.isdigit():
                    return httpx.Response(int(state))
                return httpx.Response(200, json=[7]) if state == "another API" else airflow(request)
            return airflow(request)

        found = read_statuses("https://airflow.example", ("sim",), httpx.MockTransport(answer))
        assert ([status.light for status in found.clusters], len(found.notes)) == ([light], notes)
        assert not any(request.url.path.endswith("/taskInstances/earlier") for request in airflow.seen), "one request a cluster"

    @pytest.mark.parametrize("token", ["Bearer x", "tök", "a\nb", " "])
    def test_what_is_no_token_goes_nowhere(self, airflow: FakeAirflow, monkeypatch: pytest.MonkeyPatch, token: str) -> None:
        monkeypatch.setenv(rest.TOKEN, token)
        with pytest.raises(Failed, match="is no token") as error:
            self.read(airflow)
        assert token.strip() not in str(error.value) or not token.strip()
        assert airflow.seen == []

    @pytest.mark.parametrize("url", ["https://[::1", "https://user:canary@[x", "https://air flow\x00", "https://h:port"])
    def test_what_is_no_address_is_not_asked_and_not_shown(self, airflow: FakeAirflow, url: str) -> None:
        with pytest.raises(Failed, match="is no address") as error:
            read_statuses(url, (), httpx.MockTransport(airflow))
        assert "canary" not in str(error.value)

    @pytest.mark.parametrize(
        ("code", "body", "said"),
        [
            (401, "", "airflowctl auth login"),
            (403, "", "administrator of Airflow"),
            (200, " <!DOCTYPE html><title>Log in</title>", "is a web page. A proxy or its login page"),
            (302, "", "A proxy or its login page answers"),
            (404, '{"detail": "Not Found"}', "the address lacks a part"),
            (429, "", "wait a minute"),
            (503, "<h1>upstream</h1>", "read its log"),
        ],
    )
    def test_each_answer_of_no_use_says_what_to_do(self, airflow: FakeAirflow, code: int, body: str, said: str) -> None:
        with pytest.raises(KMigrateError, match=re.escape(said)) as error:
            read_statuses("https://airflow.example", (), httpx.MockTransport(lambda _: httpx.Response(code, text=body)))
        assert "canary-token" not in str(error.value)

    def test_a_file_is_no_name_of_a_cluster(self, airflow: FakeAirflow, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit, match="2"):
            status_command.main(["--airflow-url", "https://airflow.example", "clusters/prod.yaml"])
        assert "name the cluster, not its file: prod, not clusters/prod.yaml" in capsys.readouterr().err
        assert airflow.seen == []

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("HTTPS_PROXY", "socks5://user:canary-pw@h:1"),
            ("HTTPS_PROXY", "ftp://user:canary-pw@h:1"),
            ("ALL_PROXY", "http://user:canary-pw@[::1"),
            ("NO_PROXY", "[::1"),
            ("SSL_CERT_FILE", "/canary-pw/absent"),
        ],
    )
    def test_a_proxy_or_certificates_of_no_use_are_named_and_no_password(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, value: str
    ) -> None:
        monkeypatch.setenv(rest.TOKEN, "canary-token")
        monkeypatch.setenv("HTTPS_PROXY", "http://h:1")
        monkeypatch.setenv(name, value)
        assert main(["status", "--airflow-url", "https://airflow.example", "--all"]) == 2
        said = capsys.readouterr().err
        assert name in said
        assert "canary" not in said

    def test_without_a_token_nothing_is_asked(self, airflow: FakeAirflow, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv(rest.TOKEN)
        with pytest.raises(Failed, match=rest.TOKEN):
            self.read(airflow)
        assert airflow.seen == []

    def test_an_answer_that_was_cut_off_is_none(self, airflow: FakeAirflow) -> None:
        airflow.cut = True
        with pytest.raises(Unavailable, match="no whole JSON document"):
            self.read(airflow)

    def test_more_than_is_read_is_said(self, airflow: FakeAirflow) -> None:
        airflow.requests = [{"task_instance": {"state": "success"}}] * 2_001
        assert "Airflow has more than 2000 rows of hitl_details; the rest was not read." in self.read(airflow).notes

    @pytest.mark.parametrize("url", ["http://airflow.example", "ftp://airflow.example", "https://user:pw@airflow.example"])
    def test_the_token_goes_nowhere_unencrypted(self, airflow: FakeAirflow, url: str) -> None:
        with pytest.raises(Failed) as error:
            read_statuses(url, (), httpx.MockTransport(airflow))
        assert "pw" not in str(error.value)
        assert airflow.seen == []

    def test_the_command_prints_a_table_or_json_and_its_code(
        self, airflow: FakeAirflow, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr("airflow_provider_kmigrate.pages.rest.read_statuses", lambda _url, names: self.read(airflow, *names))
        assert status_command.main(["--airflow-url", "https://airflow.example", "sim"]) == 0
        assert "A rollback is possible now" in capsys.readouterr().out
        assert status_command.main(["--airflow-url", "https://airflow.example", "--all"]) == 1, "late has no status"
        table, moves = capsys.readouterr().out.split("\n\n")
        assert [line.split()[0] for line in table.splitlines()] == ["CLUSTER", "no", "ok"]
        assert moves.startswith("late: next: Unpause kmigrate_watch__late")
        assert status_command.main(["--airflow-url", "https://airflow.example", "--all", "-o", "json"]) == 1
        assert [json.loads(line)["light"] for line in capsys.readouterr().out.splitlines()] == ["unknown", "well"]
        monkeypatch.delenv(rest.TOKEN)
        assert status_command.main(["--airflow-url", "https://airflow.example", "--all"]) == 2


class TestTheWriter:
    def test_one_headline_is_stored_twice_a_minute_and_a_new_one_sooner(self) -> None:
        timer = StatusTimer()
        assert [timer.is_due(*at) for at in (("a", 0), ("a", 29), ("a", 30), ("b", 34), ("b", 35), ("b", 64), ("b", 65))] == [
            True, False, True, False, True, False, True,
        ]  # fmt: skip

    def test_an_airflow_that_takes_none_is_left_alone_for_minutes_and_ends_no_task(self, document: dict[str, Any]) -> None:
        tries: list[str] = []

        class Down:
            def xcom_push(self, key: str, value: Any) -> None:
                tries.append(key)
                raise ConnectionError(str(value)[:10])

        times = iter((1_000.0, 1_000.0, 1_100.0, 1_299.0, 1_306.0, 1_306.0))  # read again after each failure
        status = StatusXCom(Down(), clock=lambda: next(times))
        for headline in "abcd":
            status.offer(headline, lambda: document)
        assert tries == [STATUS] * 2

    def test_a_document_that_cannot_be_made_ends_no_task(self, caplog: pytest.LogCaptureFixture) -> None:
        StatusXCom(None).offer("a", lambda: 1 / 0)  # type: ignore[arg-type,return-value]
        assert "The status for operators could not be made: ZeroDivisionError" in caplog.text


def test_only_the_pages_read_the_xcom() -> None:
    """No gate, approval or permit reads a status; beside the contract of import-linter, nothing names its key."""
    naming = {
        str(path.relative_to(ROOT / "airflow_provider_kmigrate"))
        for path in (ROOT / "airflow_provider_kmigrate").rglob("*.py")
        if "kmigrate_status" in path.read_text() or re.search(r"import .*\bSTATUS\b", path.read_text())
    }
    assert naming == {"utils/status_xcom.py", "pages/rest.py", "pages/database.py"}
