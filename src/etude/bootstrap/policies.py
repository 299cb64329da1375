"""Loads policies of any problem by its spec; torch is imported by those that need it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from etude.learning.run_folder import find_policy
from etude.problems.spec import resolve
from etude.problems.table import spec_of


def load_policy(path: str | Path, **options: Any) -> Any:
    """The policy of a run or an artefact, as its problem loads it; or the language model `llm:URL#MODEL`."""
    if str(path).startswith("llm:"):
        from etude.orchestrator.language_model import language_model

        return language_model(str(path), **options)
    path = Path(path)
    artefact = find_policy(path)
    return resolve(spec_of(path, artefact.manifest.problem).load)(artefact, **options)
