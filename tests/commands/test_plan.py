"""The command that shows a plan and compares it with a saved one, on the simulated cluster."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_kmigrate import cli
from airflow_provider_kmigrate.commands import plan as plan_command
from airflow_provider_kmigrate.core.cluster_state.model import Cause, Reason
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole, Policy
from airflow_provider_kmigrate.core.migration.plan_document import TITLES, PlanOf, render_document
from airflow_provider_kmigrate.exceptions import Unreachable
from airflow_provider_kmigrate.steps.run import StepContext
from tests.steps.phases import all_kraft, some_kraft, untouched
from tests.steps.sim import SimCluster


class Command:
    """`kmigrate plan` on a simulated cluster: all but the clients is as it is."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.cluster, self.folder, self._capsys = SimCluster(), folder, capsys
        self.failure: Exception | None = None
        self.journals: Path | None = None
        monkeypatch.setattr(plan_command, "open_context", self.open)

    @contextmanager
    def open(self, *_: object) -> Iterator[StepContext]:
        if self.failure is not None:
            raise self.failure
        context = self.cluster.context(self.folder)
        yield replace(context, journals=self.journals) if self.journals else context

    def run(self, *words: str) -> tuple[int, str, str]:
        code = cli.main(["plan", "cluster.yaml", "--connections", "c.json", *words])
        return (code, *self._capsys.readouterr())


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(tmp_path, monkeypatch, capsys)


class TestTheCommand:
    def test_it_shows_the_plan_in_words_or_as_json(self, command: Command) -> None:
        code, shown, _ = command.run()
        assert code == 0
        assert shown.startswith("# Plan of sim: ZooKeeper to KRaft")
        code, written, _ = command.run("-o", "json")
        assert code == 0
        assert render_document(json.loads(written)).splitlines()[0] == shown.splitlines()[0]

    def test_it_says_on_stderr_what_it_looks_for_again(self, command: Command) -> None:
        command.cluster = SimCluster(offsets_partitions=10)
        command.cluster.unread_coordinators.add(1)
        look, late = command.cluster.observe, (Reason("U05", "Broker 1 is late", cause=Cause.UNREAD_COORDINATORS),)
        command.cluster.observe = lambda *asked: replace(look(*asked), unknowns=late)  # type: ignore[method-assign]
        _, written, said = command.run("-o", "json")
        assert json.loads(written)["stages"]
        assert said.count("Not read yet, so kmigrate looks again: Broker 1 is late\n") == 9

    def test_a_saved_plan_is_the_same_until_something_changes(self, command: Command, tmp_path: Path) -> None:
        saved = tmp_path / "plan.json"
        assert command.run("--save", str(saved))[0] == 0
        assert command.run("--compare", str(saved))[:2] == (0, f"The plan is the one in {saved}.\n")
        command.cluster.spec = replace(command.cluster.spec, policy=Policy(min_soak=1.0))
        code, shown, _ = command.run("--compare", str(saved))
        assert code == 3
        assert "* The cluster file has changed.\n" in shown
        code, written, _ = command.run("--compare", str(saved), "-o", "json")
        assert (code, json.loads(written)["drift"]) == (3, ["The cluster file has changed."])

    def test_a_migration_that_has_begun_is_the_same_plan_with_tasks_that_are_done(self, command: Command, tmp_path: Path) -> None:
        saved = tmp_path / "plan.json"
        command.run("--save", str(saved))
        some_kraft(command.cluster, command.cluster.context(command.folder))
        code, shown, _ = command.run("--compare", str(saved))
        assert code == 3
        assert "has changed" not in shown
        assert shown.count("is done.") == 3 + 3 + 2

    def test_a_blocker_or_a_file_that_cannot_be_written_is_1(self, command: Command) -> None:
        command.cluster.nodes[NodeRole.BROKER, 1].text = "broker.id=1\n"
        code, shown, _ = command.run()
        assert code == 1
        assert "block: " in shown

    @pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"kind": "plan", "version": 1}'])
    def test_a_file_that_is_no_plan_is_2_and_named(self, command: Command, tmp_path: Path, content: str) -> None:
        saved = tmp_path / "other.json"
        saved.write_text(content)
        code, shown, failed = command.run("--compare", str(saved))
        assert (code, shown) == (2, "")
        assert str(saved) in failed

    def test_a_plan_that_is_nested_too_deep_is_2_and_named(self, command: Command, tmp_path: Path) -> None:
        saved = tmp_path / "plan.json"
        command.run("--save", str(saved))
        deep: list[object] = []
        for _ in range(490):
            deep = [deep]
        saved.write_text(json.dumps(json.loads(saved.read_text()) | {"steps": deep}))
        code, shown, failed = command.run("--compare", str(saved))
        assert (code, shown) == (2, "")
        assert f"{saved} cannot be compared. It is no whole plan" in failed

    def test_a_first_plan_goes_by_the_restarts_of_other_clusters_on_the_worker(self, command: Command, tmp_path: Path) -> None:
        act = {"run": "r", "step": "broker 0 to kraft", "text": "restart: it"}
        lines = [{"at": 100.0, "kind": "act", **act}, {"at": 112.0, "kind": "done", **act}]
        for name in ("other", "sim"):
            (tmp_path / "journal" / name).mkdir(parents=True)
        (tmp_path / "journal" / "other" / "r.jsonl").write_text("\n".join(map(json.dumps, lines)))
        command.journals = tmp_path / "journal" / "sim"
        restart = json.loads(command.run("-o", "json")[1])["restart_seconds"]
        assert (restart["expected"], restart["measured"], restart["elsewhere"]) == (12.0, 0, 1)

    @pytest.mark.parametrize("of", list(PlanOf))
    @pytest.mark.parametrize("reach", [untouched, all_kraft])
    def test_each_plan_has_the_one_form(self, command: Command, of: PlanOf, reach: Callable[..., None]) -> None:
        reach(command.cluster, command.cluster.context(command.folder))
        words = ("--of", of, *(("--partitions", "60") if of is PlanOf.EXPANSION else ()))
        code, shown, failed = command.run(*words)
        if not shown:  # nothing was migrated yet, or the topic does not exist
            refused = {
                PlanOf.ROLLBACK: "[P13] Nothing to roll back",
                PlanOf.EXPANSION: "[K83] __consumer_offsets does not exist.",
            }
            assert code == 1
            assert refused[of] in failed
            return
        assert shown.startswith(f"# Plan of sim: {TITLES[of]}")
        code, written, _ = command.run(*words, "-o", "json")
        plan = json.loads(written)
        assert (code in {0, 1}, plan["of"], plan["cluster"]) == (True, of, "sim")
        assert render_document(plan).splitlines()[0] == shown.splitlines()[0]

    @pytest.mark.parametrize(
        "words",
        [("--of", "expansion"), ("--partitions", "60"), ("--undo",), ("--of", "rollback", "--partitions", "60", "--undo")],
    )
    def test_words_of_an_expansion_belong_to_it(self, command: Command, words: tuple[str, ...]) -> None:
        with pytest.raises(SystemExit) as ended:
            command.run(*words)
        assert ended.value.code == 2

    def test_a_plan_of_another_kind_is_2_and_named(self, command: Command, tmp_path: Path) -> None:
        saved = tmp_path / "plan.json"
        assert command.run("--save", str(saved))[0] == 0
        code, shown, failed = command.run("--of", "clean-up", "--compare", str(saved))
        assert (code, shown) == (2, "")
        assert str(saved) in failed

    def test_no_file_is_2(self, command: Command, tmp_path: Path) -> None:
        code, _, failed = command.run("--compare", str(tmp_path / "none.json"))
        assert code == 2
        assert "There is no plan" in failed

    def test_a_cluster_that_does_not_answer_is_2(self, command: Command) -> None:
        command.failure = Unreachable("127.0.0.1:2181 does not answer")
        assert command.run()[0] == 2
