"""Small files through a Spark session's own Hadoop client: a job's hold folder, a checkpoint, an audit's output."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit

from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.exceptions import Refused, Unavailable

_NOT_THERE = "java.io.FileNotFoundException"
_REFUSED = "(Permission denied)"  # the JDK throws the same class for it
Value = TypeVar("Value")


class HadoopFiles:
    """Small text files on any file system that a Spark session can reach, by its own settings: HDFS, S3, GCS, ABFS, local files.

    Every method raises `Unavailable` if the file system does not answer. Raises `Refused` (J05) for a Spark Connect session.
    """

    def __init__(self, spark: Any) -> None:
        if not hasattr(spark, "_jvm"):
            text = "A Spark Connect session does not reach the checkpoint's file system."
            raise Refused.because(Reason("J05", text))
        context = spark.sparkContext
        self._jvm, self._gateway, self._conf = context._jvm, context._gateway, context._jsc.hadoopConfiguration()  # noqa: SLF001  # pyspark has no public way

    def read(self, path: str) -> str | None:
        """The text of a file, in UTF-8; None if there is none."""

        def read_text() -> str:
            stream = self._file_system(path).open(self._hadoop_path(path))
            try:
                return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
            finally:
                stream.close()

        return self._call_hadoop(path, read_text, None)

    def write(self, path: str, text: str, *, new: bool = False) -> None:
        """A file beside it is renamed over it; object stores, which show a file only when it is whole, get it directly.

        `new`: a file that is there already is kept, and `Unavailable` is raised: another program wrote it at the same moment.
        """

        def write_file() -> None:
            target = self._hadoop_path(path)
            beside = self._jvm.org.apache.hadoop.fs.Path(target.getParent(), f".{target.getName()}.{uuid.uuid4().hex}.tmp")
            renames = urlsplit(target.toUri().toString()).scheme in {"", "file", "hdfs", "viewfs"}
            self._create(beside if renames else target, text, replace=renames or not new)
            if renames:
                try:
                    self._rename(beside, target, replace=not new)
                finally:
                    self._file_system(path).delete(beside, False)

        self._call_hadoop(path, write_file)

    def _create(self, target: Any, text: str, *, replace: bool) -> None:
        stream = target.getFileSystem(self._conf).create(target, replace)
        stream.write(bytearray(text.encode()))
        stream.close()

    def _rename(self, source: Any, target: Any, *, replace: bool) -> None:
        """`FileSystem.rename` replaces nothing; `FileContext` does so if asked."""
        rename = self._jvm.org.apache.hadoop.fs.Options.Rename
        options = self._gateway.new_array(rename, 1)
        options[0] = rename.OVERWRITE if replace else rename.NONE
        self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(target.toUri(), self._conf).rename(source, target, options)

    def delete(self, path: str) -> None:
        """Delete a file; nothing happens if there is none."""
        self._call_hadoop(path, lambda: self._file_system(path).delete(self._hadoop_path(path), False), None)

    def names(self, folder: str) -> list[str]:
        """The names in a folder; none if there is no such folder."""
        entries: list[Any] = self._call_hadoop(
            folder, lambda: self._file_system(folder).listStatus(self._hadoop_path(folder)), []
        )
        return [entry.getPath().getName() for entry in entries]

    def _hadoop_path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)

    def _file_system(self, path: str) -> Any:
        return self._hadoop_path(path).getFileSystem(self._conf)

    def _call_hadoop(self, path: str, act: Callable[[], Value], *missing: Value) -> Value:
        """Call py4j. `missing`: the answer if there is no such file; without it that is an error, too."""
        try:
            return act()
        except Exception as error:  # py4j's and pyspark's, of several classes
            if missing and _NOT_THERE in str(error) and _REFUSED not in str(error):
                return missing[0]
            thrown = getattr(error, "java_exception", None)  # without it the text names py4j's call only
            text = str(error) if thrown is None else thrown.toString()
            raise Unavailable(f"{path}: {text.splitlines()[0][:300]}") from error
