"""The agent's voice: Hibari, one American speaker, made into telephone sound sentence by sentence."""

import threading
from typing import Any, Final

from gateway.speech.model_files import verified
from gateway.speech.samples import RATE, encode, slower, trimmed

_PACKAGE: Final = "hibari"
_MODEL_RATE: Final = 24_000
_LOUDNESS: Final = 1.6
"""Its peaks are at a third of full scale; this brings speech to what telephone lines are used to."""
_PAUSE_BEFORE: Final = 0.03  # it begins with a third of a second of silence, which a caller would wait through
_PAUSE_AFTER: Final = 0.25
_FILES: Final = {
    "hibari.onnx": "5f70741d4e900f4e85d0037498736cc1b3e1b9a63a13546a5da1e63abf4fccd8",
    "oov.onnx": "d3cfd8122c5f172a98c8de38268bf1213ee09f2c2ae4df6e055fc6532590fe76",
    "lexicon_us_gold.json.gz": "63ae94f8ef0e906d5b24fe9b59ffcbd1529aca5686a774610e43973cbaa86ad2",
    "lexicon_us_silver.json.gz": "c4c2546ebf1eb07010331e7ef785a431aa17ba8e7bfb6b4af8d654ee96a71fd3",
    "tagger.json.gz": "d2da7502284bbbe45d49e0b7ce3ce67bdab82254150f4317f1b8559b4d38d0eb",
    "vocab.json": "70abefbe8a1c8865e43e0a43bbdc25b91a33e4aa053479d443ccf23e20a59e5d",
}


class HibariVoice:
    """Safe to use from several threads; the part that reads text takes them one at a time."""

    def __init__(self) -> None:
        for name, sha256 in _FILES.items():
            verified(_PACKAGE, f"assets/{name}", sha256)
        from hibari import Hibari

        self._model: Any = Hibari(voice="heart", threads=1)
        self._reading = threading.Lock()
        self.say("Ready.")  # loads what is loaded only when it is first needed

    def say(self, text: str) -> bytes:
        """This text as mu-law. The same text sounds the same every time."""
        with self._reading:
            phonemes = self._model.phonemize(text)
        parts = (self._model.from_phonemes(sentence, seed=0) for sentence in phonemes)
        narrow = (
            trimmed(slower(part, _MODEL_RATE // RATE), before=_PAUSE_BEFORE, after=_PAUSE_AFTER) for part in parts
        )
        return b"".join(encode(part * _LOUDNESS) for part in narrow)
