"""What the footers of Parquet files tell without a question to an engine, where the files are in a folder of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

_EXTENTS: Final = ("tid", "part", "o_lo", "o_hi", "total")


def extents(folder: str) -> pa.Table | None:
    """The answer to `queries.LOG_EXTENTS`; None: the engine must be asked.

    Their writers counted, where every row group is of one partition (as `audit.schema` wants it) and says exactly what is in it.
    """
    try:
        rows = [_extent(group) for file in _files(Path(folder)) for group in _row_groups(file)]
    except (OSError, pa.ArrowInvalid, _Unclear):
        return None
    if not rows:
        return None
    table = pa.table([pa.array(values, pa.int64()) for values in zip(*rows, strict=True)], names=list(_EXTENTS))
    whole = table.group_by(["tid", "part"]).aggregate([("o_lo", "min"), ("o_hi", "max"), ("total", "sum")])
    return whole.select(["tid", "part", "o_lo_min", "o_hi_max", "total_sum"]).rename_columns(list(_EXTENTS))


def columns(folder: str) -> pa.Schema | None:
    """Those of the folder's first file, which is what Spark runs a job for; None: it must."""
    try:
        return pq.read_schema(_files(Path(folder))[0])
    except (OSError, IndexError, pa.ArrowInvalid, _Unclear):
        return None


class _Unclear(Exception):
    """A footer that leaves something open."""


def _files(folder: Path) -> list[Path]:
    """Those that an engine reads. Raises `_Unclear` where engines may differ about that."""
    files = sorted(file for file in folder.rglob("*") if file.is_file() and not _hidden(file.relative_to(folder)))
    if not folder.is_dir() or any(file.suffix != ".parquet" for file in files):
        raise _Unclear
    return files


def _hidden(file: Path) -> bool:
    return any(name.startswith(("_", ".")) for name in file.parts)


def _row_groups(file: Path) -> Iterator[dict[str, Any]]:
    footer = pq.read_metadata(file)
    places = {footer.schema.column(at).path: at for at in range(footer.num_columns)}
    if not {"tid", "part", "pos"} <= places.keys():
        raise _Unclear
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        yield {"rows": group.num_rows} | {name: group.column(places[name]).statistics for name in ("tid", "part", "pos")}


def _extent(group: dict[str, Any]) -> tuple[int, ...]:
    tid, part, pos = (group[name] for name in ("tid", "part", "pos"))
    for told in (tid, part, pos):
        if told is None or not told.has_min_max or told.null_count:
            raise _Unclear
    if tid.min != tid.max or part.min != part.max:
        raise _Unclear
    return tid.min, part.min, pos.min, pos.max, group["rows"]
