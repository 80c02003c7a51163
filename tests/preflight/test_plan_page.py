"""The plan to be read: a document of one form, a page that is whole, and the command that shows and compares it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from airflow_provider_kmigrate.core.migration.migration_plan import plan_migration
from airflow_provider_kmigrate.preflight.plan_page import render_plan_page, write_plan
from tests.core.plan_facts import facts_of, tasks_of
from tests.pages.browser import Browser, browser
from tests.pages.rules import check_loads_alone, check_readable, check_whole
from tests.preflight.cases import PAGES

SCHEMA = json.loads((Path(__file__).parents[2] / "airflow_provider_kmigrate" / "plan.schema.json").read_text())
HOSTILE = '<img src=x onerror="alert(1)">'


def plan_of(name: str) -> dict[str, Any]:
    """The plan of a cluster whose names would like to be markup."""
    result = PAGES[name]()
    facts = facts_of((result.view, result.facts), findings={"block": ["B1a"], "warn": []})
    originals = {broker: {**keys, "listeners": HOSTILE} for broker, keys in facts.originals.items()}
    return plan_migration(replace(facts, spec=replace(facts.spec, name=HOSTILE), originals=originals))


def list_places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where values are in a document; of a list its first item only."""
    if place:
        yield place
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(min(1, len(value))):
            yield from list_places(value[key], (*place, key))


def put(document: dict[str, Any], place: tuple[Any, ...], value: Any) -> dict[str, Any]:
    changed: Any = deepcopy(document)
    *above, last = place
    holder = changed
    for key in above:
        holder = holder[key]
    holder[last] = value
    return dict(changed)


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("chromium")) as found:
        yield found


class TestThePage:
    @pytest.mark.parametrize("name", PAGES)
    def test_the_document_is_as_its_schema_says(self, name: str) -> None:
        validator = jsonschema.validators.validator_for(SCHEMA)
        validator.check_schema(SCHEMA)
        assert list(validator(SCHEMA).iter_errors(json.loads(json.dumps(plan_of(name))))) == []

    @pytest.mark.parametrize("name", PAGES)
    def test_it_is_whole_asks_for_nothing_and_names_every_task(self, name: str) -> None:
        plan = plan_of(name)
        page = render_plan_page(plan)
        check_whole(page, links={"plan.json"})
        assert all(f"<code>{task}</code>" in page for task in tasks_of(plan))
        assert HOSTILE not in page
        assert "<img" not in page

    def test_markup_in_place_of_any_value_is_text_or_no_page(self) -> None:
        """A plan may come from an XCom, in which a writer may have put anything under a digest of their own."""
        plan = json.loads(json.dumps(plan_of("good")))
        shown = 0
        for place in list_places(plan):
            with suppress(ValueError, LookupError, TypeError, AttributeError, ArithmeticError):
                page = render_plan_page(put(plan, place, HOSTILE))
                assert "<img" not in page, place
                shown += 1
        assert shown > 20

    def test_its_files_are_their_owners_alone(self, tmp_path: Path) -> None:
        plan = plan_of("good")
        assert write_plan(plan, tmp_path) == tmp_path / "plan.html"
        data = ("plan.json", f"plan-{plan['fingerprint']}.json")
        assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == dict.fromkeys(
            ("plan.html", *data), 0o600
        )
        assert [json.loads((tmp_path / name).read_text()) for name in data] == [plan, plan]

    @pytest.mark.slow
    @pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (360, "light"), (360, "dark")])
    def test_it_fits_the_window_and_can_be_read(self, tab: Browser, tmp_path: Path, width: int, scheme: str) -> None:
        check_loads_alone(tab, write_plan(plan_of("good"), tmp_path), width, scheme)
        check_readable(tab)
