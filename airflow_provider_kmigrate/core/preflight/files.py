"""Preflight's check of brokers' files: what is wrong with one, and the lines with which it would be right.

Lines are named only if the same rules find nothing new in the file that has them: no remedy leads into the next block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from airflow_provider_kmigrate.core.files.config_matrix import FileStage, forbidden, node_id, owner, problems, setting, stage_of
from airflow_provider_kmigrate.core.files.properties import edit
from airflow_provider_kmigrate.core.model import ClusterView, NodeFiles, Reason
from airflow_provider_kmigrate.core.preflight.findings import Check, PreflightFacts, PreflightFinding, begun, blocks, of_file

Keys = Mapping[str, str]
Change = Mapping[str, str | None]  # the keys to write; None: to remove
_GENERATION = "broker.id.generation.enable"


def _files(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    for node in facts.spec.brokers:
        seen = view.broker(node.id).files
        if seen.properties is None:
            continue
        found = node_id(seen.properties)
        if found not in {None, node.id}:
            yield blocks("M01", f"the properties file of broker {node.id} on {node.host} is that of broker {found}")
        changes = _changes(node.id, seen, facts.configs.get(node.id) or {})
        yield from of_file(f"broker {node.id}", with_lines(seen.properties, lambda keys: _problems(keys, view, facts), changes))


def _problems(properties: Keys, view: ClusterView, facts: PreflightFacts) -> tuple[Reason, ...]:
    """What is wrong with a file; it may be a stage ahead of its process, if a run was stopped between the two."""
    allowed = {FileStage.ZOOKEEPER, FileStage.MIGRATION, *([FileStage.KRAFT] if begun(view) else [])}
    stage = stage_of(properties)
    expected = stage if stage in allowed else FileStage.ZOOKEEPER
    return problems(properties, expected, chroot=facts.chroot, controller_listener=facts.spec.controller_listener)


def with_lines(properties: Keys, check: Callable[[Keys], tuple[Reason, ...]], changes: Iterable[Change]) -> Iterator[Reason]:
    """What `check` finds in a file, each with the first change that repairs it and causes nothing else that `check` finds."""
    found = check(properties)
    repairs: dict[Reason, Change] = {}
    for change in changes if found else ():
        left = set(check(_changed(properties, change)))
        if left < set(found):
            repairs = dict.fromkeys(set(found) - left, change) | repairs
    return (replace(reason, text=reason.text + _lines(repairs.get(reason, {}))) for reason in found)


def _changed(properties: Keys, change: Change) -> dict[str, str]:
    kept = {key: value for key, value in properties.items() if key not in change}
    return kept | {key: value for key, value in change.items() if value is not None}


def _lines(change: Change) -> str:
    written = edit("", {key: value for key, value in change.items() if value is not None}).splitlines()
    removed = [key for key, value in change.items() if value is None]
    acts = (("write", written), ("remove", removed))
    return "".join(f"; {act} {' and '.join(f'`{line}`' for line in lines)}" for act, lines in acts if lines)


def _changes(broker: int, files: NodeFiles, running: Keys) -> Iterator[Change]:
    """Changes to a broker's original that may repair it, the smaller first. They hold no secret, and need no restart.

    A rendered file has none: its original is corrected.
    """
    properties = files.properties or {}
    if stage_of(properties) is not FileStage.ZOOKEEPER:
        return
    if node_id(properties) in {None, broker}:
        ids = _own_id(broker, files)
        yield ids
        yield {**ids, _GENERATION: "false"}
    yield from ({key: None} for key in properties if forbidden(key, FileStage.ZOOKEEPER))
    if connect := setting(running, "zookeeper.connect"):
        yield {"zookeeper.connect": connect}


def _own_id(broker: int, files: NodeFiles) -> dict[str, str]:
    """The keys that must get the broker's id; none if its directories do not name it, since an id is never invented."""
    owners = {owner(meta)[1] for meta in (files.meta or {}).values()} - {None}
    properties, own = files.properties or {}, str(broker)
    keys = [key for key in ("broker.id", "node.id") if setting(properties, key)] or ["broker.id"]
    return {key: own for key in keys if setting(properties, key) != own} if owners == {own} else {}


CHECKS: tuple[Check, ...] = (_files,)
