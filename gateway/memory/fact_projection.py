"""Computes what is known of a caller from the statements of one call after the other. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from gateway.memory.fact_relations import Relation, StatementReading, relation
from gateway.memory.identity import same_person
from gateway.memory.memory_log import EntryKey

MOST_CONFIDENCE: Final = 0.99

FactOp = Literal["add", "strengthen", "supersede"]


@dataclass(frozen=True, slots=True)
class FactState:
    """A fact at one point of its history."""

    text: str
    confidence: float


@dataclass(frozen=True, slots=True)
class Statement:
    """One entry of the log. `person` is who made it where several people share a number; empty if no name was given."""

    key: EntryKey
    started_at: str
    confidence: float
    turns: tuple[int, ...]
    reading: StatementReading
    person: str = ""


@dataclass(slots=True)
class ActiveFact:
    """
    A fact under construction.

    `first` is the statement that introduced it, `reading` the fullest one, `keys` those of all its statements.
    """

    first: Statement
    reading: StatementReading
    confidence: float
    last_said_at: str
    person: str = ""
    superseded_by: "ActiveFact | None" = None
    instead_of: str = ""
    keys: list[EntryKey] = field(default_factory=list)

    @property
    def source_id(self) -> str:
        session_id, position = self.first.key
        return f"{session_id}#fact-{position}"

    @property
    def state(self) -> FactState:
        return FactState(self.reading.text, self.confidence)

    def strengthen(self, repeat: Statement) -> None:
        doubt = (1 - self.confidence) * (1 - repeat.confidence)
        self.confidence = max(self.confidence, round(min(1 - doubt, MOST_CONFIDENCE), 4))
        self.last_said_at = repeat.started_at
        self.keys.append(repeat.key)


@dataclass(frozen=True, slots=True)
class FactStep:
    """The effect of one statement."""

    op: FactOp
    fact: ActiveFact
    before: FactState | None
    after: FactState


def project(statements: Sequence[Statement]) -> tuple[list[ActiveFact], list[FactStep]]:
    """
    The facts, and the effect of each statement.

    Repeats gain confidence, refinements the fuller text too; corrections replace all facts that they exclude.
    """
    facts: list[ActiveFact] = []
    steps: list[FactStep] = []
    for statement, person in zip(statements, _people(statements), strict=True):
        related = _related(statement, [fact for fact in facts if fact.person == person])
        kind, old = related[0] if related else (None, None)
        before = old.state if old else None
        if old and kind in ("repeat", "refinement"):
            old.strengthen(statement)
            old.reading = statement.reading if kind == "refinement" else old.reading
            steps.append(FactStep("strengthen", old, before, old.state))
            continue
        new = ActiveFact(
            statement, statement.reading, statement.confidence, statement.started_at, person, keys=[statement.key]
        )
        for _, excluded in related:
            excluded.superseded_by = new
        if old and kind == "contradiction":
            new.instead_of = old.reading.text
        facts.append(new)
        steps.append(FactStep("supersede" if old else "add", new, before, new.state))
    return facts, steps


def _people(statements: Sequence[Statement]) -> Iterator[str]:
    """
    The person each statement belongs to: the last one named, under the first spelling of that name.

    Statements before the first name belong to the first person named.
    """
    known: list[str] = []
    person = next((statement.person for statement in statements if statement.person), "")
    for statement in statements:
        if given := statement.person:
            person = next((name for name in known if same_person(name, given)), given)
        if person not in known:
            known.append(person)
        yield person


def _related(statement: Statement, facts: Sequence[ActiveFact]) -> list[tuple[Relation, ActiveFact]]:
    """The facts that a statement repeats, refines or replaces: repeats first, then refinements, then the newest."""
    active = (fact for fact in reversed(facts) if fact.superseded_by is None)
    compared = ((relation(fact.reading, statement.reading), fact) for fact in active)
    related = [(kind, fact) for kind, fact in compared if kind]
    return sorted(related, key=lambda found: (found[0] != "repeat", found[0] != "refinement"))
