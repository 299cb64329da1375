"""A choice model as the files of an artefact, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from etude.contracts.errors import CheckpointError
from etude.learning.artefact import Artefact
from etude.learning.checkpoint import TENSORS
from etude.problems.choice.model import ChoiceModel
from etude.text.encoders import make_encoder

if TYPE_CHECKING:
    from etude.learning.run import PolicyParts


def write_model(model: ChoiceModel) -> PolicyParts:
    import torch

    from etude.learning.run import PolicyParts

    tensors = {name: torch.from_numpy(x.copy()) for name, x in model.tensors().items()}
    return PolicyParts(tensors=tensors, details={"choice": model.to_json()})


def read_model(artefact: Artefact) -> ChoiceModel:
    """Without torch, so that deciding needs none."""
    from safetensors.numpy import load as load_tensors

    about = artefact.manifest.details.get("choice")
    if about is None:
        raise CheckpointError(f"{artefact.path} holds no choice: train one with `etude train choice`")
    encoder = make_encoder(str(artefact.manifest.encoder))
    return ChoiceModel.from_state(load_tensors(artefact.file(TENSORS)), about, encoder)
