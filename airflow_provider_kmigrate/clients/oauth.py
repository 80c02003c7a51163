"""Tokens for SASL OAUTHBEARER: a fixed one, or one of client credentials from a token endpoint (RFC 6749, section 4.4).

A token is kept for most of its lifetime, by login, for all connections of the process: an endpoint that is away for a minute in the
middle of a roll is not noticed. One that hangs costs a moment while the token is valid, and never a login to another endpoint. Neither tokens nor answers of the endpoint appear in an error; of an answer only the error's code does.
"""

from __future__ import annotations

import base64
import binascii
import http.client
import re
import ssl
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlencode, urlsplit

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_fixed

from airflow_provider_kmigrate.clients.deadline import Deadline
from airflow_provider_kmigrate.clients.settings import OAuthLogin
from airflow_provider_kmigrate.clients.tls import make_context
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.shared.foreign_json import read_json
from airflow_provider_kmigrate.core.shared.text import format_date
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, TimedOut, Unreachable

Answer = TypeVar("Answer")

_TRIES: Final = 3
_PAUSE_S: Final = 0.2
_LONGEST: Final = 1 << 16  # bytes of an answer
_UNKNOWN_LIFE_S: Final = 60.0  # of a token that does not say how long it is valid
_RENEWAL_S: Final = 2.0  # longest wait for a new token while the old one is valid: the call needs the rest of its time
_NEXT_RENEWAL_S: Final = 10.0  # after one that failed
_RENEWED_AT: Final = 0.8  # of the lifetime, as Kafka's clients do (sasl.login.refresh.window.factor)
_ERROR_CODE: Final = re.compile(r"[a-z_]{1,40}")  # RFC 6749, section 5.2
_REFUSALS: Final = range(400, 500)
_TOO_MANY: Final = 429
_OK: Final = 200


class _Token(NamedTuple):
    text: str
    renew_at: float  # monotonic seconds, as `ends_at`
    ends_at: float


_tokens: dict[OAuthLogin, _Token] = {}
_locks: dict[OAuthLogin, threading.Lock] = {}


def run_within(deadline: Deadline, what: str, act: Callable[[], Answer]) -> Answer:
    """The result of `act`, run in a thread of its own; raises `TimedOut` once the time is over, and leaves the thread behind.

    For what has no limit of its own, such as a library that asks a KDC, or a service that sends one byte at a time.
    """
    future: Future[Answer] = Future()

    def run() -> None:
        try:
            future.set_result(act())
        except BaseException as error:  # noqa: BLE001 - handed to the caller
            future.set_exception(error)

    threading.Thread(target=run, name="kmigrate-login", daemon=True).start()
    try:
        return future.result(deadline.seconds_left())
    except (FutureTimeoutError, TimeoutError) as error:
        text = f"{what}: no answer within {deadline.seconds:g} s"
        raise TimedOut(text, (Reason("U09", text),)) from error


def token_for(login: OAuthLogin, what: str, deadline: Deadline) -> str:
    """A token that is still valid. `what`: node and mechanism, for errors.

    Unless an earlier token is valid, raises `AuthenticationFailed` if the endpoint refuses the client, and `Unreachable` and `TimedOut` if it
    does not answer. Raises `AuthenticationFailed` if a fixed token has ended.
    """
    if login.token:
        _refuse_ended(login.token, what)
        return login.token
    kept = _tokens.get(login)
    if kept is not None and time.monotonic() < kept.renew_at:
        return kept.text
    lock = _locks.setdefault(login, threading.Lock())
    if not lock.acquire(timeout=max(0.0, deadline.seconds_left())):
        text = f"{what}: another login waits for {_name_of(login)}, which has not answered"
        raise TimedOut(text, (Reason("U09", text),))
    try:
        kept, now = _tokens.get(login), time.monotonic()
        if kept is not None and now < kept.renew_at:
            return kept.text
        token = (
            _fetch_bounded(login, what, deadline) if kept is None or now >= kept.ends_at else _renew(login, what, kept, deadline)
        )
        _tokens[login] = token  # another thread may drop it again at once
        return token.text
    finally:
        lock.release()


def _renew(login: OAuthLogin, what: str, kept: _Token, deadline: Deadline) -> _Token:
    """A new token, or the old one, which is valid still, until the next try: a proxy whose endpoint is away may answer with a refusal."""
    try:
        return _fetch_bounded(login, what, Deadline(min(_RENEWAL_S, deadline.seconds_left() / 2)))
    except (AuthenticationFailed, Unreachable, TimedOut):
        return kept._replace(renew_at=min(time.monotonic() + _NEXT_RENEWAL_S, kept.ends_at))


def drop_token(login: OAuthLogin) -> None:
    """Forget a token that a broker has refused: the next login asks for a new one."""
    _tokens.pop(login, None)


def end_of_token(token: str) -> float | None:
    """When a token ends, in seconds since the epoch, by its own claim `exp`; None if it is not readable (an opaque token)."""
    parts = token.split(".")
    try:
        claims = read_json(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return float(claims["exp"])
    except (IndexError, KeyError, TypeError, ValueError, binascii.Error):
        return None


def _refuse_ended(token: str, what: str) -> None:
    end = end_of_token(token)
    if end is not None and end <= time.time():
        text = f"{what}: the token in sasl.oauthbearer.token ended at {format_date(round(1000 * max(0.0, end)))}"
        raise AuthenticationFailed(text, (Reason("U09", text),))


def _fetch_bounded(login: OAuthLogin, what: str, deadline: Deadline) -> _Token:
    tries = Retrying(
        stop=stop_after_attempt(_TRIES), wait=wait_fixed(_PAUSE_S), retry=retry_if_exception_type(Unreachable), reraise=True
    )
    return tries(lambda: run_within(deadline, f"{what}: {_name_of(login)}", lambda: _fetch(login, what, deadline)))


def _fetch(login: OAuthLogin, what: str, deadline: Deadline) -> _Token:
    began = time.monotonic()
    status, body = _post(login, what, deadline)
    answer = _parse(body)
    if status in _REFUSALS and status != _TOO_MANY:
        code = str(answer.get("error", ""))
        shown = f" {code}" if _ERROR_CODE.fullmatch(code) else ""
        text = f"{what}: {_name_of(login)} refuses the client {login.client_id!r}: {status}{shown}"
        raise AuthenticationFailed(text, (Reason("U09", text),))
    token = answer.get("access_token")
    if status != _OK or not isinstance(token, str) or not token.isascii() or not token.isprintable() or not token:
        text = f"{what}: {_name_of(login)} answers {status} without a token"
        raise Unreachable(text, (Reason("U09", text),))
    life = _lifetime(answer.get("expires_in"), token)
    return _Token(token, began + life * _RENEWED_AT, began + life)


def _lifetime(expires_in: Any, token: str) -> float:
    try:
        life = float(expires_in)
    except (TypeError, ValueError):
        end = end_of_token(token)
        life = end - time.time() if end is not None else _UNKNOWN_LIFE_S
    return max(0.0, min(life, 86400.0))


def _post(login: OAuthLogin, what: str, deadline: Deadline) -> tuple[int, bytes]:
    url = urlsplit(login.endpoint)
    fields = {"grant_type": "client_credentials", **({"scope": login.scope} if login.scope else {})}
    basic = base64.b64encode(f"{login.client_id}:{login.client_secret}".encode()).decode()
    headers = {
        "Authorization": f"Basic {basic}",
        "Content-Type": "application/x-www-form-urlencoded",
        "Accept": "application/json",
    }
    try:
        connection = _connect(login, url.scheme, url.hostname or "", url.port, deadline.seconds_left())
        try:
            path = (url.path or "/") + (f"?{url.query}" if url.query else "")
            connection.request("POST", path, urlencode(fields), headers)
            answer = connection.getresponse()  # redirects are not followed: they would carry the secret elsewhere
            return answer.status, answer.read(_LONGEST)
        finally:
            connection.close()
    except ssl.SSLCertVerificationError as error:
        text = f"{what}: the certificate of {_name_of(login)} is not accepted: {error.verify_message}"
        raise AuthenticationFailed(text, (Reason("U09", text),)) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        text = f"{what}: {_name_of(login)} does not answer ({error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__})"
        raise Unreachable(text, (Reason("U09", text),)) from None


def _connect(login: OAuthLogin, scheme: str, host: str, port: int | None, seconds: float) -> http.client.HTTPConnection:
    if scheme == "http":
        return http.client.HTTPConnection(host, port, timeout=seconds)
    return http.client.HTTPSConnection(host, port, timeout=seconds, context=make_context(login.ca_file))


def _parse(body: bytes) -> dict[str, Any]:
    try:
        answer = read_json(body)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _name_of(login: OAuthLogin) -> str:
    """The endpoint without what may be secret in its address."""
    url = urlsplit(login.endpoint)
    return f"the token endpoint {url.scheme}://{url.hostname}{f':{url.port}' if url.port else ''}{url.path}"
