"""Files in a folder that an application may write: what it can put there, against the reader of such files."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from airflow_provider_kmigrate.clients import foreign_files
from airflow_provider_kmigrate.clients.foreign_files import NotRead, list_files_below, open_regular_file, read_line_blocks
from airflow_provider_kmigrate.core.shared.text import describe_hidden

SECRET = "fernet_key = S3CRET"


def _link(place: Path, secret: Path) -> None:
    place.symlink_to(secret)


def _relative_link(place: Path, secret: Path) -> None:
    place.symlink_to(os.path.relpath(secret, place.parent))


def _chain(place: Path, secret: Path) -> None:
    (place.parent / "other").symlink_to(secret)
    place.symlink_to("other")


def _loop(place: Path, _: Path) -> None:
    place.symlink_to(place.name)


def _folder(place: Path, _: Path) -> None:
    place.mkdir()


def _socket(place: Path, _: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(place))


def _nothing(_place: Path, _secret: Path) -> None:
    """A name that was there when the folder was listed."""


TRAPS: dict[str, Callable[[Path, Path], None]] = {
    "link": _link,
    "relative link": _relative_link,
    "link to a link": _chain,
    "link to itself": _loop,
    "link to our own environment": lambda place, _: place.symlink_to("/proc/self/environ"),
    "link to a device": lambda place, _: place.symlink_to("/dev/zero"),
    "pipe": lambda place, _: os.mkfifo(place),
    "folder": _folder,
    "socket": _socket,
    "gone": _nothing,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "events").mkdir()
    (tmp_path / "airflow.cfg").write_text(f"{SECRET}\n")
    return tmp_path / "events"


@pytest.mark.parametrize("trap", TRAPS)
@pytest.mark.timeout(5)  # a pipe would block for ever
def test_what_is_no_plain_file_is_not_read_and_not_quoted(folder: Path, trap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)  # the path of a socket is short
    TRAPS[trap](folder / "a.jsonl", folder.parent / "airflow.cfg")
    with pytest.raises(NotRead) as caught, open_regular_file(folder, "a.jsonl"):
        pass
    assert str(caught.value).startswith("a.jsonl is not read: ")
    assert "S3CRET" not in str(caught.value)


@pytest.mark.parametrize("place", ["below/a.jsonl", "below/deep/a.jsonl"])
def test_no_folder_below_the_folder_is_a_link(folder: Path, place: str) -> None:
    (folder.parent / "elsewhere" / "deep").mkdir(parents=True)
    for name in ("a.jsonl", "deep/a.jsonl"):
        (folder.parent / "elsewhere" / name).write_text(SECRET)
    (folder / "below").symlink_to(folder.parent / "elsewhere")
    with pytest.raises(NotRead, match="a part of its path"), open_regular_file(folder, place):
        pass


def test_the_folder_itself_may_be_behind_a_link(folder: Path) -> None:
    (folder / "a.jsonl").write_text("x\n")
    (folder.parent / "mounted").symlink_to(folder)
    with open_regular_file(folder.parent / "mounted", "a.jsonl") as found:
        assert [block.lines for block in read_line_blocks(found)] == [[b"x"]]


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "x" * 300, "\x1b[2J"])
def test_a_name_that_is_none_is_told_without_its_escapes(folder: Path, name: str) -> None:
    with pytest.raises(NotRead) as caught, open_regular_file(folder, name):
        pass
    assert str(caught.value).isprintable()


def test_a_file_larger_than_any_is_not_read(folder: Path) -> None:
    with (folder / "a.jsonl").open("wb") as file:
        file.truncate(foreign_files.LARGEST + 1)
    with pytest.raises(NotRead, match="at most"), open_regular_file(folder, "a.jsonl"):
        pass


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        (b"", []),
        (b"torn", []),
        (b"a\n", [b"a"]),
        (b"a\n\nb\ntorn", [b"a", b"", b"b"]),
        (b"12345678\n", [b"12345678"]),
        (b"a\n" + b"x" * 9 + b"\nb\n", [b"a", None, b"b"]),
        (b"x" * 9, [None]),  # nothing that long is being written
        (b"x" * 200_000 + b"\nb\n" + b"y" * 200_000, [None, b"b", None]),
        (b"a\r\n\0\n\xff\n", [b"a\r", b"\0", b"\xff"]),
    ],
)
@pytest.mark.parametrize("block", [1, 2, 3, 7, 8, 9, 10, 1_000_000])
def test_a_file_is_read_by_the_line_and_a_long_one_is_quoted(
    folder: Path, content: bytes, texts: list[bytes | None], block: int
) -> None:
    (folder / "a.jsonl").write_bytes(content)
    with open_regular_file(folder, "a.jsonl") as found:
        read = list(read_line_blocks(found, longest=8, block=block))
    assert [line for part in read for line in (part.lines or [None])] == texts
    long = [line for line in content.split(b"\n") if len(line) > 8]
    endings = [b"" if content.endswith(line) else b"\n" for line in long]
    assert [part.too_long for part in read if part.too_long] == [
        describe_hidden(len(each), sha256(each).hexdigest()) for each in map(bytes.__add__, long, endings)
    ]
    assert sum(part.size for part in read) == len(content) - (len(b"torn") if content.endswith(b"torn") else 0)


def test_what_is_written_while_it_is_read_is_left_for_later(folder: Path) -> None:
    (folder / "a.jsonl").write_bytes(b"a\n")
    with open_regular_file(folder, "a.jsonl") as found:
        with (folder / "a.jsonl").open("ab") as file:
            file.write(b"b\n")
        assert [block.lines for block in read_line_blocks(found)] == [[b"a"]]


def test_a_folder_is_listed_without_following_its_links(folder: Path) -> None:
    (folder / "below").mkdir()
    (folder / "below" / "b.jsonl").touch()
    (folder / "a.jsonl").touch()
    (folder / "up").symlink_to(folder.parent)
    (folder / "round").symlink_to(folder)
    assert list_files_below(folder) == (["a.jsonl", "below/b.jsonl", "round", "up"], True)


def test_a_listing_ends_at_the_limit_of_names_and_says_that_it_is_incomplete(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign_files, "MOST_ENTRIES", 5)
    for number in range(9):
        (folder / f"{number}.jsonl").touch()
    found, is_all = list_files_below(folder)
    assert (len(found), is_all) == (5, False)
