"""`pytest -n` from outside: what is reported of tests that ran in other processes."""

import subprocess
import sys
from pathlib import Path

EXAMPLES = """
import os
import pytest

@pytest.fixture(scope="module")
def shared():
    yield os.getpid()
    print("closed")

def test_passes(tmp_path):
    assert os.getpid() != int(os.environ["FIRST"]) and tmp_path.is_dir()

def test_fails():
    print("its output")
    assert 1 == 2

def test_ends_its_process():
    os._exit(3)

@pytest.mark.parametrize("number", [1, 2, 3])
def test_shares_a_process(shared, number):
    assert shared == os.getpid()

@pytest.mark.one_process("named")
def test_is_first_of_its_name():
    os.environ["NAMED"] = "here"

def test_runs_between_them():
    pass

@pytest.mark.one_process("named")
def test_is_second_of_its_name():
    assert os.environ["NAMED"] == "here"
"""
RUN = "import os, sys, pytest; os.environ['FIRST'] = str(os.getpid()); sys.exit(pytest.main(sys.argv[1:]))"


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_examples.py").write_text(EXAMPLES)
    command = [
        sys.executable,
        "-c",
        RUN,
        "-c",
        "pyproject.toml",
        "-p",
        "tests.conftest",
        "-n",
        "2",
        *options,
        str(folder),
    ]
    return subprocess.run(command, capture_output=True, text=True)


def test_reports_are_those_of_one_process(tmp_path: Path) -> None:
    """Also of a test that took its process with it: the others still run."""
    ran = run(tmp_path)
    assert ran.returncode == 1
    assert "its output" in ran.stdout and "assert 1 == 2" in ran.stdout
    assert "the process that ran it has ended with 3" in ran.stdout
    assert "2 failed, 7 passed" in ran.stdout, ran.stdout


def test_first_failure_ends_the_run(tmp_path: Path) -> None:
    ran = run(tmp_path, "-x", "-k", "fails or passes or between", "-n", "1")
    assert ran.returncode == 1
    assert "1 failed, 1 passed" in ran.stdout, ran.stdout
