"""`gateway demo` from outside, in a pipe and on a terminal."""

import contextlib
import io
import os
import pty
import re
import select
import subprocess
import sys
import wave
from pathlib import Path

import httpx
import numpy as np
import pytest

from gateway.bench.local import hear
from gateway.cli import demo
from gateway.cli.demo import FIRST_CALL, PITCH, SECOND_CALL, SpokenCall, is_remembered
from gateway.cli.demo_page import Page
from gateway.cli.main import main
from gateway.cli.terminal import make_console
from gateway.errors import EngineUnavailable
from gateway.settings import Secret
from gateway.simulate.gateway_under_test import GatewayAddress, GatewayApi
from gateway.simulate.softphone import SoftphonePlayout
from gateway.simulate.word_error import word_error
from gateway.speech.models import HibariVoice, Models
from gateway.web.dashboard.recordings import StereoRecording

RUN = "import sys; from gateway.cli.main import main; sys.exit(main(sys.argv[1:]))"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def story(folder):
    """What the demonstration prints in a pipe."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(["demo", "--recorded", "--wav", str(folder / "recorded.wav")]) == 0
    return out.getvalue()


@pytest.fixture(scope="module")
def spoken_story(folder):
    """The same where voices and ears are real: faster than a busy machine can speak, the caller cuts in."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(["demo", "--speed", "2", "--wav", str(folder / "spoken.wav")]) == 0
    return out.getvalue()


def on_one_line(text):
    return " ".join(text.split())


def stereo_samples(path):
    with wave.open(str(path)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (2, 2, 8000)
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").reshape(-1, 2)


# Spoken calls


@pytest.fixture(scope="module")
def models():
    return Models.load()


@pytest.mark.parametrize("line", sorted({*FIRST_CALL, *SECOND_CALL}))
def test_every_line_is_recognised_word_by_word(models, line):
    assert isinstance(models.voice, HibariVoice)
    audio = models.voice.synthesize(line, pitch=PITCH)
    for shift in (0, 40, 110):  # speech never begins at the same place of a frame
        assert word_error(line, hear(b"\xff" * shift + audio, models)).errors == 0


def test_voices_can_be_told_apart(models):
    """The caller's voice is lower than the agent's by the pitch: the same words take longer by as much."""
    agent, caller = (models.voice.synthesize(FIRST_CALL[1], pitch=pitch) for pitch in (1.0, PITCH))
    assert len(caller) / len(agent) == pytest.approx(1 / PITCH, abs=0.06)


def test_second_call_knows_of_the_first(spoken_story):
    second = spoken_story[spoken_story.index("Second call") :]
    assert "Welcome back, Daniel" in on_one_line(second)
    assert "  │ - Is called Daniel\n" in spoken_story[: spoken_story.index("Second call")]
    known = second[second.index("What Maya knew") : second.index("What you saw")]
    assert "  │ Is called Daniel\n" in known
    assert "Thursday at ten in the morning" in on_one_line(known).replace(" │", "")


def test_turns_are_shown_in_their_order(spoken_story):
    first = spoken_story[spoken_story.index("First call") : spoken_story.index("What is stored")]
    names = re.findall(r"^(Caller|Maya): ", first, re.MULTILINE)
    assert names == ["Maya", "Caller"] * len(FIRST_CALL) + ["Maya"]


def test_word_error_is_what_was_measured(spoken_story):
    recognised = on_one_line(spoken_story[spoken_story.index("What you saw") :])
    if wrong := re.search(r"word error rate of (\d+\.\d)% ", recognised):
        assert 0 < float(wrong[1]) < 10
    else:
        assert "every word of the caller was recognised" in recognised


def test_sound_has_the_caller_left_and_the_agent_right(spoken_story, folder):
    samples = np.abs(stereo_samples(folder / "spoken.wav").astype(np.int32))
    seconds = [samples[at : at + 8000].mean(axis=0) for at in range(0, len(samples) - 8000, 8000)]
    caller, agent = (sum(second[side] > 500 for second in seconds) for side in (0, 1))
    assert agent > caller > 5
    assert "spoken.wav" in spoken_story


def test_spoken_demo_fits_a_terminal(spoken_story):
    assert max(len(line) for line in spoken_story.splitlines() if "spoken.wav" not in line) <= 80


def test_misheard_lines_are_named():
    turns = [{"speaker": "caller", "text": "My name is Hannah."}, {"speaker": "agent", "text": "Goodbye."}]
    turns.append({"speaker": "caller", "text": "Thank you, good-bye."})
    call = SpokenCall(("My name is Anna.", "Thank you, goodbye."), StereoRecording(b"", b""), {"transcript": turns})
    assert call.misheard == ["My name is Anna."]
    assert (call.error.errors, call.error.words) == (1, 7)


# Recorded calls


def test_without_the_extra_calls_are_recorded_ones(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "moonshine_voice", None)  # as if it were not installed
    monkeypatch.chdir(tmp_path)
    assert main(["demo"]) == 0
    assert "Carrier and voice engine are recordings" in on_one_line(capsys.readouterr().out)
    assert len(stereo_samples(tmp_path / "demo.wav")) > 8000


def test_demo_shows_both_calls(story):
    assert "Caller:  Hi, my name is Ana." in story
    assert "Caller:  Hi, it's me again. When was I supposed to bring my bike in?" in story


def test_demo_shows_the_memory_in_the_prompt(story):
    given = story[story.index("in the prompt:\n") :]
    assert "  │ <call_notes>\n" in given
    assert "Agent: You're booked for Thursday at ten." in given.replace("\n  │ ", " ")
    assert "Nothing: there are no notes" in on_one_line(story[: story.index("What is stored")])


def test_demo_fits_a_terminal(story):
    assert max(len(line) for line in story.splitlines() if "recorded.wav" not in line) <= 80
    assert "\033" not in story


def test_demo_says_what_is_next(story):
    """Each command that it names is one that exists, with arguments that it takes."""
    named = re.findall(r"^  gateway (.*)$", story[story.index("What to do next") :], re.MULTILINE)
    assert named == ["demo --keep", "demo --play", "serve", "call", "setup --help"]


def test_recorded_agent_is_not_offered_for_a_call(story):
    assert "phone Maya" not in " ".join(story.split())


def test_agent_who_knows_nothing_is_noticed():
    document = "# Call\n\n### Context for Next Call\nAna's bike is green.\n"
    assert is_remembered(document, "Notes: Ana's bike is green.")
    assert not is_remembered(document, "Nothing: there are no notes.")
    assert not is_remembered("# Call\n", "Notes")


# Sound


def test_folder_without_room_for_the_sound_gets_one_line(capsys):
    assert main(["demo", "--wav", "/no/such/folder/demo.wav"]) == 2
    assert capsys.readouterr().err == (
        "gateway: /no/such/folder/demo.wav can't be written; choose a folder that you can write to\n"
    )


def test_sound_that_cannot_be_saved_is_one_line(capsys):
    assert main(["demo", "--recorded", "--wav", "/dev/full"]) == 0
    out, err = capsys.readouterr()
    assert "The sound could not be saved as /dev/full: no space left on device.\n" in out
    assert err == "" and "What to do next" in out


def test_missing_loudspeaker_gets_one_line(tmp_path):
    environ = {**os.environ, "PATH": str(tmp_path)}
    code = f"import sys; sys.modules['sounddevice'] = None\n{RUN}"
    command = [sys.executable, "-c", code, "demo", "--recorded", "--play"]
    process = subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "Voice Gateway demo\n"
        problem = "no loudspeaker can be used here: the package sounddevice is missing; run:"
        assert process.stdout.readline().startswith(problem)
        process.kill()


# On a terminal


def test_gateway_stays_with_the_calls_in_its_dashboard(tmp_path):
    """Until Enter. What is drawn is what a person sees; here the link is taken from it."""
    leader, follower = pty.openpty()
    command = [sys.executable, "-c", RUN, "demo", "--recorded", "--speed", "0"]
    environ = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    with contextlib.ExitStack() as stack:
        process = subprocess.Popen(command, cwd=tmp_path, env=environ, stdin=follower, stdout=follower)
        stack.callback(process.kill)
        stack.callback(os.close, leader)
        os.close(follower)
        seen = b""
        while b"ends the demo" not in seen:
            assert select.select([leader], [], [], 60)[0], seen
            seen += os.read(leader, 65536)
        text = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", seen.decode())
        link = re.search(r"http://127\.0\.0\.1:\d+/login\?code=\S+", text)
        with httpx.Client(follow_redirects=True, trust_env=False) as browser:
            assert browser.get(link[0]).status_code == 200
            calls = browser.get(link[0].partition("/login")[0] + "/calls").text
        assert len(set(re.findall(r'href="/calls/([0-9a-f-]{36})"', calls))) == 2
        os.write(leader, b"\n")
        assert process.wait(20) == 0
    assert Path(tmp_path / "demo.wav").is_file()


class HungUpLine:
    """A call that is over at once."""

    def __init__(self) -> None:
        self.playout, self.arrived_at = SoftphonePlayout(), 0.0

    async def talk(self, speak, listen, *, speed):
        """Nothing is said."""


async def test_call_that_is_not_stored_is_one_line(monkeypatch, tmp_path):
    async def no_events():
        return
        yield

    @contextlib.asynccontextmanager
    async def phone_line(*_, **options):
        yield HungUpLine()

    monkeypatch.setattr(demo, "phone_line", phone_line)
    shown = demo.Demo(Page(make_console(io.StringIO())), 2.0, tmp_path / "demo.wav", keep=False, is_live=True)
    with pytest.raises(EngineUnavailable) as raised:
        async with httpx.AsyncClient() as http:
            api = GatewayApi(GatewayAddress("http://127.0.0.1:1"), http, Secret("token"))
            await demo._call(shown, api, no_events(), [], {})
    assert str(raised.value) == "the call was not stored"
