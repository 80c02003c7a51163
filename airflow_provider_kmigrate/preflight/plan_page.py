"""A plan as one self-contained HTML file, and the same as JSON beside it.

The page has the style of the preflight's, no script, and fetches nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, Final

from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.clients.hosts.files import read_object
from airflow_provider_kmigrate.clients.state_folder import SharedFolder, StateFolder
from airflow_provider_kmigrate.core.migration.plan_document import (
    LISTS,
    TITLES,
    PlanOf,
    count_restarts,
    describe_approvers,
    describe_spread,
    format_bytes,
    format_seconds,
    list_common_lines,
    list_lines,
)
from airflow_provider_kmigrate.core.shared.text import count_of, escape_html, format_date
from airflow_provider_kmigrate.exceptions import Failed

_HTML, _JSON, _OF_FINGERPRINT = "plan.html", "plan.json", "plan-{}.json"
_FINGERPRINT = re.compile("[0-9a-f]{16}")
_BAR: Final = 1000  # units of a bar's width


def write_plan(document: Mapping[str, Any], folder: Path, state: StateFolder | None = None) -> Path:
    """Write both files into `folder`, made if missing; each is whole or as before. Readable by their owner only. Returns the page.

    The JSON is kept under its fingerprint as well: a later preflight compares with the plan that was reviewed (`read_plan`).
    """
    atomic.make_folder(folder)
    state = state or SharedFolder()
    text = (json.dumps(document, ensure_ascii=False, indent=1) + "\n").encode()
    state.replace(folder / _HTML, lambda _: render_plan_page(document).encode())
    state.replace(folder / _JSON, lambda _: text)
    state.replace(folder / _OF_FINGERPRINT.format(document["fingerprint"]), lambda _: text)
    return folder / _HTML


def read_plan(folder: Path, fingerprint: str) -> Mapping[str, Any] | None:
    """The plan with this fingerprint that a preflight has written into `folder`; None if there is none."""
    if _FINGERPRINT.fullmatch(fingerprint):
        with suppress(Failed):  # it only explains a refusal
            return read_object(folder / _OF_FINGERPRINT.format(fingerprint))
    return None


def render_plan_page(document: Mapping[str, Any]) -> str:
    """The page of a plan; it names the file with the same facts, in the same folder."""
    template = Template(files("airflow_provider_kmigrate.audit.report").joinpath("page.html").read_text(encoding="utf-8"))
    stages = document["stages"]
    body = "\n".join(
        (
            _render_header(document),
            _render_steps(document),
            _render_figures(document),
            _render_times(document),
            _render_space(document),
            *map(_render_stage, stages),
            _ABOUT,
        )
    )
    return template.substitute(title=escape_html(_title(document)), body=body, guides="")


_ABOUT: Final = (
    '<section id="about"><h2>About this page</h2><p>Nothing was changed, and no lock was taken. Values that may be secret are not shown. A run '
    "whose <code>plan</code> is this fingerprint refuses another plan. What differs from a saved plan: <code>kmigrate plan --compare</code>. "
    f'The same as JSON: <a href="{_JSON}">{_JSON}</a>.</p></section>'
)


def _render_header(document: Mapping[str, Any]) -> str:
    blockers = document["findings"].get("block", ())
    style, headline = (
        ("fail", f"Preflight blocks the migration: {', '.join(blockers)}.") if blockers else ("none", _headline(document))
    )
    about = {
        "Cluster": f"{document['cluster']} ({document['cluster_id']})",
        "Phase": document["phase"],
        "Made": f"{format_date(document['made_ms'])}, kmigrate {document['made_by']}",
        "Fingerprint": document["fingerprint"],
    }
    terms = "".join(f"<div><dt>{name}</dt><dd>{escape_html(value)}</dd></div>" for name, value in about.items())
    return (
        f'<header class="verdict {style}"><h1>{escape_html(_title(document))}</h1>'
        f'<p class="headline">{escape_html(headline)}</p><dl class="facts">{terms}</dl></header>'
    )


def _title(document: Mapping[str, Any]) -> str:
    return f"Plan of {document['cluster']}: {TITLES[document['of']]}"


def _headline(document: Mapping[str, Any]) -> str:
    who = describe_approvers(document["approval"])
    if document["of"] == PlanOf.MIGRATION:
        return f"Everything can be rolled back until {document['point_of_no_return']}, before which {who} must approve."
    point = f" A rollback is possible until {document['point_of_no_return']}." if document["point_of_no_return"] else ""
    begins = f"It begins if {who} approves." if document["approval"]["required"] else "It asks for no approval."
    return f"{begins}{point} {document['way_back']}"


def _render_steps(document: Mapping[str, Any]) -> str:
    """What is done and what it costs, in words; nothing of a plan whose stages say it."""
    steps = "".join(f"<li>{escape_html(step)}</li>" for step in document["steps"])
    costs = "".join(f"<p>{escape_html(text)}</p>" for text in document["consequences"])
    return f'<section id="steps"><h2>What is done</h2><ol>{steps}</ol>{costs}</section>' if steps or costs else ""


def _render_figures(document: Mapping[str, Any]) -> str:
    soak, seconds, each = document["soak_seconds"], document["seconds"], document["restart_seconds"]
    brokers, controllers = count_restarts(document)
    figures = {
        "Work": format_seconds(seconds["expected"] - soak),
        "on a good day": format_seconds(seconds["low"] - soak),
        "until steps give up": format_seconds(seconds["high"] - soak),
        "Soak": format_seconds(soak),
        "Restarts of brokers": str(brokers),
        "Starts of controllers": str(controllers),
        f"A restart ({_describe_basis(each)})": format_seconds(each["expected"]),
    }
    terms = "".join(f"<div><dt>{escape_html(name)}</dt><dd>{escape_html(value)}</dd></div>" for name, value in figures.items())
    has_spread = brokers and document["of"] == PlanOf.MIGRATION
    spread = f"<p>{escape_html(describe_spread(document))}</p>" if has_spread else ""
    lists = "".join(_render_list(title, document[name]) for name, title in LISTS.items() if document[name])
    return f'<section id="figures"><h2>In figures</h2><dl class="numbers">{terms}</dl>{spread}{lists}</section>'


def _render_list(title: str, texts: Sequence[str]) -> str:
    rows = "".join(f"<li>{escape_html(text)}</li>" for text in texts)
    return f'<p class="soft">{title}:</p><ul class="soft">{rows}</ul>'


def _render_space(document: Mapping[str, Any]) -> str:
    """What is written where; nothing if nothing is."""
    rows = "".join(
        f'<tr><td class="keep">{escape_html(need["node"])}</td><td>{escape_html(need["writes"])}</td>'
        f'<td class="right keep">{format_bytes(need["needs"])}</td><td class="right keep">{format_bytes(need["free"])}</td></tr>'
        for need in document["space"]
    )
    head = '<tr><th>on</th><th>for</th><th class="right">needed</th><th class="right">free</th></tr>'
    table = f'<div class="scroll" tabindex="0" role="region" aria-label="Space"><table><thead>{head}</thead><tbody>{rows}</tbody></table></div>'
    return f'<section id="space"><h2>Space</h2>{table}</section>' if rows else ""


def _describe_basis(restart: Mapping[str, Any]) -> str:
    if restart["measured"]:
        return f"{restart['measured']} measured"
    if restart.get("starts"):
        return f"from {count_of(restart['starts'], 'start')}"
    return f"{restart['elsewhere']} measured elsewhere" if restart.get("elsewhere") else "assumed"


def _render_times(document: Mapping[str, Any]) -> str:
    """One bar a stage, of its expected work; the soak's is no work."""
    goes_back = document["of"] == PlanOf.MIGRATION
    longest = max((stage["seconds"]["expected"] for stage in document["stages"] if stage["stage"] != "soak"), default=0.0) or 1.0
    rows = "".join(_render_time(stage, longest, goes_back=goes_back) for stage in document["stages"])
    back = '<th class="right">a rollback from its end</th>' if goes_back else ""
    return (
        f'<section id="times"><h2>Durations{" and rollback" if goes_back else ""}</h2><div class="scroll" tabindex="0" role="region" aria-label="Stages"><table>'
        '<thead><tr><th>stage</th><th class="right">restarts</th><th class="right">takes</th><th class="sparse"></th>'
        f"{back}</tr></thead><tbody>{rows}</tbody></table></div></section>"
    )


def _render_time(stage: Mapping[str, Any], longest: float, *, goes_back: bool) -> str:
    expected, back = stage["seconds"]["expected"], stage["rollback_seconds"]
    restarts = sum(bool(task["node"]) and not task["is_done"] for task in stage["tasks"]) or ""
    width = round(_BAR * min(1.0, expected / longest))
    bar = f'<svg class="plot" viewBox="0 0 {_BAR} 12" height="12" preserveAspectRatio="none" aria-hidden="true"><rect class="{"settling" if stage["stage"] == "soak" else "phase"}" width="{width}" height="12"/></svg>'
    text = '<span class="mark fail">not possible</span>' if back is None else escape_html(format_seconds(back))
    rollback = f'<td class="right keep">{text}</td>' if goes_back else ""
    return (
        f'<tr><td class="keep">{escape_html(stage["stage"])}</td><td class="right">{restarts}</td><td class="right keep">{format_seconds(expected)}</td>'
        f'<td class="sparse" style="width:45%">{bar}</td>{rollback}</tr>'
    )


def _render_stage(stage: Mapping[str, Any]) -> str:
    of_nodes = [task for task in stage["tasks"] if task["node"]]
    common = list_common_lines(of_nodes)
    shared = f"<p>{escape_html(of_nodes[0]['does'])}</p>" if of_nodes else ""
    shared += f'<p class="soft">Each file:</p>{_render_lines(common)}' if common else ""
    tasks = "".join(_render_task(task, common) for task in stage["tasks"])
    return f'<section id="{escape_html(stage["stage"])}"><h2>{escape_html(stage["stage"])}</h2>{shared}<ul>{tasks}</ul></section>'


def _render_task(task: Mapping[str, Any], common: Sequence[str]) -> str:
    if task["is_done"]:
        return f"<li><code>{escape_html(task['id'])}</code> is done.</li>"
    facts = [] if task["node"] else [escape_html(task["does"])]
    leaders = escape_html(count_of(task["leaders"], "leader moves", "leaders move"))
    alone = escape_html(count_of(task["alone"], "partition has", "partitions have"))
    facts += [f"{leaders} first."] if task["leaders"] else []
    facts += [f"<strong>{alone} no other replica: they are unavailable meanwhile.</strong>"] if task["alone"] else []
    facts += [escape_html(task["last_because"])] if task["last_because"] else []
    own = [line for line in list_lines(task) if line not in common]
    return f"<li><code>{escape_html(task['id'])}</code> {' '.join(facts)}{_render_lines(own)}</li>"


def _render_lines(lines: Sequence[str]) -> str:
    return f"<p>{'<br>'.join(f'<code>{escape_html(line)}</code>' for line in lines)}</p>" if lines else ""
