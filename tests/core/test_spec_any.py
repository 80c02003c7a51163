"""Cluster files of any content, the schema that is shipped, and what the reader of cluster files needs."""

from __future__ import annotations

import contextlib
import json
import string
import subprocess
import sys
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


def test_spec_needs_neither_airflow_nor_clients() -> None:
    """The Spark environment and the test kit's local cluster have no Airflow."""
    code = "import sys; import airflow_provider_kmigrate.spec; print(sorted({m.split('.')[0] for m in sys.modules} & {'airflow', 'kazoo', 'kafka', 'confluent_kafka'}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
