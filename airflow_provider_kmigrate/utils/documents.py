"""What tasks return as documents, rendered where an administrator reads it: in a request for an approval, and so in its message."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from airflow_provider_kmigrate.core.migration import plan_document, readiness
from airflow_provider_kmigrate.core.shared.text import code_span

_RENDERERS: Mapping[tuple[str, int], Callable[[Mapping[str, Any]], str]] = {
    (readiness.DOCUMENT_KIND, 1): readiness.render_document,
    (plan_document.DOCUMENT_KIND, plan_document.VERSION): plan_document.render_request,
}


def as_markdown(value: Any) -> Any:
    """A document as Markdown, and any other value as it is: tasks of an older kmigrate returned the Markdown itself.

    A document that this kmigrate does not know, or that a user has altered, is shown as its JSON.
    """
    if not isinstance(value, Mapping):
        return value
    try:
        return _RENDERERS[value["kind"], value["version"]](value)
    except (KeyError, TypeError, ValueError, AttributeError):
        return code_span(json.dumps(value, default=str))
