import pytest

from gateway.calls.incoming_audio import IncomingAudio
from gateway.calls.monitoring import CallMonitor

FIRST, SECOND = bytes([1]) * 160, bytes([2]) * 160

pytestmark = pytest.mark.virtual_time


async def test_frames_go_where_they_are_sent():
    """Until the engine connection is there, they are dropped."""
    audio, taken = IncomingAudio(CallMonitor()), []
    audio.pass_on(FIRST)
    audio.send = taken.append
    audio.pass_on(SECOND)
    assert (taken, audio.last_frame) == ([SECOND], SECOND)
    assert [*audio.frames] == [FIRST, SECOND]
    assert len(audio.times) == 2


async def test_listeners_hear_frames_that_nothing_takes():
    monitor = CallMonitor()
    audio = IncomingAudio(monitor)
    with monitor.tapped() as tap:
        audio.pass_on(FIRST)
    audio.pass_on(SECOND)
    assert tap.take(160)[0] == FIRST
    assert tap.take(160)[0] != SECOND
