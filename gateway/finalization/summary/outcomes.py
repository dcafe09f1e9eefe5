"""
What a call agreed on, found by rules: the values that are current at its end, and the fewest sentences that state them.

A call is a list of matters (a booking, then another one). Within a matter a value that is restated replaces an earlier
one of its slot; offers that were declined and values that were not available are dropped. Sentences are quoted as they
were said, nothing is added, but a replaced value in a quoted sentence becomes the current one.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from gateway.text.languages import cue
from gateway.text.person_names import PersonName, spelled_name
from gateway.text.plain_text import SpokenLine
from gateway.text.sensitive import sentences
from gateway.text.spoken_values import LEAST_DIGITS, OutcomeLanguage, SpokenValue

_SHARE_OF_CALL: Final = 0.3
_LEAST_WORDS: Final = 35
_LONG: Final = 8
_SHORT_ANSWER: Final = 9
_FRAGMENT: Final = 4
_RECAP: Final = 3  # a sentence with so many values sums up
# What a sentence costs beside its words, and how much its speech act adds to its worth.
_SENTENCE_COST: Final = 6
_WORTH: Final = {"done": 2.0, "proposal": 1.4, "offer": 1.2, "answer": 1.1, "statement": 1.0, "promise": 1.0}
_RESTATING: Final = ("proposal", "done", "offer", "answer")
_WEIGHTS: Final = {"code": 0.8, "answer": 0.7}

Act = Literal["question", "proposal", "offer", "done", "failure", "promise", "answer", "statement"]


@dataclass(slots=True)
class Statement:
    """
    A sentence, cleaned, and what it does in the conversation.

    Only what is live says what is current; only what is quotable can be part of the notes.
    """

    speaker: Literal["caller", "agent"]
    turn: int
    text: str
    act: Act
    values: list[SpokenValue]
    matter: int = 0
    is_live: bool = True
    is_quotable: bool = True
    is_asked: bool = False
    is_request: bool = False
    is_change: bool = False
    is_declining: bool = False
    """Of an answer: it turns down what was asked, "No thanks, we come by train"."""
    refused: list[SpokenValue] = field(default_factory=list)

    def refuses(self, value: SpokenValue) -> bool:
        """Whether the last mention of a value is refused: "piano on Tuesdays, so never on Tuesdays"."""
        mentions = [one for one in self.values if one.equals(value)]
        return bool(mentions) and mentions[-1] in self.refused


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """The chosen sentences and the promises, in spoken order, and all statements of the call."""

    chosen: list[Statement]
    promises: list[Statement]
    statements: list[Statement]


_Current = dict[int, list[SpokenValue]]
"""The current values of each matter."""


def find_outcome(lines: Sequence[SpokenLine], language: OutcomeLanguage, caller_name: str) -> CallOutcome:
    last_answer = max((turn for turn, line in enumerate(lines) if line.speaker == "caller"), default=-1)
    statements = list(_Reader(language).read(lines))
    statements = [one for one in statements if not (one.is_asked and one.turn > last_answer)]
    _drop_superseded_offers(statements, language)
    current, changes = _current_values(statements)
    for statement in (one for one in statements if one.is_live):
        _bring_up_to_date(statement, current[statement.matter], changes, language)
    _drop_bare_values(statements, language)
    own = set(PersonName.parse(caller_name).words)
    wanted = {
        (matter, value): _WEIGHTS.get(value.kind, 0.6 if value.kind == "name" and not value.role else 1.0)
        for matter, values in current.items()
        for value in values
        if not (value.kind == "name" and own.issuperset(PersonName.parse(value.text).words))
        and _is_grounded(value, matter, statements)
    }
    words = sum(len(line.text.split()) for line in lines)
    chosen = _cover(statements, wanted, max(_LEAST_WORDS, int(_SHARE_OF_CALL * words)))
    return CallOutcome(chosen, _open_promises(statements, language), statements)


class _Reader:
    """Reads a call sentence by sentence and says what each does."""

    def __init__(self, language: OutcomeLanguage) -> None:
        self._language = language
        self._cue = language.cue
        self._question = ""
        self._answered_turn = -1
        self._last_answer: Statement | None = None
        self._readback_turn = -1
        self._matter = 0
        self._is_done = False
        self._refused_turn = -1
        self._is_asking = False

    def read(self, lines: Sequence[SpokenLine]) -> Iterator[Statement]:
        heard_caller = False
        for turn, line in enumerate(lines):
            heard_caller = heard_caller or line.speaker == "caller"
            for sentence in self._sentences(line.text):
                if line.speaker == "agent" and self._cue("recital").match(sentence):
                    # The scripted agent quotes notes, documents or the caller: nothing new is said.
                    if (readback := self._heard(sentence, turn)) is not None:
                        yield readback
                    continue
                if cue("facts", "to_reader").search(sentence):
                    continue
                text = self._language.cleaned(sentence)
                values = self._language.values(text)
                is_courtesy = not heard_caller or self._cue("courtesy").search(text) or self._is_insult(text)
                if not self._language.content_words(text) or is_courtesy and _only_names(values):
                    continue
                statement = self._agent(text, turn) if line.speaker == "agent" else self._caller(text, turn)
                if statement is not None and statement.text:
                    statement.matter = self._matter
                    yield statement

    def _is_insult(self, text: str) -> bool:
        return "insult" in self._language.table and bool(self._cue("insult").search(text))

    def _heard(self, sentence: str, turn: int) -> Statement | None:
        """The values of the call that the scripted agent reads back: "I've changed that to Tuesday at ten"."""
        if "heard" not in self._language.table or not self._cue("heard").match(sentence):
            return None
        text = self._language.cleaned(sentence)
        values = [value for value in self._language.values(text) if value.kind not in ("name", "count")]
        # Other values are in the caller's own words; a changed number may be read back only as a whole.
        is_change = bool(self._cue("change").search(text)) and {value.kind for value in values} == {"code"}
        return Statement("agent", turn, text, "proposal", values, self._matter, is_quotable=False, is_change=is_change)

    def _sentences(self, text: str) -> Iterator[str]:
        for sentence in sentences(" ".join(text.split())):
            # Some recognisers write no punctuation.
            yield from self._cue("splits").split(sentence) if len(sentence.split()) > _LONG else [sentence]

    def _agent(self, text: str, turn: int) -> Statement:
        cue = self._cue
        spoken = self._language.without_opening(text)
        body = cue("readback_tag").sub("", cue("readback").sub("", spoken))
        asks = bool(cue("asks").search(spoken))
        is_readback = body != spoken or self._readback_turn == turn and not asks
        self._readback_turn = turn if is_readback else -1
        body = body.rstrip("? ")
        values = self._language.values(body)
        act: Act = "statement"
        if cue("promise").search(body) and not asks and not is_readback:
            act = "promise"
        elif cue("failure").search(spoken) and not is_readback:
            act = "failure"
        elif is_readback and values or asks and len(values) > 1 and not cue("wh_question").match(spoken):
            act = "proposal"
        elif cue("completion").search(text) and not asks:
            act = "done"
            self._is_done = True
        elif cue("offer").search(spoken) and not (asks and cue("wh_question").match(spoken)):
            act = "offer"
        elif asks:
            act = "proposal" if values and cue("question_lead").match(body) else "question"
        elif len(values) >= _RECAP or values and len(body.split()) <= _SHORT_ANSWER and cue("echo").search(text):
            act = "proposal"
        if act in ("question", "done", "failure", "promise"):
            self._question, self._answered_turn = spoken if act == "question" else "", -1
        if act in ("proposal", "offer") and asks:
            body = cue("question_lead").sub("", body)
            values = self._language.values(body)
        return Statement(
            "agent",
            turn,
            body,
            act,
            values,
            is_live=act not in ("question", "failure") and not (act == "offer" and cue("alternative").search(body)),
            is_quotable=not (asks and cue("auxiliary").match(body)),
            is_asked=asks,
            refused=self._refused(body, values) if act == "done" else [],
        )

    def _caller(self, text: str, turn: int) -> Statement | None:
        cue = self._cue
        change, request = bool(cue("change").search(text)), bool(cue("request").search(text))
        spoken = self._language.without_opening(text)
        values = self._language.values(spoken)
        is_short = len(spoken.split()) <= _SHORT_ANSWER
        if self._answered_turn not in (-1, turn):
            self._question = ""
        promises = bool(cue("promise").search(spoken) and not cue("asks").search(cue("readback_tag").sub("", spoken)))
        if change and self._last_answer is not None and self._last_answer.turn == turn:
            self._last_answer.is_live = False
        if self._question and is_short and not promises and (not request or change and self._answered_turn == turn):
            bare = self._language.without_opening(cue("change_lead").sub("", spoken))
            answer = self._answer(bare, turn, is_change=change)
            if answer is not None:
                answer.is_declining = bool(cue("decline").search(text))
            return answer
        if self._is_done and request and not change:
            self._matter += 1
            self._is_done = False
        refused = self._refused(spoken, values)
        act: Act = "promise" if promises else "statement"
        is_fragment = self._is_asking and len(spoken.split()) <= _FRAGMENT and not cue("has_verb").search(spoken)
        if spoken.endswith("?") and not (promises or request) and (cue("wh_question").match(spoken) or is_fragment):
            act = "question"
        self._is_asking = act == "question"
        is_new = self._refused_turn == turn and bool(values) and not refused  # "Not tomorrow. Friday."
        self._refused_turn = turn if refused and len(refused) == len(values) else -1
        return Statement(
            "caller",
            turn,
            spoken,
            act,
            values,
            is_live=act != "question",
            is_request=request,
            is_change=change or is_new,
            refused=refused,
        )

    def _refused(self, text: str, values: Sequence[SpokenValue]) -> list[SpokenValue]:
        """The values that a sentence declines or takes back."""
        before, after = self._cue("refuse"), self._cue("refuse_after")
        return [value for value in values if before.search(text[: value.start]) or after.match(text, value.end)]

    def _answer(self, text: str, turn: int, *, is_change: bool) -> Statement | None:
        """A short answer together with what was asked: "company name: Fossil Gas", "4 people"."""
        is_sentence = bool(self._cue("has_verb").search(text))
        is_chat = is_sentence and not self._language.values(text) and not self._cue("prefers").search(text)
        if is_chat or self._cue("no_answer").match(text) or spelled_name(text):
            return None
        if is_sentence and text.endswith("?"):
            return None
        self._answered_turn = turn
        answer, rendered = text.rstrip(".! "), text
        for pattern, template in () if is_sentence else self._language.table["question_topics"]:
            if asked := re.search(pattern, self._question, re.IGNORECASE):
                rendered = template.format(topic=asked.groupdict().get("topic", "").lower(), answer=answer)
                break
        values = self._language.values(rendered)
        if not values:
            start = max(rendered.find(answer), 0)
            values = [SpokenValue("answer", rendered[:start], answer.casefold(), answer, start, start + len(answer))]
        refused = self._refused(rendered, values)
        is_declined = bool(refused) and len(refused) == len(values)
        self._last_answer = Statement(
            "caller",
            turn,
            rendered,
            "answer",
            values,
            is_quotable=not is_declined,
            is_change=is_change,
            refused=refused,
        )
        return self._last_answer


def _only_names(values: Sequence[SpokenValue]) -> bool:
    return all(value.kind in ("name", "day") for value in values)


def _drop_superseded_offers(statements: Sequence[Statement], language: OutcomeLanguage) -> None:
    """An offer is gone when the caller declines it, or when a later offer of the same kind follows."""
    for place, offer in enumerate(statements):
        if offer.act != "offer":
            continue
        kinds = {value.kind for value in offer.values}
        for later in statements[place + 1 :]:
            if later.matter != offer.matter or later.act in ("proposal", "done"):
                break
            if later.act == "offer" and kinds & {value.kind for value in later.values}:
                offer.is_live = offer.is_live and later.turn == offer.turn
                break
            is_answer = later.is_declining and later.turn == offer.turn + 1
            if later.speaker == "caller" and (is_answer or language.cue("decline").search(later.text)):
                offer.is_live = False
                break


def _current_values(statements: Sequence[Statement]) -> tuple[_Current, list[tuple[int, SpokenValue]]]:
    """The current values, and the values of explicit changes with their turns."""
    current: _Current = {statement.matter: [] for statement in statements}
    changes: list[tuple[int, SpokenValue]] = []
    replaced: list[SpokenValue] = []
    for statement in statements:
        known = current[statement.matter]
        restates = statement.act in _RESTATING or statement.is_request or statement.is_change
        for value in statement.values if statement.is_live else ():
            if statement.refuses(value):
                replaced += [old for old in known if old.equals(value)]
                known[:] = [old for old in known if not old.equals(value)]
                continue
            if not restates and any(old.equals(value) for old in replaced):
                continue
            value = _in_range(value, statement, known)
            if statement.is_change:
                changes.append((statement.turn, value))
            for old in list(known):
                if old.equals(value) and (old.slot == value.slot or value.kind == "name"):
                    known.remove(old)
                    value = max(old, value, key=lambda one: (bool(one.role), len(one.key)))
                elif any(map(old.equals, statement.values)):  # "on Tuesdays and Thursdays"
                    continue
                elif restates and _replaces(value, old, is_change=statement.is_change):
                    known.remove(old)
                    replaced.append(old)
            known.append(value)
    return current, changes


def _in_range(value: SpokenValue, statement: Statement, known: Sequence[SpokenValue]) -> SpokenValue:
    """After "from Monday to Wednesday", "Wednesday" is the end again, and "make that Thursday" changes it."""
    kind = value.slot[0]
    of_kind = [one for one in known if one.slot[0] == kind]
    # "By Friday" is an end of its own: beside another day, it is not what a change means.
    ends = [one for one in of_kind if one.role == "end" and (one.is_range_end or all(one.role for one in of_kind))]
    is_alone = sum(one.slot[0] == kind for one in statement.values) == 1
    if value.role or not ends or not (any(map(value.equals, ends)) or is_alone and statement.is_change):
        return value
    return replace(value, role="end", is_range_end=ends[-1].is_range_end)


def _excludes(one: SpokenValue, other: SpokenValue) -> bool:
    """Whether only one of two values can be current, if the caller changed one into the other."""
    if one.kind == other.kind == "code":
        return len(one.digits) == len(other.digits) >= LEAST_DIGITS
    return one.slot == other.slot


def _replaces(new: SpokenValue, old: SpokenValue, *, is_change: bool) -> bool:
    """Amounts add up rather than replace each other, and a day may be named in two ways, unless the caller says so."""
    return _excludes(new, old) and (is_change or new.kind == old.kind and new.kind not in ("money", "code"))


def _bring_up_to_date(
    statement: Statement,
    current: Sequence[SpokenValue],
    changes: Sequence[tuple[int, SpokenValue]],
    language: OutcomeLanguage,
) -> None:
    """Put current values in the place of replaced ones; where that is impossible, the statement can't be quoted."""
    text = statement.text
    for value in reversed(statement.values):
        if statement.refuses(value) or any(one.equals(value) for one in current):
            continue
        now = sorted((one for one in current if _excludes(one, value)), key=lambda one: one.kind != value.kind)
        is_changed = any(turn >= statement.turn and _excludes(one, value) for turn, one in changes)
        if statement.act == "promise" and not is_changed:
            continue
        is_plain = statement.act == "statement" and not statement.is_request and not is_changed
        # "Can I move it to Wednesday?" is a request that a later change brings up to date.
        is_final = statement.is_change and not any(
            turn > statement.turn and one.slot == value.slot for turn, one in changes
        )
        is_double = sum(one.slot == value.slot for one in statement.values) > 1
        if not now or is_final or is_plain or is_double:
            statement.is_quotable = False
        else:
            text = text[: value.start] + language.in_place_of(value.text, now[0].text) + text[value.end :]
    if text != statement.text:
        statement.text, statement.values = text, language.values(text)


def _drop_bare_values(statements: Sequence[Statement], language: OutcomeLanguage) -> None:
    """ "No, Friday" adds nothing to a sentence that has become "someone should call me on Friday"."""

    def says_more(one: Statement) -> bool:
        values = (language.content_words(value.text) for value in one.values)
        is_sentence = language.cue("has_verb").search(one.text)
        return bool(is_sentence or language.content_words(one.text).difference(*values))

    bare = [one for one in statements if one.values and one.act != "answer" and not says_more(one)]
    for one in bare:
        whole = [other for other in statements if other.matter == one.matter and other.turn < one.turn]
        whole = [other for other in whole if other.is_live and other.is_quotable and other not in bare]
        if any(all(any(map(value.equals, other.values)) for value in one.values) for other in whole):
            one.is_quotable = False


def _is_grounded(value: SpokenValue, matter: int, statements: Sequence[Statement]) -> bool:
    """Whether a name or a count is part of the matter, not just chatted about or a number of search results."""
    said = [one for one in statements if one.matter == matter and one.is_live]
    mentions = [one for one in said if any(other.equals(value) for other in one.values)]
    if value.kind == "count":
        return any(one.act != "offer" for one in mentions)
    if value.kind == "name" and not value.digits:  # an address has some
        return any(one.speaker == "agent" or one.is_request or one.act == "answer" or one.is_change for one in mentions)
    return True


def _cover(
    statements: Sequence[Statement], wanted: Mapping[tuple[int, SpokenValue], float], room: int
) -> list[Statement]:
    """The statements that state the most wanted values in the fewest words, in spoken order."""
    stated = {id(one): _stated(one, wanted) for one in statements}
    candidates = [one for one in statements if one.is_live and one.is_quotable]
    # Promises are listed anyway; only one that is an appointment too says where things stand.
    candidates = [one for one in candidates if one.act != "promise" or len(one.values) > 1]
    missing, chosen = set(wanted), list[Statement]()

    def worth(one: Statement) -> float:
        gain = sum(wanted[value] for value in stated[id(one)] & missing)
        return _WORTH[one.act] * gain / (len(one.text.split()) + _SENTENCE_COST)

    while candidates and room > 0:
        best = max(reversed(candidates), key=worth)
        if not worth(best):
            break
        candidates.remove(best)
        chosen.append(best)
        missing -= stated[id(best)]
        room -= len(best.text.split())
    for one in list(chosen):  # a later choice may state all that an earlier one was chosen for
        if stated[id(one)] <= set().union(*(stated[id(other)] for other in chosen if other is not one)):
            chosen.remove(one)
    return [one for one in statements if one in chosen]


def _stated(one: Statement, wanted: Iterable[tuple[int, SpokenValue]]) -> set[tuple[int, SpokenValue]]:
    return {
        (matter, value)
        for matter, value in wanted
        if matter == one.matter
        and any(other.equals(value) and (value.kind == "name" or other.slot == value.slot) for other in one.values)
    }


def _open_promises(statements: Sequence[Statement], language: OutcomeLanguage) -> list[Statement]:
    """Promises, without those that were kept in the call and the requests that led to a promise."""
    found: list[Statement] = []
    for place, one in enumerate(statements):
        if one.act != "promise" or not one.is_quotable:
            continue
        words = language.content_words(one.text)
        later = statements[place + 1 :]
        same = [other for other in later if other.act == "promise" and other.turn <= one.turn + 1]
        same += [other for other in later if other.act == "done" and other.turn <= one.turn + 2]
        if any(2 * len(words & language.content_words(other.text)) >= len(words) for other in same):
            continue
        if not any(_takes_back(other, words, language) for other in later):
            found.append(one)
    return found


def _takes_back(statement: Statement, words: set[str], language: OutcomeLanguage) -> bool:
    """Whether the caller does not want what was promised ("don't text me"), and not just another day for it."""
    if statement.speaker != "caller" or "taken_back" not in language.table:
        return False
    values = {word for value in statement.values for word in language.content_words(value.text)}
    taken_back = (match["what"].casefold() for match in language.cue("taken_back").finditer(statement.text))
    return any(word in words - values for word in taken_back)
