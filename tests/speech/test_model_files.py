import hashlib
import re

import pytest

from gateway.errors import EngineRefused
from gateway.extras import how_to_install
from gateway.speech.models import read_model_file


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package with one model in it."""
    folder = tmp_path / "some_models"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('must not be imported')")
    (folder / "model.onnx").write_bytes(b"weights")
    monkeypatch.syspath_prepend(tmp_path)
    return folder


def test_verified_file_is_read(package):
    digest = hashlib.sha256(b"weights").hexdigest()
    assert read_model_file("some_models", "model.onnx", digest) == b"weights"


def test_altered_file_is_refused(package):
    with pytest.raises(
        EngineRefused,
        match="model.onnx of some_models is not the file it should be; delete .venv and run: scripts/install",
    ):
        read_model_file("some_models", "model.onnx", "0" * 64)


def test_missing_file_is_refused(package):
    with pytest.raises(EngineRefused, match="some_models has no other.onnx"):
        read_model_file("some_models", "other.onnx", "0" * 64)


def test_missing_package_is_named():
    with pytest.raises(
        EngineRefused,
        match=re.escape(f"no_such_package is not installed; run: {how_to_install('local')}"),
    ):
        read_model_file("no_such_package", "model.onnx", "0" * 64)
