"""
Writes a summary without a model: relevant sentences, sorted into the five sections by rules.

Nothing is invented. Each item is a spoken sentence, or its beginning, after a speaker label. In phone calls the length
of a sentence is the best sign of its relevance; cue words add to it.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from gateway.finalization.summary import fact_rules, topic_rules
from gateway.finalization.summary.call_summary import MAX_ITEM_CHARACTERS, MAX_NAME_CHARACTERS, CallSummary
from gateway.finalization.summary.topics import KnownTopic
from gateway.text.plain_text import SpokenLine, trimmed

MAX_ITEMS_EACH: Final = 6
MAX_TOPICS: Final = 3
CONTEXT_SENTENCES: Final = 4
CONTEXT_CHARACTERS_EACH: Final = 280
CUE_WEIGHT: Final = 6  # a cue counts as much as this many words


def _any_of(*phrases: str) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{'|'.join(phrases)})\b", re.IGNORECASE)


# Apostrophes come straight or curly, or not at all.
_S: Final = "['’]?"
_DECISION: Final = _any_of(
    f"let{_S}s",
    f"i{_S}ll (?:take|go with|have|keep)",
    "i would like to (?:book|cancel|order|keep)",
    "(?:re)?book(?:ed)?",
    "(?:re)?schedul(?:e|ed)",
    "agreed?",
    "confirm(?:ed)?",
    "cancel(?:led|ed)?",
    "decided",
    f"that{_S}s settled",
    f"you{_S}re all set",
    f"(?:i{_S}ve|i have) (?:changed|moved|reserved|placed|put)",
)
_ACTION: Final = _any_of(
    "i will",
    f"i{_S}ll",
    "we will",
    f"we{_S}ll",
    "please (?:send|call|email|text|check|let|make|bring|give|have|tell)",
    "call (?:me|you|us) back",
    "(?:need|needs|have|has) to",
    "(?:can|could|would|will) you",
    "remind me",
    "follow up",
    "get back to",
    "make sure",
)
_FACT: Final = _any_of(
    "my [a-z -]{2,30} (?:is|are|was)",
    f"my name{_S}s",
    "i (?:prefer|live|work|moved|have|own|use|like|love|hate)",
    f"i{_S}m (?:allergic|based|from|staying|a|an|the)",
    "(?:mon|tues|wednes|thurs|fri|satur|sun)day",
    "january|february|march|april|june|july|august|september|october|november|december",
    "order|invoice|reference|account|address|appointment|deadline|budget|birthday",
)
_NUMBER: Final = re.compile(r"\d")
_CUES: Final = (_DECISION, _ACTION, _FACT, _NUMBER)

_OPENERS: Final = re.compile(
    r"(?:(?:um+|uh+|er+m?|ah+|oh|well|so|like|okay|ok|yeah|yes|yep|right|and|but|hi|hello|hey|thanks|thank you"
    r"|you know|i mean|actually|basically|sorry|sure|great|perfect|alright|all right|no problem|of course)\b[\s,.!]*)+",
    re.IGNORECASE,
)
_SMALL_TALK: Final = _any_of(
    "how are you",
    f"how{_S}s it going",
    "nice to (?:meet|talk|speak|hear)",
    "have a (?:good|great|nice|lovely)",
    "(?:how|what) (?:can|may) i (?:help|do for)",
    "thank you for calling",
    "thanks for calling",
    "anything else",
    f"you{_S}re welcome",
    "good ?bye",
    "take care",
    "talk to you (?:soon|later)",
    "can you hear me",
    "are you (?:still )?there",
    "good (?:morning|afternoon|evening)",
)
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s+")
_MIN_WORDS: Final = 4
_SMALL_TALK_WORDS: Final = 10

_NAME_WORD: Final = r"[A-Z][\w'’-]+"
_NAMES: Final = (
    re.compile(rf"\b(?i:my name is|my name['’]s) ({_NAME_WORD}(?: {_NAME_WORD}){{0,2}})"),
    re.compile(rf"\b(?i:this is|it['’]s|i am|i['’]m) ({_NAME_WORD}(?: {_NAME_WORD}){{0,2}}),? (?i:calling|speaking)\b"),
    # For recognisers that write no capitals: one word that does not continue the sentence.
    re.compile(
        r"\b(?i:my name is|my name['’]s) "
        r"(?!(?:a|an|the|not|on|in|under|spelled|wrong|also|still|misspelled)\b)([a-z]{2,})"
    ),
)


@dataclass(frozen=True, slots=True)
class _Sentence:
    """An informative sentence."""

    speaker: Literal["caller", "agent"]
    text: str
    weight: int

    @property
    def is_question(self) -> bool:
        return self.text.endswith("?")

    def quoted(self, max_characters: int = MAX_ITEM_CHARACTERS) -> str:
        label = f"{self.speaker.capitalize()}: "
        return label + trimmed(self.text, max_characters - len(label))


def summarise(lines: Sequence[SpokenLine], known: Sequence[KnownTopic] = ()) -> CallSummary:
    """
    The five sections, facts and topics, quoted literally. Any may be empty; after small talk all are.

    `known` are topics of earlier calls.
    """
    sentences = _informative(lines)
    statements = [sentence for sentence in sentences if not sentence.is_question]
    decisions = _matching(statements, _DECISION)
    actions = _matching(sentences, _ACTION, without=decisions)
    facts = _matching(statements, _FACT, _NUMBER, without=[*decisions, *actions])
    by_caller = [sentence for sentence in sentences if sentence.speaker == "caller"]
    open_matters = [sentence for sentence in by_caller if sentence not in (*decisions, *actions)]
    topics = _heaviest(open_matters or by_caller, MAX_TOPICS)
    return CallSummary(
        caller_name=_caller_name(lines),
        topics=_quotes(topics),
        decisions=_quotes(decisions),
        action_items=_quotes(actions),
        facts=_quotes(facts),
        context=" ".join(sentence.quoted(CONTEXT_CHARACTERS_EACH) for sentence in sentences[-CONTEXT_SENTENCES:]),
        written_by="extractive",
        caller_facts=fact_rules.extract(lines),
        running_topics=topic_rules.extract(lines, known),
    )


def _informative(lines: Sequence[SpokenLine]) -> list[_Sentence]:
    """Every informative sentence, once, in spoken order."""
    found: dict[str, _Sentence] = {}
    for line in lines:
        for text in _SENTENCE_END.split(" ".join(line.text.split())):
            sentence = _without_opener(text)
            if _is_informative(line.speaker, sentence):
                found.setdefault(sentence.casefold(), _Sentence(line.speaker, sentence, _weight(sentence)))
    return list(found.values())


def _is_informative(speaker: str, sentence: str) -> bool:
    words = len(sentence.split())
    # Without punctuation, a caller's greeting and request are one long sentence.
    small_talk = _SMALL_TALK.search(sentence) and not (speaker == "caller" and words > _SMALL_TALK_WORDS)
    return words >= _MIN_WORDS and not small_talk


def _without_opener(text: str) -> str:
    opener = _OPENERS.match(text)
    return text[opener.end() :] if opener else text


def _weight(text: str) -> int:
    cues = sum(1 for cue in _CUES if cue.search(text))
    return len(text.split()) + CUE_WEIGHT * cues


def _matching(
    sentences: Iterable[_Sentence], *cues: re.Pattern[str], without: Sequence[_Sentence] = ()
) -> list[_Sentence]:
    fitting = [sentence for sentence in sentences if any(cue.search(sentence.text) for cue in cues)]
    return _heaviest([sentence for sentence in fitting if sentence not in without], MAX_ITEMS_EACH)


def _heaviest(sentences: Sequence[_Sentence], limit: int) -> list[_Sentence]:
    """The few with the highest weight, in spoken order."""
    chosen = sorted(sentences, key=lambda sentence: sentence.weight, reverse=True)[:limit]
    return [sentence for sentence in sentences if sentence in chosen]


def _quotes(sentences: Iterable[_Sentence]) -> tuple[str, ...]:
    return tuple(sentence.quoted() for sentence in sentences)


def _caller_name(lines: Sequence[SpokenLine]) -> str:
    """The name that the caller gave; the last one counts, since it may be a correction."""
    name = ""
    for line in lines:
        if line.speaker == "caller":
            name = next((match[1] for pattern in _NAMES if (match := pattern.search(line.text))), name)
    return trimmed(name[:1].upper() + name[1:], MAX_NAME_CHARACTERS)
