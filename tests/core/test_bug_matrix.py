"""Which releases may be migrated, as the rule says it, and what each has of the known defects."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_kmigrate.core.preflight.findings import Severity
from airflow_provider_kmigrate.core.preflight.versions import (
    DEFECTS,
    KafkaVersion,
    judge_release,
    known_defects,
    parse_release,
    parse_version,
)

RULE = [
    (Severity.BLOCK, "2.8.2 3.3.2 3.4.1 3.5.2 3.6.0 3.6.1 3.6.2 3.7.0 4.0.0 4.1.0"),
    (Severity.WARN, "3.7.1 3.8.0"),
    (None, "3.7.2 3.8.1 3.9.0 3.9.1 3.9.2 3.9.3"),
]
releases = st.builds(KafkaVersion, st.just(3), st.integers(4, 9), st.integers(0, 5))


def release(text: str) -> KafkaVersion:
    found = parse_version(text)
    assert found is not None
    return found


@pytest.mark.parametrize(("expected", "text"), [(found, text) for found, texts in RULE for text in texts.split()])
def test_the_rule(expected: Severity | None, text: str) -> None:
    assert judge_release(release(text)) is expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [("3.5", Severity.BLOCK), ("3.6", Severity.BLOCK), ("3.7", Severity.UNKNOWN), ("3.8", Severity.UNKNOWN), ("3.9-IV0", None)],
)
def test_a_line_alone_decides_only_where_every_patch_level_would_say_the_same(line: str, expected: Severity | None) -> None:
    assert judge_release(release(line)) is expected


@pytest.mark.parametrize(
    ("text", "kafka"),
    [
        ("7.9.2", (3, 9, None)),
        ("7.9.2-ccs", (3, 9, None)),
        ("7.9.2-ce", (3, 9, None)),
        ("cp-7.9.2", (3, 9, None)),
        ("7.9.2-1", (3, 9, None)),
        ("7.6.0-ccs", (3, 6, None)),
        ("7.0.1-ce", (3, 0, None)),
        ("6.2.0", (2, 8, None)),
        ("6.0.0-ccs", (2, 6, None)),
        ("5.5.3-ccs", (2, 5, None)),
        ("8.0.0-ccs", (4, 0, None)),
        ("3.9.2", (3, 9, 2)),
        ("3.7.0.redhat-00007", (3, 7, 0)),
        ("3.4.1.7.1.9.0-387", (3, 4, 1)),
        ("2.0.0.3.1.4.0-315", (2, 0, 0)),
        ("3.9-IV0", (3, 9, None)),
        ("4.0.0", (4, 0, 0)),
        ("x", None),
        ("7", None),
    ],
)
def test_confluents_numbers_are_mapped_to_kafkas_lines(text: str, kafka: tuple[int, int, int | None] | None) -> None:
    assert parse_release(text) == kafka


@pytest.mark.parametrize(
    ("text", "issue", "there"),
    [
        ("3.6.0", 15552, True),
        ("3.5.2", 15552, False),
        ("3.6.1", 15552, False),
        ("3.7.0", 16222, True),
        ("3.6.2", 16222, False),
        ("3.7.1", 16222, False),
        ("3.4.1", 15149, True),
        ("3.7.2", 17506, False),
        ("3.8.0", 17506, True),
        ("3.9.1", 19480, True),
        ("3.9.2", 19480, False),
    ],
)
def test_the_matrix(text: str, issue: int, *, there: bool) -> None:
    assert any(issue in defect.issues for defect in known_defects(release(text))) is there


def test_controllers_of_3_6_are_named_with_what_they_lack() -> None:
    assert any("no copy begins" in str(defect) and "KIP-919" in str(defect) for defect in known_defects(release("3.6.2")))
    assert not any("KIP-919" in str(defect) for defect in known_defects(release("3.7.0")))


def test_the_last_release_of_the_bridge_has_none() -> None:
    assert known_defects(KafkaVersion(3, 9, 2)) == ()
    assert all((defect.issues or "KIP-919" in str(defect)) and defect.effect and defect.fixed for defect in DEFECTS)


@given(releases)
def test_a_later_patch_never_has_more_defects_and_is_never_less_fit(found: KafkaVersion) -> None:
    later = found._replace(patch=(found.patch or 0) + 1)
    assert set(known_defects(later)) <= set(known_defects(found))
    ranks = [Severity.BLOCK, Severity.WARN, None]
    assert ranks.index(judge_release(later)) >= ranks.index(judge_release(found))


@pytest.mark.parametrize("text", ["", "trunk", "3", "v3.9.2"])
def test_what_is_no_release(text: str) -> None:
    assert parse_version(text) is None


def test_how_a_release_is_written() -> None:
    assert [str(release(text)) for text in ("3.9.2", "3.9-IV0", "3.7.1-ccs")] == ["3.9.2", "3.9", "3.7.1"]
