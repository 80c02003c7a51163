"""The pictures of docs/images: of the newest page of each name, as large as they are shown."""

from __future__ import annotations

import os
import struct
from pathlib import Path

from tests.pages.pictures import HEIGHTS, find_newest, take_picture
from tests.trees import ROOT


def test_the_newest_page_of_a_name_is_taken(tmp_path: Path) -> None:
    for number, folder in enumerate(("rollback", "new", "old")):
        page = tmp_path / folder / "plan.html"
        page.parent.mkdir()
        page.write_text(f"<h1>Plan of east: {'back to ZooKeeper' if folder == 'rollback' else 'ZooKeeper to KRaft'}</h1>")
        os.utime(page, (100 - number, 100 - number))
    assert find_newest("plan", tmp_path) == tmp_path / "new" / "plan.html", "the newest is a rollback's"
    assert find_newest("report", tmp_path) is None


def test_each_picture_is_in_the_docs() -> None:
    shown = "".join(path.read_text() for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")))
    for name in HEIGHTS:
        assert f"images/{name}.png)" in shown


def test_a_picture_is_the_top_of_its_page(tmp_path: Path) -> None:
    page, picture = tmp_path / "page.html", tmp_path / "page.png"
    page.write_text("<!doctype html><title>x</title><body style='height:5000px'>long")
    take_picture(page, picture, 700)
    data = picture.read_bytes()
    assert (data[:4], struct.unpack(">II", data[16:24])) == (b"\x89PNG", (1100, 700))
