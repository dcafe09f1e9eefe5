"""The scripted caller on a line that the test plays."""

import pytest

from gateway.simulate.softphone import SoftphonePlayout
from gateway.simulate.synthetic_caller import ScriptedCaller

LINE = b"\x05" * 480  # three frames
SOUND = b"\x06" * 160


class FakeLine:
    def __init__(self):
        self.playout, self.arrived_at = SoftphonePlayout(), 0.0


@pytest.fixture
async def caller():
    return ScriptedCaller(FakeLine(), [LINE, LINE], last_wait=1.0)


def pass_time(caller, seconds, *, agent=False):
    """The caller's frames during this time."""
    said = []
    for _ in range(round(seconds / 0.02)):
        if agent:
            caller.line.playout.add_audio(SOUND)
        said.append(caller.speak())
        caller.listen(caller.line.playout.take()[0])
    return said


async def test_the_caller_waits_for_the_greeting(caller):
    assert LINE[:160] not in pass_time(caller, 5)
    assert LINE[:160] not in pass_time(caller, 1, agent=True)
    assert pass_time(caller, 1.0).count(LINE[:160]) == 3


async def test_caller_continues_without_an_answer(caller):
    assert LINE[:160] in pass_time(caller, 13)


async def test_the_caller_hangs_up_after_the_last_line(caller):
    for _ in range(2):
        pass_time(caller, 0.5, agent=True)
        pass_time(caller, 0.75)
    assert None in pass_time(caller, 1.5)


async def test_a_word_in_the_middle_of_a_line_is_no_answer(caller):
    pass_time(caller, 0.5, agent=True)
    while pass_time(caller, 0.02) != [LINE[:160]]:
        pass
    assert pass_time(caller, 0.02, agent=True) == [LINE[:160]]
    assert pass_time(caller, 5.0).count(LINE[:160]) == 1
    pass_time(caller, 0.5, agent=True)
    assert pass_time(caller, 1.0).count(LINE[:160]) == 3


async def test_the_answer_is_timed_from_the_last_sound(caller):
    pass_time(caller, 0.5, agent=True)
    pass_time(caller, 0.8)
    caller.line.arrived_at = caller._clock() + 5
    pass_time(caller, 0.1)
    assert [round(seconds) for seconds in caller.answered_after] == [5]


async def test_gaps_in_what_the_agent_says_are_counted(caller):
    pass_time(caller, 0.2, agent=True)
    pass_time(caller, 0.1)
    pass_time(caller, 0.2, agent=True)
    pass_time(caller, 0.8)  # the caller's turn
    pass_time(caller, 0.2, agent=True)
    assert caller.gaps == [5]


async def test_both_sides_are_recorded_frame_by_frame(caller):
    pass_time(caller, 0.5, agent=True)
    assert caller.speaker == "agent"
    while caller.speaker != "caller":
        pass_time(caller, 0.02)
    pass_time(caller, 0.06)
    assert caller.speaker == ""
    assert bytes(caller.spoken).count(LINE) == 1
    assert len(caller.spoken) == len(caller.heard)
    assert bytes(caller.heard).startswith(SOUND * 25)
