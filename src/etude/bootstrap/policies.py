"""Loads policies of any problem by its spec; torch is imported by those that need it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from etude.learning.run_folder import find_policy
from etude.problems.spec import resolve
from etude.problems.table import names, spec_of


def load_policy(path: str | Path, **options: Any) -> Any:
    """The policy of a run or an artefact, as its problem loads it; the one that serves a slot, such as `choice:model`,
    or has a registered version; or the language model `llm:URL#MODEL`."""
    if str(path).startswith("llm:"):
        from etude.orchestrator.language_model import language_model

        return language_model(str(path), **options)
    name, path = str(path), Path(path)
    if not path.exists() and name.partition(":")[0] in names():
        from etude.bootstrap.release import served_policy

        return served_policy(name)
    if not path.exists() and re.fullmatch(r"[0-9a-f]{16}", name):
        from etude.bootstrap.release import load_version

        return load_version(name, **options)
    artefact = find_policy(path)
    return resolve(spec_of(path, artefact.manifest.problem).load)(artefact, **options)
