"""Whole calls on the local engine: a real gateway, real speech models, and a simulated language model."""

import asyncio
import contextlib
import itertools

import pytest

from gateway.engines.cascade import BUSY
from gateway.settings import Secret
from gateway.simulate.softphone import phone_line
from gateway.simulate.synthetic_caller import ScriptedCaller, line_noise, pico
from tests.fakes.llm import FakeLlm
from tests.fakes.llm_script import Answer, ToolCall
from tests.replay.calls import replay_all
from tests.stage import ADMIN, CALLER, patient_client, running_gateway, until, until_it

SPEED = 2.0
"""Faster, a busy machine is late with recognition, and callers do not wait."""


@pytest.fixture
async def llm():
    async with FakeLlm() as llm:
        yield llm


@pytest.fixture
async def url(tmp_path, llm):
    """A gateway whose agent uses the simulated language model and takes one call at a time."""
    configure(tmp_path, llm)
    async with ready_gateway(tmp_path) as url:
        yield url


def configure(tmp_path, llm):
    brain = f'{{ url = "{llm.url}/v1", model = "test", api_key = "test-key" }}'
    toml = f'[agents.maya]\ngreeting = "Hello."\nprompt = "prompts/maya.md"\nbrain = {brain}\n'
    (tmp_path / "gateway.toml").write_text(toml)


@contextlib.asynccontextmanager
async def ready_gateway(tmp_path):
    environ = {
        "DATA_DIR": str(tmp_path / "data"),
        "VOICE_SESSION_ARCHIVE_DIR": str(tmp_path / "archive"),
        "GATEWAY_ADMIN_TOKEN": ADMIN,
        "MEMORY_VECTORS": "false",
        "LOCAL_ENGINE_CALLS": "1",
        "RECORD_DIR": str(tmp_path / "records"),
    }
    async with running_gateway(environ, tmp_path) as url, patient_client(url) as http:

        async def ready():
            return (await http.get("/ready")).is_success

        await until_it(ready)
        yield url


async def transcript(tmp_path):
    [path] = await until(lambda: list((tmp_path / "archive").glob("*.txt")))
    return path.read_text()


async def talk(url, *lines, caller=CALLER, **options):
    async with phone_line(url, Secret(ADMIN), caller=caller) as line:
        person = ScriptedCaller(line, [pico(text) for text in lines], **options)
        await line.talk(person.speak, person.listen, speed=SPEED)


async def test_language_model_answers_and_hangs_up(url, llm, tmp_path):
    llm.answers("It is ready.")  # to whatever was heard
    llm.answers(Answer(tools=(ToolCall("end_call"),)), when="bye")
    llm.answers("Goodbye, then.", when="say a short goodbye")
    await talk(url, "Is my bike ready?", "Thank you, goodbye.")
    lines = (await transcript(tmp_path)).splitlines()
    assert lines[::2] == ["AGENT: Hello.", "AGENT: It is ready.", "AGENT: Goodbye, then."]
    assert lines[1].startswith("CALLER: ")
    [path] = (tmp_path / "records").glob("*.jsonl")
    await until(lambda: b'"note":"summary"' in path.read_bytes())
    await replay_all(tmp_path / "records")


async def test_call_with_the_default_settings_replays(tmp_path):
    """The agent, the script that answers, and the engine are those of a gateway without keys or gateway.toml."""
    async with ready_gateway(tmp_path) as url:
        await talk(url, "My name is Ana.", last_wait=5.0)
        await transcript(tmp_path)
        [path] = (tmp_path / "records").glob("*.jsonl")
        await until(lambda: b'"note":"summary"' in path.read_bytes())
    [recording] = await replay_all(tmp_path / "records")
    assert recording.header.carrier == "softphone"
    assert [turn.speaker for turn in recording.ended.turns[:2]] == ["agent", "caller"]


async def test_second_caller_hears_that_all_lines_are_busy(url, tmp_path):
    async with phone_line(url, Secret(ADMIN), caller=CALLER) as line:
        quiet = [b"\xff" * 160] * 1000
        first = asyncio.create_task(line.talk(lambda: quiet.pop() if quiet else None, lambda _: None))
        await until(lambda: line.arrived_at)
        await talk(url, "Is this the workshop?", caller="+12025550144")
        assert await transcript(tmp_path) == f"AGENT: {BUSY}\n"
        quiet.clear()
        await first


async def test_agent_stops_when_the_caller_speaks(url, llm, tmp_path):
    llm.answers("One. " + "And then another thing happened. " * 20)
    async with phone_line(url, Secret(ADMIN), caller=CALLER) as line:
        frames = _interrupting(line, then=lambda: llm.answers("Of course."))
        await line.talk(lambda: next(frames, None), lambda _: None, speed=SPEED)
    lines = (await transcript(tmp_path)).splitlines()
    assert [line.partition(":")[0] for line in lines] == ["AGENT", "CALLER", "AGENT", "CALLER", "AGENT"]
    assert lines[2].count("happened") < 10
    assert lines[4] == "AGENT: Of course."


def _interrupting(line, then):
    """A caller who asks for a story and interrupts it. `then` is called before the interruption."""

    def waits(condition):
        noise = itertools.cycle(line_noise(50))
        return itertools.takewhile(lambda _: not condition(), itertools.islice(noise, 5000))

    def says(text):
        sound = pico(text)
        return (sound[at : at + 160].ljust(160, b"\xff") for at in range(0, len(sound), 160))

    yield from waits(lambda: line.playout.is_playing)
    yield from waits(lambda: not line.playout.is_playing)
    yield from says("Tell me a story.")
    yield from waits(lambda: line.playout.is_playing)
    then()
    yield from line_noise(100)
    yield from says("Stop it, please.")
    yield from waits(lambda: not line.playout.is_playing)
    yield from waits(lambda: line.playout.is_playing)
    yield from waits(lambda: not line.playout.is_playing)
