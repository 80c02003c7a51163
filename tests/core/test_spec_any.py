"""Cluster files of any content, the schema that is shipped, and what the reader of cluster files needs."""

from __future__ import annotations

import contextlib
import json
import string
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_kmigrate import spec
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec
from airflow_provider_kmigrate.exceptions import SpecError
from airflow_provider_kmigrate.spec.model import render_reference
from tests.core.spec_text import GOOD, changed


class TestSchema:
    shipped = Path(spec.__file__).parents[1] / "cluster.schema.json"

    def test_the_shipped_schema_is_the_models(self) -> None:
        hint = f"run: kmigrate check --schema > {self.shipped.name}"
        assert json.loads(self.shipped.read_text(encoding="utf-8")) == spec.schema(), hint

    def test_the_page_of_all_keys_is_the_models(self) -> None:
        page = Path(__file__).parents[2] / "docs" / "cluster-file.md"
        hint = f"run: kmigrate check --reference > docs/{page.name}"
        assert page.read_text(encoding="utf-8") == render_reference(), hint
        assert render_reference().count("](#") == render_reference().count("\n## ") - 1, "each section has its link"

    def test_the_schema_accepts_the_good_file_and_refuses_unknown_keys(self) -> None:
        validator = jsonschema.Draft202012Validator(spec.schema())
        validator.check_schema(spec.schema())
        data = yaml.safe_load(GOOD.replace("rack: 1", "rack: b"))
        assert list(validator.iter_errors(data)) == []
        assert len(list(validator.iter_errors(data | {"zookeper": {}}))) == 1


class TestNoSurprises:
    @settings(max_examples=80, deadline=None)
    @given(st.data())
    def test_a_file_with_anything_anywhere_loads_or_is_refused(self, data: st.DataObject) -> None:
        """Any value at any place: a ClusterSpec or a SpecError, never another exception."""
        tree = yaml.safe_load(GOOD)
        place: object = tree
        junk = st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
            lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
            max_leaves=4,
        )
        while isinstance(place, dict | list) and place:
            key = data.draw(st.sampled_from(list(place) if isinstance(place, dict) else list(range(len(place)))))
            inner = place[key]
            if not isinstance(inner, dict | list) or data.draw(st.booleans()):
                place[key] = data.draw(junk)
                break
            place = inner
        with contextlib.suppress(SpecError):
            assert isinstance(spec.loads(yaml.safe_dump(tree)), ClusterSpec)

    @settings(max_examples=80, deadline=None)
    @given(st.text(alphabet=string.printable + "é\x00\ud800"[:2], max_size=40))
    def test_any_text_at_all(self, text: str) -> None:
        with pytest.raises(SpecError):
            spec.loads(text)

    @given(st.integers(0, 99), st.integers(0, 59), st.sampled_from(["", "30s"]))
    def test_durations_add_up(self, hours: int, minutes: int, seconds: str) -> None:
        cluster = spec.loads(changed("min_soak: 24h", f"min_soak: {hours}h{minutes}m{seconds}"))
        assert cluster.policy.min_soak == hours * 3600 + minutes * 60 + (30 if seconds else 0)


WITH_GROUPS = (
    GOOD
    + """\
groups:
  - name: billing
    instances: [{name: b0, host: app0, units: {zookeeper: old.service, kafka: new.service}}]
    units: {kafka: other.service}
"""
)


def list_places(value: object, place: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The place of everything inside of a mapping or list."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*place, key)
        yield from list_places(inner, (*place, key))


@pytest.mark.parametrize("place", list(list_places(yaml.safe_load(WITH_GROUPS))), ids=str)
def test_a_value_of_another_kind_or_size_at_any_key_is_a_spec_or_a_refusal(place: tuple[str | int, ...]) -> None:
    for value in ({}, [], [[]], {"zookeeper": {}}, "9" * 5000):
        tree = inner = yaml.safe_load(WITH_GROUPS)
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = value
        with contextlib.suppress(SpecError):
            spec.loads(yaml.safe_dump(tree))


def test_the_login_in_an_address_is_not_shown() -> None:
    with pytest.raises(SpecError, match=r"://\*\*\*@h/") as refused:
        spec.loads(changed("prod_zk", "https://user:CANARY@h/"))
    assert "CANARY" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("&a [*a]", "contains itself"),
        ("name: &a {b: {c: *a}}", "contains itself"),
        ("a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [{f'*a{n - 1}, ' * 9}]\n" for n in range(1, 12)), "more than 200000 values"),
        ("a0: &a0 {b: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [{f'*a{n - 1}, ' * 9}]}}\n" for n in range(1, 12)), "more than 200000"),
        ("a: !!int ''", "none of its tag"),
        ("a: !!bool x", "none of its tag"),
        ("a: !!timestamp x", "none of its tag"),
        ("!!map [1]", "tag of a mapping"),
        (f"a: !!int 0x{'f' * 5000}", "longer than 100 digits"),
    ],
)
def test_yaml_that_stands_for_too_much_or_says_what_it_is_not_is_refused_at_once(text: str, what: str) -> None:
    with pytest.raises(SpecError, match=what) as refused:
        spec.loads(text)
    assert "[F00]" in str(refused.value)


def test_aliases_that_stand_for_little_are_taken() -> None:
    text = changed("rack: a}", "rack: &rack a}").replace("rack: 1,", "rack: *rack,")
    assert [broker.rack for broker in spec.loads(text).brokers] == ["a", "a", None]


def test_a_file_without_an_end_is_refused() -> None:
    with pytest.raises(SpecError, match="more than 4 MiB"):
        spec.load("/dev/zero")


def test_a_file_that_is_one_value_is_not_shown() -> None:
    with pytest.raises(SpecError, match="found a single value") as refused:
        spec.loads("CANARY")
    assert "CANARY" not in str(refused.value)


def test_spec_needs_neither_airflow_nor_clients() -> None:
    """The Spark environment and the test kit's local cluster have no Airflow."""
    code = "import sys; import airflow_provider_kmigrate.spec; print(sorted({m.split('.')[0] for m in sys.modules} & {'airflow', 'kazoo', 'kafka', 'confluent_kafka'}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
