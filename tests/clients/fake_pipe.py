"""A pipe to an agent that a test writes."""

from __future__ import annotations

import json


class FakePipe:
    """A pipe whose answers are written by the test; an empty one is its end."""

    command = "sudo -n kmigrate-node serve"

    def __init__(self, *answers: bytes | BaseException, code: int | None = None, said: str = "") -> None:
        self.answers, self.code, self.said, self.open = list(answers), code, said, True

    def is_open(self) -> bool:
        return self.open

    def write(self, data: bytes, timeout: float) -> None:
        assert timeout > 0
        if not self.open:
            raise BrokenPipeError
        assert json.loads(data)["v"] == 1

    def read(self, timeout: float) -> bytes:
        assert timeout >= 0
        answer = self.answers.pop(0) if self.answers else b""
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def ending(self, timeout: float = 0.0) -> tuple[int | None, str]:
        return self.code, self.said

    def close(self) -> None:
        self.open = False
