"""The generated workloads by name, each a function of its parameters and a seed.

Lengths of questions, answers and other tails are drawn between 0.5 and 1.5 of the stated tokens; shares of texts follow
Zipf's law
with the stated exponent (web documents are near 1: Breslau et al., INFOCOM 1999).
"""

from __future__ import annotations

import itertools
import random
from bisect import bisect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from simulator.fleet.generated.prompts import Prompt, Segment
from simulator.fleet.generated.sessions import Session


@dataclass(frozen=True, slots=True)
class KnowledgeBase:
    """Questions to a company's documents (S0): rules of the tenant, one document set, then the question."""

    tenants: int = 40
    documents: int = 4
    """Document sets of a tenant."""
    rules_tokens: int = 1_024
    document_tokens: int = 7_168
    question_tokens: int = 200
    answer_tokens: int = 150
    zipf: float = 1.0
    """Of tenants, and of a tenant's document sets."""

    def sessions(self, rng: random.Random) -> Iterator[Session]:
        tenants, documents = Zipf(self.tenants, self.zipf), Zipf(self.documents, self.zipf)
        for number in itertools.count():
            tenant, document = tenants.draw(rng), documents.draw(rng)
            head = (
                Segment(f"rules {tenant}", self.rules_tokens),
                Segment(f"document {document}", self.document_tokens),
            )
            yield [_ask(head, rng, f"q{number}", self.question_tokens, self.answer_tokens, tenant)]


@dataclass(frozen=True, slots=True)
class Users:
    """Chats of many users (S2.6): a common system prompt, what is known of the user, five turns."""

    users: int = 1_000
    turns: int = 5
    system_tokens: int = 512
    memory_tokens: int = 3_072
    question_tokens: int = 100
    answer_tokens: int = 120
    think_s: float = 10.0
    """Mean of an exponential."""

    def sessions(self, rng: random.Random) -> Iterator[Session]:
        for number in itertools.count():
            user = number % self.users
            context: tuple[Segment, ...] = (
                Segment("system", self.system_tokens),
                Segment(f"memory {user}", self.memory_tokens),
            )
            yield _turns(self.turns, context, rng, number, self.question_tokens, self.answer_tokens, self.think_s)


@dataclass(frozen=True, slots=True)
class ToolAgents:
    """Agents with tool loops: the tools' definitions, a task, then call and result in turn.

    Published means of such a trace are 8,596 tokens in and 182 out (`traces/README.md`); these give about the same.
    """

    toolsets: int = 12
    tools_tokens: int = 3_900
    task_tokens: int = 800
    steps: int = 8
    result_tokens: int = 600
    call_tokens: int = 180
    pause_s: float = 1.5
    zipf: float = 1.0

    def sessions(self, rng: random.Random) -> Iterator[Session]:
        toolsets = Zipf(self.toolsets, self.zipf)
        for number in itertools.count():
            context: tuple[Segment, ...] = (
                Segment(f"tools {toolsets.draw(rng)}", self.tools_tokens),
                Segment(f"task {number}", _length(rng, self.task_tokens)),
            )
            steps = rng.randint(2, 2 * self.steps - 2)
            yield _turns(steps, context, rng, number, self.result_tokens, self.call_tokens, self.pause_s)


@dataclass(frozen=True, slots=True)
class ShuffledSnippets:
    """Retrieval whose snippets stand in front of the question by score: only the system is shared."""

    system_tokens: int = 1_024
    corpus: int = 2_000
    snippets: int = 6
    snippet_tokens: int = 700
    question_tokens: int = 60
    answer_tokens: int = 200
    zipf: float = 0.8

    def sessions(self, rng: random.Random) -> Iterator[Session]:
        corpus = Zipf(self.corpus, self.zipf)
        for number in itertools.count():
            found = list({corpus.draw(rng) for _ in range(self.snippets)})
            rng.shuffle(found)
            parts = [Segment(f"snippet {each}", self.snippet_tokens) for each in found]
            head = (Segment("system", self.system_tokens), *parts)
            yield [_ask(head, rng, f"q{number}", self.question_tokens, self.answer_tokens, number)]


@dataclass(frozen=True, slots=True)
class PrefixBreakers:
    """A knowledge base whose template begins with the time: every block behind it is another one (S0.6)."""

    base: KnowledgeBase = KnowledgeBase()
    share: float = 1.0
    """Of prompts that have it."""
    clock_tokens: int = 12

    def sessions(self, rng: random.Random) -> Iterator[Session]:
        for number, session in enumerate(self.base.sessions(rng)):
            if rng.random() >= self.share:
                yield session
                continue
            clock = Segment(f"clock {number}", self.clock_tokens)
            yield [replace(prompt, segments=(clock, *prompt.segments)) for prompt in session]


@dataclass(frozen=True, slots=True)
class Flood:
    """A knowledge base, and one tenant that sends prompts nobody sent before (S11)."""

    base: KnowledgeBase = KnowledgeBase()
    share: float = 0.3
    prompt_tokens: int = 8_192

    def sessions(self, rng: random.Random) -> Iterator[Session]:
        for number, session in enumerate(self.base.sessions(rng)):
            if rng.random() < self.share:
                head = (Segment(f"flood {number}", _length(rng, self.prompt_tokens)),)
                yield [_ask(head, rng, f"f{number}", 1, 16, -1)]
            else:
                yield session


@dataclass(frozen=True, slots=True)
class FlashCrowd:
    """A knowledge base; from the middle on most ask about one document (A14)."""

    base: KnowledgeBase = KnowledgeBase()
    share: float = 0.95
    after: int = 1_500
    """Sessions before the crowd."""

    def sessions(self, rng: random.Random) -> Iterator[Session]:
        head = (Segment("rules crowd", self.base.rules_tokens), Segment("document crowd", self.base.document_tokens))
        for number, session in enumerate(self.base.sessions(rng)):
            if number >= self.after and rng.random() < self.share:
                yield [_ask(head, rng, f"c{number}", self.base.question_tokens, self.base.answer_tokens, 0)]
            else:
                yield session


@dataclass(frozen=True, slots=True)
class ModelRollOut:
    """A knowledge base whose model changes its revision in the middle: no block from before may be used (S3.2)."""

    base: KnowledgeBase = KnowledgeBase()
    after: int = 1_500
    """Sessions before the change."""

    def sessions(self, rng: random.Random) -> Iterator[Session]:
        for number, session in enumerate(self.base.sessions(rng)):
            if number < self.after:
                yield session
            else:
                yield [replace(prompt, segments=(Segment("revision 2", 0), *prompt.segments)) for prompt in session]


class Zipf:
    """Numbers 0 … n − 1, number k with a weight of 1 ÷ (k + 1)^exponent."""

    def __init__(self, count: int, exponent: float) -> None:
        """Raises ValueError for less than one number."""
        if count < 1:
            raise ValueError(f"nothing can be drawn from {count} texts")
        self._sums = list(itertools.accumulate(1 / (k + 1) ** exponent for k in range(count)))

    def draw(self, rng: random.Random) -> int:
        return bisect(self._sums, rng.random() * self._sums[-1])


def _turns(
    count: int, context: tuple[Segment, ...], rng: random.Random, number: int, asked: int, answered: int, pause_s: float
) -> list[Prompt]:
    prompts: list[Prompt] = []
    for turn in range(count):
        question = Segment(f"question {number}.{turn}", _length(rng, asked))
        answer = Segment(f"answer {number}.{turn}", _length(rng, answered))
        pause = rng.expovariate(1 / pause_s) if turn else 0.0
        prompts.append(Prompt((*context, question), answer.tokens, number, answer.name, pause))
        context = (*context, question, answer)
    return prompts


def _ask(head: tuple[Segment, ...], rng: random.Random, name: str, asked: int, answered: int, affinity: int) -> Prompt:
    question = Segment(f"question {name}", _length(rng, asked))
    return Prompt((*head, question), _length(rng, answered), affinity, f"answer {name}")


def _length(rng: random.Random, mean: int) -> int:
    return max(1, round(mean * rng.uniform(0.5, 1.5)))


Kind = KnowledgeBase | Users | ToolAgents | ShuffledSnippets | PrefixBreakers | Flood | FlashCrowd | ModelRollOut

KINDS: dict[str, Callable[[], Kind]] = {
    "kb8k": KnowledgeBase,
    "kb200k": lambda: KnowledgeBase(tenants=24, documents=3, rules_tokens=8_192, document_tokens=192_000),
    "users": Users,
    "toolagent": ToolAgents,
    "rag": ShuffledSnippets,
    "breakers": PrefixBreakers,
    "flood": Flood,
    "flash": FlashCrowd,
    "rollout": ModelRollOut,
}
