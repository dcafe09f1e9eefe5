from collections.abc import Iterator

import pytest

from tests.stage import takes_its_time


@pytest.fixture(autouse=True)
def _gateway_takes_its_time() -> Iterator[None]:
    """Else it would depend on the machine in which message memory comes, and a replay tells of that."""
    with takes_its_time():
        yield
