"""What is known of a caller, worked out from what the caller said in one call after the other. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from gateway.memory.fact_relations import Relation, Similar, StatementReading, relation
from gateway.memory.identity import same_person

MOST_CONFIDENCE: Final = 0.99

Op = Literal["add", "strengthen", "supersede"]


@dataclass(frozen=True, slots=True)
class FactState:
    """What the log tells of a fact at one moment."""

    text: str
    confidence: float


@dataclass(frozen=True, slots=True)
class Statement:
    """One row of the log, as it was said."""

    number: int
    session_id: str
    position: int
    started_at: str
    confidence: float
    turns: list[int]
    reading: StatementReading
    person: str = ""
    """Who said it, of those on one number; empty where no name was given."""


@dataclass(slots=True)
class ActiveFact:
    """A fact while it is worked out. `first` is the statement that it came from."""

    first: Statement
    confidence: float
    last_said_at: str
    person: str = ""
    superseded_by: "ActiveFact | None" = None
    instead_of: str = ""

    @property
    def source_id(self) -> str:
        return f"{self.first.session_id}#fact-{self.first.position}"

    @property
    def state(self) -> FactState:
        return FactState(self.first.reading.text, self.confidence)

    def strengthen(self, repeat: Statement) -> None:
        doubt = (1 - self.confidence) * (1 - repeat.confidence)
        self.confidence = max(self.confidence, round(min(1 - doubt, MOST_CONFIDENCE), 4))
        self.last_said_at = repeat.started_at


@dataclass(frozen=True, slots=True)
class FactStep:
    """What one statement did."""

    statement: Statement
    op: Op
    fact: ActiveFact
    before: FactState | None
    after: FactState


def project(statements: Sequence[Statement], similar: Similar | None) -> tuple[list[ActiveFact], list[FactStep]]:
    facts: list[ActiveFact] = []
    steps: list[FactStep] = []
    for statement, person in zip(statements, _people(statements), strict=True):
        kind, old = _related(statement, [fact for fact in facts if fact.person == person], similar)
        before = old.state if old else None
        if old and kind == "repeat":
            old.strengthen(statement)
            steps.append(FactStep(statement, "strengthen", old, before, old.state))
            continue
        new = ActiveFact(statement, statement.confidence, statement.started_at, person)
        if old:
            old.superseded_by = new
            new.instead_of = old.first.reading.text if kind == "contradiction" else ""
        facts.append(new)
        steps.append(FactStep(statement, "supersede" if old else "add", new, before, new.state))
    return facts, steps


def _people(statements: Sequence[Statement]) -> Iterator[str]:
    """Whose each statement is: of whoever was named last, each person under one name. At first, whoever is first."""
    known: list[str] = []
    person = next((statement.person for statement in statements if statement.person), "")
    for statement in statements:
        if given := statement.person:
            person = next((name for name in known if same_person(name, given)), given)
        if person not in known:
            known.append(person)
        yield person


def _related(
    statement: Statement, facts: Sequence[ActiveFact], similar: Similar | None
) -> tuple[Relation | None, ActiveFact | None]:
    """The fact that a statement repeats, else the newest whose place it takes."""
    standing = (fact for fact in reversed(facts) if fact.superseded_by is None)
    compared = ((relation(fact.first.reading, statement.reading, similar), fact) for fact in standing)
    related = [(kind, fact) for kind, fact in compared if kind]
    return min(related, key=lambda found: found[0] != "repeat", default=(None, None))
