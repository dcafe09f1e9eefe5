"""What an operator's Prometheus gets."""

from pathlib import Path

from tests.fakes.remem import FakeRemem
from tests.stage import GREETING_SOUND, SOUND, Stage, make_carrier, staged, until_it


async def test_calls_are_counted_without_names(stage: Stage, carrier_name: str) -> None:
    call, conversation = await stage.dial()
    await conversation.user_says("Hello.")
    live = await stage.http.get("/metrics")
    assert live.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "\nvoice_gateway_live_calls 1.0\n" in live.text
    await call.hang_up()
    await stage.idle()
    text = (await stage.http.get("/metrics")).text
    assert f'voice_gateway_calls_total{{carrier="{carrier_name}",reason="caller hung up"}}' in text
    assert "voice_gateway_ending_seconds_count" in text
    assert "2025550143" not in text and call.id not in text


async def value(stage: Stage, sample: str) -> float:
    """What /metrics says of one sample; the tests of this process share its counters."""
    text = (await stage.http.get("/metrics")).text
    return float(next((line.rpartition(" ")[2] for line in text.splitlines() if line.startswith(sample + " ")), 0))


async def test_what_happens_in_a_call_is_counted(held_stage: Stage, carrier_name: str) -> None:
    stage = held_stage
    samples = {
        f'voice_gateway_barge_ins_total{{carrier="{carrier_name}"}}': 1,
        f'voice_gateway_call_seconds_count{{carrier="{carrier_name}",engine="deepgram"}}': 1,
        'voice_gateway_memory_load_seconds_count{outcome="nothing"}': 1,
        f'voice_gateway_added_delay_seconds_count{{direction="to engine",sender="{carrier_name}"}}': 2,
    }
    before = {sample: await value(stage, sample) for sample in samples}
    call, conversation = await stage.dial()
    await call.wait_queued(len(GREETING_SOUND))
    call.play()
    await stage.played(call, conversation)
    await call.speak(SOUND * 100)
    await conversation.hears(len(SOUND) * 101)
    await conversation.user_says("When can I come?")
    await conversation.agent_says("You can come on Monday.", audio=b"\x11" * 8000)
    await call.wait_queued(8000)
    await conversation.barge_in(late_text="", late_audio=[])
    await call.until(lambda: call.clears > 0)
    await conversation.end_turn("Never mind.")
    await call.hang_up()
    await stage.idle()
    more = {sample: await value(stage, sample) - before[sample] for sample in samples}
    assert all(more[sample] >= least for sample, least in samples.items()), more


async def test_outbox_has_depth_and_age(tmp_path: Path) -> None:
    """An ending that a remote store refuses rests; one that waits grows old."""
    async with FakeRemem() as remem:
        environ = {"REMEM_API_URL": remem.url, "REMEM_API_KEY": "wrong"}
        async with staged(tmp_path, make_carrier("twilio"), **environ) as stage:
            call, conversation = await stage.dial()
            await conversation.user_says("I ride a red bike.")
            await call.hang_up()
            await stage.document()
            await stage.idle()
        environ = {"REMEM_API_URL": "http://127.0.0.1:1", "REMEM_API_KEY": "k"}
        async with staged(tmp_path, make_carrier("twilio"), **environ) as stage:
            await until_it(lambda: value(stage, "voice_gateway_oldest_ending_seconds"))
            assert await value(stage, "voice_gateway_unfinished_endings") == 1
