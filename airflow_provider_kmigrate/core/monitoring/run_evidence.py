"""The evidence of a migration as one archive that verifies offline: which file has which hash, and what is wrong with an archive.

The archive is a ZIP file without compression, in one form only: the same files are the same bytes, independent of the machine that packs them. So one changed byte
anywhere is found, in the archive's own tables too. `manifest.json` has the SHA-256 of each file; `signature.json` the HMAC-SHA256 of the manifest by
a key. Without a key the archive shows accidents only: an attacker who changes a file can write a new manifest.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import PurePosixPath
from typing import Any, Final

from airflow_provider_kmigrate.core.migration.plan_document import dump_values
from airflow_provider_kmigrate.core.node_files.config_matrix import STAGE_SECTIONS
from airflow_provider_kmigrate.core.node_files.kafka_keys import has_url_user, visible_value
from airflow_provider_kmigrate.core.shared.foreign_json import read_json
from airflow_provider_kmigrate.core.shared.text import (
    count_of,
    describe_hidden,
    escape_html,
    format_date,
    format_duration,
    printable,
)

DOCUMENT_KIND: Final = "evidence"
VERSION: Final = 1
MANIFEST: Final = "manifest.json"
SIGNATURE: Final = "signature.json"
INDEX: Final = "index.html"
_OWN: Final = frozenset({MANIFEST, SIGNATURE})
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)  # the earliest time that a ZIP file can have
_MOST_FILES: Final = 20_000
MOST_BYTES: Final = 2**30
"""Of an archive: it is read into memory."""
SHORTEST_KEY: Final = 16  # bytes
_HMAC: Final = "HMAC-SHA256"


@dataclass(frozen=True, slots=True)
class EvidenceAbout:
    """Of what an archive is. `made_ms`: when it was made, in milliseconds since the epoch; `left_out`: what is not in it, and why, sentences."""

    cluster: str
    cluster_id: str
    made_ms: int
    made_by: str
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verification:
    """What a verification found. `problems`: empty if every byte is as it was written; `notes`: what it does not show."""

    about: Mapping[str, Any]
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()
    files: int = 0


def pack_archive(about: EvidenceAbout, files: Mapping[str, bytes], key: bytes = b"") -> bytes:
    """The archive. `files`: path -> content, without manifest and signature; `key`: empty: it is not signed. Raises ValueError for a path that may not be."""
    if wrong := [path for path in files if _why_bad_path(path) or path in _OWN]:
        raise ValueError(f"no path of an archive: {', '.join(sorted(wrong))}")
    manifest = {
        "kind": DOCUMENT_KIND,
        "version": VERSION,
        "cluster": about.cluster,
        "cluster_id": about.cluster_id,
        "made_ms": about.made_ms,
        "made_by": about.made_by,
        "left_out": list(about.left_out),
        "signed": bool(key),
        "files": [{"path": path, "bytes": len(files[path]), "sha256": _hash(files[path])} for path in sorted(files)],
    }
    body = (json.dumps(manifest, ensure_ascii=False, indent=1) + "\n").encode()
    signature = {SIGNATURE: _render_signature(body, key)} if key else {}
    return _write_zip({MANIFEST: body, **signature, **dict(sorted(files.items()))})


def _render_signature(manifest: bytes, key: bytes) -> bytes:
    fields = {"algorithm": _HMAC, "signs": MANIFEST, "signature": _sign(manifest, key)}
    return (json.dumps(fields, indent=1) + "\n").encode()


def _sign(manifest: bytes, key: bytes) -> str:
    return hmac.new(key, manifest, hashlib.sha256).hexdigest()


def _write_zip(members: Mapping[str, bytes]) -> bytes:
    """The only form of these members: stored, with one time and one mode, in this order."""
    target = BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for path, content in members.items():
            entry = zipfile.ZipInfo(path, _EPOCH)
            entry.create_system, entry.external_attr = 3, 0o100644 << 16
            entry.create_version = entry.extract_version = 20
            archive.writestr(entry, content)
    return target.getvalue()


def _sort_members(members: Mapping[str, bytes]) -> dict[str, bytes]:
    """The members in the order in which they are packed."""
    first = [path for path in (MANIFEST, SIGNATURE) if path in members]
    return {path: members[path] for path in (*first, *sorted(members.keys() - _OWN))}


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _why_bad_path(path: str) -> str:
    """Why a path may not be in an archive; empty if it may: it must stay below the folder into which it is unpacked."""
    parts = PurePosixPath(path).parts
    if not path or path.startswith("/") or ".." in parts or "\\" in path or ":" in path:
        return "its path leads outside"
    if not path.isprintable() or path.endswith("/") or str(PurePosixPath(path)) != path:
        return "its path has no plain form"
    return ""


def verify_archive(data: bytes, key: bytes = b"") -> Verification:
    """Compare an archive with its manifest, without anything else. `key`: what it must be signed with; empty: a signature is not checked.

    Nothing is unpacked to a disk. Every problem names its file.
    """
    try:
        members = _read_zip(data)
        manifest = _parse_manifest(members.get(MANIFEST))
    except ValueError as error:
        return Verification({}, (str(error),))
    listed = {row["path"]: row for row in manifest["files"]}
    problems = [*_compare_files(members, listed), *_check_signature(members, signed=manifest["signed"], key=key)]
    if not problems and _write_zip(_sort_members(members)) != data:
        problems.append("The archive has other bytes beside its files: it is not as it was written.")
    return Verification(manifest, tuple(problems), tuple(_list_notes(manifest, key)), len(listed))


def _read_zip(data: bytes) -> dict[str, bytes]:
    """Path -> content in the order of the archive. Raises ValueError with a sentence; at most `MOST_BYTES` are read."""
    members: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(BytesIO(data)) as archive:
            entries = archive.infolist()
            if len(entries) > _MOST_FILES or sum(entry.file_size for entry in entries) > MOST_BYTES:
                raise ValueError("The archive is larger than any that kmigrate writes.")
            for entry in entries:
                name = printable(entry.filename)
                if why := _why_bad_path(entry.filename):
                    raise ValueError(f"File {name}: {why}.")
                if entry.filename in members:
                    raise ValueError(f"File {name} is there twice.")
                if entry.compress_type != zipfile.ZIP_STORED:
                    raise ValueError(f"File {name} is compressed: kmigrate wrote it in another form.")
                members[entry.filename] = _read_member(archive, entry)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError, UnicodeError) as error:
        raise ValueError(f"It is no whole archive: {printable(str(error))}.") from None
    return members


def _read_member(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    try:
        return archive.read(entry)
    except zipfile.BadZipFile:
        raise ValueError(f"File {printable(entry.filename)} is not as it was written: its checksum is wrong.") from None


def _parse_manifest(body: bytes | None) -> dict[str, Any]:
    """Raises ValueError with a sentence."""
    if body is None:
        raise ValueError(f"File {MANIFEST} is missing.")
    try:
        manifest = read_json(body)
    except ValueError:
        manifest = None
    if not _is_manifest(manifest):
        raise ValueError(f"File {MANIFEST} is no manifest of version {VERSION}.")
    return dict(manifest)


def _is_manifest(manifest: Any) -> bool:
    """Whether it has what `pack_archive` writes, each path once."""
    try:
        rows = [(row["path"], row["sha256"]) for row in manifest["files"]]
        marks = (manifest["kind"], manifest["version"], isinstance(manifest["signed"], bool))
    except (KeyError, TypeError):
        return False
    texts = all(isinstance(text, str) for row in rows for text in row)
    return texts and marks == (DOCUMENT_KIND, VERSION, True) and len(dict(rows)) == len(rows)


def _compare_files(members: Mapping[str, bytes], listed: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for path in sorted({*members, *listed} - _OWN):
        name = printable(path)
        if path not in listed:
            yield f"File {name} was added: the manifest does not name it."
        elif path not in members:
            yield f"File {name} is missing."
        elif _hash(members[path]) != listed[path]["sha256"]:
            yield f"File {name} was changed: its SHA-256 is not that of the manifest."


def _check_signature(members: Mapping[str, bytes], *, signed: bool, key: bytes) -> Iterator[str]:
    body = members.get(SIGNATURE)
    if signed != (body is not None):
        yield (
            f"File {SIGNATURE} is missing." if signed else f"File {SIGNATURE} was added: the manifest says that it is not signed."
        )
    elif key and body is None:
        yield "The archive is not signed, and a key was given to check its signature with."
    elif key and body is not None and not hmac.compare_digest(body, _render_signature(members[MANIFEST], key)):
        yield f"File {SIGNATURE} does not sign this manifest with this key."


def _list_notes(manifest: Mapping[str, Any], key: bytes) -> Iterator[str]:
    if not manifest["signed"]:
        yield "It is not signed: this shows that nothing was changed by accident. An attacker who changes it can write a new manifest."
    elif not key:
        yield "It is signed, and its signature was not checked: name the key with --key."


def mask_cluster_file(data: Any) -> Any:
    """A cluster file's data with what may be a secret hidden: arguments of notifiers, commands, options of Kafka and Spark, users in URLs.

    Comments are not in the data. All other keys hold ids, addresses, paths, numbers and words of a list.
    """
    if isinstance(data, Mapping):
        return {str(key): _mask_value(str(key), value) for key, value in data.items()}
    if isinstance(data, str) and has_url_user(data):
        return _hide(data)
    return [mask_cluster_file(item) for item in data] if isinstance(data, list) else data


def _mask_value(key: str, value: Any) -> Any:
    if key in _HIDDEN_KEYS:
        return _hide(value)
    if key in _PROPERTIES and isinstance(value, Mapping):
        return {str(name): visible_value(str(name), str(text)) for name, text in value.items()}
    return mask_cluster_file(value)


_PROPERTIES: Final = frozenset({"properties", *STAGE_SECTIONS})
_HIDDEN_KEYS: Final = frozenset({"arguments", "connect", "switch", "hold_command", "release_command", "options", "kafka_options"})


def _hide(value: Any) -> Any:
    """The keys of a mapping stay, its values do not; of anything else length and hash are left."""
    if isinstance(value, Mapping):
        return {str(key): _hide(inner) for key, inner in value.items()}
    text = value if isinstance(value, str) else dump_values(value)
    return f"<hidden: {describe_hidden(len(text.encode()), _hash(text.encode()))}>"


def render_index(
    about: EvidenceAbout, files: Mapping[str, bytes], history: Mapping[str, Any], approvals: int, *, signed: bool
) -> str:
    """The page for an auditor: what the archive is of, what happened, each file with its hash, and what it does not show."""
    runs = "".join(
        f"<tr><td>{escape_html(run['run'])}</td><td>{format_date(run['from_ms'])}</td><td>{format_duration(max(0, run['to_ms'] - run['from_ms']))}</td>"
        f"<td>{run['restarts']['count']}</td><td>{len(run['events'])}</td></tr>"
        for run in history["runs"]
    )
    rows = "".join(
        f'<tr><td><a href="{escape_html(path)}">{escape_html(path)}</a></td><td>{len(content)}</td><td><code>{_hash(content)}</code></td></tr>'
        for path, content in sorted(files.items())
    )
    left_out = "".join(f"<li>{escape_html(text)}</li>" for text in about.left_out)
    proof = (
        "It is signed with a key file: everyone with the key can check that nothing was changed."
        if signed
        else "It is not signed: it shows accidental changes only."
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>Evidence of {escape_html(about.cluster)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>Evidence of the migration of {escape_html(about.cluster)}</h1>"
        f"<p>Cluster <code>{escape_html(about.cluster_id)}</code>. Made {format_date(about.made_ms)} by kmigrate {escape_html(about.made_by)}. {proof}</p>"
        f"<h2>Runs</h2><table><tr><th>run</th><th>began</th><th>took</th><th>restarts of brokers</th><th>alarms and failures</th></tr>{runs}</table>"
        f"<p>{count_of(approvals, 'approval is', 'approvals are')} in <code>approvals.json</code>.</p>"
        f"<h2>Not in it</h2><ul>{left_out}</ul>"
        "<h2>How to check it</h2><p><code>kmigrate evidence verify FILE</code> needs neither the cluster nor a network. Without kmigrate: compare the "
        f"SHA-256 of each file with <code>{MANIFEST}</code>.</p>"
        f"<h2>Files</h2><table><tr><th>file</th><th>bytes</th><th>SHA-256</th></tr>{rows}</table></body></html>\n"
    )


_STYLE: Final = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}"
    "table{border-collapse:collapse;display:block;overflow-x:auto}td,th{padding:.2rem .8rem .2rem 0;text-align:left;vertical-align:top}"
)


def render_verification(verification: Verification) -> str:
    """What was found, in words for a terminal."""
    about = verification.about
    lines = [f"NOT AS IT WAS WRITTEN: {problem}" for problem in verification.problems]
    if about:
        lines.insert(
            0, f"Evidence of cluster {printable(str(about.get('cluster')))} ({printable(str(about.get('cluster_id')))})."
        )
    if not verification.problems:
        lines.append(f"All {count_of(verification.files, 'file is', 'files are')} as they were written.")
    return "\n".join((*lines, *verification.notes)) + "\n"


def select_gate_lines(texts: Iterable[str]) -> list[dict[str, Any]]:
    """What gates read and decided, of the lines of journals: each act with what allowed it, each refusal, finding, alarm and verdict on the rollback."""
    selected = []
    for text in texts:
        try:
            line = read_json(text)
            kind = str(line["kind"])
        except (ValueError, KeyError, TypeError):
            continue
        if kind in _GATE_KINDS or kind.startswith("readiness: "):
            selected.append({name: value for name, value in line.items() if name != "chain"})
    return selected


_GATE_KINDS: Final = frozenset(
    {"act", "findings", "failed", "alarm", "alarm ended", "lost", "stopped", "answer refused", "answered", "approval"}
)
