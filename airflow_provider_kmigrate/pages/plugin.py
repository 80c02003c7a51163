"""The plugin that Airflow loads: the pages, and where its UI shows them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from airflow.plugins_manager import AirflowPlugin

from airflow_provider_kmigrate.utils.status_xcom import PAGES, pages_root

_Message = MutableMapping[str, Any]


async def serve_pages(
    scope: _Message, receive: Callable[[], Awaitable[_Message]], send: Callable[[_Message], Awaitable[None]]
) -> None:
    """The pages as an ASGI application. Every process of Airflow loads the plugin; only an API server imports them, at the first request."""
    from airflow_provider_kmigrate.pages.app import app  # noqa: PLC0415

    await app(scope, receive, send)


_ROOT = pages_root()


class KMigratePlugin(AirflowPlugin):
    """Fleet in the navigation; the cluster of a DAG in a tab of the DAG and of each of its runs."""

    name = "kmigrate"
    fastapi_apps = [  # noqa: RUF012  # as Airflow's class has it
        {"app": serve_pages, "url_prefix": PAGES, "name": "kmigrate"}
    ]
    external_views = [  # noqa: RUF012
        {
            "name": "Kafka migrations",
            "href": f"{_ROOT}/fleet",
            "destination": "nav",
            "category": "browse",
            "url_route": "kmigrate",
        },
        {"name": "Kafka cluster", "href": f"{_ROOT}/dag/{{DAG_ID}}", "destination": "dag", "url_route": "kmigrate_dag"},
        {"name": "Kafka cluster", "href": f"{_ROOT}/dag/{{DAG_ID}}", "destination": "dag_run", "url_route": "kmigrate_run"},
    ]
