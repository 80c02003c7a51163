"""Property files of strangers meet no wrong block, and those that no ZooKeeper-mode broker could run with meet one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.core.door_files import FILES, judge_file, read_plain, right_blocks

ALL = sorted(FILES.glob("*.properties"))
TEMPLATES = {"f16.properties"}  # `<host>` where a name must be: B15 finds that its broker does not run with it


def test_the_corpus_is_whole() -> None:
    assert len(ALL) == 36


@pytest.mark.parametrize("file", ALL, ids=lambda file: file.stem)
def test_a_file_of_strangers_meets_no_wrong_block(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    judged = judge_file(file.name, text)
    assert not judged.wrong, "\n".join(map(str, judged.wrong))
    if right_blocks(read_plain(text)) is None and file.name not in TEMPLATES:
        assert judged.blocks, "no broker could run with this file in ZooKeeper mode"


def test_a_wrong_block_would_be_counted() -> None:
    text = "broker.id=1\nzookeeper.connect=zk1:2181\nlog.dirs=/data\nmetadata.log.dir=/data\ninter.broker.protocol.version=2.1\n"
    judged = judge_file("x", text)
    assert judged.blocks
    assert not judged.wrong
    judged = judge_file("y", text.replace("inter.broker.protocol.version=2.1", "controller.listener.names=CONTROLLER"))
    assert judged.wrong
