"""
Makes the recorded calls of the demo and of the tests, and the spoken apology, with synthetic voices.

Run it from the project's folder with the extra `speech` installed: python -m tests.record_calls. Simulated
carriers and a simulated engine talk to a real gateway in real time, and the gateway's own recorder writes the files.
"""

import asyncio
import contextlib
import functools
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import numpy
import py_nanotts
import soxr
from hibari import Hibari

from gateway.audio import FRAME_BYTES, linear_to_mulaw
from gateway.calls.speech_output import APOLOGY_TEXT
from gateway.settings import Secret, Settings
from gateway.simulate.gateway_under_test import own_gateway
from tests.fakes import deepgram_dialogue
from tests.fakes.deepgram import Conversation, FakeDeepgram
from tests.fakes.telnyx import FakeTelnyx
from tests.fakes.twilio import FakeTwilio

ROOT: Final = Path(__file__).resolve().parent.parent
DEMO: Final = ROOT / "gateway" / "replay" / "calls"
TESTS: Final = ROOT / "tests" / "recordings"
CALLER: Final = "+12025550143"
WORKSHOP: Final = "+12025550100"
FRAME_SECONDS: Final = 0.02

PUBLIC_URL: Final = "https://voice.example.com"
GREETING: Final = "Harbour Street Bicycles, this is Maya. How can I help you?"
PROMPT: Final = """\
You are Maya, at the front desk of Harbour Street Bicycles, a repair workshop. You speak with {{caller}}. It is {{now}}.
This is a phone call: answer in one or two short sentences, the way people talk.

What you know from earlier calls:
{{memory}}

When the caller says goodbye, call the function end_call, then say a short goodbye.
"""

Script = Mapping[str, deepgram_dialogue.Answer]

# Sound

_MULAW: Final = numpy.array([linear_to_mulaw(value) for value in range(-32768, 32768)], dtype=numpy.uint8)
_NOISE: Final = numpy.random.default_rng(seed=8000)


@functools.cache
def _hibari() -> Hibari:
    return Hibari()


@functools.cache
def agent_voice(text: str) -> bytes:
    return _telephone(_hibari()(text, seed=0), 24_000)


@functools.cache
def caller_voice(text: str) -> bytes:
    pcm = py_nanotts.NanoTTS().speak(text, voice="en-GB", speed=1.2)
    return _telephone(numpy.frombuffer(pcm, dtype="<i2").astype(numpy.float32) / 32768, 16_000)


def _telephone(sound: Any, rate: int) -> bytes:
    """Speech as a telephone carries it: 8 kHz with nothing above 4, an even level, mu-law."""
    narrow = soxr.resample(sound, rate, 8000, quality="VHQ")
    loud = narrow * (0.5 / max(float(numpy.abs(narrow).max()), 1e-6))
    return _encoded(loud * 32767)


def _line_noise() -> bytes:
    return _encoded(_NOISE.normal(0, 12, FRAME_BYTES))


def _encoded(samples: Any) -> bytes:
    return _MULAW[numpy.clip(samples, -32768, 32767).astype(numpy.int32) + 32768].tobytes()


def _voiced(parts: Sequence[str], audio: bytes | None) -> Iterator[tuple[str, bytes]]:
    return ((part, agent_voice(part)) for part in parts)


# A call


@dataclass
class Line:
    """The caller's end of the line: never silent, now and then with speech."""

    call: Any
    _speech: deque[bytes] = field(default_factory=deque)
    _said: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        clock = asyncio.get_running_loop().time
        due = clock()
        while self.call.stream:
            await self.call.stream.send_audio(self._speech.popleft() if self._speech else _line_noise())
            if not self._speech:
                self._said.set()
            due += FRAME_SECONDS
            await asyncio.sleep(max(0.0, due - clock()))

    async def say(self, text: str) -> None:
        audio = caller_voice(text)
        audio += _line_noise()[: -len(audio) % FRAME_BYTES]
        self._said.clear()
        self._speech.extend(audio[at : at + FRAME_BYTES] for at in range(0, len(audio), FRAME_BYTES))
        await self._said.wait()


@dataclass
class Scene:
    """One call in progress, with the means to go on with it."""

    call: Any
    line: Line
    engine: FakeDeepgram
    conversation: Conversation

    async def caller_says(self, text: str, *, over: bool = False) -> asyncio.Task[None]:
        """One turn of the caller. Returns when it is spoken; the answer is under way."""
        if not over:
            await self.agent_is_done()
        speaking = asyncio.create_task(self.line.say(text))
        await asyncio.sleep(0.2)  # an engine needs this long to detect speech
        if over:
            await self.conversation.barge_in(late_audio=agent_voice("As I said"), late_text="As I said.")
        else:
            await self.conversation.user_starts_speaking()
        await speaking
        await asyncio.sleep(0.5)  # and to be sure that they have finished
        return asyncio.create_task(self.conversation.end_turn(text))

    async def agent_is_done(self) -> None:
        """The agent has finished, and the caller has heard it."""
        await self.conversation.until(lambda: not self.conversation.agent_speaking, timeout=60)
        await self.call.until(lambda: not self.call.queued, timeout=60)
        await asyncio.sleep(0.4)

    async def talk(self, turns: Sequence[str]) -> None:
        for text in turns:
            await (await self.caller_says(text))
        await self.agent_is_done()


Play = Callable[[Any, FakeDeepgram], Awaitable[None]]
"""Makes one call, with a carrier and an engine."""


@contextlib.asynccontextmanager
async def scene(carrier: Any, engine: FakeDeepgram) -> AsyncIterator[Scene]:
    """A call that was picked up and greeted. The block says how it goes on; it is over when the block is left."""
    async with open_line(carrier) as line:
        conversation = await engine.next_conversation()
        await conversation.until(lambda: conversation.sent("AgentAudioDone"), timeout=60)
        yield Scene(line.call, line, engine, conversation)


@contextlib.asynccontextmanager
async def open_line(carrier: Any) -> AsyncIterator[Line]:
    line = Line(await carrier.dial(CALLER, WORKSHOP))
    speaking = asyncio.create_task(line.run())
    yield line
    await line.call.over(timeout=30)
    await speaking


async def record(script: Script, *plays: Play, carrier_kind: Any = FakeTwilio) -> list[bytes]:
    """Play scenes one after the other into one gateway; what it recorded of each."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        engine_kind = FakeDeepgram(script=script, speech_rate=2.0)
        async with carrier_kind(public_url=PUBLIC_URL) as carrier, engine_kind as engine:
            async with own_gateway(_settings(folder, carrier, engine)) as url:
                carrier.gateway_url = url
                for play in plays:
                    await play(carrier, engine)
                    await _remembered(url)
        recorded = sorted((folder / "recordings").iterdir(), key=lambda path: path.stat().st_mtime)
        return [path.read_bytes() for path in recorded]


def _settings(folder: Path, carrier: Any, engine: FakeDeepgram) -> Settings:
    (folder / "prompts").mkdir()
    (folder / "prompts" / "maya.md").write_text(PROMPT, encoding="utf-8")
    access = {name.lower(): value for name, value in carrier.settings().items()}
    for secret in {"twilio_auth_token", "telnyx_api_key"} & set(access):
        access[secret] = Secret(access[secret])
    return Settings(
        **access,
        data_dir=folder / "data",
        voice_session_archive_dir=folder / "archive",
        record_dir=folder / "recordings",
        public_url=PUBLIC_URL,
        allowed_callers=frozenset({CALLER}),
        deepgram_api_key=Secret(engine.api_key),
        deepgram_agent_url=engine.url,
        agents={"maya": {"greeting": GREETING, "timezone": "America/New_York"}},
        folder=folder,
    )


async def _remembered(url: str) -> None:
    async with httpx.AsyncClient() as http:
        while True:
            state = (await http.get(f"{url}/health")).json()
            if not state["calls"] and not state["endings"]:
                return
            await asyncio.sleep(0.05)


# The calls

FIRST: Final[Script] = {
    "Hi, my name is Ana. My road bike needs new brake pads, and I would like to bring it in this week.": (
        "Of course, Ana. We have Thursday at ten in the morning, or Friday at four."
    ),
    "Let's book Thursday at ten. I prefer a text message when it is ready, I can't take calls at work.": (
        "You're booked for Thursday at ten. I will send you a text message when the bike is ready."
    ),
    "Perfect, thank you. Goodbye.": "You're welcome, Ana. Goodbye.",
}
SECOND: Final[Script] = {
    "Hi, it's me again. When was I supposed to bring my bike in?": (
        "Hello Ana. Your road bike is booked for Thursday at ten in the morning, for new brake pads."
    ),
    "Right. And how will I know when it is ready?": (
        "I will send you a text message, because you can't take calls at work."
    ),
    "That's great. Thank you, goodbye.": "You're welcome. See you on Thursday.",
}
LONG_ANSWER: Final[Script] = {
    "Hello, what does a full service include?": (
        "A full service includes new cables for brakes and gears, a thorough cleaning of the chain and the "
        "cassette, truing of both wheels, grease in all bearings, and a test ride at the end."
    ),
    "Sorry, just tell me what it costs.": "It is eighty dollars, and it takes two days.",
}
OPENING_HOURS: Final[Script] = {
    "Hello, are you open on Saturday?": "Yes, we are open on Saturday from nine to one.",
    "Thank you very much. Goodbye.": "You're welcome. Goodbye.",
}


async def _graceful_hangup(conversation: deepgram_dialogue.Dialogue) -> str:
    await conversation.call_functions(["end_call"])
    return "Thank you for calling. Goodbye."


GOODBYE: Final[Script] = {
    "Hi, this is Ana calling. Please tell the mechanic that my bike is the green one.": (
        "I will tell the mechanic, Ana. Is there anything else?"
    ),
    "No, that is all. Goodbye.": _graceful_hangup,
}


def _until_caller_hangs_up(script: Script) -> Play:
    async def play(carrier: Any, engine: FakeDeepgram) -> None:
        async with scene(carrier, engine) as current:
            await current.talk(list(script))
            await current.call.hang_up()

    return play


async def _interrupted(carrier: Any, engine: FakeDeepgram) -> None:
    question, interruption = LONG_ANSWER
    async with scene(carrier, engine) as current:
        answer = await current.caller_says(question)
        await asyncio.sleep(4.0)
        await (await current.caller_says(interruption, over=True))
        await answer
        await current.agent_is_done()
        await current.call.hang_up()


async def _agent_hangs_up(carrier: Any, engine: FakeDeepgram) -> None:
    async with scene(carrier, engine) as current:
        for text in GOODBYE:
            await (await current.caller_says(text))


async def _engine_lost(carrier: Any, engine: FakeDeepgram) -> None:
    question, goodbye = OPENING_HOURS
    async with scene(carrier, engine) as current:
        await current.talk([question])
        current.conversation.abort()
        current.conversation = conversation = await engine.next_conversation()
        await conversation.until(lambda: conversation.sent("AgentAudioDone"), timeout=60)
        await current.talk([goodbye])
        await current.call.hang_up()


async def _engine_refused(carrier: Any, engine: FakeDeepgram) -> None:
    engine.refuse_next(401)
    async with open_line(carrier):
        pass  # the gateway apologises and hangs up


async def main() -> None:
    # The simulated engine makes tones of its own; here it gets a voice.
    deepgram_dialogue.with_sound = _voiced
    (ROOT / "gateway" / "sounds" / "apology.ulaw").write_bytes(agent_voice(APOLOGY_TEXT))
    for script in (FIRST, SECOND, LONG_ANSWER, OPENING_HOURS, GOODBYE):
        for question, answer in script.items():  # before the calls: synthesis must not hold up their audio
            caller_voice(question)
            for sentence in deepgram_dialogue.sentences(answer) if isinstance(answer, str) else ():
                agent_voice(sentence)
    pair, barge_in, goodbye, telnyx, engine_lost, engine_refused = await asyncio.gather(
        record({**FIRST, **SECOND}, _until_caller_hangs_up(FIRST), _until_caller_hangs_up(SECOND)),
        record(LONG_ANSWER, _interrupted),
        record(GOODBYE, _agent_hangs_up),
        record(OPENING_HOURS, _until_caller_hangs_up(OPENING_HOURS), carrier_kind=FakeTelnyx),
        record(OPENING_HOURS, _engine_lost),
        record({}, _engine_refused),
    )
    files = {
        DEMO / "first.jsonl": pair[0],
        DEMO / "second.jsonl": pair[1],
        TESTS / "barge-in.jsonl": barge_in[0],
        TESTS / "goodbye.jsonl": goodbye[0],
        TESTS / "telnyx.jsonl": telnyx[0],
        TESTS / "engine-lost.jsonl": engine_lost[0],
        TESTS / "engine-refused.jsonl": engine_refused[0],
    }
    for path, content in files.items():
        path.write_bytes(content)
        print(f"{path.relative_to(ROOT)}  {len(content) / 1e6:.2f} MB")


if __name__ == "__main__":
    asyncio.run(main())
