from collections.abc import Iterator

import pytest

from tests.consumer.mock_kafka import MockKafka


@pytest.fixture
def kafka() -> Iterator[MockKafka]:
    with MockKafka() as mock:
        yield mock
