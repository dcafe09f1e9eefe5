"""The caller's consent to the recording of a call: the announcement, the question, and the answer."""

from dataclasses import dataclass

from gateway.agents import Agent
from gateway.calls.transcript import CallRecords
from gateway.logs import CallLogger
from gateway.session import Consent, VoiceSession
from gateway.text.voice_commands import consent_answer, consent_texts


@dataclass(frozen=True)
class ConsentTimeouts:
    """Durations in seconds."""

    answer: float = 10.0
    """A caller who says nothing for this long after the question does not agree."""
    longest: float = 60.0
    """From the question to an answer. The recording is held back in memory until then."""


def first_words(agent: Agent, greeting: str) -> str:
    """What the agent says first: the announcement before the greeting, or the question in its place."""
    announce = agent.consent.announce
    if not agent.consent.require:
        return f"{announce} {greeting}".strip()
    return announce if announce.endswith("?") else f"{announce} {consent_texts(agent.language)['ask']}".strip()


class RecordingConsent:
    """
    Asks for consent where the agent requires it, and keeps the answer with the call. No clock: times are given.

    Until the answer, the recorder holds back what it gets. The answer to an earlier stream of the call stands.
    """

    def __init__(
        self, session: VoiceSession, agent: Agent, records: CallRecords, log: CallLogger, timeouts: ConsentTimeouts
    ) -> None:
        self._session = session
        self._agent = agent
        self._records = records
        self._log = log
        self._timeouts = timeouts
        self._texts = consent_texts(agent.language)
        self._asked_at: float | None = None
        self._spoke_at = 0.0
        self._may_repeat = True

    @property
    def is_open(self) -> bool:
        """Whether the caller was asked and has not answered."""
        return self._asked_at is not None and self._session.consent is Consent.NONE

    def agent_spoke(self, now: float) -> None:
        """The agent says something; at first, the announcement."""
        if self._session.consent is not Consent.NONE or not self._agent.consent:
            return
        if self._agent.consent.require:
            self._asked_at = self._asked_at or now
        else:
            self._keep(Consent.ANNOUNCED)

    def caller_speaks(self, now: float) -> None:
        self._spoke_at = now

    def caller_said(self, text: str, greeting: str) -> str:
        """Takes these words for the answer. Returns the reply; empty if the engine is to answer."""
        if not self.is_open:
            return ""
        agreed = consent_answer(text, self._agent.language)
        if agreed is None and self._may_repeat:
            self._may_repeat = False
            return str(self._texts["ask"])
        self._decide(Consent.NO_ANSWER if agreed is None else Consent.AGREED if agreed.is_yes else Consent.REFUSED)
        if agreed is None or agreed.goes_on:
            return ""
        return f"{self._texts['agreed' if agreed.is_yes else 'refused']} {greeting}".strip()

    def tick(self, now: float, played_until: float, greeting: str) -> str:
        """What to say because no answer came in time; else empty. `played_until`: when the question was over."""
        if not self.is_open or self._asked_at is None:
            return ""
        quiet_since = max(played_until, self._spoke_at)
        if now < min(quiet_since + self._timeouts.answer, self._asked_at + self._timeouts.longest):
            return ""
        self._decide(Consent.NO_ANSWER)
        return f"{self._texts['refused']} {greeting}".strip()

    def call_over(self) -> None:
        """The stream has ended: a call that continues with another one is not recorded either."""
        if self.is_open:
            self._decide(Consent.NO_ANSWER)

    def _decide(self, consent: Consent) -> None:
        self._keep(consent)
        if consent is Consent.AGREED:
            self._records.recorder.start()
        else:
            self._records.recorder.discard()

    def _keep(self, consent: Consent) -> None:
        self._session.consent = consent
        self._records.events.set_consent(consent)
        self._log.info("recording consent", extra={"consent": str(consent)})
