from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.steps import walked


@pytest.fixture
def monkeypatch(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """A test that has patched something walks by itself."""
    walked.patches.append(monkeypatch)
    yield monkeypatch
    walked.patches.remove(monkeypatch)
