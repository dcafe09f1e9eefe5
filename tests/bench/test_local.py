"""Arithmetic of the local bench, and what it says. The bench itself takes minutes, and measures the machine."""

import json
import sys

import pytest

from gateway.bench import local
from gateway.bench.local import Answers, LocalMeasurement, bench_sentences, local_as_json, local_as_text
from gateway.bench.processes import LOCAL_CALLS
from gateway.cli.main import main
from gateway.extras import how_to_install
from gateway.simulate.word_error import WordError

GOOD = Answers(1, (0.5, 0.6, 0.6, 0.9), 0)


def found(*, hibari=0, pico=0, alone=GOOD, gaps=0):
    errors = {"hibari": WordError(hibari, 100), "pico": WordError(pico, 100)}
    return LocalMeasurement(64, errors, alone, Answers(8, (0.7,) * 40, gaps))


def test_enough_sentences_and_each_once():
    sentences = bench_sentences()
    assert len(sentences) >= 60
    assert len(set(sentences)) == len(sentences)


def test_percentiles_are_by_rank():
    answers = Answers(1, tuple(second / 10 for second in range(1, 11)), 0)
    assert (answers.p50, answers.p90) == (pytest.approx(0.55), 0.9)
    assert Answers(1, (), 0).p50 == float("inf")


@pytest.mark.parametrize(
    "measured, held",
    [
        (found(), True),
        (found(hibari=5), False),
        (found(pico=14), True),
        (found(pico=15), False),
        (found(alone=Answers(1, (0.8, 0.8, 0.8), 0)), False),
        (found(alone=Answers(1, (0.5, 0.5, 1.2), 0)), False),
        (found(gaps=1), False),
        (found(alone=Answers(1, GOOD.seconds, 0, unanswered=1)), False),
    ],
)
def test_limits_decide(measured, held):
    assert measured.held is held
    assert local_as_json(measured)["held"] is held
    assert local_as_text(measured).splitlines()[-1].startswith("limits met" if held else "limits not met")


def test_report_is_complete():
    text = local_as_text(found(pico=7, gaps=2))
    assert "word error, voice pico    7.0% (7 of 100 words); limit 15%" in text
    assert "8 calls  p50 0.70 s, p90 0.70 s, 40 turns, 0 without answer, 2 gaps in the agent's speech" in text


def test_command_prints_the_measurement(monkeypatch, capsys):
    monkeypatch.setattr(local, "measure", lambda calls, progress: found(pico=calls))
    assert main(["bench", "--engine", "local", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["word_error"]["pico"]["errors"] == LOCAL_CALLS
    assert main(["bench", "--engine", "local", "--calls", "20"]) == 1


def test_bench_without_the_extra_is_one_line(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "moonshine_voice", None)  # as if it were not installed
    assert main(["bench", "--engine", "local"]) == 2
    expected = f"gateway: the local engine is not installed; run: {how_to_install('local')}\n"
    assert capsys.readouterr().err == expected
