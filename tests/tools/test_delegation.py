"""What the agent hands over in a call reaches its text side, once."""

import pytest

from gateway.llm.openclaw import OpenClawUpstream
from gateway.settings import Secret
from gateway.tools.builtin import DelegatedTask, Delegator, openclaw_agent
from tests.fakes.llm import FakeLlm
from tests.fakes.llm_script import Answer, Pace
from tests.stage import until

ERRAND = DelegatedTask("task", "maya", "+12025550143", "Order a tube.")


@pytest.fixture(params=["openclaw-old", "openclaw-new"])
async def llm(request):
    async with FakeLlm(profile=request.param) as made:
        yield made


async def delivered(llm, caplog, *, pauses=(0.0, 0.0)):
    """What was logged of it in the end."""
    caplog.set_level("INFO", logger="gateway")
    upstream, side = OpenClawUpstream(llm.url, "", Secret("test-key")), Delegator(pauses)
    side.hand_over(openclaw_agent(upstream, "caller-1"), ERRAND)
    await until(lambda: caplog.records)
    await side.close()
    await upstream.close()
    return [record.getMessage() for record in caplog.records]


async def test_work_goes_to_the_callers_session(llm, caplog):
    assert await delivered(llm, caplog) == ["task delegated"]
    [request] = llm.requests
    assert request.headers["x-openclaw-session-key"] == "agent:main:voice:caller-1"
    assert request.body["messages"] == [{"role": "user", "content": "A task from a phone call: Order a tube."}]
    assert request.completed


@pytest.mark.parametrize(
    ("answer", "pace"),
    [(Answer(""), Pace()), (Answer("It broke.", breaks_after=1), Pace()), (Answer("Done."), Pace(closes_after=1))],
    ids=["nothing to say", "failure", "connection lost"],
)
async def test_work_that_was_taken_on_is_not_given_again(llm, caplog, answer, pace):
    llm.answers(answer)
    llm.pace = pace
    assert await delivered(llm, caplog) == ["task delegated"]
    assert len(llm.requests) == 1


async def test_refusal_is_tried_again(llm, caplog):
    llm.fails(500, times=2)
    assert await delivered(llm, caplog) == ["task delegated"]
    assert len(llm.requests) == 3


async def test_failed_delivery_is_logged(llm, caplog):
    llm.fails(500, times=9)
    assert await delivered(llm, caplog) == ["task could not be delegated"]
    where = f"openclaw at {llm.url}/v1/chat/completions"
    assert caplog.records[0].reason == f"{where} answered 500; openclaw logs shows why"
