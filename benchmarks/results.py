"""Where benchmarks leave their numbers: benchmarks/results/<name>.json, with the machine they were taken on."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import ttest_ind

from etude.evidence.intervals import interval

FOLDER = Path(__file__).parent / "results"


def save(name: str, values: dict[str, Any]) -> None:
    FOLDER.mkdir(exist_ok=True)
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    machine = {"cpus": os.cpu_count(), "cpu": _cpu(), "gpu": gpu, "torch": torch.__version__}
    (FOLDER / f"{name}.json").write_text(json.dumps({"machine": machine, **values}, indent=1) + "\n")


def summary(values: Sequence[float]) -> dict[str, Any] | None:
    """The values with their mean, its 95 % interval and their range; None without values."""
    if not values:
        return None
    low, high = interval(np.array(values))
    mean = float(np.mean(values))
    return {"values": list(values), "mean": mean, "low": low, "high": high, "min": min(values), "max": max(values)}


def ratio(above: Sequence[float], below: Sequence[float]) -> dict[str, float]:
    """The ratio of geometric means, with Welch's 95 % interval on the logarithms."""
    a, b = np.log(above), np.log(below)
    found = {"ratio": float(np.exp(a.mean() - b.mean()))}
    if min(len(a), len(b)) < 2:
        return found | {"low": found["ratio"], "high": found["ratio"]}
    low, high = np.exp(ttest_ind(a, b, equal_var=False).confidence_interval())
    return found | {"low": float(low), "high": float(high)}


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
