"""Logins by Kerberos with a real KDC and no broker: what each fault of a realm, a keytab, a configuration or a clock is called.

`test_logins_real` has a broker beside the KDC; `test_sasl` has the faults that no KDC makes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_provider_kmigrate.clients import sasl
from airflow_provider_kmigrate.clients.deadline import Deadline
from airflow_provider_kmigrate.clients.settings import KerberosLogin, WireSecurity
from airflow_provider_kmigrate.exceptions import KMigrateError
from tests.kit import kdc
from tests.kit.kdc import Kdc
from tests.kit.localcluster import clocks

pytestmark = [kdc.needs_kerberos, pytest.mark.long]  # `long`: the nightly, which has a KDC


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kdc]:
    with kdc.running(tmp_path_factory.mktemp("kdc")) as realm:
        for principal in ("kafka/localhost", "kmigrate"):
            realm.add(principal)
        yield realm


@pytest.fixture
def environment(realm: Kdc, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """This process is a client of the realm, without a ticket; returns its own krb5.conf."""
    configuration = tmp_path / "krb5.conf"
    configuration.write_text(realm.configuration.read_text())
    monkeypatch.setenv("KRB5_CONFIG", str(configuration))
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path / 'tickets'}")
    return configuration


def log_in(keytab: str, principal: str = "kmigrate") -> str:
    """What is wrong with the login, by its codes and text; empty if the first message to a broker could be made."""
    login = KerberosLogin(principal=principal if keytab else None, keytab=keytab or None)
    security = WireSecurity("SASL_SSL", sasl_mechanism="GSSAPI", kerberos=login)
    try:
        sasl.make_mechanism(security, "localhost", "k:1 SASL GSSAPI", Deadline(10.0)).auth_bytes()
    except KMigrateError as error:
        return f"{[reason.code for reason in error.reasons]} {error}"
    return ""


def _damage_keytab(configuration: Path, keytab: Path) -> None:
    del configuration
    keytab.write_bytes(b"\5\2\0\0\0\x40damaged")


def _write_other_format(configuration: Path, keytab: Path) -> None:
    del configuration
    keytab.write_bytes(b"no keytab at all")


def _allow_old_types(configuration: Path, keytab: Path) -> None:
    del keytab
    configuration.write_text(
        configuration.read_text().replace("[libdefaults]", "[libdefaults]\npermitted_enctypes = camellia128-cts")
    )


def _spoil_configuration(configuration: Path, keytab: Path) -> None:
    del keytab
    configuration.write_text("[libdefaults]\n= {\n")


def _name_another_realm(configuration: Path, keytab: Path) -> None:
    del keytab
    configuration.write_text(configuration.read_text().replace("default_realm = EXAMPLE.ORG", "default_realm = OTHER.ORG"))


FAULTS: list[tuple[Callable[[Path, Path], None], str]] = [
    (_damage_keytab, "no key of kmigrate's principal, or is damaged"),
    (_write_other_format, "no key of kmigrate's principal, or is damaged"),
    (_allow_old_types, "no encryption type in common"),
    (_spoil_configuration, "krb5.conf of this machine is malformed"),
    (_name_another_realm, "no key of kmigrate's principal"),
]


@pytest.mark.parametrize(("spoil", "text"), FAULTS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_fault_is_named_by_what_is_missing(
    realm: Kdc, environment: Path, tmp_path: Path, spoil: Callable[[Path, Path], None], text: str
) -> None:
    keytab = tmp_path / f"{spoil.__name__}.keytab"  # tickets are kept by the keytab's path
    keytab.write_bytes((realm.folder / "kmigrate.keytab").read_bytes())
    keytab.chmod(0o600)
    spoil(environment, keytab)
    said = log_in(str(keytab))
    assert text in said
    assert said.startswith("['U09']")


def test_a_sound_login_makes_its_first_message(realm: Kdc, environment: Path) -> None:
    assert environment.exists()
    assert log_in(str(realm.add("sound")), "sound") == ""


def test_a_damaged_ticket_cache_is_named(environment: Path, tmp_path: Path) -> None:
    assert environment.exists()
    (tmp_path / "tickets").write_bytes(b"\5\4\0\x0cno tickets")
    assert "the ticket cache" in log_in("") or "there is no ticket" in log_in("")


@pytest.mark.skipif(bool(clocks.why_not()), reason="needs libfaketime")
@pytest.mark.parametrize(("seconds", "preauthentication"), [(3600, ""), (-3600, "+requires_preauth")])
def test_clocks_that_differ_are_named_unless_the_library_makes_up_for_it(
    realm: Kdc, tmp_path: Path, seconds: int, preauthentication: str
) -> None:
    """MIT's library takes the KDC's time by default; sites switch that off (`kdc_timesync = 0`), and Heimdal has none."""
    principal = f"skewed{seconds:+d}"
    keytab = realm.add(principal, *filter(None, [preauthentication]))
    (tmp_path / "clock").write_text(f"{seconds:+d}\n")
    said = {}
    for name, line in (("adapts", ""), ("does not", "kdc_timesync = 0\n")):
        configuration = tmp_path / "krb5.conf"
        configuration.write_text(realm.configuration.read_text().replace("[libdefaults]\n", f"[libdefaults]\n{line}"))
        environment = {**os.environ, **clocks.of_program(tmp_path / "clock"), "KRB5_CONFIG": str(configuration)}
        argv = [sys.executable, __file__, str(keytab), principal]
        done = subprocess.run(argv, env=environment, check=True, timeout=60, capture_output=True, text=True)
        said[name] = done.stdout.strip()
    assert said["adapts"] == ""
    assert "the clocks of this machine and of the KDC or server differ too much" in said["does not"]


if __name__ == "__main__":
    sys.stdout.write(log_in(*sys.argv[1:]) + "\n")
