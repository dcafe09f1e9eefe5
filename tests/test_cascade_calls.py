"""Whole calls with a recogniser, a language model and a voice of different services, all of them simulated."""

import contextlib

import pytest

from tests.fakes.llm import FakeLlm
from tests.fakes.speech_services import KEY, WORD_BYTES, FakeSpeech, speech
from tests.stage import ADMIN, CALLED, CALLER, PUBLIC_URL, SOUND, make_carrier, running_gateway, until

GREETING = "Hello, this is Maya."
SORRY = "Sorry, I lost you for a second."
PARTS = {
    "deepgram/flux-general-en": "elevenlabs/Rachel",
    "deepgram/nova-3": "cartesia/voice-id",
    "openai/gpt-transcribe": "deepgram/aura-2-thalia-en",
    "deepgram/flux-general-multi": "deepgram/flux-kit-en",
}


class House:
    """A gateway between a phone and the services, and what they received."""

    def __init__(self, carrier, speech, llm, archive_dir):
        self.carrier, self.speech, self.llm, self.archive_dir = carrier, speech, llm, archive_dir

    async def dial(self):
        call = await self.carrier.dial(CALLER, CALLED)
        self.recogniser, self.voice = await self.speech.recogniser(), await self.speech.voice()
        return call

    async def caller_says(self, call, text):
        """Audio reaches the recogniser, which reports a turn."""
        await self.phone_sends(call, len(SOUND))
        await self.recogniser.says(text)

    async def played(self, call, text):
        """The phone plays everything, to this text's end, and the gateway knows it."""
        await call.wait_queued(len(text))
        call.play()
        await call.until(lambda: call.heard.endswith(text) and _marks(call) <= set(call.marks_echoed))
        await self.phone_sends(call, len(text))

    async def phone_sends(self, call, size):
        """Audio of the caller, as much as was played at the same time. It follows the marks on the same socket."""
        recogniser = self.speech.recognisers[-1]
        heard = len(recogniser.heard)
        await call.speak(SOUND * (size // len(SOUND)))
        await recogniser.hears(heard + size)

    async def archive(self):
        [path] = await until(lambda: list(self.archive_dir.glob("*.txt")))
        return path.read_text()


def _marks(call):
    return {frame["mark"]["name"] for frame in call.sent_frames if frame["event"] == "mark"}


@contextlib.asynccontextmanager
async def house(folder, *parts, carrier="twilio"):
    """`parts`: recogniser and voice of each engine, in order of preference."""
    async with FakeSpeech() as speech, FakeLlm() as llm, make_carrier(carrier, hold_playback=True) as carrier:
        think = f'{{ url = "{llm.url}/v1", model = "test", api_key = "test-key" }}'
        engines = [f'{{ listen = "{listen}", think = {think}, speak = "{speak}" }}' for listen, speak in parts]
        (folder / "prompts").mkdir()
        (folder / "prompts" / "maya.md").write_text("You are Maya.")
        (folder / "gateway.toml").write_text(
            f'[agents.maya]\ngreeting = "{GREETING}"\nengine = [{", ".join(engines)}]\n'
        )
        http_url = speech.url.replace("ws:", "http:")
        environ = {
            "DATA_DIR": str(folder / "data"),
            "VOICE_SESSION_ARCHIVE_DIR": str(folder / "archive"),
            "PUBLIC_URL": PUBLIC_URL,
            "ALLOWED_CALLERS": "*",
            "GATEWAY_ADMIN_TOKEN": ADMIN,
            "MEMORY_VECTORS": "false",
            "SUMMARY_PROVIDER": "extractive",
            "DEEPGRAM_API_KEY": KEY,
            "DEEPGRAM_API_URL": speech.url,
            "OPENAI_API_KEY": KEY,
            "OPENAI_BASE_URL": f"{http_url}/v1",
            "ELEVENLABS_API_KEY": KEY,
            "ELEVENLABS_API_URL": http_url,
            "CARTESIA_API_KEY": KEY,
            "CARTESIA_API_URL": speech.url,
            **carrier.settings(),
        }
        async with running_gateway(environ, folder) as url:
            carrier.gateway_url = url
            yield House(carrier, speech, llm, folder / "archive")
        assert speech.problems == []


@pytest.mark.parametrize("listen", PARTS)
async def test_services_of_different_vendors_make_a_call(tmp_path, listen):
    async with house(tmp_path, (listen, PARTS[listen])) as scene:
        scene.llm.answers("It is ready. Come by on Friday.")
        call = await scene.dial()
        await scene.played(call, speech(GREETING))
        await scene.caller_says(call, "Is my bike ready?")
        await scene.played(call, speech("It is ready.") + speech("Come by on Friday."))
        await call.hang_up()
        answer = "It is ready. Come by on Friday."
        assert await scene.archive() == f"AGENT: {GREETING}\nCALLER: Is my bike ready?\nAGENT: {answer}\n"
        await until(lambda: scene.recogniser.is_over and scene.voice.is_over)


@pytest.mark.parametrize("listen", ["deepgram/flux-general-en", "deepgram/nova-3"])
async def test_heard_text_is_exact_after_a_barge_in(tmp_path, listen, carrier_name):
    """The voice reports its words: the stored turn and the model's history end with the last word that was played."""
    async with house(tmp_path, (listen, PARTS[listen]), carrier=carrier_name) as scene:
        scene.llm.answers("You can come on Monday or Tuesday after lunch.")
        call = await scene.dial()
        await scene.played(call, speech(GREETING))
        await scene.caller_says(call, "When can I come?")
        await call.wait_queued(9 * WORD_BYTES)
        marks = len(call.marks_echoed)
        call.play(5 * WORD_BYTES + 100)  # into the word "or"
        await call.until(lambda: len(call.marks_echoed) == marks + 5)
        await scene.phone_sends(call, 5 * WORD_BYTES)
        scene.llm.answers("Fine.")
        await scene.recogniser.begins()
        await call.until(lambda: call.clears > 0 and not call.queued)
        await scene.recogniser.ends("Monday it is.")
        await call.wait_queued(len(speech("Fine.")))
        history = [message["content"] for message in scene.llm.requests[-1].body["messages"][1:]]
        assert history == [GREETING, "When can I come?", "You can come on Monday", "Monday it is."]
        await scene.played(call, speech("Fine."))
        await call.hang_up()
        assert "\nAGENT: You can come on Monday —\nCALLER: Monday it is.\nAGENT: Fine.\n" in await scene.archive()


async def test_lost_sockets_lose_no_turn(tmp_path):
    """Both services drop the call's sockets: the caller notices nothing."""
    async with house(tmp_path, ("deepgram/flux-general-en", "elevenlabs/Rachel")) as scene:
        scene.llm.answers("It is ready.")
        call = await scene.dial()
        await scene.played(call, speech(GREETING))
        await scene.recogniser.begins()
        await call.until(lambda: call.clears > 0)
        scene.recogniser.abort()
        scene.voice.abort()
        second = await scene.speech.recogniser(1)
        assert (await second.hears(len(SOUND))).endswith(SOUND)  # the unfinished turn
        await scene.speech.voice(1)
        await second.says("Is my bike ready?")
        await scene.played(call, speech("It is ready."))
        await call.hang_up()
        archive = await scene.archive()
        assert archive.endswith("CALLER: Is my bike ready?\nAGENT: It is ready.\n")
        assert "lost you" not in archive


async def test_other_services_take_over_when_one_stays_away(tmp_path):
    """The recogniser is lost within a turn and can't be reached again: the next engine hears the turn."""
    flux, nova = ("deepgram/flux-general-en", "elevenlabs/Rachel"), ("deepgram/nova-3", "cartesia/voice-id")
    async with house(tmp_path, flux, nova) as scene:
        scene.llm.answers("It is ready.")
        call = await scene.dial()
        await scene.played(call, speech(GREETING))
        await scene.recogniser.begins()
        await call.until(lambda: call.clears > 0)
        await scene.phone_sends(call, 1600)
        scene.speech.refuses, scene.speech.refuses_at = 503, "/v2/listen"
        scene.recogniser.abort()
        second = await scene.speech.recogniser(1)
        await second.hears(len(SOUND))
        await scene.played(call, speech(SORRY))
        await second.says("Is my bike ready?")
        await scene.played(call, speech("It is ready."))
        await call.hang_up()
        assert await scene.archive() == (
            f"AGENT: {GREETING}\nAGENT: {SORRY}\nCALLER: Is my bike ready?\nAGENT: It is ready.\n"
        )
        assert second.path == "/v1/listen"
