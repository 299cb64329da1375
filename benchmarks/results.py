"""Where benchmarks leave their numbers: benchmarks/results/<name>.json, with the machine they were taken on."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

import numpy as np
import torch

from etude.learning.evaluate import interval

FOLDER = Path(__file__).parent / "results"


def save(name: str, values: dict[str, Any]) -> None:
    FOLDER.mkdir(exist_ok=True)
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    machine = {"cpus": os.cpu_count(), "cpu": _cpu(), "gpu": gpu, "torch": torch.__version__}
    (FOLDER / f"{name}.json").write_text(json.dumps({"machine": machine, **values}, indent=1) + "\n")


def sentence(x: np.ndarray, unit: str = "") -> str:
    """Mean with its 95 % interval."""
    low, high = interval(x)
    return f"{x.mean():.1f} {unit} [{low:.1f}, {high:.1f}]"


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
