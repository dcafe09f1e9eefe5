"""LLM requests of the fake Voice Agent: asks the configured LLMs and speaks the answer while it streams."""

import asyncio
import itertools
from collections.abc import Callable
from contextlib import aclosing, suppress
from typing import Any

import httpx

from tests.fakes.deepgram_dialogue import Dialogue, Utterance
from tests.fakes.deepgram_exchange import Exchange, ThinkFailed, request_body, shortened
from tests.fakes.deepgram_speech import sentences, speech


class Thinker:
    """Tries the LLMs of the think block in order; records every request."""

    def __init__(self, dialogue: Dialogue, llm: Callable[[], httpx.AsyncClient]) -> None:
        self.requests: list[Exchange] = []
        self._dialogue = dialogue
        self._llm = llm

    async def answer(self) -> None:
        """Speak the answer of the first LLM that succeeds."""
        for think in self._dialogue.thinks:
            if "endpoint" not in think:
                await self._answer_managed()
                return
            try:
                await self._answer_from(think)
                return
            except ThinkFailed as failure:
                self._dialogue.problems.append(f"think: {failure}")
                await self._dialogue.warn("THINK_REQUEST_FAILED", "Trying the next think provider.")
        if self._dialogue.thinks:
            await self._dialogue.fail("FAILED_TO_THINK", "Check your think provider settings.")

    async def _answer_managed(self) -> None:
        if self._dialogue.behaviour.managed_answer:
            await self._dialogue.agent_says(self._dialogue.behaviour.managed_answer)

    async def _answer_from(self, think: dict[str, Any]) -> None:
        """Repeat with function results until the LLM requests no more functions."""
        known = {function["name"] for function in think.get("functions", [])}
        while calls := await self._ask(think):
            if any(call["name"] not in known for call in calls):
                await self._dialogue.fail("NON_EXISTENT_FUNCTION_CALLED", "The LLM called an undefined function.")
                return
            try:
                await self._dialogue.call_functions(calls)
            except TimeoutError:  # recorded as a problem; the real agent is silent, too
                return

    async def _ask(self, think: dict[str, Any]) -> list[dict[str, str]]:
        body = request_body(think, self._dialogue.history)
        if self._dialogue.behaviour.think == "speculative" and body["messages"][-1]["role"] == "user":
            await self._drop_after_first_piece(self._exchange(think, shortened(body)))
        if self._dialogue.behaviour.think == "duplicate":
            return await self._ask_twice(think, body)
        return await self._speak_answer(self._exchange(think, body))

    async def _ask_twice(self, think: dict[str, Any], body: dict[str, Any]) -> list[dict[str, str]]:
        """Send the same request again 50 ms later and use the second answer."""
        first = self._dialogue.spawn(self._drain(self._exchange(think, body)))
        try:
            await asyncio.sleep(0.05)
            calls = await self._speak_answer(self._exchange(think, body))
            await asyncio.wait({first})
        finally:
            first.cancel()
        return calls

    async def _speak_answer(self, exchange: Exchange) -> list[dict[str, str]]:
        slow = self._dialogue.spawn(self._warn_slow())
        try:
            async with self._dialogue.voice:
                await self._speak(exchange, slow)
        finally:
            slow.cancel()
            self._dialogue.problems += [f"think: {problem}" for problem in exchange.problems]
        return exchange.tool_calls

    async def _speak(self, exchange: Exchange, slow: asyncio.Task[None]) -> None:
        """Yield each sentence when it is complete."""
        utterance, unfinished = Utterance(self._dialogue), ""
        async with aclosing(exchange.stream(self._llm(), pause=self._dialogue.behaviour.think_pause)) as pieces:
            async for piece in pieces:
                slow.cancel()
                *complete, unfinished = sentences(unfinished + piece)
                for sentence in complete:
                    await utterance.say(sentence, speech(sentence))
        if unfinished.strip():
            await utterance.say(unfinished.strip(), speech(unfinished.strip()))
        if utterance.text:
            await utterance.end()
        elif not exchange.tool_calls:
            self._dialogue.problems.append("think: an answer with nothing in it")

    async def _drain(self, exchange: Exchange) -> None:
        with suppress(ThinkFailed):
            async with aclosing(exchange.stream(self._llm())) as pieces:
                async for _ in pieces:
                    pass
        if not exchange.text and not exchange.tool_calls:
            self._dialogue.problems.append("think: a duplicate request was answered with nothing")

    async def _drop_after_first_piece(self, exchange: Exchange) -> None:
        async with aclosing(exchange.stream(self._llm())) as pieces:
            await anext(pieces, None)

    async def _warn_slow(self) -> None:
        for waited in itertools.count(1):
            await asyncio.sleep(self._dialogue.behaviour.slow_think_after)
            seconds = waited * self._dialogue.behaviour.slow_think_after
            await self._dialogue.warn("SLOW_THINK_REQUEST", f"Waited {seconds:g} seconds for the think provider.")

    def _exchange(self, think: dict[str, Any], body: dict[str, Any]) -> Exchange:
        exchange = Exchange(think["endpoint"]["url"], think["endpoint"]["headers"], body)
        self.requests.append(exchange)
        return exchange
