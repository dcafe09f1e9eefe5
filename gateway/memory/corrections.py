"""Names and values that a caller's later statements replaced and that earlier notes still contain."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from gateway.memory.facts import Fact, corrected_names, is_choice, meaning, stated_name
from gateway.memory.identity import same_person
from gateway.memory.summary_parser import PastCall
from gateway.text.sensitive import sentences

_MOST_STEPS: Final = 100


@dataclass(frozen=True, slots=True)
class _Replaced:
    """The words that a replaced fact has alone, those that its replacement has instead, and when that was said."""

    gone: frozenset[str]
    come: frozenset[str]
    since: datetime

    def is_in(self, text: str) -> bool:
        words = meaning(text)
        return self.gone <= words and not (self.come and self.come <= words)


@dataclass(frozen=True, slots=True)
class Corrections:
    """The corrections among all facts about a caller, replaced ones too."""

    names: Sequence[tuple[str, str]]
    listed: frozenset[str]
    replaced: Sequence[_Replaced]

    @classmethod
    def of(cls, facts: Iterable[Fact]) -> "Corrections":
        known = {fact.id: fact for fact in facts}
        names: list[tuple[str, str]] = []
        replaced: list[_Replaced] = []
        for fact in known.values():
            now = _current(fact, known)
            names += [(old_name, stated_name(now.text)) for old_name in corrected_names(fact, now)]
            if now is not fact and fact.trust <= now.trust:
                old_words, new_words = meaning(fact.text), meaning(now.text)
                gone = old_words - new_words or old_words
                if gone and not (len(gone) == 1 and is_choice(*gone)):  # a weekday may be about anything
                    replaced.append(_Replaced(gone, new_words - old_words, now.said_at))
        return cls(names, frozenset(fact.text for fact in known.values()), replaced)

    def name(self, given: str) -> str:
        """The current form of a name that a call gave."""
        return next((name for old, name in self.names if given and same_person(old, given)), given)

    def call(self, call: PastCall) -> PastCall:
        """
        The notes of a call with the caller's present name, without what later calls replaced.

        Lasting facts are left out: those that still hold are known as facts.
        """
        stale = [one for one in self.replaced if one.since > call.started_at]

        def current(items: Iterable[str]) -> tuple[str, ...]:
            return tuple(item for item in items if not any(one.is_in(item) for one in stale))

        return replace(
            call,
            caller_name=self.name(call.caller_name),
            topics=current(call.topics),
            decisions=current(call.decisions),
            action_items=current(call.action_items),
            facts=current(fact for fact in call.facts if fact not in self.listed),
            context=" ".join(current(sentences(call.context))) if stale else call.context,
        )


def _current(fact: Fact, known: dict[str, Fact]) -> Fact:
    """The fact that holds in place of this one."""
    for _ in range(_MOST_STEPS):
        if (later := known.get(fact.superseded_by)) is None:
            break
        fact = later
    return fact
