"""Kafka's own gauges over HTTP, from the exporter or the Jolokia agent of each controller.

They are a second witness only (`core.monitoring.witness`), so nothing here raises because of an answer: one that fails, is late, too large or of
another content is a gauge that was not read.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Final

import httpx

from airflow_provider_kmigrate.core.cluster_state.spec import NodeSpec
from airflow_provider_kmigrate.core.monitoring.witness import KafkaGauges, read_gauges
from airflow_provider_kmigrate.core.shared.text import printable

TIMEOUT: Final = 3.0  # seconds for a whole answer
LARGEST: Final = 4 << 20  # bytes; a controller's gauges are some hundred kilobytes
_SHOWN: Final = 200  # characters of an error
_PLAIN: Final = {"Accept-Encoding": "identity"}  # a few compressed bytes may be gigabytes


@cache
def default_tls_context() -> ssl.SSLContext:
    """The certificate authorities of this machine, as httpx finds them. Reading them takes a tenth of a second, or many times that beside other work."""
    return httpx.create_ssl_context()


def fetch_gauges(address: str, nodes: Sequence[NodeSpec], within: float = TIMEOUT) -> dict[int, KafkaGauges]:
    """The gauges of each node, all asked at once. `address`: with `{host}` or `{id}`, which are filled in; `within`: seconds."""
    urls = [address.replace("{host}", node.host).replace("{id}", str(node.id)) for node in nodes]
    all_gauges = asyncio.run(_fetch_all(urls, within))
    return {node.id: gauges for node, gauges in zip(nodes, all_gauges, strict=True)}


async def _fetch_all(urls: Iterable[str], within: float) -> list[KafkaGauges]:
    async with httpx.AsyncClient(timeout=within, headers=_PLAIN, verify=default_tls_context()) as client:
        return await asyncio.gather(*(_fetch_node_gauges(client, url, within) for url in urls))


async def _fetch_node_gauges(client: httpx.AsyncClient, url: str, within: float) -> KafkaGauges:
    """The whole answer within the time; httpx's own timeouts apply to each chunk."""
    try:
        async with asyncio.timeout(within):
            return read_gauges(await _fetch_body(client, url))
    except TimeoutError:
        return KafkaGauges(unread=f"no answer within {within:g} s")
    except Exception as error:  # noqa: BLE001 - of whatever library, such as an ExceptionGroup for a wrong port: no watch fails by it
        return KafkaGauges(unread=printable(f"{type(error).__name__}: {error}"[:_SHOWN]))


async def _fetch_body(client: httpx.AsyncClient, url: str) -> bytes:
    async with client.stream("GET", url) as answer:
        if answer.status_code != httpx.codes.OK:
            raise ValueError(f"it answered {answer.status_code}")
        body = bytearray()
        async for chunk in answer.aiter_raw():  # as it came: never decompressed
            body += chunk
            if len(body) > LARGEST:
                raise ValueError(f"its answer has more than {LARGEST} bytes")
    return bytes(body)
