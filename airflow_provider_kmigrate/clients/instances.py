"""Restart instances of consumer applications as another kind of member, by the user's own command or webhook.

A command gets the placeholders `{group}`, `{instance}`, `{host}` and `{kind}` (zookeeper, migrating or kafka), runs without a shell, and ends
with 0 once the instance was restarted; it may be run again with the same kind. A webhook is a POST with

    {"cluster": ..., "group": ..., "instance": ..., "host": ..., "kind": ..., "token": ...}

as JSON, answered by 2xx once the instance was or will be restarted; `token` grows with each run of kmigrate, so that a service may
refuse an outdated one. Neither reports the instance's state: its members in ZooKeeper and Kafka do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import httpx

from airflow_provider_kmigrate.clients.hosts.command import fill
from airflow_provider_kmigrate.clients.hosts.runner import LocalRunner
from airflow_provider_kmigrate.clients.settings import HostSettings, WebhookSettings
from airflow_provider_kmigrate.core.cluster import GroupSpec, InstanceSpec
from airflow_provider_kmigrate.exceptions import Failed, TimedOut, Unreachable

_BROKEN_CONNECTION = 255  # ssh's exit code for it
_SHOWN = 500  # characters of an answer that a message carries


@dataclass(frozen=True, slots=True)
class Instances:
    """The commands and webhooks of one cluster's groups."""

    cluster: str
    hosts: Mapping[str, HostSettings]
    webhooks: Mapping[str, WebhookSettings]

    def switch(self, group: GroupSpec, instance: InstanceSpec, kind: str, token: int) -> None:
        """Restart the instance as `kind`; returns once the command ends or the webhook answers, within `switch_timeout`.

        Raises `Failed` if it refuses, `TimedOut` and `Unreachable` if the result is unknown.
        """
        body = {"group": group.name, "instance": instance.name, "host": instance.host, "kind": kind}
        if instance.webhook:
            self._post(group, instance, {"cluster": self.cluster, **body, "token": token})
        else:
            self._run(group, instance, body)

    def _run(self, group: GroupSpec, instance: InstanceSpec, places: Mapping[str, str]) -> None:
        environment = self.hosts[group.conn_id].environment if group.conn_id else None
        answer = LocalRunner(environment)(fill(instance.switch, places), "", group.switch_timeout)
        what = f"{instance.name} of group {group.name}: its switch command"
        if answer.code == _BROKEN_CONNECTION:
            raise Unreachable(f"{what} found no connection: {answer.err_tail}")
        if answer.code != 0:
            raise Failed(f"{what} ended with exit code {answer.code}: {answer.err_tail}")

    def _post(self, group: GroupSpec, instance: InstanceSpec, body: Mapping[str, str | int]) -> None:
        settings, what = self.webhooks[instance.webhook], f"{instance.name} of group {group.name}: webhook {instance.webhook}"
        try:
            answer = asyncio.run(_posted(settings, body, group.switch_timeout))
        except (TimeoutError, httpx.TimeoutException) as error:
            raise TimedOut(f"{what}: no answer within {group.switch_timeout:g} s") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:  # its text may show the address, which may hold a secret
            raise Unreachable(f"{what}: {type(error).__name__}") from None
        if not answer.is_success:
            raise Failed(f"{what} answered {answer.status_code}: {answer.text[:_SHOWN]}")


async def _posted(settings: WebhookSettings, body: Mapping[str, str | int], seconds: float) -> httpx.Response:
    """The whole answer within so many seconds; httpx's own timeouts apply to each chunk, so a trickling answer never ends."""
    client = httpx.AsyncClient(headers=settings.headers, auth=settings.login, timeout=seconds)
    async with asyncio.timeout(seconds), client:
        return await client.post(settings.url, json=body)
