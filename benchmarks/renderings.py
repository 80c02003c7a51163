"""What kmigrate renders, judged by KafkaConfig of each release with ZooKeeper: every stage of every file that the release takes as it is.

Real: the releases' own validator. The files: those of strangers, and one for each key that a release defines, with another value and with
the default. `--corpus DIR` takes DIR/*.properties, or DIR/files/*.properties, in place of the project's own files.
`default_keys_missing`: keys for the defaults of topics' settings that controllers would not have; `controller_keys_missing`: keys that a
release defines and that controllers get neither by inheritance nor from kmigrate, without a reason for it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from airflow_provider_kmigrate.core.node_files.config_matrix import NOT_INHERITED, FileStage, Rule, find_rule, is_forbidden
from airflow_provider_kmigrate.core.node_files.kafka_keys import DYNAMIC_ONLY, kafka_rules
from tests.core.door_files import FILES
from tests.kit.releases import WITH_ZOOKEEPER
from tests.kit.releases.renderings import judge, one_key_each

MUST_BE_ZERO = ("renderings_refused", "default_keys_missing", "controller_keys_missing")


def main(arguments: Sequence[str], build: Path) -> dict[str, object]:
    """The flat figures of `renderings.json`."""
    del build
    parser = argparse.ArgumentParser(prog="renderings")
    parser.add_argument("--corpus", type=Path, metavar="DIR", help="a folder of properties files, or one with files/")
    corpus: Path = parser.parse_args(arguments).corpus or FILES
    folder = corpus / "files" if (corpus / "files").is_dir() else corpus
    strangers = {path.name: path.read_text(encoding="iso-8859-1") for path in sorted(folder.glob("*.properties"))}
    began = time.monotonic()
    judgements = [judge(release, strangers | one_key_each()) for release in WITH_ZOOKEEPER]
    for judgement in judgements:
        for rendering, why in judgement.refused.items():
            print(f"{judgement.release} refuses {rendering.source}, {rendering.stage}: {why}", file=sys.stderr)
    rules = kafka_rules()
    defaults = [key for keys in rules.topics.values() for key, _ in keys]
    return {
        "files": len(strangers),
        "files_of_one_key": len(one_key_each()),
        "releases": len(judgements),
        "stages": len(FileStage),
        "originals_taken": sum(len(judgement.taken) for judgement in judgements),
        "originals_not_rendered": sum(len(judgement.unrendered) for judgement in judgements),
        "renderings": sum(len(judgement.rendered) for judgement in judgements),
        "renderings_refused": sum(len(judgement.refused) for judgement in judgements),
        "default_keys": len(defaults),
        "default_keys_missing": sum(not _controllers_have(key) for key in defaults),
        "controller_keys": len(rules.keys),
        "controller_keys_missing": sum(not _controllers_have(key) and not _has_reason(key) for key in rules.keys),
        "seconds": round(time.monotonic() - began, 1),
    }


def _controllers_have(key: str) -> bool:
    return find_rule(key, FileStage.CONTROLLER_MIGRATION) in {Rule.SAME, Rule.REQUIRED}


def _has_reason(key: str) -> bool:
    definition = kafka_rules().keys[key]
    in_no_file = definition.mode == DYNAMIC_ONLY or definition.releases.isdisjoint(kafka_rules().with_zookeeper)
    listed = any(key == row or (row.endswith("*") and key.startswith(row[:-1])) for row in NOT_INHERITED)
    return in_no_file or listed or is_forbidden(key, FileStage.CONTROLLER_MIGRATION)
