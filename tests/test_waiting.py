"""The waits that every test of real processes is made of."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.waiting import wait_for, wait_until


def test_what_holds_is_not_waited_for() -> None:
    assert wait_until(lambda: True, "it") < 1
    assert wait_for(lambda: 5, lambda seen: seen == 5, "five") == 5


def test_the_look_of_which_it_holds_is_returned() -> None:
    seen = iter(range(9))
    assert wait_for(lambda: next(seen), lambda number: number == 3, "three") == 3


def test_a_wait_in_vain_names_what_was_waited_for_and_seen() -> None:
    with pytest.raises(AssertionError, match=r"in vain for 0.1 s: it"):
        wait_until(lambda: 0, "it", 0.1)
    with pytest.raises(AssertionError, match=r"in vain for 0.1 s: it; .*not seen: broker 1"):
        wait_for(lambda: SimpleNamespace(unknowns="broker 1"), lambda _: False, "it", 0.1)


def test_an_error_counts_as_not_yet_only_where_that_is_said() -> None:
    def fails() -> bool:
        raise OSError("no node there")

    with pytest.raises(OSError, match="no node there"):
        wait_until(fails, "it", 0.1)
    with pytest.raises(AssertionError, match="no node there"):
        wait_until(fails, "it", 0.1, despite=(OSError,))
