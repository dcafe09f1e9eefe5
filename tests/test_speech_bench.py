"""The benchmark on human speech, without its recordings."""

import numpy as np
import pytest

from gateway.speech.samples import RATE
from scripts.speech_bench import outside, turns, words
from scripts.speech_bench.recordings import echo, packet_loss, with_noise
from scripts.speech_bench.turns import Pause, SpokenTurn

SPEECH = (np.sin(np.arange(RATE) * 2 * np.pi * 300 / RATE) * 0.3).astype(np.float32)


def loudness(samples):
    return float(np.sqrt(np.mean(np.square(samples))))


@pytest.mark.parametrize("decibels", [15, 5])
def test_noise_is_this_much_quieter_than_the_speech(decibels):
    noise = np.random.default_rng(1).normal(0, 1, 3000).astype(np.float32)
    added = with_noise(noise, decibels)(SPEECH) - SPEECH
    assert 20 * np.log10(loudness(SPEECH) / loudness(added)) == pytest.approx(decibels, abs=0.3)


def test_lost_packets_are_silent_and_the_same_in_every_run():
    heard = packet_loss(0.2)(np.ones(10 * RATE, np.float32))
    assert (heard == packet_loss(0.2)(np.ones(10 * RATE, np.float32))).all()
    assert 0.1 < 1 - heard.mean() < 0.3


def test_echo_comes_later():
    click = np.zeros(RATE, np.float32)
    click[0] = 1
    assert np.nonzero(echo()(click))[0].tolist() == [0, 1600]


def test_rules_are_compared_on_the_same_pauses():
    spoken = SpokenTurn("two sentences", np.zeros(2 * RATE, np.float32))
    pauses = [Pause("It is ready.", 0.9, 1.0, seconds=0.5, is_end=False), Pause("It is ready. I think.", 0.1, 1.95)]
    rules = {name: turns._apply(name, rule, [(spoken, pauses)]) for name, rule in turns.RULES.items()}
    assert [result.cut["two sentences"] for result in rules.values()] == [1, 1, 1]
    delays = [round(result.delays["two sentences"][0], 2) for result in rules.values()]
    assert delays == [0.55, 0.95, 0.95]  # the caller's own pauses count; Smart Turn thinks that more follows
    assert "1 of 1 (100%)" in turns.as_table(list(rules.values()))


def test_table_of_words_has_a_row_for_each_set():
    row = words.WordRow("sentences", "street", 2, 1, words.WordError(1, 10), words.WordError(2, 10))
    assert words.as_table([row]).splitlines()[-1] == "| sentences | street | 2 | 1 | 10.0% | 20.0% |"


def test_table_from_outside_has_a_row_for_each_engine():
    figures = {"count": 5, "p50": 560.0, "p90": 606.4, "max": 170.0}
    summary = {"response_latency_ms": figures, "barge_in_stop_ms": figures, "missed_responses": 0, "talk_over_ms": 0.0}
    summary |= {"barge_in_turns": 3, "barge_in_success_rate": 1.0, "false_barge_ins": 1, "noise_turns": 3}
    [row] = outside.as_table({"local": summary}).splitlines()[2:]
    assert row == "| local | 5, 0 missed | 560 / 606 ms | 3, 100% | 560.0 / 170.0 ms | 1 of 3 | 0 ms |"
