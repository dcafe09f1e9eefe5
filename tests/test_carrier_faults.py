"""Carriers that repeat, reorder or omit webhooks and frames: a call stays one call and ends once."""

from pathlib import Path
from typing import Any

import pytest

from tests.stage import SOUND, make_carrier, staged

FAULTS: list[tuple[str, dict[str, Any]]] = [
    ("twilio", {"action_after_hangup": True}),
    ("twilio", {"hold_stream_callbacks": True}),
    ("twilio", {"upgrade_signature": "slash"}),
    ("twilio", {"upgrade_signature": "none"}),
    ("twilio", {"status_path": ""}),
    ("telnyx", {"shuffle_ending": True}),
    ("telnyx", {"webhook_first": True}),
    ("telnyx", {"repeats": "after"}),
    ("telnyx", {"repeats": "together", "shuffle_ending": True, "webhook_first": True}),
    ("telnyx", {"both_tracks": True}),
]


@pytest.mark.parametrize(("name", "fault"), FAULTS, ids=[f"{name} {' '.join(fault)}" for name, fault in FAULTS])
async def test_call_stays_one_call(tmp_path: Path, name: str, fault: dict[str, Any]) -> None:
    carrier = make_carrier(name)
    vars(carrier).update(fault)
    async with staged(tmp_path, carrier) as stage:
        call, conversation = await stage.dial()
        await stage.played(call, conversation)
        await conversation.user_says("My bike is red.")
        await stage.answer(call, conversation, "I will remember that.")
        await call.hang_up()
        assert (await stage.archive()).endswith("CALLER: My bike is red.\nAGENT: I will remember that.\n")
        await stage.idle()
        assert len(await stage.documents()) == 1
        assert len(call.streams) == len(stage.engine.conversations) == 1
        assert call.ended_by == "caller"
        assert set(conversation.heard) <= {*SOUND, 0xFF}
        assert [command.action for command in carrier.commands if command.action != "read"] == (
            ["answer"] if name == "telnyx" else []
        )


async def test_lost_frames_do_not_affect_others(tmp_path: Path) -> None:
    carrier = make_carrier("telnyx")
    carrier.lose_chunks = {2, 5}
    async with staged(tmp_path, carrier) as stage:
        call, conversation = await stage.dial()
        spoken = [bytes([number]) * 160 for number in range(1, 13)]
        await call.speak(b"".join(spoken))
        await call.hang_up()
        await conversation.wait_closed()
        assert bytes(conversation.heard).startswith(b"".join(spoken[:1] + spoken[2:4] + spoken[5:]))
