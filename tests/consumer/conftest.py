from collections.abc import Iterator

import pytest

from tests.consumer.mock_kafka import MockKafka, WatchedKafka


@pytest.fixture
def kafka() -> Iterator[MockKafka]:
    with MockKafka() as mock:
        yield mock


@pytest.fixture
def watched() -> Iterator[WatchedKafka]:
    with WatchedKafka() as mock:
        yield mock
