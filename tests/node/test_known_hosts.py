"""Host keys of a machine beside those of the file: which are new, which changed, which a fingerprint names."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from airflow_provider_kmigrate.exceptions import Failed, Refused
from airflow_provider_kmigrate.node.inventory import SshAccess
from airflow_provider_kmigrate.node.known_hosts import (
    collect_keys,
    compare_keys,
    fingerprint,
    judge_keys,
    name_in_file,
    read_fingerprints,
    read_keys,
    read_revoked,
)

A, B, C = (base64.b64encode(text).decode() for text in (b"a" * 51, b"b" * 51, b"c" * 51))
SENT = {"ssh-ed25519": A, "ssh-rsa": B}


@pytest.mark.parametrize(
    ("known", "new", "problem"),
    [
        ("", {"ssh-ed25519": A, "ssh-rsa": B}, ""),
        (f"# Host k found: line 1\nk ssh-ed25519 {A}", {"ssh-rsa": B}, ""),
        (f"k ssh-ed25519 {A}\nk ssh-rsa {B}", {}, ""),
        (f"|1|abc=|def= ssh-ed25519 {A}", {"ssh-rsa": B}, ""),  # a hashed name
        (f"k ssh-ed25519 {C}", {}, "CHANGED"),
        (f"k ssh-rsa {C}", {}, "CHANGED"),  # no key of it is new then
        (f"@revoked k ssh-rsa {B}", {}, "@revoked"),
        (f" \t@revoked k ssh-rsa {B}", {}, "@revoked"),  # ssh skips blanks
        (f"k ssh-rsa {B}\n@revoked * ssh-rsa {B}\r", {}, "@revoked"),
        (f"@revoked k ssh-rsa {C}", SENT, ""),
        ("@revoked k ssh-rsa ***\n@revoked k", SENT, ""),
        (f"@cert-authority k ssh-rsa {C}", SENT, ""),  # a key that signs keys is none of the machine's
        (f" \t@cert-authority k ssh-rsa {B}", SENT, ""),
        (f"\tk ssh-rsa {B}\r\n *.dom,!x.dom ssh-ed25519 {A}", {}, ""),
        (f"k ssh-rsa {B}\nk ssh-rsa {C}", {"ssh-ed25519": A}, ""),  # two of one type: each is known
        (f"k ssh-rsa {C}\nk ssh-rsa {B}", {"ssh-ed25519": A}, ""),
        (f"#k ssh-rsa {C}", SENT, ""),
        (f"# k\x0bk ssh-rsa {C}", SENT, ""),  # a banner with what Python takes for the end of a line
        (f"# k\x85k ssh-rsa {C}\u2028k ssh-rsa {C}\rk ssh-rsa {C}", SENT, ""),
        (f"k ecdsa-sha2-nistp256 {C}", SENT, ""),
    ],
)
def test_what_is_new_and_what_is_wrong(known: str, new: dict[str, str], problem: str) -> None:
    machine = compare_keys("k", "k", SENT, known)
    assert machine.new == new
    assert problem in machine.problem
    assert bool(problem) == bool(machine.problem)


def test_a_key_that_is_revoked_for_another_name_is_revoked() -> None:
    revoked = read_revoked(f"@revoked old ssh-rsa {B}\nk ssh-rsa {B}")
    assert "@revoked" in compare_keys("k", "k", SENT, f"k ssh-rsa {B}", revoked).problem


@pytest.mark.parametrize(
    "address",
    ["-oProxyCommand=x", "k\nx", "k\rx", "k\0", "k x", "k*", "k?", "!k", "k,x", "h\u043est", "k\u202ex", "", "@k", "#k"],
)
def test_what_is_no_address_of_a_machine_is_refused(address: str) -> None:
    """It would be an option of ssh, a second line, a pattern or a marker of known_hosts, or look like another one."""
    with pytest.raises(Refused, match="N03") as raised:
        SshAccess(address)
    assert all(sign.isprintable() or sign == "\n" for sign in str(raised.value))


def test_a_file_that_cannot_be_read_is_named_before_any_machine_is_asked(tmp_path: Path) -> None:
    with pytest.raises(Failed, match=f"cannot read {tmp_path}"):
        collect_keys({"k": SshAccess("k")}, tmp_path, 1)


def test_a_machine_without_a_key_has_a_problem() -> None:
    assert "sends no host key" in compare_keys("k", "k", {}, f"k ssh-rsa {A}").problem


@pytest.mark.parametrize(
    ("prints", "trusted", "problem"),
    [
        ({fingerprint(A)}, {"ssh-ed25519": A}, ""),  # the other key stays unknown
        ({fingerprint(A), fingerprint(B)}, SENT, ""),
        ({fingerprint(C)}, {}, "none of its keys"),
        (set(), {}, "none of its keys"),
    ],
)
def test_only_keys_with_a_fingerprint_that_came_another_way_are_trusted(
    prints: set[str], trusted: dict[str, str], problem: str
) -> None:
    chosen, said = judge_keys(compare_keys("k", "k", SENT, ""), {"k": frozenset(prints)})
    assert (chosen, problem in said, bool(said)) == (trusted, True, bool(problem))


def test_a_known_key_with_another_fingerprint_than_was_given_is_a_problem() -> None:
    assert judge_keys(compare_keys("k", "k", {"ssh-rsa": B}, f"k ssh-rsa {B}"), {"k": frozenset({fingerprint(A)})})[1]


def test_a_fingerprint_is_as_ssh_prints_it() -> None:
    key = "AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"  # GitHub's, as its documentation shows it
    assert fingerprint(key) == "SHA256:+DiY3wvvV6TuJJhbpZisF/zLDA0zPMSvHdkr4UvCOqU"


@pytest.mark.parametrize("line", ["k ssh-rsa ***", "k ssh-rsa AAA"])
def test_what_is_no_key_is_not_written(line: str) -> None:
    with pytest.raises(Failed, match="none"):
        read_keys(line)


def test_lines_of_other_forms_are_left_out() -> None:
    assert read_keys(f"# k:22 SSH-2.0-x\nk ssh-rsa\nk 1024 35 {A}\nk ssh-rsa {B} comment\n") == {"ssh-rsa": B}


def test_names_have_their_port() -> None:
    assert [name_in_file(SshAccess("k")), name_in_file(SshAccess("k", 2222))] == ["k", "[k]:2222"]


def test_a_file_of_fingerprints_is_read_as_tools_print_it(tmp_path: object) -> None:
    path = tmp_path / "prints"  # type: ignore[operator]
    path.write_text(f"k 256 {fingerprint(A)} root@k (ED25519)\nk {fingerprint(B)}\n\nother x\n")
    assert read_fingerprints(path) == {"k": frozenset({fingerprint(A), fingerprint(B)})}
    path.write_text("k MD5:00\n")
    with pytest.raises(Refused, match="M06"):
        read_fingerprints(path)
