"""What lies around a healthy cluster, over all tables: every code has a test, and each thing that is not reported a finding of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_kmigrate.core.cluster_state.model import ClusterEnvironment
from airflow_provider_kmigrate.core.preflight.checks import run_checks
from airflow_provider_kmigrate.core.preflight.findings import Severity
from airflow_provider_kmigrate.core.reasons import ENTRIES
from tests.core import preflight_views as base
from tests.core import preflight_written_rows as written
from tests.core.preflight_around import PLAIN, environment, everywhere, large_topic, made, release, remote, secured, tree
from tests.core.preflight_machines_rows import on_disk
from tests.core.preflight_rows import ROWS
from tests.core.preflight_security_rows import VARIABLES
from tests.core.preflight_views import Case, Change, both, codes, healthy, known, orders, spec


def test_every_code_of_preflight_has_a_test() -> None:
    elsewhere = {
        "B1b",
        "B10c",
        "B10d",
        "W30",
        "W28",
    }  # test_preflight_switches, test_preflight_jaas; W28: of the cluster file alone
    tested = {code for _, _, expected in (*ROWS, *base.DEFECTS, *written.ROWS) for code in expected} | elsewhere
    assert {code for code in ENTRIES if code[0] in "BW"} - tested == set()


UNKNOWN: list[tuple[str, Change]] = [
    ("B1b", release("")),
    ("B1b", release("3.7-IV4")),
    ("B1b", release("3.8-IV0")),
    ("S04", environment(moving=None)),
    ("B7b", environment(log_dirs={})),
    ("B10a", tree(guarded=("sasl",))),
    ("B10b", large_topic),
    ("B12b", environment(servers=())),
    ("B8a", everywhere(ssl_engine_factory_class="com.example.Engine")),
    ("B9d", spec(controller_security="SASL_SSL")),
    ("C11", everywhere(ssl_keystore_location="/k")),
    ("C10", everywhere(**VARIABLES, ssl_key_password="${env:KEY}")),
    ("R13", made(-9.0)),
    ("B13b", both(secured(**PLAIN, ssl_client_auth="required"), spec(controller_security="SSL"))),
    ("B15", environment(taken={})),
    ("B23", everywhere(metadata_log_dir="/fast")),
    ("B24", environment(certificates={})),
    ("B22", environment(addresses={})),
    ("B25", environment(partition_ids={})),
    ("B25", on_disk(link=1)),
    ("B25", on_disk(late=3_000)),
    ("W7", remote()),
    ("W8", environment(one_machine=False)),
    ("W9", tree(cmak=None)),
    ("G21", tree(storm_spouts=None)),
]


@pytest.mark.parametrize(("code", "change"), UNKNOWN)
def test_what_cannot_be_seen_is_said_and_says_how_to_find_out(code: str, change: Change) -> None:
    (found,) = run_checks(*change(*healthy()))
    assert (found.code, found.severity) == (code, Severity.UNKNOWN)
    assert found.reason.next_step == ENTRIES[code].ask
    assert found.reason.next_step


@given(
    st.sets(
        st.sampled_from(
            [field.name for field in fields(ClusterEnvironment) if field.name not in {"unread", "now", "one_machine"}]
        )
    )
)
def test_nothing_unread_passes_silently(unread: set[str]) -> None:
    empty = ClusterEnvironment()
    found = run_checks(*environment(**{name: getattr(empty, name) for name in unread})(*healthy()))
    assert len({finding.code for finding in found}) == len(unread)
    assert {finding.severity for finding in found} <= {Severity.UNKNOWN, Severity.BLOCK}


@given(st.lists(st.sampled_from([row[1] for row in ROWS if row[0] != "tree not read"]), max_size=3))
def test_findings_come_by_gravity_and_each_is_complete(changes: list[Callable[..., Case]]) -> None:
    case = healthy()
    for change in changes:
        try:
            case = change(*case)
        except AssertionError:  # one of them took away what another one changes
            return
    found = run_checks(*case)
    order = [list(Severity).index(finding.severity) for finding in found]
    assert order == sorted(order)
    assert all(finding.reason.meaning and finding.reason.next_step and finding.source for finding in found)


def test_a_topic_with_one_replica_is_reported_beside_all_others() -> None:
    found = codes(both(orders(replicas=(0,), isr=(0,)), known(environment=ClusterEnvironment()))(*healthy()))
    assert found[0] == "U05"
    assert "W1" in found
