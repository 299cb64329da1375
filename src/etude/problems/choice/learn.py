"""How choices learn: from replay files, from logged decisions, and from where an earlier policy ended."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from etude.contracts.errors import ConfigError, DatasetError
from etude.contracts.option import Option
from etude.files.durable import write_json
from etude.learning.one_fit import OneFit
from etude.learning.requests import LearnRequest
from etude.learning.run import About, Evaluated, PolicyParts, Run, Update
from etude.learning.run_folder import RunFolder, find_policy
from etude.problems.choice.evaluate import find
from etude.problems.choice.fit import Trained, continue_choice, fit_choice
from etude.problems.choice.from_logs import from_tasks
from etude.problems.choice.model import ChoiceModel
from etude.problems.choice.report import FINDINGS
from etude.problems.choice.rows import LoggedRows, ReplayFile, find_options, read_options_file
from etude.problems.choice.settings import ChoiceSettings
from etude.problems.choice.state import read_model, write_model
from etude.text.encoders import make_encoder

CHOICE = "choice:"


def from_replay(request: LearnRequest) -> Run:
    """A run that learns from a replay file."""
    path: Path = request.inputs["replay"]
    options = find_options(path, request.inputs.get("options"))
    digest = sha256()
    try:
        with path.open("rb") as file:
            while piece := file.read(2**20):
                digest.update(piece)
    except OSError as error:
        raise ConfigError(f"replay {str(path)!r} cannot be read ({error.strerror}): expected a JSONL file") from error
    return _run(request, ReplayFile(path, options), options, data=digest.hexdigest(), title="choice from outcomes")


def from_logs(request: LearnRequest) -> Run:
    """A run that learns from logged decisions with their propensities: outcomes, or by an algorithm a policy."""
    dataset, name = request.dataset, request.inputs.get("name")
    assert dataset is not None
    problem = dataset.problem if name is None else f"{CHOICE}{str(name).removeprefix(CHOICE)}"
    if not problem.startswith(CHOICE):
        raise DatasetError(f"the dataset is about {problem!r}: name the choice to learn, or give a dataset of one")
    if request.inputs.get("algorithm"):
        return from_tasks(request)
    options = request.inputs.get("options")
    described = read_options_file(options) if options is not None else None
    score = request.settings.own(ChoiceSettings).choice.score
    rows = LoggedRows(lambda: dataset.examples("train"), problem, score=score)
    title = f"{problem} from logs"
    return _run(request, rows, described, data=dataset.content, title=title, extra={"dataset": dict(dataset.facts)})


def _run(
    request: LearnRequest,
    rows: ReplayFile | LoggedRows,
    options: tuple[Option, ...] | None,
    *,
    data: str,
    title: str,
    extra: Mapping[str, Any] | None = None,
) -> Run:
    config, parent = request.settings.own(ChoiceSettings).choice, None
    if request.checkpoint is not None:
        parent = find_policy(request.checkpoint)
    about = About(
        problem=request.problem,
        method=request.method,
        title=title,
        unit="fits",
        budget="1",
        score="score",
        settings=request.settings.sections("choice", "run"),
        policy_sections=("choice",),
        encoder=config.encoder if parent is None else parent.manifest.encoder,
        data=(data,),
        parent=parent.version if parent is not None else None,
        extra=extra or {},
    )
    earlier = replace(read_model(parent), policy=None) if parent is not None else None  # it belongs to old utilities
    next(iter(rows()), None)  # rows none of which can be used leave no folder behind
    return Run(ChoiceLearner(about, rows, options, request.settings, earlier), RunFolder(request.out))


class ChoiceLearner(OneFit):
    """Fits a choice in closed form: one update."""

    threads = 2

    def __init__(
        self,
        about: About,
        rows: ReplayFile | LoggedRows,
        options: tuple[Option, ...] | None,
        settings: Any,
        earlier: ChoiceModel | None,
    ) -> None:
        self.about, self.rows, self.options, self.earlier = about, rows, options, earlier
        self.config, self.seed = settings.own(ChoiceSettings).choice, settings.run.seed
        super().__init__()
        self._trained: Trained | None = None

    def advance(self, report: Callable[[float], None]) -> dict[str, float]:
        if self.earlier is not None:
            self._trained = continue_choice(self.earlier, self.rows, self.config, options=self.options)
        else:
            encoder = make_encoder(self.config.encoder)
            self._trained = fit_choice(
                self.rows, encoder, self.config, options=self.options, report=report, seed=self.seed
            )
        self.step = 1
        found = {"rows": float(self._trained.rows), "unused": float(sum(self.rows.unused.reasons.values()))}
        return found | ({"score": self._trained.value} if math.isfinite(self._trained.value) else {})

    @property
    def trained(self) -> Trained:
        if self._trained is None:  # a resumed run that has its fit behind it
            self.advance(lambda share: None)
        assert self._trained is not None
        return self._trained

    def evaluate(self, *, force: bool = False) -> Evaluated | None:
        score = self.trained.value
        return Evaluated(score=score if score == score else None, keep=True)

    def policy(self) -> PolicyParts:
        return write_model(self.trained.model)

    def summary(self) -> dict[str, Any]:
        found, model = self.trained, self.trained.model
        return {
            "rows": found.rows,
            "unused": self.rows.unused.reasons,
            "options": list(model.table.names),
            "best_single": model.best_single,
            "cross_validated_score": _known(found.value),
            "best_single_score": _known(found.plain_value),
            "standard_errors_above_best_single": _known(found.z),
            "unit_usd": model.unit_usd,
            "remarks": list(found.remarks),
        }

    def introduction(self) -> str:
        return "learning what to expect of each option from past outcomes"

    def line(self, update: Update) -> str:
        found, model = self.trained, self.trained.model
        rows = f"{found.rows:,} row{'' if found.rows == 1 else 's'}"
        lines = [f"{rows}, {len(model.table.options)} options; alone, {model.best_single} would be best"]
        if found.value == found.value:
            lines.append(
                f"cross-validated, its choices score {found.value:.4f}, the best single option {found.plain_value:.4f}"
            )
        return "\n".join([*lines, *found.remarks, *self.rows.unused.sentences()])


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def keep_findings(run: Run) -> None:
    """For the page of a run: its choices for the rows it learned from, by folds that did not see them."""
    file = run.folder.path / FINDINGS
    assert isinstance(run.learner, ChoiceLearner)
    if not file.exists() and run.learner.trained.held_out is not None:
        write_json(file, asdict(find(run.learner.trained.model, *run.learner.trained.held_out)))
