"""What an operator's Prometheus gets."""

from tests.stage import Stage


async def test_calls_are_counted_and_nobody_is_named(stage: Stage, carrier_name: str) -> None:
    call, conversation = await stage.dial()
    await conversation.user_says("Hello.")
    live = await stage.http.get("/metrics")
    assert live.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "\nvoice_gateway_live_calls 1\n" in live.text
    await call.hang_up()
    await stage.idle()
    text = (await stage.http.get("/metrics")).text
    assert f'voice_gateway_calls_total{{carrier="{carrier_name}",reason="caller hung up"}}' in text
    assert "voice_gateway_ending_seconds_count" in text
    assert "2025550143" not in text and call.id not in text
