from pathlib import Path
from typing import Any

from tests.fakes.collector import FakeCollector
from tests.stage import make_carrier, staged, until


def attributes(span: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}


async def test_call_is_a_trace(tmp_path: Path) -> None:
    """Conversation, turn, stage; memory beside them. Sent while the gateway runs, without a word or a number."""
    async with FakeCollector().running() as collector:
        async with staged(tmp_path, make_carrier("twilio"), OTEL_EXPORTER_OTLP_ENDPOINT=collector.url) as stage:
            call, conversation = await stage.dial()
            await stage.played(call, conversation)
            await conversation.user_says("Xylophone.")
            await stage.answer(call, conversation, "It is.")
            await call.hang_up()
            await stage.document()
            await until(lambda: collector.named("upsert_memory"))
    [root] = collector.named("invoke_agent maya")
    told = attributes(root)
    assert (told["gen_ai.operation.name"], told["gen_ai.agent.name"]) == ("invoke_agent", "maya")
    assert told["voice.end_reason"] == "caller hung up"
    assert told["gen_ai.conversation.id"].startswith("voice-session:")
    [memory] = collector.named("search_memory")
    assert attributes(memory)["gen_ai.memory.outcome"] == "nothing"
    [turn] = collector.named("turn")
    assert memory.parent_span_id == turn.parent_span_id == root.span_id
    [send] = collector.named("send")
    assert send.parent_span_id == turn.span_id
    assert turn.start_time_unix_nano <= send.start_time_unix_nano <= send.end_time_unix_nano
    assert {span.trace_id for span in collector.spans} == {root.trace_id}
    assert not any(word in body for body in collector.bodies for word in (b"Xylophone", b"2025550143"))


async def test_dead_collector_disturbs_nobody(tmp_path: Path) -> None:
    async with staged(tmp_path, make_carrier("telnyx"), OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1") as stage:
        call, conversation = await stage.dial()
        await conversation.user_says("Hello.")
        await call.hang_up()
        await stage.document()
