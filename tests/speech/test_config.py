import pytest

from gateway.errors import SettingsError
from gateway.speech.config import SpeechConfig

ADDRESS = "http://127.0.0.1:8001/v1"


@pytest.mark.parametrize(
    "text, name, model",
    [
        ("moonshine", "moonshine", ""),
        ("whisper", "whisper", "base.en"),
        ("whisper/small.en", "whisper", "small.en"),
        (ADDRESS, ADDRESS, "whisper-1"),
        (f"{ADDRESS}/#large", ADDRESS, "large"),
    ],
)
def test_recognisers(text, name, model):
    choices = SpeechConfig.read(text, "hibari")
    assert (choices.recogniser, choices.recogniser_model) == (name, model)


@pytest.mark.parametrize(
    "text, address, model, name",
    [
        ("hibari", "hibari", "tts-1", "alloy"),
        (ADDRESS, ADDRESS, "tts-1", "alloy"),
        (f"{ADDRESS}#kokoro/af_heart", ADDRESS, "kokoro", "af_heart"),
    ],
)
def test_voices(text, address, model, name):
    choices = SpeechConfig.read("moonshine", text)
    assert (choices.voice, choices.voice_model, choices.voice_name) == (address, model, name)


def test_mistakes_say_what_to_write():
    with pytest.raises(
        SettingsError, match="LOCAL_RECOGNISER is 'vosk'; write moonshine, whisper/base.en, or an address"
    ):
        SpeechConfig.read("vosk", "hibari")
    with pytest.raises(SettingsError, match="LOCAL_VOICE is 'alloy'; write hibari, or an address like"):
        SpeechConfig.read("moonshine", "alloy")
