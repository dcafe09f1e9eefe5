"""
Moonshine tiny for English: what was said in a stretch of sound.

It hears words in anything, silence and tones included: it is to be asked about speech only. Digits are its weak side.
"""

from typing import Any, Final

import numpy as np

from gateway.speech.model_files import session, verified
from gateway.speech.samples import RATE, Samples, faster

_PACKAGE: Final = "moonshine_voice"
_ENCODER: Final = "94e90a4654fc45cdfedb77c4c08e1739f48862998e58fada384b25118134f221"
_DECODER: Final = "cf524c4862d36e9e5ab032eddc73637efd822d70e868ac575cf1a46e1e4708a0"
_TOKENS: Final = "6884b35fd6377d4c4d32336a0bc152f36b64d1e45b6503683cdc238250a8472d"
_MODEL_RATE: Final = 16_000
_START, _END = 1, 2
_TOKENS_PER_SECOND: Final = 6.5  # what its authors allow; more is a loop
_FEWEST_SAMPLES: Final = _MODEL_RATE // 2
_HEADS, _HEAD_SIZE = 8, 36


class Moonshine:
    """The model. Safe to use from several threads."""

    def __init__(self) -> None:
        folder = "assets/tiny-en"
        self._encoder = session(verified(_PACKAGE, f"{folder}/encoder_model.ort", _ENCODER))
        self._decoder = session(verified(_PACKAGE, f"{folder}/decoder_model_merged.ort", _DECODER))
        self._tokens = _read_tokens(verified(_PACKAGE, f"{folder}/tokenizer.bin", _TOKENS))
        self._past_names = [given.name for given in self._decoder.get_inputs() if given.name.startswith("past")]

    def text_of(self, samples: Samples) -> str:
        """The words in telephone sound of up to half a minute."""
        wide = faster(samples, _MODEL_RATE // RATE)
        wide = np.pad(wide, (0, max(0, _FEWEST_SAMPLES - len(wide))))[np.newaxis]
        mask = np.ones(wide.shape, np.int64)
        (states,) = self._encoder.run(None, {"input_values": wide, "attention_mask": mask})
        most = max(4, int(wide.shape[1] / _MODEL_RATE * _TOKENS_PER_SECOND) + 1)
        return self._joined(self._decoded(states, mask, most))

    def _decoded(self, states: Any, mask: Any, most: int) -> list[int]:
        """The likeliest token after the likeliest token."""
        nothing = np.zeros((1, _HEADS, 0, _HEAD_SIZE), np.float32)
        past = dict.fromkeys(self._past_names, nothing)
        tokens = [_START]
        while len(tokens) <= most:
            logits, *present = self._decoder.run(
                None,
                {
                    "input_ids": np.array([tokens[-1:]], np.int64),
                    "encoder_hidden_states": states,
                    "encoder_attention_mask": mask,  # counts samples, not states: the graph thins it itself
                    "use_cache_branch": np.array([len(tokens) > 1]),
                    **past,
                },
            )
            token = int(logits[0, -1].argmax())
            if token == _END:
                break
            for name, value in zip(self._past_names, present, strict=True):
                if len(tokens) == 1 or ".decoder." in name:  # what it heard stays as the first step read it
                    past[name] = value
            tokens.append(token)
        return tokens[1:]

    def _joined(self, tokens: list[int]) -> str:
        pieces = b"".join(self._tokens[token] for token in tokens)
        text = pieces.decode("utf-8", "replace").replace("▁", " ").strip()
        return text[:-1] if text.endswith("..") and not text.endswith("...") else text


def _read_tokens(content: bytes) -> list[bytes]:
    """Each has its length before it, in one byte or, from 128 on, two. Bytes that have no other token are <0x0A>."""
    tokens, at = [], 0
    while at < len(content):
        length, at = content[at], at + 1
        if length >= 128:
            length, at = content[at] * 128 + length - 128, at + 1
        token, at = content[at : at + length], at + length
        is_byte = len(token) == 6 and token.startswith(b"<0x")
        tokens.append(
            bytes([int(token[3:5], 16)]) if is_byte else b"" if token in (b"<unk>", b"<s>", b"</s>") else token
        )
    return tokens
