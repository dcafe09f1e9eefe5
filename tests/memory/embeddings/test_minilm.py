"""The embedding model: how it multiplies on which processor. What it finds is tested in test_embedding."""

from pathlib import Path

import pytest

from gateway.memory.embeddings import minilm


@pytest.mark.parametrize(
    "machine, flags, exact",
    [
        ("x86_64", "flags : avx2 avx512f avx512_vnni", True),
        ("x86_64", "flags : avx2 avx_vnni", True),
        ("x86_64", "flags : avx2 fma", False),
        ("aarch64", "Features : asimd", True),
    ],
)
def test_int8_only_where_it_is_exact(monkeypatch, tmp_path: Path, machine: str, flags: str, exact: bool):
    monkeypatch.setattr("platform.machine", lambda: machine)
    (tmp_path / "cpuinfo").write_text(flags)
    assert minilm.multiplies_int8(tmp_path / "cpuinfo") is exact


def test_unknown_processor_takes_no_risk(monkeypatch, tmp_path: Path):
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert minilm.multiplies_int8(tmp_path / "missing") is False
