"""What the program depends on: licences, hashes, bill of materials. Advisories need a network: scripts/audit."""

import importlib.metadata
import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

ROOT = Path(__file__).parent.parent
LOCK = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))["package"]

ALLOWED = {
    *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "MIT-0", "MPL-2.0", "PSF-2.0"),
    *("Zlib", "Apache Software License", "BSD License", "3-Clause BSD License", "MIT License"),
    *("Mozilla Public License 2.0 (MPL 2.0)", "Python Software Foundation License"),
}
"""Licences that allow use in a program under MIT, as SPDX expressions and as classifiers."""
LIBRARIES = {"psycopg", "psycopg-binary", "psycopg-pool"}
"""LGPL: used as they are, installed beside the program, replaceable."""
WITHOUT_FIELD = {"aiofastnet": "MIT License", "picows": "MIT License", "py-nanotts": "Apache License"}
"""No field in the metadata names the licence: the first words of its file."""


@pytest.fixture(scope="module")
def bill() -> str:
    return subprocess.run([ROOT / "scripts" / "sbom"], capture_output=True, text=True, check=True).stdout


def licences(name: str) -> set[str]:
    fields = importlib.metadata.metadata(name)
    classified = {text.split(" :: ")[-1] for text in fields.get_all("Classifier", []) if text.startswith("License ::")}
    expression = fields.get("License-Expression") or ("" if classified else fields.get("License"))
    return (set(re.split(r" AND | OR |[()]", expression)) if expression else classified) - {""}


def test_bill_of_materials_is_valid(bill):
    assert JsonStrictValidator(SchemaVersion.V1_5).validate_str(bill) is None
    broken = bill.replace('"type": "library"', '"type": "nonsense"', 1)
    assert JsonStrictValidator(SchemaVersion.V1_5).validate_str(broken) is not None


def test_bill_of_materials_names_everything_from_public_places(bill):
    found = json.loads(bill)
    assert set(re.findall(r"\w+://([^/\"]+)", bill)) == {"files.pythonhosted.org"}
    assert found["metadata"]["component"]["name"] == "voice-gateway"
    purls = {part["purl"] for part in found["components"]}
    locked = {package["name"]: package["version"] for package in LOCK}
    assert {f"pkg:pypi/{name}@{locked[name]}" for name in ("starlette", "redis", "psycopg", "onnxruntime")} < purls
    assert not [purl for purl in purls if purl.startswith("pkg:pypi/pytest@")]


def test_licences_fit_ours(bill):
    installed = {dist.metadata["Name"].lower().replace("_", "-") for dist in importlib.metadata.distributions()}
    names = {part["name"] for part in json.loads(bill)["components"]} & installed
    assert len(names) > 80
    wrong = {name for name in names if not licences(name) <= ALLOWED}
    assert wrong == LIBRARIES
    assert {name for name in names if not licences(name)} == set(WITHOUT_FIELD)


@pytest.mark.parametrize("name", WITHOUT_FIELD)
def test_licence_file_stands_in_for_the_field(name):
    files = [file for file in importlib.metadata.files(name) or [] if "LICEN" in file.name.upper()]
    assert any(WITHOUT_FIELD[name] in file.read_text()[:300] for file in files)


def test_every_package_is_pinned_by_hash():
    files = {package["name"]: [*package.get("wheels", []), package.get("sdist")] for package in LOCK}
    files.pop("voice-gateway")
    unpinned = [
        name for name, parts in files.items() if not all(part["hash"].startswith("sha256:") for part in parts if part)
    ]
    assert unpinned == [] and all(any(parts) for parts in files.values())


def test_installed_is_what_is_locked():
    locked: dict[str, set[str]] = {}
    for package in LOCK:
        locked.setdefault(package["name"], set()).add(package["version"])
    installed = {
        re.sub(r"[-_.]+", "-", dist.metadata["Name"]).lower(): dist.version
        for dist in importlib.metadata.distributions()
    }
    assert {
        name: version for name, version in installed.items() if name in locked and version not in locked[name]
    } == {}
