"""
Writes a call's summary, including facts and topics: by the configured models in order, or by rules if none answers.

The lines are redacted already. Provider messages are never logged, only the type of the failure.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Final

from gateway.agents import RequestedField
from gateway.errors import LlmError, LlmUnavailable
from gateway.finalization.summary import extractive, fact_rules, spoken_values, topic_rules
from gateway.finalization.summary.call_summary import NO_FIELDS, CallSummary, SummaryRequest, transcript_of
from gateway.finalization.summary.facts import keep_facts, known_facts_text, with_known
from gateway.finalization.summary.providers import AnthropicSummaries, SummaryProvider, XaiSummaries
from gateway.finalization.summary.requested_fields import field_instructions
from gateway.finalization.summary.topics import KnownTopic, keep_topics, known_topics_text
from gateway.settings import Secret
from gateway.text import person_names, sensitive
from gateway.text.plain_text import SpokenLine
from gateway.text.sensitive import without_sensitive

MAX_TRANSCRIPT_CHARACTERS: Final = 120_000  # about 30 000 tokens, more than two hours of conversation
LONGEST_WAIT: Final = 3.0
FIRST_BACK_OFF: Final = 0.4

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SummaryContext:
    """What a summary is written with, besides the call itself."""

    recited: Sequence[str] = ()
    """What the prompt contained about the caller: facts that the agent only repeated are not stored again."""
    topics: Sequence[KnownTopic] = ()
    """Those of earlier calls, so that the model uses their names."""
    facts: Sequence[str] = ()
    """What is known of the caller, so that the model can say what a new fact repeats or replaces."""
    fields: Mapping[str, RequestedField] = field(default_factory=lambda: NO_FIELDS)


NO_CONTEXT: Final = SummaryContext()


class Summarizer:
    """Asks its providers in order. Retries one that is temporarily unavailable, but not one that refuses."""

    def __init__(
        self,
        providers: Sequence[SummaryProvider],
        instructions: str,
        *,
        deadline: float = 20.0,
        attempt_timeout: float = 12.0,
        tries_each: int = 2,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._providers = tuple(providers)
        self._instructions = instructions
        self._deadline = deadline
        self._attempt_timeout = attempt_timeout
        self._tries_each = tries_each
        self._sleep = sleep

    @property
    def has_llm(self) -> bool:
        return bool(self._providers)

    async def prepare(self) -> None:
        """Load what rules and providers need, ahead of the first summary."""
        for load in (sensitive.load, fact_rules.load, topic_rules.load, spoken_values.load, person_names.load):
            await asyncio.to_thread(load)
        for provider in self._providers:
            await provider.prepare()

    async def write(self, lines: Sequence[SpokenLine], context: SummaryContext = NO_CONTEXT) -> CallSummary:
        """A summary in any case, within the deadline: by a model, else by rules, which fill in no fields."""
        try:
            return await self.ask(lines, context)
        except LlmError:
            # Off the event loop: a long call takes a while.
            summary = await asyncio.to_thread(_by_rules, lines, context.topics)
            return replace(summary, fields=dict.fromkeys(context.fields))

    async def ask(self, lines: Sequence[SpokenLine], context: SummaryContext = NO_CONTEXT) -> CallSummary:
        """A summary by a model. Raises LlmUnavailable if a later try may succeed, else LlmRefused."""
        known = known_facts_text(context.facts) + known_topics_text(context.topics)
        before = known + field_instructions(context.fields, date.today())
        transcript = before + transcript_of(lines, MAX_TRANSCRIPT_CHARACTERS)
        summary = await self._ask_all(SummaryRequest(self._instructions, transcript, context.fields))
        return await asyncio.to_thread(_checked, summary, lines, context)

    async def close(self) -> None:
        for provider in self._providers:
            await provider.close()

    async def _ask_all(self, request: SummaryRequest) -> CallSummary:
        failure: LlmError = LlmUnavailable("no language model is set up")
        give_up_at = asyncio.get_running_loop().time() + self._deadline
        for number, provider in enumerate(self._providers):
            try:
                return await self._ask_in_time(provider, request, give_up_at)
            except LlmError as error:
                log.warning("summary provider failed", extra={"provider": provider.name, "error": type(error).__name__})
                if number == 0 or error.retryable:
                    failure = error
        raise failure

    async def _ask_in_time(self, provider: SummaryProvider, request: SummaryRequest, give_up_at: float) -> CallSummary:
        try:
            async with asyncio.timeout_at(give_up_at):
                return await self._ask_with_retries(provider, request)
        except TimeoutError:
            raise LlmUnavailable(f"{provider.name} gave no summary in time") from None

    async def _ask_with_retries(self, provider: SummaryProvider, request: SummaryRequest) -> CallSummary:
        """Retry after a temporary failure, but not after a timeout: the next provider should get the time left."""
        for tried in range(1, self._tries_each):
            try:
                return await self._attempt(provider, request)
            except LlmUnavailable as error:
                wait = _wait(tried, error.retry_after)
                if wait is None:
                    raise
            await self._sleep(wait)
        return await self._attempt(provider, request)

    async def _attempt(self, provider: SummaryProvider, request: SummaryRequest) -> CallSummary:
        async with asyncio.timeout(self._attempt_timeout):
            return await provider.summarise(request)


def _checked(summary: CallSummary, lines: Sequence[SpokenLine], context: SummaryContext) -> CallSummary:
    """A model's answer without what must not be stored; rules write the notes if it has only facts."""
    caller_facts = keep_facts(with_known(summary.caller_facts, context.facts), lines, context.recited)
    running_topics = keep_topics(summary.running_topics, lines)
    if not summary.has_notes:
        name, model, fields = summary.caller_name, summary.written_by, summary.fields
        summary = replace(_by_rules(lines, context.topics), caller_name=name, written_by=model, fields=fields)
    return replace(summary.without_sensitive(), caller_facts=caller_facts, running_topics=running_topics)


def _by_rules(lines: Sequence[SpokenLine], topics: Sequence[KnownTopic]) -> CallSummary:
    harmless = [replace(line, text=without_sensitive(line.text)) for line in lines]
    # A sentence may hold a fact beside something sensitive; facts are judged one by one.
    return replace(extractive.summarise(harmless, topics), caller_facts=fact_rules.extract(lines))


def build_writer(
    *,
    provider: str,
    model: str,
    anthropic_api_key: Secret | None,
    anthropic_base_url: str,
    xai_api_key: Secret | None,
    xai_api_url: str,
    instructions: str,
) -> Summarizer:
    """
    The summarizer for these settings.

    `provider` comes first ("" for the first with a key), another with a key is the fallback; "extractive" uses none.
    `model` is that of the first provider.
    """
    keys = {"anthropic": anthropic_api_key, "xai": xai_api_key}
    wanted = () if provider == "extractive" else dict.fromkeys([provider, *keys])
    names = [name for name in wanted if keys.get(name)]
    models = dict.fromkeys(names[:1], model)
    makers: dict[str, Callable[[Secret, str], SummaryProvider]] = {
        "anthropic": lambda key, model: AnthropicSummaries(key, anthropic_base_url, model),
        "xai": lambda key, model: XaiSummaries(key, xai_api_url, model),
    }
    providers = [makers[name](key, models.get(name, "")) for name in names if (key := keys[name])]
    return Summarizer(providers, instructions)


def _wait(tried: int, retry_after: float | None) -> float | None:
    """Seconds until the next try, with jitter; None if that is too long to wait."""
    if retry_after is not None and retry_after > LONGEST_WAIT:
        return None
    back_off = FIRST_BACK_OFF * tried * random.uniform(0.75, 1.25)
    return max(back_off, retry_after or 0.0)
