"""The SASL mechanisms of the wire client: PLAIN, SCRAM and OAUTHBEARER are kafka-python's, GSSAPI (RFC 4752; ZooKeeper's too) is by `gssapi`.

A login that cannot be made is named by its mechanism and by what is missing (U09): no ticket, an unknown realm, an expired ticket, a
keytab that others may read, a token endpoint that does not answer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from kafka.net.sasl import get_sasl_mechanism
from kafka.net.sasl.oauth import AbstractTokenProvider

from airflow_provider_kmigrate.clients.deadline import Deadline
from airflow_provider_kmigrate.clients.oauth import drop_token, run_within, token_for
from airflow_provider_kmigrate.clients.settings import KerberosLogin, OAuthLogin, WireSecurity
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.shared.text import printable
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, KMigrateError, Unreachable

OAUTHBEARER: Final = "OAUTHBEARER"
GSSAPI: Final = "GSSAPI"
_BY_PASSWORD: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS: Final = (*_BY_PASSWORD, OAUTHBEARER, GSSAPI)
_OTHERS: Final = 0o077

_NO_TICKET: Final = "there is no ticket, and no keytab is named"
_NO_KEY: Final = "the keytab has no key of kmigrate's principal, or is damaged"
_CLOCKS: Final = "the clocks of this machine and of the KDC or server differ too much"
_NO_COMMON_TYPE: Final = (
    "this machine and the KDC or keytab have no encryption type in common (permitted_enctypes in krb5.conf of this machine)"
)

#: MIT Kerberos' codes (krb5_err.et) -> what is missing, and whether a later try may find it.
_KERBEROS_ERRORS: Final[dict[int, tuple[str, type[KMigrateError]]]] = {
    -1765328243: (_NO_TICKET, AuthenticationFailed),
    -1765328189: (_NO_TICKET, AuthenticationFailed),
    -1765328352: ("the ticket has expired", AuthenticationFailed),
    -1765328377: ("the KDC does not know the server by this name", AuthenticationFailed),
    -1765328378: ("the KDC does not know kmigrate's principal", AuthenticationFailed),
    -1765328366: ("the KDC has locked or expired kmigrate's principal", AuthenticationFailed),
    -1765328361: ("the key of kmigrate's principal has expired", AuthenticationFailed),
    -1765328360: ("the keytab has an old key of kmigrate's principal", AuthenticationFailed),
    -1765328353: ("the keytab has an old key of kmigrate's principal", AuthenticationFailed),
    -1765328347: (_CLOCKS, AuthenticationFailed),
    -1765328236: (_CLOCKS, AuthenticationFailed),
    -1765328351: (_CLOCKS, AuthenticationFailed),  # the ticket is not valid yet
    -1765328370: (_NO_COMMON_TYPE, AuthenticationFailed),
    -1765328234: (_NO_COMMON_TYPE, AuthenticationFailed),
    -1765328147: (_NO_COMMON_TYPE, AuthenticationFailed),
    -1765328249: ("krb5.conf of this machine cannot be read", AuthenticationFailed),
    -1765328248: ("krb5.conf of this machine is malformed", AuthenticationFailed),
    -1765328230: (
        "no KDC is known for the realm; is it the right one, and does krb5.conf of this machine name it?",
        AuthenticationFailed,
    ),
    -1765328316: ("the KDC is of another realm", AuthenticationFailed),
    -1765328203: (_NO_KEY, AuthenticationFailed),
    -1765328228: ("no KDC of the realm answers", Unreachable),
}


def is_kerberos_installed() -> bool:
    """Whether GSSAPI can be used: the package `gssapi` is an extra."""
    return find_spec("gssapi") is not None


def make_mechanism(security: WireSecurity, host: str, what: str, deadline: Deadline) -> Any:
    """One exchange: `auth_bytes`, `receive`, `is_done`. `host`: the node's name; `what`: node and mechanism, for errors.

    May ask a KDC or a token endpoint, within the deadline. Raises `AuthenticationFailed`, `Unreachable`, `TimedOut`.
    """
    if security.sasl_mechanism not in MECHANISMS:
        raise AuthenticationFailed(f"{what} is not supported here; use one of {', '.join(MECHANISMS)}")
    if security.sasl_mechanism == OAUTHBEARER:
        return _oauth_mechanism(security.oauth, what, deadline)
    if security.sasl_mechanism == GSSAPI:
        return _kerberos_mechanism(security.kerberos or KerberosLogin(), host, what, deadline)
    if not security.sasl_user or not security.sasl_password:
        raise AuthenticationFailed(f"{what} needs a user and a password in the Kafka connection")
    user = security.sasl_user
    if security.sasl_mechanism != "PLAIN":  # a saslname of RFC 5802, which kafka-python leaves as it is
        user = user.replace("=", "=3D").replace(",", "=2C")
    return get_sasl_mechanism(security.sasl_mechanism)(
        sasl_mechanism=security.sasl_mechanism,
        sasl_plain_username=user,
        sasl_plain_password=security.sasl_password,
    )


def forget_token(security: WireSecurity) -> None:
    """The node has refused the login: the next one asks for a new token."""
    if security.oauth is not None:
        drop_token(security.oauth)


class _Tokens(AbstractTokenProvider):  # type: ignore[misc]
    """One token for one exchange."""

    def __init__(self, token: str, extensions: tuple[tuple[str, str], ...]) -> None:
        super().__init__()
        self._token, self._extensions = token, extensions

    def token(self) -> str:
        """The token."""
        return self._token

    def extensions(self) -> dict[str, str]:
        """SASL extensions (KIP-342)."""
        return dict(self._extensions)


def _oauth_mechanism(login: OAuthLogin | None, what: str, deadline: Deadline) -> Any:
    if login is None:
        raise AuthenticationFailed(f"{what} needs a token endpoint or a token in the Kafka connection")
    token = token_for(login, what, deadline)
    return get_sasl_mechanism(OAUTHBEARER)(sasl_oauth_token_provider=_Tokens(token, login.extensions))


def _kerberos_mechanism(login: KerberosLogin, host: str, what: str, deadline: Deadline) -> Any:
    if not is_kerberos_installed():
        text = f"{what}: the Python package gssapi is missing; pip install 'airflow-provider-kmigrate[kerberos]' on every worker and the triggerer"
        raise AuthenticationFailed(text, (Reason("U09", text),))
    if login.keytab:
        _check_keytab(login.keytab, what)
    return run_within(deadline, f"{what}: the KDC", lambda: KerberosMechanism(login, host, what))


def _check_keytab(path: str, what: str) -> None:
    """A keytab is a password: one that others may read is refused before it is used."""
    try:
        mode = Path(path).stat().st_mode
        Path(path).open("rb").close()
    except OSError as error:
        text = f"{what}: the keytab {path} cannot be read ({error.strerror})"
        raise AuthenticationFailed(text, (Reason("U09", text),)) from None
    if mode & _OTHERS:
        text = f"{what}: the keytab {path} is readable by others (mode {mode & 0o777:04o}); chmod 600 it"
        raise AuthenticationFailed(text, (Reason("U09", text),))


class KerberosMechanism:
    """GSSAPI without a security layer: TLS protects the connection, as Kafka has it."""

    def __init__(self, login: KerberosLogin, host: str, what: str) -> None:
        import gssapi  # noqa: PLC0415 - an extra

        self._what, self._step, self._has_keytab = what, 0, bool(login.keytab)
        self._error: type[Exception] = gssapi.exceptions.GSSError  # type: ignore[attr-defined,unused-ignore]
        self._context = self._guard(lambda: _open_context(gssapi, login, host))
        self._next = self._guard(lambda: self._context.step(None)) or b""

    def auth_bytes(self) -> bytes:
        """What to send next."""
        return bytes(self._next)

    def receive(self, answer: bytes) -> None:
        """The node's answer: its proof, then the security layers it offers, then nothing."""
        if not self._context.complete:
            self._next = self._guard(lambda: self._context.step(bytes(answer))) or b""
        elif self._step == 0:
            layers = self._guard(lambda: self._context.unwrap(bytes(answer)).message)
            if len(layers) < 1 or not layers[0] & 1:
                raise AuthenticationFailed(f"{self._what}: the node demands a security layer, which Kafka does not have")
            self._next = self._guard(lambda: self._context.wrap(b"\1\0\0\0", False).message)
            self._step = 1
        else:
            self._step = 2

    def is_done(self) -> bool:
        """Whether the node has accepted the choice of no layer."""
        return self._step == 2

    def _guard(self, act: Callable[[], Any]) -> Any:
        try:
            return act()
        except self._error as error:
            raise _kerberos_error(error, self._what, has_keytab=self._has_keytab) from error


def _open_context(gssapi: Any, login: KerberosLogin, host: str) -> Any:
    target = gssapi.Name(f"{login.service}@{host}", name_type=gssapi.NameType.hostbased_service)
    return gssapi.SecurityContext(name=target, usage="initiate", mech=gssapi.MechType.kerberos, creds=_credentials(gssapi, login))


def _credentials(gssapi: Any, login: KerberosLogin) -> Any:
    """From the keytab, with its tickets in this process's memory, or the process's ticket cache; None: whatever that cache has."""
    name = gssapi.Name(login.principal, name_type=gssapi.NameType.kerberos_principal) if login.principal else None
    if not login.keytab:
        return gssapi.Credentials(name=name, usage="initiate") if name else None
    cache = hashlib.sha256(f"{login.principal}\0{login.keytab}".encode()).hexdigest()[:16]
    store = {"client_keytab": f"FILE:{login.keytab}", "ccache": f"MEMORY:kmigrate-{cache}"}
    return gssapi.Credentials(name=name, usage="initiate", store=store)


def _kerberos_error(error: Any, what: str, *, has_keytab: bool) -> KMigrateError:
    code = int(getattr(error, "min_code", 0) or 0)
    code = code - (1 << 32) if code >= 1 << 31 else code
    missing, kind = _KERBEROS_ERRORS.get(code, ("Kerberos refuses it", AuthenticationFailed))
    missing = _NO_KEY if has_keytab and missing == _NO_TICKET else missing
    text = f"{what}: {missing} ({printable(str(error))[:300]})"
    return kind(text, (Reason("U09", text),))
