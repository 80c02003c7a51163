"""What the tests of members judge by, on events that are made up."""

from __future__ import annotations

import pytest

from tests.consumer.migrating_group import again_after_commit
from tests.core.histories import calm


@pytest.mark.parametrize(
    ("committed", "ok", "begins", "beyond"), [(20, True, 20, 0), (25, True, 20, 1), (25, False, 20, 0), (30, True, 25, 1)]
)
def test_what_comes_again_is_what_was_not_committed_at_the_loss(committed: int, ok: bool, begins: int, beyond: int) -> None:
    history = calm(20)
    history.ack("p", 0, 20, 20, 10)
    history.deliver("g", "m", 0, 20, 10, 20)
    history.commit("g", "m", 0, committed, ok)
    history.deliver("g", "other", 0, begins, 30 - begins, begins)
    history.commit("g", "m", 0, 30)  # said when it is another's already: it does not count
    assert len(again_after_commit(history.end())) == beyond
