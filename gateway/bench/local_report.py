"""
What `gateway bench --engine local` prints.

The object for machines: `sentences`, `word_error` by voice (`share`, `errors`, `words`, `limit`), `answers` of one call
and of several at once (`calls`, `turns`, `p50_s`, `p90_s`, `gaps`, `unanswered`), `limits_s` (p50 and p90 of one call)
and `held`.
"""

from typing import Any

from gateway.bench.local import ANSWER_LIMITS, WORD_ERROR_LIMITS, Answers, LocalMeasurement


def local_as_json(found: LocalMeasurement) -> dict[str, Any]:
    return {
        "sentences": found.sentences,
        "word_error": {
            voice: {
                "share": round(error.share, 4),
                "errors": error.errors,
                "words": error.words,
                "limit": WORD_ERROR_LIMITS[voice],
            }
            for voice, error in found.word_errors.items()
        },
        "answers": [_answers(found.alone), _answers(found.together)],
        "limits_s": {"p50": ANSWER_LIMITS[0], "p90": ANSWER_LIMITS[1]},
        "held": found.held,
    }


def local_as_text(found: LocalMeasurement) -> str:
    lines = [f"{found.sentences} sentences, 8 kHz mu-law with line noise:"]
    for voice, error in found.word_errors.items():
        lines.append(f"  word error, voice {voice:7} {error}; limit {WORD_ERROR_LIMITS[voice]:.0%}")
    lines.append("From the caller's last sound to the agent's first, with the scripted agent:")
    for answers in (found.alone, found.together):
        calls = "1 call " if answers.calls == 1 else f"{answers.calls} calls"
        timing = f"p50 {answers.p50:.2f} s, p90 {answers.p90:.2f} s"
        turns = f"{len(answers.seconds)} turns, {answers.unanswered} without answer"
        lines.append(f"  {calls}  {timing}, {turns}, {answers.gaps} gaps in the agent's words")
    lines.append(f"  limits for one call: p50 {ANSWER_LIMITS[0]:.1f} s, p90 {ANSWER_LIMITS[1]:.1f} s; no gaps")
    lines.append("held" if found.held else "not held: this machine is too slow or too busy for it")
    return "\n".join(lines)


def _answers(answers: Answers) -> dict[str, Any]:
    return {
        "calls": answers.calls,
        "turns": len(answers.seconds),
        "p50_s": round(answers.p50, 3),
        "p90_s": round(answers.p90, 3),
        "gaps": answers.gaps,
        "unanswered": answers.unanswered,
    }
