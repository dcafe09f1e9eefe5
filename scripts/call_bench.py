"""
Do the notes hold what a call agreed on, and is what is known of callers right? For `scripts/memory-bench`.

The folder holds outcomes-*.jsonl and facts-*.jsonl with their scorers, score_outcomes.py and score_facts.py. Outcomes
are measured in process, without a model. Facts are measured through whole calls with a simulated carrier and engine,
without a model and behind a simulated one that answers what the set prescribes.
"""

import asyncio
import importlib.util
import json
import logging
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gateway.finalization.document import call_document
from gateway.finalization.summary.summarizer import Summarizer
from gateway.session import VoiceSession
from gateway.text.plain_text import SpokenLine
from gateway.text.redaction import redact_lines

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the simulators of the tests

from tests.fakes.llm import FakeLlm
from tests.stage import make_carrier, staged

AGENTS = {"en": "+12025550100", "de": "+12025550101", "es": "+12025550102", "fr": "+12025550103"}
MARK = "@@"
EMPTY = dict.fromkeys(("topics", "decisions", "action_items", "facts", "caller_facts", "running_topics"), [])


def scorer(folder: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cases_of(folder: Path, name: str) -> list[dict[str, Any]]:
    rows = (row for path in sorted(folder.glob(name)) for row in path.read_text(encoding="utf-8").splitlines())
    return [json.loads(row) for row in rows if row.strip()]


async def outcomes(folder: Path) -> dict[str, float]:
    """The figures of the outcomes set."""
    score, writer = scorer(folder, "score_outcomes"), Summarizer([], "")
    calls = cases_of(folder, "outcomes-*.jsonl")
    documents = {}
    for call in calls:
        lines = redact_lines([SpokenLine(turn["speaker"], turn["text"]) for turn in call["turns"]])
        session = VoiceSession("bench", "+12025550143", "twilio")
        documents[call["id"]] = call_document(session, await writer.write(lines), None).content
    return {f"outcomes {name}": value for name, value in score.summarise(calls, documents)["macro"].items()}


async def facts(folder: Path, *, model: bool) -> dict[str, float]:
    """The figures of the facts set, in numbers of cases."""
    logging.disable(logging.CRITICAL)
    score = scorer(folder, "score_facts")
    cases = cases_of(folder, "facts-*.jsonl")
    # Facts alone count for corrections and plain statements, all that the agent is given for the others.
    alone = [case for case in cases if case["set"] in ("corrections", "plain")]
    rest = [case for case in cases if case not in alone]
    results = await _placed(alone, model=model, VOICE_SESSION_CONTEXT_LIMIT="0") + await _placed(rest, model=model)
    figures, _ = score.score([*alone, *rest], results)
    mode = "model" if model else "rules"
    return {f"facts, {mode}: {set_} {name}": value for set_, name, value in _numbers(figures)}


def _numbers(figures: dict[str, dict[str, Any]]) -> list[tuple[str, str, float]]:
    return [
        (set_, name, value)
        for set_, found in figures.items()
        for name, value in found.items()
        if isinstance(value, int | float)
    ]


async def _placed(cases: Sequence[dict[str, Any]], *, model: bool, **settings: str) -> list[dict[str, Any]]:
    """Place the calls of each case one after the other, then one more that says nothing."""
    with tempfile.TemporaryDirectory() as data:
        folder = Path(data)
        (folder / "prompt.md").write_text(f"You are Maya.\n{MARK}{{{{memory}}}}{MARK}", encoding="utf-8")
        agents = (
            f'[agents.{name}]\nprompt = "prompt.md"\nlanguage = "{name}"\nnumbers = ["{number}"]\n'
            for name, number in AGENTS.items()
        )
        (folder / "gateway.toml").write_text("".join(agents), encoding="utf-8")
        async with FakeLlm() as llm:
            if model:
                settings |= {"ANTHROPIC_API_KEY": llm.api_key, "ANTHROPIC_BASE_URL": llm.url}
            async with staged(folder, make_carrier("twilio"), **settings) as stage:
                return [await _case(stage, llm, case, number) for number, case in enumerate(cases)]


async def _case(stage: Any, llm: FakeLlm, case: dict[str, Any], number: int) -> dict[str, Any]:
    caller, called = f"+1303{5550000 + number}", AGENTS[case["lang"]]
    before, end = [], []
    for call in case["calls"]:
        said = [line for line, (speaker, _) in enumerate(call["turns"]) if speaker == "caller"]
        answer = {"caller_name": "", "context": "", **EMPTY} | call["oracle"]
        answer["caller_facts"] = [{"confidence": 0.9, "turns": said} | fact for fact in answer["caller_facts"]]
        llm.answers(json.dumps(answer))
        phone, conversation = await stage.dial(caller, called)
        before.append(_facts(_memory(conversation.prompt)))
        for speaker, text in call["turns"]:
            if speaker == "agent":
                await conversation.agent_says(text)
                await phone.until(lambda phone=phone: phone.marks_echoed)
            else:
                await conversation.user_says(text)
        await asyncio.sleep(0.05)
        end.append(_memory(conversation.prompt))
        await phone.hang_up()
        await stage.idle()
    phone, conversation = await stage.dial(caller, called)
    memory = _memory(conversation.prompt)
    await phone.hang_up()
    await stage.idle()
    return {"id": case["id"], "facts": _facts(memory), "before": before, "memory": memory, "end": end}


def _memory(prompt: str) -> str:
    return prompt.split(MARK)[1] if MARK in prompt else prompt


def _facts(memory: str) -> list[str]:
    _, _, rest = memory.partition("<caller_facts>")
    return [line.strip("- ") for line in rest.partition("</caller_facts>")[0].splitlines() if line.strip("- ")]
