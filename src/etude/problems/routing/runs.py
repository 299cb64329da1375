"""Who answers which query: recorded outcomes to a router, and an artefact back to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from etude.contracts.errors import CheckpointError
from etude.learning.artefact import Artefact
from etude.learning.checkpoint import under
from etude.learning.requests import LearnRequest
from etude.learning.run import About, Evaluated, PolicyParts, Run, StopReason, Update
from etude.learning.run_folder import RunFolder, find_policy
from etude.problems.catalogue import read_catalogue
from etude.problems.routing.replay import Replay, read_outcomes
from etude.problems.routing.router import Router, fit_router
from etude.text.encoders import make_encoder

CATALOGUE = "catalogue.json"


def route(request: LearnRequest) -> Run:
    outcomes: Path = request.inputs["replay"]
    catalogues: list[Path] = request.inputs.get("catalogue") or []
    source = catalogues[0] if catalogues else outcomes.with_name(CATALOGUE)
    replay = read_outcomes(outcomes, read_catalogue(source))
    settings = request.settings.sections("planner", "run")
    if request.checkpoint is not None and "encoder" not in request.inputs:  # reads text as the planner does
        settings["planner"] = find_policy(request.checkpoint).manifest.settings["planner"]
    encoder = str(settings["planner"]["encoder"]).removesuffix("-frozen")
    about = About(
        problem=request.problem,
        method=request.method,
        title="router",
        unit="fits",
        budget="1",
        score="score",
        settings=settings,
        policy_sections=("planner",),
        encoder=encoder,
        data=(sha256(outcomes.read_bytes() + source.read_bytes()).hexdigest(),),
    )
    return Run(RouterLearner(about, replay, encoder, source.read_bytes()), RunFolder(request.out))


class RouterLearner:
    """Fits a router in closed form: one update."""

    checkpoint_every, threads, device = 1, 1, torch.device("cpu")

    def __init__(self, about: About, replay: Replay, encoder: str, catalogue: bytes) -> None:
        self.about, self.replay, self.encoder, self.catalogue = about, replay, encoder, catalogue
        self.step, self.scores = 0, list[float]()
        self.router: Router | None = None

    @property
    def used(self) -> float:
        return float(self.step)

    def begin(self) -> Evaluated | None:
        return None

    def advance(self, report: Callable[[float], None]) -> dict[str, float]:
        self.router, _ = fit_router(self.replay, make_encoder(self.encoder))
        self.step = 1
        return {"queries": float(len(self.replay))}

    def evaluate(self, *, force: bool = False) -> Evaluated | None:
        return Evaluated(score=float(self.fitted.learned.mean.max()), keep=True)

    @property
    def fitted(self) -> Router:
        if self.router is None:  # a resumed run that has its fit behind it
            self.advance(lambda share: None)
        assert self.router is not None
        return self.router

    def reason_to_stop(self) -> StopReason | None:
        return StopReason.BUDGET if self.step else None

    def policy(self) -> PolicyParts:
        tensors = {f"router.{name}": value for name, value in self.fitted.state_dict().items()}
        return PolicyParts(
            tensors=tensors, files={CATALOGUE: self.catalogue}, details={"router": self.fitted.to_json()}
        )

    def tensors(self) -> dict[str, Tensor]:
        return {}

    def values(self) -> dict[str, Any]:
        return {}

    def restore(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        return None

    def summary(self) -> dict[str, Any]:
        router = self.fitted
        return {"queries": len(self.replay), "best_single": router.best_single, "unit_usd": router.unit_usd}

    def introduction(self) -> str:
        return f"learning who answers what from {len(self.replay):,} queries"

    def line(self, update: Update) -> str:
        return f"fitted; alone, {self.fitted.best_single} would be best"


def load_router(artefact: Artefact) -> Router:
    details = artefact.manifest.details
    if "router" not in details:
        raise CheckpointError(f"{artefact.path} is not a router: give a run that learned from recorded outcomes")
    encoder = make_encoder(str(artefact.manifest.encoder))
    return Router.from_state(under("router.", artefact.tensors()), details["router"], encoder)
