import pytest

from gateway.speech.models import Models


@pytest.fixture(scope="session")
def models():
    """The real ones, loaded once."""
    return Models.load()
