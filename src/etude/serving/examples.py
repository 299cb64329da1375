"""An example of each body, by the name of its type: what the description of the API shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

EXAMPLES: Mapping[str, Any] = {}
