"""Releases of Kafka asked for their own rules: keys of a server's file, files that `KafkaConfig` takes, requests that are served, versions of znodes.

`python -m tests.kit.releases` writes the package's data again (`core/node_files/kafka_keys.json`, `core/preflight/kafka_requests.json`), and
`znode_formats.json` beside this file, by which tests judge `core/cluster_state/znode_formats.py`. For another release: add it below, run that, and read
the difference.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from airflow_provider_kmigrate.audit.connector import cache_folder, resolve_pom
from airflow_provider_kmigrate.core.node_files import kafka_keys
from airflow_provider_kmigrate.core.preflight import kafka_requests
from airflow_provider_kmigrate.exceptions import Refused
from tests.kit.localcluster.jars import java

WITH_ZOOKEEPER = ("3.6.2", "3.7.2", "3.8.1", "3.9.1", "3.9.2")
LATER = ("4.0.2", "4.1.2")
DATA = Path(kafka_keys.__file__).with_name("kafka_keys.json")
REQUESTS = Path(kafka_requests.__file__).with_name("kafka_requests.json")

_HERE = Path(__file__).parent
ZNODES = _HERE / "znode_formats.json"
_TIMEOUT = 300.0
_FLAGS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xss512k", "-Xmx256m")


@cache
def describe(release: str) -> dict[str, Any]:
    """What `KafkaRules describe` says of a release."""
    rules: dict[str, Any] = json.loads(_run(release, "KafkaRules", "describe"))
    return rules


def refusals(release: str, files: Iterable[Mapping[str, str]]) -> list[str]:
    """Why this release's KafkaConfig refuses each of these files; an empty text if it takes it."""
    lines = "".join(json.dumps(dict(keys)) + "\n" for keys in files)
    return [json.loads(line) for line in _run(release, "KafkaRules", "validate", lines=lines).splitlines()]


def principal_names(release: str, clients: Iterable[Mapping[str, str]]) -> list[str | None]:
    """The name that this release gives each TLS client, by its subject or certificate and the rules; None where it refuses one."""
    lines = "".join(json.dumps(dict(client)) + "\n" for client in clients)
    return [json.loads(line) for line in _run(release, "PrincipalNames", lines=lines).splitlines()]


def generate() -> str:
    """The package's data: one line a key, with each different set of facts, and the releases of one that not all have."""
    releases = {release: describe(release) for release in (*WITH_ZOOKEEPER, *LATER)}
    by_release = {release: _keys_of_readers(rules["readers"]) | rules["keys"] for release, rules in releases.items()}
    names = sorted({name for keys in by_release.values() for name in keys})
    keys = {name: _list_variants({release: found.get(name) for release, found in by_release.items()}) for name in names}
    head = {
        "with_zookeeper": WITH_ZOOKEEPER,
        "later": LATER,
        "topics": _merge(rules["topics"] for rules in releases.values()),
        "prefixes": sorted({prefix for rules in releases.values() for prefix in rules["prefixes"]}),
    }
    return "{\n" + _list_lines(head) + ',\n"keys":{\n' + _list_lines(keys) + "\n}}\n"


def generate_requests() -> str:
    """The requests that nodes of each release with ZooKeeper serve: one line a request, with each different set of facts."""
    by_release = {release: describe(release)["requests"] for release in WITH_ZOOKEEPER}
    names = sorted({name for requests in by_release.values() for name in requests})
    requests = {name: _list_variants({release: found.get(name) for release, found in by_release.items()}) for name in names}
    return "{\n" + _list_lines({"releases": WITH_ZOOKEEPER}) + ',\n"requests":{\n' + _list_lines(requests) + "\n}}\n"


def generate_znodes() -> str:
    """Versions that each release with ZooKeeper writes into its znodes, and those that its readers take (null: a znode without one): one line a kind."""
    by_release = {release: json.loads(_run(release, "ZnodeFormats")) for release in WITH_ZOOKEEPER}
    kinds = sorted({kind for formats in by_release.values() for kind in formats})
    formats = {kind: _list_variants({release: found.get(kind) for release, found in by_release.items()}) for kind in kinds}
    return "{\n" + _list_lines({"releases": WITH_ZOOKEEPER}) + ',\n"znodes":{\n' + _list_lines(formats) + "\n}}\n"


def _list_lines(values: Mapping[str, Any]) -> str:
    return ",\n".join(f'"{name}":{json.dumps(value, sort_keys=True, separators=(",", ":"))}' for name, value in values.items())


def _keys_of_readers(readers: Mapping[str, list[str]]) -> dict[str, dict[str, Any]]:
    """Keys that KafkaConfig does not define, and a class of Kafka's reads."""
    return {name: {"type": "string"} for names in readers.values() for name in names}


def _list_variants(by_release: Mapping[str, Mapping[str, Any] | None]) -> list[dict[str, Any]]:
    variants: list[dict[str, Any]] = []
    for release, facts in by_release.items():
        if facts is None:
            continue
        compact = {name: value for name, value in facts.items() if not _is_usual(name, value)}
        same = next((variant for variant in variants if variant["facts"] == compact), None)
        if same is None:
            variants.append({"facts": compact, "in": [release]})
        else:
            same["in"].append(release)
    return [{**variant["facts"], **({} if variant["in"] == list(by_release) else {"in": variant["in"]})} for variant in variants]


def _is_usual(name: str, value: Any) -> bool:
    """Facts that are left out: no default, read-only, no secret, no other name."""
    return (
        value is None or value is False or (name == "mode" and value == "read-only") or (name == "synonyms" and len(value) == 1)
    )


def _merge(parts: Iterable[Mapping[str, list[Any]]]) -> dict[str, list[Any]]:
    """The parts' lists by name, each value once, in the order of the first part that has it."""
    merged: dict[str, list[Any]] = {}
    for part in parts:
        for name, values in sorted(part.items()):
            merged.setdefault(name, []).extend(value for value in values if value not in merged[name])
    return merged


def _run(release: str, *program: str, lines: str = "") -> str:
    jars = jars_of(release)
    argv = [java(), *_FLAGS, "-cp", f"{_program(jars)}:{jars}/*", *program]
    done = subprocess.run(argv, input=lines, capture_output=True, check=False, encoding="utf-8", timeout=_TIMEOUT)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def jars_of(release: str) -> Path:
    """The folder of a release's jars, resolved once."""
    without = Refused("there is no Maven: install it (Debian, Ubuntu: apt-get install maven)")
    with tempfile.TemporaryDirectory() as scratch:
        pom = Path(scratch) / "pom.xml"
        pom.write_text((_HERE / "pom.xml").read_text().replace("@RELEASE@", release))
        return resolve_pom(pom, f"kafka-{release}", without)


def _program(jars: Path) -> Path:
    """The folder of the compiled programs, once for each state of their sources; they fit every release."""
    sources = sorted(_HERE.glob("*.java"))
    folder = (
        cache_folder() / f"kafka-rules-{hashlib.sha256(b''.join(source.read_bytes() for source in sources)).hexdigest()[:12]}"
    )
    if not folder.is_dir():
        known = ":".join(str(path) for path in sorted(jars.glob("*.jar")))
        compiler = [java(), *_FLAGS, "-cp", f"{jars}/*", "org.eclipse.jdt.internal.compiler.batch.Main", "-11", "-nowarn"]
        with tempfile.TemporaryDirectory(dir=cache_folder()) as scratch:
            target = Path(scratch) / "classes"
            subprocess.run([*compiler, "-cp", known, "-d", str(target), *map(str, sources)], check=True, timeout=_TIMEOUT)
            try:
                target.rename(folder)
            except OSError:  # another process was quicker
                if not folder.is_dir():
                    raise
    return folder
