"""A language model as the planner: the policy `llm:URL#MODEL`, for any OpenAI-compatible chat endpoint.

The model is asked for a plan as JSON over the names of the catalogue. Its answer is repaired where it can be meant in
one way only, checked as every plan is, and asked for once more where it cannot be used. Rules correct failures.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from etude.contracts.decision import Decision, DecisionRequest
from etude.contracts.errors import ConfigError, PlanError
from etude.contracts.services import checked_url
from etude.contracts.work import Fault, Reply, WorkerError
from etude.orchestrator.plan_answer import Repairs, read_plan
from etude.orchestrator.plan_prompt import SYSTEM, ask_again, plan_prompt, response_format
from etude.orchestrator.record import LANGUAGE_MODEL
from etude.orchestrator.virtual_time import real_time
from etude.orchestrator.workers.openai import OpenAIWorker
from etude.problems.catalogue import Catalogue
from etude.problems.workflow.decide import WorkflowDecider, by_rules
from etude.problems.workflow.decisions import PROBLEM, State
from etude.problems.workflow.plan import SLACK, Limits, Node, Plan
from etude.problems.workflow.progress import Live

CONFIGURED = "llm"
"""The policy that is the language model of the workers file."""
CORRECTIONS = "rules"
"""The policy of the decisions after a failure."""
MAX_VERSION_CHARS = 200
NO_CATALOGUE = Catalogue(task_types=())
REMEDIES = {
    Fault.TIMEOUT: "raise llm.stall_s or llm.timeout_s, or take a quicker model",
    Fault.RATE_LIMIT: "carry out fewer workflows at a time, or raise llm.attempts",
    Fault.UNAVAILABLE: "make sure that the service runs, and that URL, model and API key are right",
    Fault.REFUSAL: "take another model for this instruction",
    Fault.WRONG_INPUT: "make sure that the model exists and that its context holds the catalogue",
}
"""What to do about a call that failed, by its fault."""
OTHERWISE = "raise llm.max_tokens, or take another model"


@dataclass(frozen=True, kw_only=True)
class LanguageModel:
    """A language model that plans. It is the policy `llm:URL#MODEL`; `etude.load` and workers files set the rest."""

    url: str
    """URL of an OpenAI-compatible service: …/v1."""
    model: str
    """Name of the model there."""
    api_key_env: str | None = None
    """Variable that holds the API key; it is sent to this URL alone."""
    usd_per_call: float = 0.0
    """Price of an answer in USD, in addition to its tokens."""
    usd_per_mtok_in: float = 0.0
    """Price of a million tokens of prompts in USD."""
    usd_per_mtok_out: float = 0.0
    """Price of a million tokens of answers in USD."""
    max_tokens: int = 4096
    """Maximum length of an answer, in tokens."""
    temperature: float | None = None
    """Sampling temperature; null is the service's own."""
    stream: bool = True
    """Whether answers are streamed."""
    stall_s: float = 60.0
    """Maximum silence of a stream in seconds, its beginning included."""
    attempts: int = 3
    """Requests until one is answered; 408, 409, 429 and 5xx are no answers."""
    timeout_s: float = 180.0
    """Maximum time to make a plan in seconds, a second answer included."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """More fields of each request; null leaves one out."""
    catalogue: Catalogue = NO_CATALOGUE
    """Task types and prices, where workers are given by name alone."""
    env: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)
    """The variables."""

    def decider(self, *, catalogue: Catalogue, limits: Limits | None = None) -> LanguageModelPlanner:
        """A decider for these task types and workers, within these limits."""
        return LanguageModelPlanner(self, catalogue, limits or Limits())

    @property
    def version(self) -> str:
        """The model and the host; no path, query or key."""
        parts = checked_url(self.url, of="a chat service", key_in="by api_key_env", error=ConfigError)
        port = "" if parts.port is None else f":{parts.port}"
        return f"{LANGUAGE_MODEL}{self.model}@{parts.hostname}{port}"

    def worker(self) -> OpenAIWorker:
        """A client of the service."""
        names = ("url", "model", "max_tokens", "temperature", "stream", "stall_s", "attempts", "extra")
        given: dict[str, Any] = {name: getattr(self, name) for name in (*names, *PRICES)}
        return OpenAIWorker(self.version, api_key=self._api_key(), system=SYSTEM, **given)

    def _api_key(self) -> str | None:
        if self.api_key_env is None:
            return None
        key = self.env.get(self.api_key_env)
        if not key:
            is_name = re.fullmatch("[A-Z_][A-Z0-9_]{,63}", self.api_key_env)  # else it may be a key itself
            shown = f"the variable {self.api_key_env!r}" if is_name else "the variable named there (not shown)"
            raise ConfigError(f"llm.api_key_env: {shown} is not set: export it, or remove that")
        return key


PRICES = ("usd_per_call", "usd_per_mtok_in", "usd_per_mtok_out")


def is_language_model(policy: str) -> bool:
    """Whether a policy is named as a language model: `llm:URL#MODEL`, or `llm`, that of the workers file."""
    return policy == CONFIGURED or policy.startswith(LANGUAGE_MODEL)


def configured_model(policy: str, options: Mapping[str, Any]) -> LanguageModel:
    """The language model that a policy names, with the options of a workers file.

    `llm` is the model that the options `url` and `model` name. Where they name a URL, the other options, such as the
    API key's variable, are for models at that URL alone.
    """
    given = dict(options)
    url, model = given.pop("url", None), given.pop("model", None)
    if policy != CONFIGURED:
        named = policy.removeprefix(LANGUAGE_MODEL).partition("#")[0]
        is_theirs = url is None or url.rstrip("/") == named.rstrip("/")
        return language_model(policy, **(given if is_theirs else {}))
    if url is None or model is None:
        raise ConfigError(
            f"the policy {CONFIGURED!r} is the language model of the workers file, which names none: give it "
            f"`llm: {{url: …, model: …}}`, or name the model as {LANGUAGE_MODEL}URL#MODEL"
        )
    return language_model(f"{LANGUAGE_MODEL}{url}#{model}", **given)


def language_model(policy: str, **options: Any) -> LanguageModel:
    """The language model that `llm:URL#MODEL` names; `options` are the other fields of LanguageModel."""
    url, _, model = policy.removeprefix(LANGUAGE_MODEL).partition("#")
    if not url or not model or not model.isprintable():
        raise ConfigError(
            f"the policy {policy.partition('?')[0]!r} names no model: expected {LANGUAGE_MODEL}URL#MODEL, such as "
            f"{LANGUAGE_MODEL}http://localhost:11434/v1#qwen3"
        )
    try:
        found = LanguageModel(url=url, model=model, **options)
    except TypeError as error:
        raise ConfigError(f"{LANGUAGE_MODEL}URL#MODEL takes no such option ({error}): see LanguageModel") from error
    if len(found.version) > MAX_VERSION_CHARS:
        raise ConfigError(f"the model's name has {len(model)} characters: expected at most {MAX_VERSION_CHARS}")
    return found


class LanguageModelPlanner:
    """An `AsyncDecider` of workflows that asks a language model for plans; decisions have no propensity.

    After a failure it decides as the policy `rules` does, without asking the model.
    """

    problem = PROBLEM

    def __init__(self, model: LanguageModel, catalogue: Catalogue, limits: Limits) -> None:
        self.model, self.catalogue, self.limits, self.version = model, catalogue, limits, model.version
        self._worker = model.worker()
        self._format = {"response_format": response_format(catalogue)}
        self._plans, self._corrections = (
            WorkflowDecider(version=version, catalogue=catalogue, limits=limits, choosers=by_rules())
            for version in (self.version, CORRECTIONS)
        )

    async def check(self) -> None:
        await self._worker.check()

    def decide(self, request: DecisionRequest) -> Decision:
        """As `adecide`, with a client of its own in a thread of its own."""

        async def once() -> Decision:
            planner = LanguageModelPlanner(self.model, self.catalogue, self.limits)
            try:
                return await planner.adecide(request)
            finally:
                await planner.close()

        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, once()).result()

    async def adecide(self, request: DecisionRequest) -> Decision:
        """The model's plan, or a correction by rules. PlanError, with the cost of asking, where no plan can be used."""
        instruction, live, state = self._plans.read(request)
        if state.failed is not None:
            return self._corrections.decide(request)
        with real_time():
            return await self._plan(request, instruction, catalogue_now(self.catalogue, live), state)

    async def _plan(self, request: DecisionRequest, instruction: str, now: Catalogue, state: State) -> Decision:
        loop = asyncio.get_running_loop()
        began_s, paid_usd, asked, error = loop.time(), 0.0, 0, PlanError("")
        done = [Node(task_type=self.catalogue.task_types[step.task_type].name) for step in state.steps]
        first = prompt = plan_prompt(instruction, now, self._left(state, len(done)), done)
        while asked < 2:
            asked += 1
            reply = await self._ask(prompt, state.spent_usd + paid_usd, began_s + self.model.timeout_s, paid_usd)
            paid_usd += reply.cost_usd or 0.0
            took_ms = (loop.time() - began_s) * 1000
            spent = msgspec.structs.replace(
                state, spent_usd=state.spent_usd + paid_usd, clock_ms=max(state.clock_ms, request.at_ms) + took_ms
            )
            try:
                plan, repairs = read_plan(reply.output, instruction, now, done)
                _check(plan, len(done), now, self._left(spent, len(done)))
                decision = self._plans.decide(
                    msgspec.structs.replace(request, state=spent),
                    plan=plan,
                    about={"planning": _about(asked, repairs, paid_usd, took_ms)},
                )
                return msgspec.structs.replace(decision, cost_usd=paid_usd)
            except PlanError as wrong:
                error, prompt = wrong, ask_again(first, reply.output, wrong)
        raise PlanError(
            f"{self.version} made no plan that can be used, asked {asked} times: {error}; {OTHERWISE}",
            cost_usd=paid_usd,
        )

    async def _ask(self, prompt: str, spent_usd: float, ends_s: float, paid_usd: float) -> Reply:
        """One answer; without the schema where the service does not take it. PlanError where there is none."""
        limit = self.limits.max_cost_usd
        bound = self._worker.max_usd_for(prompt + json.dumps(self._format)) or 0.0
        if limit is not None and spent_usd + bound > limit * (1 + SLACK):
            raise PlanError(
                f"to ask {self.version} may cost {bound:.4g} USD, and {max(0.0, limit - spent_usd):.4g} of {limit:g} "
                "are left: raise limits.max_cost_usd, or lower llm.max_tokens",
                cost_usd=paid_usd,
            )
        try:
            async with asyncio.timeout_at(ends_s):
                try:
                    return await self._worker.ask(prompt, extra=self._format)
                except WorkerError as error:
                    if error.fault != Fault.WRONG_INPUT or not self._format:
                        raise
                reply = await self._worker.ask(prompt)
                self._format = {}  # the next request is spared the refusal
                return reply
        except TimeoutError as error:
            raise PlanError(
                f"{self.version} made no plan within {self.model.timeout_s:g} s: {REMEDIES[Fault.TIMEOUT]}",
                cost_usd=paid_usd,
            ) from error
        except WorkerError as error:
            raise PlanError(
                f"{self.version} made no plan: {error}; {REMEDIES.get(error.fault, OTHERWISE)}",
                cost_usd=paid_usd + (error.cost_usd or 0.0),
            ) from error

    def _left(self, state: State, done: int) -> Limits:
        """The limits of what is still to be planned."""
        cost, time = self.limits.max_cost_usd, self.limits.max_time_ms
        return replace(
            self.limits,
            max_nodes=self.limits.max_nodes - done,
            max_cost_usd=None if cost is None else cost - state.spent_usd,
            max_time_ms=None if time is None else time - state.clock_ms,
        )

    async def close(self) -> None:
        await self._worker.close()


def catalogue_now(catalogue: Catalogue, live: Sequence[Live]) -> Catalogue:
    """The catalogue with the workers' live numbers."""
    workers = tuple(
        msgspec.structs.replace(
            worker,
            usd_per_call=now.usd,
            usd_per_mtok_in=0.0,
            usd_per_mtok_out=0.0,
            latency_ms=now.latency_ms,
            success_rate=now.success,
            available=now.available,
            quota=None if now.calls is None else max(0, int(now.calls)),
        )
        for worker, now in zip(catalogue.workers, live, strict=True)
    )
    return Catalogue(task_types=catalogue.task_types, workers=workers)


def _check(plan: Plan, done: int, now: Catalogue, left: Limits) -> None:
    """PlanError unless what is planned after the nodes that are done fits the catalogue and what is left."""
    nodes = tuple(
        msgspec.structs.replace(node, dependencies=tuple(j - done for j in node.dependencies if j >= done))
        for node in plan.nodes[done:]
    )
    if nodes:
        Plan(instruction=plan.instruction, nodes=nodes).check(now, left)


def _about(asked: int, repairs: Repairs, cost_usd: float, latency_ms: float) -> dict[str, Any]:
    """What is logged about the making of a plan."""
    kinds = {kind: count for kind, count in sorted(repairs.items()) if count}
    return {"asked": asked, "repairs": kinds, "cost_usd": cost_usd, "latency_ms": round(latency_ms, 3)}
