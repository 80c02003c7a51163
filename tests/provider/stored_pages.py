"""The pages of the plugin for tests, as a user of Airflow reads them."""

from __future__ import annotations

import html
import re

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from fastapi.testclient import TestClient


def log_in(pages: TestClient, role: str | None = "viewer") -> None:
    token = get_auth_manager().generate_jwt(SimpleAuthManagerUser(username=f"user-{role}", role=role))
    pages.headers["Authorization"] = f"Bearer {token}"


def read(pages: TestClient, route: str, code: int = 200) -> str:
    answer = pages.get(f"/kmigrate/{route}")
    assert answer.status_code == code, answer.text[:500]
    text: str = answer.text
    return text


def show_plainly(page: str) -> str:
    """The words of a page, as a reader sees them."""
    body = page[page.index("<body") :]
    return " ".join(html.unescape(re.sub(r"<[^>]+>", "", body.replace("<br>", " "))).split())
