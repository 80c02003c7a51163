"""Properties files are read as Java reads them and edited without touching anything else."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from airflow_provider_kmigrate.core.node_files.kafka_keys import HIDDEN
from airflow_provider_kmigrate.core.node_files.properties import (
    PropertyChange,
    diff_properties,
    edit_properties,
    parse_properties,
)
from airflow_provider_kmigrate.exceptions import Refused

PIECES = [
    "a",
    "b",
    "=",
    ":",
    " ",
    "\t",
    "\f",
    "\\",
    "\\\\",
    "\n",
    "\r",
    "\r\n",
    "#",
    "!",
    "\\u00e9",
    "\\ud83d\\ude00",
    "é",
    "key=value\n",
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=14).map("".join)
KEYS = st.sampled_from(["a", "b", "ab", "key", "a b", "c=", "#d", "é"])
VALUES = st.text(alphabet="ab =:#!\\\t\n\r\f\u00e9\U0001f600", max_size=5)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("a=1\nb:2\nc 3\nd\t=\t4\ne", {"a": "1", "b": "2", "c": "3", "d": "4", "e": ""}),
        ("# a=1\n ! b=2\n\n\t\n", {}),
        ("a=1\\\n   2\\\r\n3\nb=4", {"a": "123", "b": "4"}),
        ("a=1\\\n#2\n", {"a": "1#2"}),
        ("a=1\\\n\nb=2", {"a": "1", "b": "2"}),
        ("# no continuation \\\na=1", {"a": "1"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("a\\ b\\=c\\:=x", {"a b=c:": "x"}),
        ("a = = b", {"a": "= b"}),
        ("a=\\u00e9\\ud83d\\ude00\\t\\q", {"a": "é\U0001f600\tq"}),
        ("a=1\rb=2\r\nc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a=1\n=empty key\na=2", {"": "empty key", "a": "2"}),
        ("a=1  ", {"a": "1  "}),
        ("a=\\", {"a": ""}),
        ("a=1\u0085b\u2028c", {"a": "1\u0085b\u2028c"}),
    ],
)
def test_text_is_read_as_java_reads_it(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected


def test_a_truncated_unicode_escape_is_refused_without_showing_the_value() -> None:
    with pytest.raises(Refused) as refused:
        parse_properties("a=1\npassword=geheim\\u12")

    assert [reason.code for reason in refused.value.reasons] == ["C04"]
    assert "line 2" in str(refused.value)
    assert "geheim" not in str(refused.value)


@settings(max_examples=300, deadline=None)
@example("b=1\naa\\\r", {"a": ""}, set())
@given(TEXTS, st.dictionaries(KEYS, VALUES, max_size=3), st.sets(KEYS, max_size=2))
def test_an_edit_is_the_operation_on_the_dictionary(text: str, assign: dict[str, str], remove: set[str]) -> None:
    assign = {key: value for key, value in assign.items() if key not in remove}
    expected = {key: value for key, value in parse_properties(text).items() if key not in remove} | assign

    edited = edit_properties(text, assign, remove)

    assert parse_properties(edited) == expected
    assert edit_properties(edited, assign, remove) == edited


@settings(max_examples=200, deadline=None)
@given(TEXTS)
def test_an_edit_that_changes_nothing_keeps_every_byte(text: str) -> None:
    assert edit_properties(text, {}) == text
    assert edit_properties(text, parse_properties(text)) == text
    assert edit_properties(text, {}, ["not there"]) == text


@settings(max_examples=200, deadline=None)
@given(TEXTS, TEXTS, VALUES)
def test_lines_around_the_edited_key_stay_byte_for_byte(before: str, after: str, value: str) -> None:
    before, after = (f"#{part}\n".replace("\\", "").replace("target", "") for part in (before, after))
    edited = edit_properties(f"{before}target = old\r\n{after}", {"target": value})

    assert edited.startswith(before)
    assert edited.endswith(after)


def test_the_winning_line_is_changed_in_place_and_new_keys_come_last() -> None:
    text = "# ids\r\na=1\r\n\r\na=2\r\nb=\\\r\n  3\r\n# end"

    assert edit_properties(text, {"a": "9", "new": "x y"}, ["b"]) == "# ids\r\na=1\r\n\r\na=9\r\n# end\r\nnew=x y\r\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "n=1\n"),
        ("a=1", "a=1\nn=1\n"),
        ("a=1\\", "a=1\\\n\nn=1\n"),
        ("a=1\\\n", "a=1\\\n\nn=1\n"),
        ("# no \\", "# no \\\nn=1\n"),
    ],
)
def test_an_added_key_is_never_glued_to_an_unfinished_line(text: str, expected: str) -> None:
    assert edit_properties(text, {"n": "1"}) == expected


def test_one_key_cannot_be_assigned_and_removed() -> None:
    with pytest.raises(ValueError, match="assigned and removed"):
        edit_properties("", {"broker.id": "1"}, ["broker.id"])


def test_a_diff_shows_only_values_that_are_no_secrets() -> None:
    old = "broker.id=1\nssl.keystore.password=geheim\nzookeeper.connect=zk:2181/k\nsame=1"
    new = "same=1\nnode.id=1\nssl.keystore.password=geheimer\nlistener.name.x.plain.sasl.jaas.config=auch"

    changes = diff_properties(old, new)

    assert changes == (
        PropertyChange("broker.id", "1", None),
        PropertyChange("listener.name.x.plain.sasl.jaas.config", None, HIDDEN),
        PropertyChange("node.id", None, "1"),
        PropertyChange("ssl.keystore.password", HIDDEN, HIDDEN),
        PropertyChange("zookeeper.connect", "zk:2181/k", None),
    )
    assert [str(change) for change in changes[1:4]] == [
        f"+ listener.name.x.plain.sasl.jaas.config={HIDDEN}",
        "+ node.id=1",
        f"~ ssl.keystore.password: {HIDDEN} -> {HIDDEN}",
    ]


def test_the_durability_that_controllers_inherit_is_shown() -> None:
    """Their first file is where to see it; it holds no secret."""
    keys = ("num.partitions", "default.replication.factor", "min.insync.replicas", "unclean.leader.election.enable")
    assert [change.after for change in diff_properties("", "".join(f"{key}=2\n" for key in keys))] == ["2"] * len(keys)


@given(st.lists(st.sampled_from(["b", "\\\\", "=", " ", "\\\\\\\\", ""]), max_size=8))
def test_an_entry_on_many_lines_reads_as_on_one(parts: list[str]) -> None:
    whole = "a=x" + "".join(part.lstrip() for part in parts)
    assert parse_properties("a=x\\\n" + "\\\n".join(f" \t{part}" for part in parts) + "\n") == parse_properties(whole + "\n")


def test_an_entry_on_a_hundred_thousand_lines_is_read_as_fast_as_so_many_entries() -> None:
    """A file of one mebibyte has as many; a node sends it."""
    assert parse_properties("a=\\\n" + "b\\\n" * 300_000) == {"a": "b" * 300_000}


@pytest.mark.parametrize("line", ["b\\\n", "\\", " ", "=", "a\\ ", "\\u0041", "\r", "a=b\n", "# a\\\n", "a:"], ids=repr)
def test_a_file_of_the_longest_that_an_agent_sends_is_read_in_linear_time(line: str) -> None:
    """A mebibyte of what repeats: a quadratic parser would need minutes of a processor, and this is a triggerer's."""
    began = time.process_time()
    parse_properties("a=\\\n" + line * ((1 << 20) // len(line)) + "\n")
    assert time.process_time() - began < 20.0
