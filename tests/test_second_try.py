"""A second try of a test, as continuous integration makes them."""

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

MODULE = """
import itertools, pytest
made, ended = itertools.count(), []

@pytest.fixture(scope="module")
def cluster():
    number = next(made)
    yield number
    ended.append(number)

@pytest.fixture(scope="module")
def admin(cluster):
    return f"of {cluster}"

def test_before(cluster):
    assert cluster == 0

def test_crowded(cluster, admin):
    assert (cluster, admin, ended) == (1, "of 1", [0])

def test_after(cluster, admin):
    assert (cluster, admin, ended) == (1, "of 1", [0])
"""


def test_it_has_a_cluster_of_its_own(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(Path(__file__).with_name("conftest.py").read_text())
    pytester.makepyfile(MODULE)
    result = pytester.runpytest_inprocess("--reruns", "1")
    assert result.parseoutcomes() == {"passed": 3, "rerun": 1}
    result.stdout.fnmatch_lines(["*first tries that failed*", "*test_crowded, call*"])
