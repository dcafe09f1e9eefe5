"""Arguments of `gateway bench`; its runs are tested in tests/bench."""

import argparse

import pytest

from gateway.cli import bench


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    return parser.parse_args(arguments)


def test_search_is_the_default() -> None:
    options = parsed()
    assert (options.calls, options.seconds, options.sockets, options.json) == (None, 6.0, "picows", False)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--calls", "0"),
        ("--calls", "many"),
        ("--calls", "65536"),
        ("--seconds", "0"),
        ("--seconds", "long"),
        ("--seconds", "3601"),
        ("--sockets", "carrier-pigeon"),
    ],
)
def test_impossible_numbers_are_rejected(arguments: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed(*arguments)
    assert arguments[1] in capsys.readouterr().err


def test_comparison_keeps_its_old_name() -> None:
    assert parsed("--compare", "watchers").compare == parsed("--compare", "viewers").compare == "viewers"
