"""
Entities and their facts, as clients of the Remem API see them.

A caller is an entity with the facts of the memory log. In documents of other programs a sentence whose subject is a
name is a fact about it. Both are read on request, so that nothing has to be kept in step with the documents.
"""

import re
import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import orjson

from gateway.errors import DocumentNotFound
from gateway.memory.facts import SOURCE as CALLER_FACT
from gateway.memory.facts import FactStore
from gateway.memory.stores.database import Connection
from gateway.memory.stores.documents import Document, find_documents
from gateway.memory.summary_parser import read_call
from gateway.memory.visible_documents import Namespaces, VisibleDocuments, namespace_of
from gateway.text.languages import cue, word_list

MOST_DOCUMENTS: Final = 1000
"""Documents of other programs that are read for names, the newest ones."""

_OWN_SOURCES: Final = ("caller-fact", "pinned-topic", "voice-call", "note")
_IDS: Final = uuid.UUID("6f6b1c3e-58f4-4c39-9f0e-6d2f0a0f6a11")
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s+|\n+")
_MARKUP: Final = re.compile(r"^\s*(?:[-*•]|\d+[.)])\s+|\*\*|`")
_SUBJECT: Final = re.compile(
    r"(?P<name>[^\W\d_a-zà-ÿ][\w'’&-]*(?: (?:[^\W\d_a-zà-ÿ][\w'’&-]*|von|van|de|der|la)){0,3}?) [a-zà-ÿ]"
)
_TYPES: Final = ("preference", "decision", "episode")
_CALLER_TYPES: Final = {"preference": "preference", "commitment": "decision"}  # all others are facts
_READ_CONFIDENCE: Final = 0.6  # of a sentence in a document


@dataclass(frozen=True, slots=True)
class Entity:
    """A person or another subject, with the number of its current facts. A caller has an agent and a number."""

    id: str
    name: str
    type: str
    fact_count: int
    mention_count: int
    agent: str = ""
    caller: str = ""


@dataclass(frozen=True, slots=True)
class EntityFact:
    """`type` is fact, preference, episode or decision; `instead_of` the text of the fact that it replaced."""

    type: str
    content: str
    confidence: float
    entities: tuple[str, ...]
    instead_of: str = ""


def sentence_facts(text: str) -> list[EntityFact]:
    """The sentences of a text whose subject is a name."""
    facts = []
    for line in _SENTENCE_END.split(text):
        sentence = _MARKUP.sub("", line).strip()
        subject = _SUBJECT.match(sentence)
        if subject is None or subject["name"].split()[0].casefold() in word_list("entities", "no_names"):
            continue
        kind = next((name for name in _TYPES if cue("entities", name).search(sentence)), "fact")
        name = subject["name"].removesuffix("'s").removesuffix("’s")
        facts.append(EntityFact(kind, sentence, _READ_CONFIDENCE, (name,)))
    return facts


class EntityReader:
    """Reads entities and facts from a store that was opened with the schema of the memory log. Raises StoreError."""

    def __init__(self, documents: VisibleDocuments) -> None:
        self._store = documents.store
        self._documents = documents
        self._facts = FactStore(documents.store)

    async def entities(
        self, namespaces: Namespaces, *, kind: str = "", limit: int, offset: int = 0
    ) -> tuple[list[Entity], int]:
        """A page of the entities, those with most facts first, and how many there are."""
        found = [*(await self._callers(namespaces)), *(entity for entity, _ in await self._read(namespaces))]
        found = sorted(filter(lambda entity: kind in ("", entity.type), found), key=lambda entity: -entity.fact_count)
        return [await self._named(entity) for entity in found[offset : offset + limit]], len(found)

    async def entity(
        self, entity_id: str, namespaces: Namespaces, *, latest_only: bool = True
    ) -> tuple[Entity, list[EntityFact]]:
        """An entity and its facts. Raises DocumentNotFound."""
        for entity in await self._callers(namespaces):
            if entity.id == entity_id:
                entity = await self._named(entity)
                return entity, await self._caller_facts(entity, latest_only=latest_only)
        for entity, facts in await self._read(namespaces):
            if entity.id == entity_id:
                return entity, facts
        raise DocumentNotFound(entity_id)

    async def facts(
        self, text: str, namespaces: Namespaces, *, entity: str = "", latest_only: bool = True, limit: int
    ) -> list[EntityFact]:
        """The facts nearest to `text`; with `entity`, of the entities whose name contains it."""
        facts: list[EntityFact] = []
        if entity:
            page, _ = await self.entities(namespaces, limit=MOST_DOCUMENTS)
            for one in page:
                if entity.casefold() in one.name.casefold():
                    facts += (await self.entity(one.id, namespaces, latest_only=latest_only))[1]
            words = set(text.casefold().split())
            facts.sort(key=lambda fact: -len(words & set(fact.content.casefold().split())))
            return facts[:limit]
        if namespaces.include_default:
            for hit in await self._documents.query(text, limit=limit, tags=(CALLER_FACT,)):
                if caller := _caller_of(hit.document.tags):
                    name = (await self._named(caller)).name
                    facts.append(_of_caller(hit.document.metadata, hit.document.content, name))
        hits = await self._documents.query(
            text,
            limit=limit,
            tags=namespaces.tags,
            accepts=lambda document: document.source not in _OWN_SOURCES and namespaces.admit(document),
        )
        return [*facts, *(fact for hit in hits for fact in sentence_facts(hit.document.content))][:limit]

    # Callers

    async def _callers(self, namespaces: Namespaces) -> list[Entity]:
        """Everyone with facts, without a name."""

        def work(connection: Connection) -> list[tuple[str, int]]:
            return connection.execute(
                """SELECT tags, count(*) FROM documents
                    WHERE source = 'caller-fact' AND metadata NOT LIKE '%"superseded_by"%' GROUP BY tags"""
            ).fetchall()

        rows = await self._store.ask(work) if namespaces.include_default else []
        callers = ((_caller_of(orjson.loads(tags)), count) for tags, count in rows)
        return [replace(caller, fact_count=count) for caller, count in callers if caller is not None]

    async def _named(self, entity: Entity) -> Entity:
        """A caller gets the name from the last calls, if one was given, and the number of calls as mentions."""
        if not entity.caller:
            return entity
        tags = ("voice-session", f"agent:{entity.agent}", f"caller:{entity.caller}")
        calls = await self._store.newest(tags=tags, limit=MOST_DOCUMENTS)
        names = (call.caller_name for document in calls[:10] if (call := read_call(document)))
        return replace(entity, name=next(filter(None, names), entity.name), mention_count=len(calls))

    async def _caller_facts(self, entity: Entity, *, latest_only: bool) -> list[EntityFact]:
        agent, caller, oldest = entity.agent, entity.caller, self._documents.oldest_fact(entity.agent)
        known = await self._facts.known(agent, caller, MOST_DOCUMENTS, not_before=oldest, superseded=not latest_only)
        return [_of_caller(asdict(fact), fact.text, fact.person or entity.name) for fact in known]

    # Documents of other programs

    async def _read(self, namespaces: Namespaces) -> list[tuple[Entity, list[EntityFact]]]:
        def work(connection: Connection) -> list[Document]:
            rows = connection.execute(
                f"""SELECT key FROM documents WHERE source NOT IN ({", ".join("?" * len(_OWN_SOURCES))})
                    ORDER BY created_at DESC, key DESC LIMIT ?""",
                (*_OWN_SOURCES, MOST_DOCUMENTS),
            )
            return [document for _, document in find_documents(connection, [key for (key,) in rows])]

        facts: dict[tuple[str, str], list[EntityFact]] = defaultdict(list)
        texts: dict[str, str] = defaultdict(str)
        for document in await self._store.ask(work):
            if namespaces.admit(document):
                space = namespace_of(document)
                texts[space] += f"{document.content}\n"
                for fact in sentence_facts(document.content):
                    facts[space, fact.entities[0].casefold()].append(fact)
        found = []
        for (space, key), own in facts.items():
            name, said = own[0].entities[0], " ".join(fact.content for fact in own)
            is_person = cue("entities", "person").search(said)
            kind = "org" if cue("entities", "organisation").search(name) else "person" if is_person else "other"
            found.append((Entity(_id(space, key), name, kind, len(own), texts[space].count(name)), own))
        return found


def _id(*parts: str) -> str:
    return str(uuid.uuid5(_IDS, "\n".join(parts)))


def _caller_of(tags: Sequence[str]) -> Entity | None:
    """The caller that a fact with these tags is about."""
    values = {kind: value for kind, _, value in (tag.partition(":") for tag in tags)}
    agent, caller = values.get("agent", ""), values.get("caller", "")
    return Entity(_id(agent, caller), caller, "person", 0, 0, agent, caller) if caller else None


def _of_caller(fields: Mapping[str, Any], text: str, name: str) -> EntityFact:
    kind = _CALLER_TYPES.get(fields.get("type", ""), "fact")
    return EntityFact(kind, text, fields.get("confidence", 0.5), (name,), fields.get("instead_of", ""))
