"""What all tests share: those that take longest begin first, and a second try begins anew and prints why there was a first one."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """So that no worker is left alone with a long one at the end."""
    items.sort(key=_seconds, reverse=True)


def _seconds(item: pytest.Item) -> float:
    marker = item.get_closest_marker("slow")
    return 0.0 if marker is None else marker.kwargs.get("seconds", 5.0)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Function) -> None:
    """A second try has a cluster of its own: on the first one's it would meet the topics that the first one made, and fail of that."""
    if getattr(item, "execution_count", 1) == 1:
        return
    for definitions in item._fixtureinfo.name2fixturedefs.values():
        for definition in definitions:
            if definition.scope == "module":
                definition.finish(item._request)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A second try that passes must not hide what the first one met."""
    tried = terminalreporter.stats.get("rerun", [])
    if tried:
        terminalreporter.section("first tries that failed")
    for report in tried:
        terminalreporter.section(f"{report.nodeid}, {report.when}", sep="_")
        terminalreporter.line(report.longreprtext[-6_000:])
