import asyncio

from gateway.calls.canned_replies import CannedReplies


async def test_who_asks_early_waits_for_the_turn() -> None:
    replies = CannedReplies()
    asking = asyncio.create_task(replies.to("forget that"))
    await asyncio.sleep(0)
    replies.turn_is_final("Forget that.", ours=True)
    assert await replies.give("Forget that.", "Shall I?")
    assert await asking == "Shall I?"


async def test_who_asks_late_gets_the_same() -> None:
    replies = CannedReplies()
    replies.turn_is_final("Forget that.", ours=True)
    giving = asyncio.create_task(replies.give("Forget that.", "Shall I?"))
    await asyncio.sleep(0)
    assert [await replies.to("Forget that."), await replies.to("Forget that.")] == ["Shall I?"] * 2
    assert await giving


async def test_half_a_turn_was_not_ours() -> None:
    replies = CannedReplies()
    asking = asyncio.create_task(replies.to("Forget that"))
    await asyncio.sleep(0)
    replies.turn_is_final("Forget that idea.", ours=False)
    assert await asking == ""


async def test_answer_that_nobody_fetches_is_told_so() -> None:
    replies = CannedReplies()
    replies.turn_is_final("Forget that.", ours=True)
    assert not await replies.give("Forget that.", "Shall I?")


async def test_same_words_in_another_turn_are_answered_anew() -> None:
    replies = CannedReplies()
    replies.turn_is_final("Yes.", ours=True)
    await replies.give("Yes.", "Done.")
    replies.caller_speaks()
    asking = asyncio.create_task(replies.to("Yes."))
    await asyncio.sleep(0)
    replies.turn_is_final("Yes.", ours=False)
    assert await asking == ""
