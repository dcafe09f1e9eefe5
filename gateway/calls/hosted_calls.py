"""
Calls whose audio another platform carries: they get the caller's memory, and are finalized like any other call.

What was decided about a caller before the call (whose memory it is, how far the number is certain) is kept until the
call is reported, so that a repeated question gets the same answer, and the report can't claim more.
"""

import asyncio
import contextlib
import hashlib
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any, Final, Protocol

from gateway.agents import Agent, AgentDirectory
from gateway.calls.agent_context import memory_text
from gateway.calls.call_factory import MemoryServices, NoMemoryServices
from gateway.cluster.store import ExpiringStore
from gateway.errors import SharedStoreUnavailable, StoreUnavailable
from gateway.logs import last_four
from gateway.memory.access import MemoryAccess
from gateway.memory.identity import identifier
from gateway.sealing import Sealer
from gateway.session import TrustLevel, VoiceSession
from gateway.settings import Secret
from gateway.telephony.hosted import HostedConversation, Initiation
from gateway.telephony.phone_numbers import AllowList, Attestation, caller_id

KEPT_SECONDS: Final = 6 * 3600.0
"""How long a prepared call waits for its report. Longer than a call lasts."""
MOST_PREPARED: Final = 1000

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PreparedCall:
    """What was decided about a call before it began. `caller` is the key of its memory; empty: none."""

    agent: str
    caller: str
    number: str
    level: int
    memory: str = ""
    name: str = ""
    token: str = ""
    """Opens this caller's memory for the duration of the call."""
    document: str = ""
    """What the carrier was answered."""


@dataclass(frozen=True)
class HostedTimeouts:
    """All in seconds."""

    memory: float = 0.08
    """How long an answer waits for memory."""
    store: float = 0.03
    """How long it waits for what another node may have answered."""
    token: float = 0.5
    """How long a request during a call, or a report, waits for what was decided about the call."""
    stored: float = 20.0
    """How long a report may take to be stored."""


class CallFinalizer(Protocol):
    """What finalizes reported calls."""

    async def has(self, session_id: str) -> bool:
        """Whether a call was submitted before. Raises StoreUnavailable, SharedStoreUnavailable."""

    def submit(self, session: VoiceSession, *, on_started: Callable[[], None]) -> None:
        """`on_started` is called when the call is stored."""


class HostedCalls:
    """Prepares calls of agents that another platform hosts, and finalizes them when it reports them."""

    def __init__(
        self,
        agents: AgentDirectory,
        allowed: AllowList,
        memory: MemoryServices | NoMemoryServices,
        finalizer: CallFinalizer,
        store: ExpiringStore,
        admin_token: Secret,
        timeouts: HostedTimeouts,
    ) -> None:
        self._agents = agents
        self._allowed = allowed
        self._memory = memory
        self._finalizer = finalizer
        self._store = store
        self._sealer = Sealer(admin_token, "hosted calls")
        self._timeouts = timeouts
        self._prepared: dict[str, asyncio.Task[PreparedCall]] = {}
        self._saving: set[asyncio.Task[None]] = set()
        self._finishing: dict[str, asyncio.Task[bool]] = {}

    def agent(self, hosted_id: str) -> Agent | None:
        """The agent that the platform knows by this id."""
        return next((agent for agent in self._agents if hosted_id in agent.hosted_ids.values()), None)

    def agent_of(self, platform: str, call: Initiation | HostedConversation) -> Agent | None:
        """The agent of a call: by its id at the platform, or else by the number that was called."""
        if call.agent_id or call.called is None:
            return self.agent(call.agent_id)
        agent = self._agents.answering(call.called)
        return agent if platform in agent.hosted_ids else None

    # Before the call

    async def prepare(
        self, agent: Agent, key: str, number: str, attestation: Attestation = Attestation.NONE
    ) -> PreparedCall:
        """
        The memory for a call, as far as the number is certain. Asked again with the same `key`, the answer is the same.

        Never waits long: a store that is slow costs the caller's memory, not the call.
        """
        if not key:
            made = await self._prepare(agent, number, attestation)
            self._save_token(made)
            return made
        if key not in self._prepared:
            while len(self._prepared) >= MOST_PREPARED:
                del self._prepared[next(iter(self._prepared))]
            work = self._found_or_prepared(agent, key, number, attestation)
            self._prepared[key] = asyncio.get_running_loop().create_task(work, name="prepare hosted call")
        return await asyncio.shield(self._prepared[key])

    async def _found_or_prepared(self, agent: Agent, key: str, number: str, attestation: Attestation) -> PreparedCall:
        found, made = await asyncio.gather(self.prepared(key), self._prepare(agent, number, attestation))
        if found is not None:
            return replace(made, token=found.token, document=found.document)
        self._save(key, made)
        self._save_token(made)
        return made

    async def _prepare(
        self, agent: Agent, number: str, attestation: Attestation, seconds: float | None = None
    ) -> PreparedCall:
        number = caller_id(number)
        level = agent.trust.level(attestation, withheld=not number, allow_listed=self._allowed.lists(number))
        access = MemoryAccess(level, caller=identifier(agent.repeat_caller, number))
        access.open(self._memory.source(agent, access))
        memory, name = await memory_text(agent, access, seconds or self._timeouts.memory)
        access.close()
        made = PreparedCall(agent.name, access.caller, number, access.level, memory, name)
        return replace(made, token=secrets.token_urlsafe(24)) if access.caller else made

    async def prepared(self, key: str) -> PreparedCall | None:
        """What was decided about a call, here or on another node, without its memory."""
        decided = await self._load(key, self._timeouts.store)
        return PreparedCall(**decided) if decided else None

    async def _load(self, key: str, seconds: float) -> dict[str, Any]:
        try:
            async with asyncio.timeout(seconds):
                stored = await self._store.get(f"hosted:{key}")
        except (SharedStoreUnavailable, TimeoutError):
            return {}
        return (self._sealer.open_json(stored, key) if stored else None) or {}

    def keep_answer(self, key: str, call: PreparedCall, document: str, conversation_id: str) -> None:
        """The carrier was answered with this document. The platform will report the call under its own id."""
        answered = replace(call, document=document)
        self._save(key, answered)
        if conversation_id:
            self._save(conversation_id, answered)

    def _save_token(self, call: PreparedCall) -> None:
        if call.token:
            self._save(_token_key(call.token), call)

    def _save(self, key: str, call: PreparedCall) -> None:
        # Memory is not copied. The rest is sealed, since it names the caller.
        saving = self._put(key, asdict(replace(call, memory="", name="")))
        task = asyncio.get_running_loop().create_task(saving, name="save hosted call")
        self._saving.add(task)
        task.add_done_callback(self._saving.discard)

    async def _put(self, key: str, value: dict[str, Any]) -> None:
        with contextlib.suppress(SharedStoreUnavailable):
            await self._store.put(f"hosted:{key}", self._sealer.seal_json(value, key), KEPT_SECONDS)

    # During the call

    async def with_token(self, token: str) -> PreparedCall | None:
        """The call that this token was made for, on any node; None for another token, and once the call is reported."""
        decided = await self._load(_token_key(token), self._timeouts.token) if token else {}
        return PreparedCall(**decided) if decided else None

    async def state(self, token: str) -> dict[str, Any]:
        """What the agent's tools have set in this call."""
        return await self._load(_state_key(token), self._timeouts.token)

    async def keep_state(self, token: str, state: Mapping[str, Any]) -> None:
        """Keep it until the call is reported; the caller's state has it from then on."""
        try:
            async with asyncio.timeout(self._timeouts.token):
                await self._put(_state_key(token), dict(state))
        except TimeoutError:
            _log.warning("state of a hosted call could not be kept")

    # After the call

    async def finish(self, platform: str, conversation: HostedConversation) -> bool:
        """
        Finalize a reported call, once. Returns when it is stored; False if it could not be, and must be sent again.
        """
        session_id = f"voice-session:{conversation.id}"
        if session_id not in self._finishing:
            work = self._finish(platform, conversation, session_id)
            task = asyncio.get_running_loop().create_task(work, name="finish hosted call")
            self._finishing[session_id] = task
            task.add_done_callback(lambda _: self._finishing.pop(session_id, None))
        return await asyncio.shield(self._finishing[session_id])

    async def _finish(self, platform: str, conversation: HostedConversation, session_id: str) -> bool:
        agent = self.agent_of(platform, conversation)
        keys = filter(None, (conversation.id, conversation.call_id, _token_key(conversation.call_token)))
        found = [decided for key in keys if (decided := await self._load(key, self._timeouts.token))]
        calls = [PreparedCall(**decided) for decided in found]
        tokens = {call.token for call in calls if call.token}
        for token in tokens:  # the call is over, whatever becomes of the report
            await self._delete(_token_key(token))
        if agent is None or not self._memory.remembers or not conversation.is_call:
            return True
        session = await self._session(agent, platform, conversation, session_id, calls)
        try:
            if not session.caller or await self._finalizer.has(session_id):
                return True
            stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._finalizer.submit(session, on_started=_once(stored))
            async with asyncio.timeout(self._timeouts.stored):
                await stored
        except (StoreUnavailable, SharedStoreUnavailable, TimeoutError) as error:
            _log.warning("hosted call could not be stored", extra={"error": type(error).__name__})
            return False
        for token in tokens:
            await self._delete(_state_key(token))
        fields = {"caller": last_four(session.number or session.caller), "carrier": platform, "agent": agent.name}
        _log.info("hosted call ended", extra=fields)
        return True

    async def _session(
        self,
        agent: Agent,
        platform: str,
        conversation: HostedConversation,
        session_id: str,
        calls: Sequence[PreparedCall],
    ) -> VoiceSession:
        number, headers = caller_id(conversation.number), conversation.sip_headers
        identity = identifier(agent.repeat_caller, number, attributes=conversation.attributes, sip_headers=headers)
        # Another identifier than the number is the platform's word, not the network's.
        listed = conversation.is_dialled and identity == number and self._allowed.lists(number)
        level = agent.trust.level(Attestation.NONE, withheld=not identity, allow_listed=listed)
        decided = next((call for call in calls if call.caller == identity and call.agent == agent.name), None)
        known = await self._prepare(agent, number, Attestation.NONE, self._timeouts.token)
        return VoiceSession(
            agent=agent.name,
            caller=identity,
            carrier=platform,
            id=session_id,
            started_at=conversation.started_at,
            ended_at=conversation.started_at + timedelta(seconds=conversation.seconds),
            end_reason=conversation.end_reason,
            turns=list(conversation.turns),
            number=number if number != identity else "",
            engine=platform,
            known_name=known.name if known.caller == identity else "",
            state=await self.state(decided.token) if decided is not None and decided.token else {},
            trust=TrustLevel(decided.level) if decided is not None else level,
        )

    async def _delete(self, key: str) -> None:
        with contextlib.suppress(SharedStoreUnavailable, TimeoutError):
            async with asyncio.timeout(self._timeouts.token):
                await self._store.delete(f"hosted:{key}")


def _token_key(token: str) -> str:
    """The name under which the call of a token is kept; empty for no token. Timing reveals nothing about the token."""
    return f"token:{hashlib.sha256(token.encode()).hexdigest()}" if token else ""


def _state_key(token: str) -> str:
    return f"state:{_token_key(token)}"


def _once(stored: "asyncio.Future[None]") -> Callable[[], Any]:
    return lambda: None if stored.done() else stored.set_result(None)
