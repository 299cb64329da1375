"""Learning from AI feedback: sequences of mutations of a user's prompts, judged by a language model, then DPO.

Sequences are sampled at random among what is legal, with their propensities. Each mutated prompt is compared with the
prompt as it is. Of two sequences for the same prompt the one that the judge is surer of is preferred.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import torch

from etude.contracts.decision import LoggedDecision
from etude.contracts.trajectory import Trajectory
from etude.learning.artefact import load_weights
from etude.learning.compute import resolve_device
from etude.learning.from_logs import FromLogs, Keep
from etude.learning.requests import LearnRequest
from etude.learning.run import About, Run
from etude.learning.run_folder import RunFolder, find_policy
from etude.problems.prompt import SPEC
from etude.problems.prompt.data import read_prompts
from etude.problems.prompt.from_logs import PromptLogs
from etude.problems.prompt.judge import Judge
from etude.problems.prompt.learn import parts
from etude.problems.prompt.mutations import Prompt, mutate
from etude.problems.prompt.problem import make_problem
from etude.problems.prompt.reader import ACTIONS, STOP, Rules, State, known_of
from etude.problems.prompt.settings import PromptConfig, PromptSettings

FILE = "judgements.jsonl"
UNIFORM = "uniform"
"""The behaviour policy: every legal action with the same probability."""
HELD_OUT = 0.2
"""Share of the prompts by which a run chooses its best policy."""
EQUAL = 0.5
"""What a prompt gets compared with itself."""
API_KEY = "ETUDE_JUDGE_API_KEY"
"""Variable with the API key of the judge."""
START = datetime(2000, 1, 1, tzinfo=UTC)


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence of mutations of a prompt, and how sure the judge is that it made the prompt better."""

    prompt: int
    mutations: tuple[str, ...]
    propensities: tuple[float, ...]  # of each decision, with that of stop at the end where it was one
    share: float


@dataclass(frozen=True, kw_only=True)
class JudgedExample:
    """A judgement as a logged example."""

    trajectory: Trajectory
    reward: float
    context: str
    rating: float | None = None
    weight: float = 1.0


def learn_from_judge(request: LearnRequest) -> Run:
    settings, own = request.settings, request.settings.own(PromptSettings)
    path: Path = request.inputs["data"]
    prompts, judge = read_prompts(path), Judge(request.inputs["judge"], api_key=os.environ.get(API_KEY))
    problem, device = make_problem(own), resolve_device(settings.run.device)
    algorithm = request.inputs.get("algorithm") or "dpo"
    torch.manual_seed(settings.run.seed)
    network, parent = problem.policy(), None
    features = torch.stack([torch.from_numpy(known_of(prompt)) for prompt in prompts])
    network.reading.fit(features, torch.from_numpy(problem.reader.sentences(prompts)[0][1:]))
    if request.checkpoint is not None:
        parent = find_policy(request.checkpoint)
        load_weights(network, parent)
    file = request.out.with_name(f"{request.out.name}.{FILE}")  # a run that fails clears its folder
    judged = judge_all(prompts, judge, own.prompt, problem.reader.rules, file, seed=settings.run.seed)
    examples = as_examples(prompts, judged, problem.reader.rules)
    numbers = sorted({one.prompt for one in judged})
    last = numbers[len(numbers) - max(1, round(HELD_OUT * len(numbers)))]
    about = About(
        problem=SPEC.name,
        method=request.method,
        title=f"{SPEC.name} {algorithm} from judgements of {judge.model}",
        unit="passes",
        budget="",
        score="estimate",
        settings=settings.sections(*SPEC.sections, "run", "from_logs"),
        policy_sections=SPEC.sections,
        encoder=own.prompt.encoder,
        data=(hashlib.sha256(path.read_bytes()).hexdigest(),),
        parent=parent.version if parent is not None else None,
        extra={"algorithm": algorithm, "judge": judge.model, "judgements": len(judged)},
    )
    learner = FromLogs(
        about,
        PromptLogs(network, problem.reader, parts().details, device),
        settings.from_logs,
        lambda: iter([[one for one, judgement in zip(examples, judged, strict=True) if judgement.prompt < last]]),
        lambda: iter([[one for one, judgement in zip(examples, judged, strict=True) if judgement.prompt >= last]]),
        algorithm=algorithm,
        device=device,
        seed=settings.run.seed,
        threads=settings.run.threads,
        keep=Keep.ALWAYS,
    )
    return Run(learner, RunFolder(request.out), trackers=settings.run.trackers, keep_checkpoints=2)


def judge_all(
    prompts: Sequence[Prompt], judge: Judge, config: PromptConfig, rules: Rules, file: Path, *, seed: int
) -> list[Judgement]:
    """Judgements of random sequences, written to `file` as they come: an interrupted run asks for the others alone."""
    file.parent.mkdir(parents=True, exist_ok=True)
    known = [msgspec.json.decode(line, type=Judgement) for line in _whole_lines(file)]
    found, compared = list[Judgement](), 0
    with file.open("ab") as log:
        for number, prompt in enumerate(prompts):
            for sequence in _sequences(prompt, config, rules, random.Random(f"{seed} {number}")):
                if len(found) < len(known):
                    found.append(known[len(found)])
                    compared += bool(found[-1].mutations)
                    continue
                if compared >= config.max_judgements:
                    return found
                share = judge.compare(_mutated(prompt, sequence), prompt) if sequence.mutations else EQUAL
                compared += bool(sequence.mutations)
                judgement = msgspec.structs.replace(sequence, prompt=number, share=share)
                log.write(msgspec.json.encode(judgement) + b"\n")
                log.flush()
                found.append(judgement)
    return found


def _whole_lines(file: Path) -> list[bytes]:
    """Without a last line that was cut off, which is dropped from the file, too."""
    if not file.exists():
        return []
    data = file.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        file.write_bytes(whole)
    return whole.splitlines()


def _sequences(prompt: Prompt, config: PromptConfig, rules: Rules, rng: random.Random) -> Iterator[Judgement]:
    """Different sequences, sampled; the first is to leave the prompt as it is."""
    free = len(ACTIONS) - len(rules.masked(State(prompt=prompt)))
    yield Judgement(prompt=0, mutations=(), propensities=(1 / free,), share=EQUAL)
    seen = {tuple[str, ...]()}
    for _ in range(3 * config.samples):
        made = _sampled(prompt, rules, rng)
        if made.mutations not in seen and len(seen) <= config.samples:
            seen.add(made.mutations)
            yield made


def _sampled(prompt: Prompt, rules: Rules, rng: random.Random) -> Judgement:
    state, mutations, propensities = State(prompt=prompt), list[str](), list[float]()
    while True:
        masked = rules.masked(state)
        among = [action for action in ACTIONS if action not in masked]
        action = rng.choice(among)
        propensities.append(1 / len(among))
        if action == STOP:
            return Judgement(prompt=0, mutations=tuple(mutations), propensities=tuple(propensities), share=EQUAL)
        mutations.append(action)
        state = State(prompt=mutate(state.prompt, action).prompt, done=state.done | {action})


def _mutated(prompt: Prompt, judgement: Judgement) -> Prompt:
    for mutation in judgement.mutations:
        prompt = mutate(prompt, mutation).prompt
    return prompt


def as_examples(prompts: Sequence[Prompt], judged: Sequence[Judgement], rules: Rules) -> list[JudgedExample]:
    """Judgements as logged trajectories, with what was eligible at each decision."""
    return [_example(prompts[one.prompt], one, rules, number) for number, one in enumerate(judged)]


def _example(prompt: Prompt, judgement: Judgement, rules: Rules, number: int) -> JudgedExample:
    state, decisions = State(prompt=prompt), list[LoggedDecision]()
    for action, propensity in zip((*judgement.mutations, STOP), judgement.propensities, strict=True):
        masked = rules.masked(state)
        context: dict[str, Any] = {"prompt": state.prompt, "done": sorted(state.done)}
        eligible = [one for one in ACTIONS if one not in masked]
        decisions.append(
            LoggedDecision(
                problem=SPEC.name,
                context=context,
                eligible=eligible,
                action=action,
                propensity=propensity,
                policy=UNIFORM,
            )
        )
        if action != STOP:
            state = State(prompt=mutate(state.prompt, action).prompt, done=state.done | {action})
    trajectory = Trajectory(
        id=f"judged-{number}",
        time=START,
        task=f"prompt {judgement.prompt}",
        problem=SPEC.name,
        decisions=tuple(decisions),
    )
    return JudgedExample(trajectory=trajectory, reward=judgement.share, context=str(judgement.prompt))
