"""G.711, judged by a second reading of the recommendation: its decision values, looked up instead of computed."""

from bisect import bisect

from hypothesis import given
from hypothesis import strategies as st

from gateway.audio import (
    BYTES_PER_SECOND,
    FRAME_BYTES,
    FRAME_MS,
    SILENCE_BYTE,
    SILENCE_FRAME,
    alaw_to_mulaw,
    linear_to_mulaw,
    mulaw_to_linear,
    seconds_of,
)


def decision_values(steps):
    """Where one code ends and the next begins, on a 16 bit scale."""
    values = [0]
    for width, count in steps:
        values += [values[-1] + width * number for number in range(1, count + 1)]
    return values


def middles(decisions):
    return [(low + high) // 2 for low, high in zip(decisions, decisions[1:], strict=False)]


# Table 2a: half a step around zero, then eight segments, each twice as coarse as the last.
MULAW_DECISIONS = decision_values([(4, 1), (8, 15), *((8 << segment, 16) for segment in range(1, 8))])
MULAW = [0, *middles(MULAW_DECISIONS)[1:]]
# Table 1a: the first two segments have the same step.
ALAW = middles(decision_values([(16, 32), *((16 << segment, 16) for segment in range(1, 7))]))


def signed(values, code, positive):
    return values[code & 0x7F] if code & 0x80 == positive else -values[code & 0x7F]


def as_mulaw(value):
    """The value that mu-law has for this one; above the last decision all are clipped to the loudest."""
    level = MULAW[min(bisect(MULAW_DECISIONS, abs(value)), len(MULAW)) - 1]
    return level if value >= 0 else -level


def test_every_mulaw_byte_decodes():
    decoded = [mulaw_to_linear(sample) for sample in range(256)]
    assert decoded == [signed(MULAW, ~sample & 0xFF, positive=0) for sample in range(256)]


def test_loudest_values_are_the_recommendations():
    assert (mulaw_to_linear(0x80), mulaw_to_linear(0x00)) == (32124, -32124)
    assert (linear_to_mulaw(32767), linear_to_mulaw(-32768)) == (0x80, 0x00)


def test_mulaw_survives_a_round_trip():
    samples = [sample for sample in range(256) if sample != 0x7F]  # the other zero
    assert [linear_to_mulaw(mulaw_to_linear(sample)) for sample in samples] == samples


def test_both_zeros_become_silence():
    assert mulaw_to_linear(0x7F) == mulaw_to_linear(SILENCE_BYTE) == 0
    assert linear_to_mulaw(0) == SILENCE_BYTE


@given(st.integers(-32768, 32767))
def test_encoding_follows_the_decision_values(value):
    assert mulaw_to_linear(linear_to_mulaw(value)) == as_mulaw(value)


def test_every_alaw_byte_keeps_its_sound():
    heard = [mulaw_to_linear(sample) for sample in alaw_to_mulaw(bytes(range(256)))]
    assert heard == [as_mulaw(signed(ALAW, sample ^ 0x55, positive=0x80)) for sample in range(256)]


def test_alaw_silence_is_near_silence():
    assert {abs(mulaw_to_linear(sample)) for sample in alaw_to_mulaw(b"\xd5\x55")} == {8}


def test_transcoding_keeps_the_length():
    assert alaw_to_mulaw(b"") == b""
    assert len(alaw_to_mulaw(bytes(range(256)) * 3)) == 768


def test_a_frame_is_twenty_milliseconds_of_silence():
    assert SILENCE_FRAME == b"\xff" * FRAME_BYTES
    assert BYTES_PER_SECOND * FRAME_MS == FRAME_BYTES * 1000
    assert seconds_of(FRAME_BYTES) == 0.02
    assert seconds_of(0) == 0
