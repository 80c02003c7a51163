"""GSSAPI without a KDC: what is refused before one is asked, a KDC that does not answer, and a node that is none.

`test_logins_real` has a real KDC; the library is a fake here for faults that no KDC makes.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_kmigrate.clients import sasl
from airflow_provider_kmigrate.clients.deadline import Deadline
from airflow_provider_kmigrate.clients.settings import KerberosLogin, WireSecurity
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, KMigrateError, TimedOut, Unreachable

WHAT = "k:9092 SASL GSSAPI"


class GssError(Exception):
    def __init__(self, code: int) -> None:
        super().__init__("Minor: such a thing")
        self.min_code = code % (1 << 32)


class Context:
    """The client's side of a context that is complete after one answer."""

    complete = False

    def __init__(self, layers: bytes = b"\1\0\0\0", error: int = 0, delay: float = 0.0) -> None:
        self.layers, self.error, self.delay = layers, error, delay

    def step(self, token: bytes | None) -> bytes | None:
        time.sleep(self.delay)
        if self.error:
            raise GssError(self.error)
        self.complete = token is not None
        return b"ticket" if token is None else None

    def unwrap(self, _: bytes) -> Any:
        return SimpleNamespace(message=self.layers)

    def wrap(self, message: bytes, _: bool) -> Any:
        return SimpleNamespace(message=b"wrapped " + message)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A `gssapi` whose next context the test sets."""
    fake = SimpleNamespace(
        exceptions=SimpleNamespace(GSSError=GssError),
        Name=lambda text, name_type: text,
        NameType=SimpleNamespace(hostbased_service=1, kerberos_principal=2),
        MechType=SimpleNamespace(kerberos=1),
        Credentials=lambda **fields: fields,
        context=Context(),
    )
    fake.SecurityContext = lambda **fields: fake.opened.append(fields) or fake.context
    fake.opened = []
    monkeypatch.setitem(sys.modules, "gssapi", fake)
    monkeypatch.setattr(sasl, "is_kerberos_installed", lambda: True)
    return fake


def make(login: KerberosLogin | None = None, seconds: float = 5.0) -> Any:
    security = WireSecurity("SASL_SSL", sasl_mechanism="GSSAPI", kerberos=login)
    return sasl.make_mechanism(security, "k", WHAT, Deadline(seconds))


def test_the_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sasl, "is_kerberos_installed", lambda: False)
    with pytest.raises(AuthenticationFailed, match=r"gssapi is missing; pip install .*\[kerberos\]") as error:
        make()
    assert error.value.reasons[0].code == "U09"


@pytest.mark.parametrize(("mode", "accepted"), [(0o600, True), (0o400, True), (0o640, False), (0o604, False), (0o610, False)])
def test_a_keytab_that_others_may_read_is_not_used(library: Any, tmp_path: Path, mode: int, accepted: bool) -> None:
    keytab = tmp_path / "k.keytab"
    keytab.write_bytes(b"secret")
    keytab.chmod(mode)
    if accepted:
        make(KerberosLogin(principal="kmigrate", keytab=str(keytab)))
        assert library.opened[0]["creds"]["store"]["client_keytab"] == f"FILE:{keytab}"
        return
    with pytest.raises(AuthenticationFailed, match=f"readable by others .mode {mode:04o}"):
        make(KerberosLogin(keytab=str(keytab)))
    assert library.opened == []


def test_a_keytab_that_is_not_there_is_named(library: Any) -> None:
    with pytest.raises(AuthenticationFailed, match="the keytab /nowhere cannot be read"):
        make(KerberosLogin(keytab="/nowhere"))


def test_a_kdc_that_does_not_answer_costs_the_deadline_only(library: Any) -> None:
    library.context, began = Context(delay=3.0), time.monotonic()
    with pytest.raises(TimedOut, match=r"the KDC: no answer within 0\.2 s"):
        make(seconds=0.2)
    assert time.monotonic() - began < 2.0


@pytest.mark.parametrize(
    ("code", "text", "kind"),
    [(code, text, kind) for code, (text, kind) in sasl._KERBEROS_ERRORS.items()]
    + [(7, "Kerberos refuses it", AuthenticationFailed)],
)
def test_what_is_missing_is_named(library: Any, code: int, text: str, kind: type[KMigrateError]) -> None:
    library.context = Context(error=code)
    with pytest.raises(kind) as error:
        make()
    assert str(error.value) == f"{WHAT}: {text} (Minor: such a thing)"
    assert (error.value.reasons[0].code, kind in {AuthenticationFailed, Unreachable}) == ("U09", True)


def test_the_exchange_ends_after_the_choice_of_no_layer(library: Any) -> None:
    mechanism = make()
    assert library.opened[0]["name"] == "kafka@k"
    sent = [mechanism.auth_bytes()]
    for answer in (b"proof", b"layers"):
        mechanism.receive(answer)
        assert not mechanism.is_done()
        sent.append(mechanism.auth_bytes())
    mechanism.receive(b"")
    assert sent == [b"ticket", b"", b"wrapped \1\0\0\0"]
    assert mechanism.is_done()


@pytest.mark.parametrize("layers", [b"", b"\6\0\0\0"])
def test_a_node_that_demands_a_layer_is_no_broker(library: Any, layers: bytes) -> None:
    library.context = Context(layers)
    mechanism = make()
    mechanism.receive(b"proof")
    with pytest.raises(AuthenticationFailed, match="security layer"):
        mechanism.receive(b"layers")


def test_a_mechanism_that_nobody_speaks() -> None:
    with pytest.raises(AuthenticationFailed, match="DIGEST-MD5 is not supported"):
        sasl.make_mechanism(WireSecurity("SASL_SSL", sasl_mechanism="DIGEST-MD5"), "k", "k:1 SASL DIGEST-MD5", Deadline(1.0))
