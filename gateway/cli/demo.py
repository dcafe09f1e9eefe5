"""
`gateway demo`: two calls by one caller, without a key or an account.

With the extra `local`, a synthetic voice calls a real gateway; recognition, memory and answers are the gateway's own
work. Without it, two recorded calls are played into a real gateway. The store starts empty either way: what the agent
knows in the second call comes from the first.
"""

import argparse
import asyncio
import contextlib
import io
import re
import secrets
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any, Final

import httpx

from gateway import extras, logs
from gateway.cli.demo_page import Page
from gateway.cli.demo_sound import save_sound, sound_path
from gateway.cli.remote import Remote
from gateway.cli.replay import speed
from gateway.cli.tail import LiveReader
from gateway.cli.terminal import make_console
from gateway.errors import EngineUnavailable, SettingsError
from gateway.invocation import command, typed_path
from gateway.replay.harness import ReplayHarness, replay_harness
from gateway.replay.recording import RecordedFrame, Recording, read
from gateway.settings import Secret, Settings
from gateway.simulate.call_audio import Loudspeaker, open_loudspeaker
from gateway.simulate.frames import JsonFrame
from gateway.simulate.gateway_under_test import GatewayAddress, GatewayApi, own_gateway
from gateway.simulate.softphone import phone_line
from gateway.simulate.word_error import WordError, normalised, word_error
from gateway.web.dashboard.recordings import StereoRecording, read_recording, stereo
from gateway.web.login_sessions import LINK_SECONDS, LoginLinks

DESCRIPTION: Final = (
    "Start a real gateway, phone it twice with a synthetic voice, and show what it heard, stored and remembered. Needs "
    "no key and no account. Without the extra `local` it plays two recorded calls instead."
)

CALLER: Final = "+12025550143"
CALLED: Final = "+12025550100"
GREETING: Final = "Harbour Street Bicycles, this is Maya. How can I help you?"
FIRST_CALL: Final = (
    "Hello, my name is Daniel.",
    "My road bike needs new brake pads.",
    "My appointment is on Thursday at ten in the morning.",
    "Yes, that is right.",
    "I prefer text messages.",
    "Thank you, goodbye.",
)
SECOND_CALL: Final = (
    "Hello, when is my appointment?",
    "What did we talk about last time?",
    "Thank you, goodbye.",
)
PITCH: Final = 0.8
"""The caller has the agent's voice at a lower pitch, so that listeners can distinguish them."""

_FIRST, _SECOND = "First call", "Second call, same caller"
_PIPE_SPEED, _RECORDED_SPEED = 2.0, 8.0
"""Times real time, when the calls are not played: the synthetic voice in a pipe, recorded calls on a terminal."""
_FINISHED_SECONDS: Final = 60.0
_PLACEHOLDER: Final = re.compile(r"\\\{\\\{(\w+)\\\}\\\}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pace = parser.add_mutually_exclusive_group()
    pace.add_argument("--play", action="store_true", help="play the calls on the loudspeaker, in real time")
    pace.add_argument("--speed", type=speed, metavar="N", help="1: real time; 0: as fast as possible")
    parser.add_argument(
        "--wav",
        type=typed_path,
        metavar="FILE",
        help="where to save the sound (demo.wav; demo-2.wav if that is a file of yours)",
    )
    parser.add_argument(
        "--keep", action="store_true", help="keep the gateway and its dashboard running until Ctrl-C, in a pipe too"
    )
    parser.add_argument(
        "--recorded", action="store_true", help="play two recorded calls, as a cloud engine answered them"
    )


@dataclass(frozen=True)
class Demo:
    """How the two calls are shown."""

    page: Page
    pace: float
    """Of the calls: 1 is real time."""
    wav: Path
    keep: bool
    """Whether the gateway runs on after the calls."""
    is_live: bool
    """Whether its agent listens and speaks, and is no recording."""
    loudspeaker: Loudspeaker | None = None

    def play(self, caller: bytes, agent: bytes) -> None:
        if self.loudspeaker is not None:
            self.loudspeaker.play(stereo(caller, agent))


def run(options: argparse.Namespace) -> int:
    logs.keep_quiet()
    wav = sound_path(options.wav)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without box characters still shows the words
    page = Page(make_console(sys.stdout))
    page.line("Voice Gateway demo", "bold")
    is_recorded = options.recorded or not extras.is_installed("local")
    keep = options.keep or (sys.stdout.isatty() and sys.stdin.isatty())
    if options.speed is not None:
        pace = options.speed
    elif is_recorded and not options.play:
        pace = _RECORDED_SPEED if sys.stdout.isatty() else 0.0
    else:
        pace = 1.0 if keep or options.play or sys.stdout.isatty() else _PIPE_SPEED
    with contextlib.ExitStack() as stack:
        loudspeaker = None
        try:
            loudspeaker = stack.enter_context(open_loudspeaker()) if options.play else None
        except SettingsError as error:
            page.line(f"{error}. The sound will be in {wav}.", "yellow")
        demo = Demo(page, pace, wav, keep, not is_recorded, loudspeaker)
        return asyncio.run(_play_recorded(demo) if is_recorded else _speak(demo))


# Two recorded calls


async def _play_recorded(demo: Demo) -> int:
    page = demo.page
    folder = Path(str(resources.files("gateway.replay").joinpath("calls")))
    paths = folder / "first.jsonl", folder / "second.jsonl"
    first, second = map(read, paths)
    sounds = [sound for sound in map(read_recording, paths) if sound is not None]
    async with replay_harness(first) as harness:
        page.line(
            f"A real gateway is running at {harness.api.address.url}. Carrier and voice engine are recordings of two "
            f"calls; everything between them runs live{'' if demo.pace == 1 else ', faster than real time'}."
        )
        page.heading(_FIRST)
        demo.play(sounds[0].caller, sounds[0].agent)
        await _play(demo, first, harness)
        document = (await harness.stored_call(first)).document
        page.heading("What is stored")
        page.line("One document. No key for a language model is set, so the summary quotes sentences from the call.")
        page.quoted(document)
        page.heading(_SECOND)
        demo.play(sounds[1].caller, sounds[1].agent)
        prompted = await _play(demo, second, harness)
        if not is_remembered(document, prompted):
            print("gateway: the agent got nothing from the first call", file=sys.stderr)
            return 1
        page.heading("What you saw")
        page.line(
            f"{_agent_name(second)}'s words are recorded. Her memory of the first call is not: the gateway stored it, "
            "found it when the phone rang again, and put it into her prompt before she said hello."
        )
        page.line(save_sound(sounds, demo.wav))
        _show_next(demo)
        await harness.api.wait_idle(_FINISHED_SECONDS)
        await _keep_running(demo, harness.api)
    return 0


async def _play(demo: Demo, recording: Recording, harness: ReplayHarness) -> str:
    """Play one call and show it. Returns the memory in the agent's prompt."""
    page, header, memory = demo.page, recording.header, ""
    names = {"user": "Caller", "assistant": _agent_name(recording)}

    def observe(frame: RecordedFrame) -> None:
        nonlocal memory
        fields = frame.content.fields if isinstance(frame.content, JsonFrame) else {}
        if fields.get("type") == "Settings":
            memory = _memory_part(harness, str(header.agent["prompt"]))
            picks_up = f"{names['assistant']} picks up. Memory of earlier calls in the prompt:"
            if recording.memory.calls:
                page.line(picks_up)
                page.quoted(memory, "green")
            else:
                page.line(f"{picks_up} {memory}")
            page.line()
        elif fields.get("type") == "ConversationText":
            chat.said(fields["role"], str(fields["content"]))

    page.line(f"{header.caller} calls {header.called} ({header.carrier.capitalize()}).")
    with page.chat(names, {"user": "cyan"}) as chat:
        await harness.play(recording, speed=demo.pace, observer=observe)
    page.line()
    page.line(f"The caller hangs up after {recording.seconds:.0f} seconds.")
    return memory


def _agent_name(recording: Recording) -> str:
    return str(recording.header.agent["name"]).capitalize()


def _memory_part(harness: ReplayHarness, template: str) -> str:
    """What replaced {{memory}} in the prompt that the engine received."""
    messages = (received.content for received in harness.engine.sink.frames)
    settings = next(message.fields for message in messages if isinstance(message, JsonFrame))
    groups = {"memory": "(?P<memory>.*)"}
    pattern = _PLACEHOLDER.sub(lambda placeholder: groups.get(placeholder[1], ".*?"), re.escape(template))
    match = re.fullmatch(pattern, settings["agent"]["think"]["prompt"], re.DOTALL)
    return match["memory"] if match else ""


def is_remembered(document: str, prompted: str) -> bool:
    """Whether what the first call's document says to the next call is in that call's prompt."""
    context = document.partition("### Context for Next Call\n")[2].strip()
    return bool(context) and context in prompted


# Two spoken calls


@dataclass(frozen=True)
class SpokenCall:
    """A finished call: its sound, and what the gateway has stored of it."""

    lines: Sequence[str]
    sound: StereoRecording
    stored: Mapping[str, Any]

    @property
    def heard(self) -> str:
        return " ".join(turn["text"] for turn in self.stored["transcript"] if turn["speaker"] == "caller")

    @property
    def error(self) -> WordError:
        """The word error of the whole call, independent of turn boundaries."""
        return word_error(" ".join(self.lines), self.heard)

    @property
    def misheard(self) -> list[str]:
        """The lines that were not recognised word by word."""
        heard = f" {' '.join(normalised(self.heard))} "
        return [line for line in self.lines if f" {' '.join(normalised(line))} " not in heard]


async def _speak(demo: Demo) -> int:
    page, admin_token = demo.page, Secret(secrets.token_urlsafe(16))
    with tempfile.TemporaryDirectory(prefix="gateway-demo-") as name:
        folder = Path(name)
        (folder / "prompt.md").write_text("What you know from earlier calls:\n{{memory}}\n", encoding="utf-8")
        settings = Settings(
            voice_engine="local",
            data_dir=folder / "data",
            voice_session_archive_dir=folder / "archive",
            record_dir=folder / "recordings" if demo.pace == 1 else None,  # its times are those of the clock
            gateway_admin_token=admin_token,
            agents={"maya": {"prompt": "prompt.md", "greeting": GREETING, "numbers": [CALLED], "brain": "script"}},
            folder=folder,
        )
        async with own_gateway(settings) as url, httpx.AsyncClient(trust_env=False) as http:
            api = GatewayApi(GatewayAddress(url), http, admin_token)
            with page.waiting("loading the speech models"):
                voices, _ = await asyncio.gather(asyncio.to_thread(_caller_audio), api.wait_ready())
            timed = " The time after an answer is how long the caller waited for it." if demo.pace == 1 else ""
            page.line(
                f"A real gateway is running at {url}. A synthetic voice phones it twice. The local engine listens and "
                f"speaks, and a scripted agent answers, all on this machine and live.{timed}"
            )
            since = {"since": datetime.now(UTC).isoformat()}
            events = LiveReader(Remote(url, admin_token), since).events()
            page.heading(_FIRST)
            first = await _call(demo, api, events, FIRST_CALL, voices)
            page.heading("What is stored")
            page.line("One document, written without a language model: it quotes sentences from the call.")
            page.quoted(first.stored["summary"])
            page.heading(_SECOND)
            second = await _call(demo, api, events, SECOND_CALL, voices)
            known = second.stored["receipt"].get("block", "")
            page.heading("What Maya knew before she said hello")
            page.line("The memory of the first call, as the gateway put it into her prompt:")
            page.quoted(known, "green")
            if not is_remembered(first.stored["summary"], known):
                print("gateway: in the second call the agent did not remember the first", file=sys.stderr)
                return 1
            page.heading("What you saw")
            page.line(_recognition([first, second]))
            if demo.pace != 1:
                page.line(f"The calls ran at {demo.pace:g} times the usual speed; `--speed 1` is real time.")
            page.line(save_sound([first.sound, second.sound], demo.wav))
            _show_next(demo)
            await _keep_running(demo, api)
    return 0


def _caller_audio() -> dict[str, bytes]:
    """Each line of the caller as telephone audio."""
    from gateway.speech.models import HibariVoice

    voice = HibariVoice()
    return {line: voice.synthesize(line, pitch=PITCH) for line in {*FIRST_CALL, *SECOND_CALL}}


async def _call(
    demo: Demo,
    api: GatewayApi,
    events: AsyncIterator[Mapping[str, Any]],
    lines: Sequence[str],
    voices: Mapping[str, bytes],
) -> SpokenCall:
    from gateway.simulate.synthetic_caller import ScriptedCaller  # imports numpy

    demo.page.line(f"{CALLER} calls {CALLED}.")
    demo.page.line()

    async def show_turns() -> str:
        """Show turns until the call is stored. Returns its session."""
        async for event in events:
            if event["event"] == "turn":
                chat.said(event["speaker"], event["text"], event.get("latency") if demo.pace == 1 else None)
            elif event["event"] == "finished":
                return str(event["session"])
        raise EngineUnavailable("the call was not stored")

    with demo.page.chat({"caller": "Caller", "agent": "Maya"}, {"caller": "cyan"}) as chat:
        async with phone_line(api.address.url, api.admin_token, caller=CALLER, called=CALLED) as phone:
            caller = ScriptedCaller(phone, [voices[line] for line in lines])

            def listen(frame: bytes) -> None:
                caller.listen(frame)
                chat.talking = caller.speaker
                demo.play(bytes(caller.spoken[-len(frame) :]), frame)

            showing = asyncio.create_task(show_turns())
            try:
                await phone.talk(caller.speak, listen, speed=demo.pace)
                session = await asyncio.wait_for(showing, _FINISHED_SECONDS)
            except TimeoutError:
                raise EngineUnavailable("the call was not stored") from None
            finally:
                showing.cancel()
    sound = StereoRecording(bytes(caller.spoken), bytes(caller.heard))
    return SpokenCall(lines, sound, await api.request("GET", f"/v1/sessions/{session}"))


def _recognition(calls: Sequence[SpokenCall]) -> str:
    error = sum((call.error for call in calls), WordError(0, 0))
    if not error.errors:
        return "Two calls, and every word of the caller was recognised."
    said = "; ".join(f"“{line}”" for call in calls for line in call.misheard)
    return f"Two calls, with a word error rate of {error}. Not recognised: {said}."


# Afterwards


def _show_next(demo: Demo) -> None:
    has_engine = extras.is_installed("local")
    steps = {
        command("serve"): "your own gateway: it prints a link to the dashboard, where you can phone the agent",
        command("call"): "phone it from a second terminal, with microphone and loudspeaker",
        command("setup --help"): "connect a Twilio or Telnyx phone number, or a hosted agent",
    }
    if demo.loudspeaker is None and has_engine:
        steps = {command("demo --play"): "the same with sound", **steps}
    if not demo.keep:
        kept = f"these two calls in the dashboard{', where you can phone Maya, too' if demo.is_live else ''}"
        steps = {command("demo --keep"): kept, **steps}
    if not has_engine:
        engine = "the voice engine that needs no key: the demo is live then, and you can phone the agent"
        steps = {extras.how_to_install("local"): engine, **steps}
    demo.page.heading("What to do next")
    demo.page.commands(steps)


async def _keep_running(demo: Demo, api: GatewayApi) -> None:
    """Serve the dashboard until Enter or Ctrl-C."""
    if not demo.keep:
        return
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    link = f"{api.address.url}/login?code={LoginLinks(api.admin_token).make()}"
    demo.page.heading("Dashboard with both calls")
    demo.page.console.print(link, style="bold cyan", soft_wrap=True)
    phone = " You can phone Maya there, too." if demo.is_live else ""
    demo.page.line(f"The link works once, within {LINK_SECONDS // 60} minutes.{phone}")
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    if sys.stdin.isatty():
        loop.add_reader(sys.stdin, stopped.set)
    demo.page.line(f"{'Enter' if sys.stdin.isatty() else 'Ctrl-C'} ends the demo and deletes what it stored.")
    await stopped.wait()
    loop.remove_reader(sys.stdin)
