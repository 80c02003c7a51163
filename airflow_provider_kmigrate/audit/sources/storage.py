"""Small files on whatever file system Spark writes to: local, HDFS, an object store."""

from __future__ import annotations

from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import SparkSession

from airflow_provider_kmigrate.exceptions import Failed


class Storage:
    """Paths as Spark takes them. Every method raises `Failed`. Needs a session with a driver of its own, not Spark Connect."""

    def __init__(self, session: SparkSession) -> None:
        self._jvm: Any = session._jvm  # noqa: SLF001  # the only way to Hadoop's file systems
        self._configuration: Any = session._jsc.hadoopConfiguration()  # noqa: SLF001

    def exists(self, path: str) -> bool:
        """True for a file and for a folder."""
        return bool(self._call(path, lambda system, place: system.exists(place)))

    def names(self, path: str) -> list[str]:
        """The names in a folder; empty if there is none."""
        if not self.exists(path):
            return []
        return [each.getPath().getName() for each in self._call(path, lambda system, place: system.listStatus(place))]

    def read(self, path: str) -> str | None:
        """A file's text, None if there is none."""
        if not self.exists(path):
            return None
        return str(self._call(path, self._read))

    def _read(self, system: Any, place: Any) -> Any:
        stream = system.open(place)
        try:
            return self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
        finally:
            stream.close()

    def write(self, path: str, text: str) -> None:
        """Write a new file, whole or not at all; an existing one is an error."""

        def put(system: Any, place: Any) -> None:
            part = self._jvm.org.apache.hadoop.fs.Path(f"{path}.part")
            stream = system.create(part, True)
            stream.write(bytearray(text.encode()))
            stream.close()
            if not system.rename(part, place):
                raise Failed(f"cannot write {path}: there is a file already")

        self._call(path, put)

    def _call(self, path: str, act: Any) -> Any:
        try:
            place = self._jvm.org.apache.hadoop.fs.Path(path)
            return act(place.getFileSystem(self._configuration), place)
        except Py4JJavaError as error:
            raise Failed(f"cannot reach {path}: {error.java_exception.toString()}") from error
        except Py4JError as error:
            raise Failed(f"cannot reach {path}: {str(error).strip().partition(chr(10))[0]}") from error
