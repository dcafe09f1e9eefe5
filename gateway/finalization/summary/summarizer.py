"""
Writes a call's summary, including facts and topics: by the configured models in order, or by rules if none answers.

The lines are redacted already. Provider messages are never logged, only the type of the failure.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from types import MappingProxyType
from typing import Final

from gateway.agents import Agent, RequestedField
from gateway.errors import LlmError, LlmRefused, LlmUnavailable
from gateway.finalization.summary import extractive, fact_rules, topic_rules
from gateway.finalization.summary.call_summary import (
    NO_FIELDS,
    CallSummary,
    SummaryRequest,
    callers_name,
    transcript_of,
)
from gateway.finalization.summary.facts import Orders, keep_facts, known_facts_text, with_known
from gateway.finalization.summary.providers import SummaryProvider, summary_provider
from gateway.finalization.summary.requested_fields import field_instructions
from gateway.finalization.summary.topics import KnownTopic, keep_topics, known_topics_text
from gateway.llm.accounts import SCRIPT, LlmAccounts, ModelAddress, model_address
from gateway.settings import Secret, is_url
from gateway.text import person_names, sensitive, spoken_values
from gateway.text.plain_text import SpokenLine
from gateway.text.sensitive import without_sensitive

MAX_TRANSCRIPT_CHARACTERS: Final = 120_000  # about 30 000 tokens, more than two hours of conversation
LONGEST_WAIT: Final = 3.0
FIRST_BACK_OFF: Final = 0.4

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SummaryContext:
    """What a summary is written with, besides the call itself."""

    agent: str = ""
    recited: Sequence[str] = ()
    """What the prompt contained about the caller: facts that the agent only repeated are not stored again."""
    topics: Sequence[KnownTopic] = ()
    """Those of earlier calls, so that the model uses their names."""
    facts: Sequence[str] = ()
    """What is known of the caller, so that the model can say what a new fact repeats or replaces."""
    fields: Mapping[str, RequestedField] = field(default_factory=lambda: NO_FIELDS)


NO_CONTEXT: Final = SummaryContext()


@dataclass(frozen=True)
class TimeLimits:
    """Durations in seconds: for all providers together, and for one attempt."""

    deadline: float
    attempt: float


SOON: Final = TimeLimits(deadline=20.0, attempt=12.0)
PATIENT: Final = TimeLimits(deadline=180.0, attempt=120.0)
"""Once the rules have written a summary: a model on one's own machine may be slow."""


class Summarizer:
    """
    Asks its providers in order. Retries one that is temporarily unavailable, but not one that refuses.

    `brains`: further providers for the calls of single agents.
    """

    def __init__(
        self,
        providers: Sequence[SummaryProvider],
        instructions: str,
        *,
        brains: Mapping[str, Sequence[SummaryProvider]] = MappingProxyType({}),
        limits: TimeLimits = SOON,
        patient: TimeLimits = PATIENT,
        tries_each: int = 2,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._providers = tuple(providers)
        self._brains = brains
        self._instructions = instructions
        self._limits = limits
        self._patient = patient
        self._tries_each = tries_each
        self._sleep = sleep

    def has_llm(self, agent: str) -> bool:
        """Whether a model writes the summaries of this agent's calls."""
        return bool(self._of(agent))

    async def prepare(self) -> None:
        """Load what rules and providers need, ahead of the first summary."""
        await asyncio.to_thread(load_rules)
        for provider in self._all:
            await provider.prepare()

    async def write(self, lines: Sequence[SpokenLine], context: SummaryContext = NO_CONTEXT) -> CallSummary:
        """A summary in any case, within the deadline: by a model, else by rules, which fill in no fields."""
        try:
            return await self._ask(lines, context, self._limits)
        except LlmError:
            # Off the event loop: a long call takes a while.
            summary = await asyncio.to_thread(_by_rules, lines, context.topics)
            return replace(summary, fields=dict.fromkeys(context.fields))

    async def ask(self, lines: Sequence[SpokenLine], context: SummaryContext = NO_CONTEXT) -> CallSummary:
        """
        A summary by a model, which may take minutes.

        Raises LlmUnavailable if a later try may succeed, else LlmRefused.
        """
        return await self._ask(lines, context, self._patient)

    async def _ask(self, lines: Sequence[SpokenLine], context: SummaryContext, limits: TimeLimits) -> CallSummary:
        known = known_facts_text(context.facts) + known_topics_text(context.topics)
        before = known + field_instructions(context.fields, date.today())
        transcript = before + transcript_of(lines, MAX_TRANSCRIPT_CHARACTERS)
        request = SummaryRequest(self._instructions, transcript, context.fields)
        summary = await self._ask_all(self._of(context.agent), request, limits)
        return await asyncio.to_thread(_checked, summary, lines, context)

    async def close(self) -> None:
        for provider in self._all:
            await provider.close()

    @property
    def _all(self) -> list[SummaryProvider]:
        return [*self._providers, *(provider for brain in self._brains.values() for provider in brain)]

    def _of(self, agent: str) -> Sequence[SummaryProvider]:
        return [*self._providers, *self._brains.get(agent, ())]

    async def _ask_all(
        self, providers: Sequence[SummaryProvider], request: SummaryRequest, limits: TimeLimits
    ) -> CallSummary:
        failure: LlmError = LlmUnavailable("no language model is set up")
        give_up_at = asyncio.get_running_loop().time() + limits.deadline
        for number, provider in enumerate(providers):
            try:
                async with asyncio.timeout_at(give_up_at):
                    return await self._ask_with_retries(provider, request, limits.attempt)
            except TimeoutError as error:
                log.warning("summary provider failed", extra={"provider": provider.name, "error": type(error).__name__})
                failure = LlmUnavailable(f"{provider.name} gave no summary in time")
            except LlmError as error:
                log.warning("summary provider failed", extra={"provider": provider.name, "error": type(error).__name__})
                if number == 0 or error.retryable:
                    failure = error
            except Exception as error:  # a model may answer anything, and the call must be remembered
                log.error("summary could not be read", extra={"provider": provider.name, "error": type(error).__name__})
                if number == 0:
                    failure = LlmRefused(f"{provider.name} answered with something that can't be read")
        raise failure

    async def _ask_with_retries(
        self, provider: SummaryProvider, request: SummaryRequest, seconds: float
    ) -> CallSummary:
        """Retry after a temporary failure, but not after a timeout: the next provider should get the time left."""
        for tried in range(1, self._tries_each):
            try:
                return await _attempt(provider, request, seconds)
            except LlmUnavailable as error:
                wait = _wait(tried, error.retry_after)
                if wait is None:
                    raise
            await self._sleep(wait)
        return await _attempt(provider, request, seconds)


async def _attempt(provider: SummaryProvider, request: SummaryRequest, seconds: float) -> CallSummary:
    async with asyncio.timeout(seconds):
        return await provider.summarise(request)


def _checked(summary: CallSummary, lines: Sequence[SpokenLine], context: SummaryContext) -> CallSummary:
    """A model's answer without what must not be stored; rules write the notes if it has only facts."""
    given = with_known(summary.caller_facts, context.facts)
    caller_facts = keep_facts(given, lines, context.recited, [*context.facts, context.agent])
    orders = Orders.of(lines)
    topics = [topic for topic in summary.running_topics if not orders.made(topic.title)]
    running_topics = keep_topics(topics, lines)
    name = "" if orders.made(summary.caller_name) else callers_name(summary.caller_name, lines)
    summary = replace(summary.changed(orders.without), caller_name=name)
    if not summary.has_notes:
        model, fields = summary.written_by, summary.fields
        summary = replace(_by_rules(lines, context.topics), caller_name=name, written_by=model, fields=fields)
    return replace(summary.without_sensitive(), caller_facts=caller_facts, running_topics=running_topics)


def _by_rules(lines: Sequence[SpokenLine], topics: Sequence[KnownTopic]) -> CallSummary:
    harmless = [replace(line, text=without_sensitive(line.text)) for line in lines]
    # A sentence may hold a fact beside something sensitive; facts are judged one by one.
    return replace(extractive.summarise(harmless, topics), caller_facts=fact_rules.extract(lines))


def build_summarizer(
    accounts: LlmAccounts,
    agents: Iterable[Agent],
    *,
    provider: str,
    model: str,
    api_key: Secret | None,
    instructions: str,
) -> Summarizer:
    """
    The summarizer for SUMMARY_PROVIDER, SUMMARY_MODEL and SUMMARY_API_KEY. Raises SettingsError.

    If one provider fails, the others with a key are asked, then the agent's own model. A server that was named has no
    such replacement: calls that stay on the operator's machines must not leave them because it fails.
    """
    addresses = summary_addresses(accounts, provider, model, api_key)
    may_ask_brain = not is_url(provider, ("https", "http")) and provider not in ("extractive", "openclaw")
    brains = _brains(accounts, agents, {address.provider for address in addresses}) if may_ask_brain else {}
    return Summarizer([summary_provider(address) for address in addresses], instructions, brains=brains)


def summary_addresses(accounts: LlmAccounts, provider: str, model: str, api_key: Secret | None) -> list[ModelAddress]:
    """The models that write the summaries of every agent, in order. Raises SettingsError."""
    where = "SUMMARY_PROVIDER"
    if is_url(provider, ("https", "http")):
        server = model_address({"url": provider, "model": model}, accounts, where)
        return [replace(server, api_key=api_key, setting=where)]
    match provider:
        case "extractive" | "brain":
            entries = []
        case "openclaw":
            entries = [f"openclaw/{model}"]
        case _:
            first, *others = dict.fromkeys([*filter(None, [provider]), *accounts.with_keys]) or [""]
            entries = [f"{first}/{model}", *others] if first else []
    return [model_address(entry, accounts, where) for entry in entries]


def _brains(accounts: LlmAccounts, agents: Iterable[Agent], asked: Collection[str]) -> dict[str, list[SummaryProvider]]:
    """The agents' own models, by agent, except those of providers that are asked for every agent."""
    addresses = {
        agent.name: [
            model_address(entry, accounts, f"gateway.toml, [agents.{agent.name}]: brain")
            for entry in agent.brain
            if entry != SCRIPT
        ]
        for agent in agents
    }
    return {
        name: [summary_provider(address) for address in own if address.provider not in asked]
        for name, own in addresses.items()
    }


def _wait(tried: int, retry_after: float | None) -> float | None:
    """Seconds until the next try, with jitter; None if that is too long to wait."""
    if retry_after is not None and retry_after > LONGEST_WAIT:
        return None
    back_off = FIRST_BACK_OFF * tried * random.uniform(0.75, 1.25)
    return max(back_off, retry_after or 0.0)


def load_rules() -> None:
    """Compile the patterns of summaries by rules, once per process. Takes a quarter of a second of CPU."""
    for load in (sensitive.load, fact_rules.load, topic_rules.load, spoken_values.load, person_names.load):
        load()
