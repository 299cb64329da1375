"""Registers `etude/Allocation-v0` with Gymnasium when imported; torch is imported with the first environment.

Gymnasium imports the module before a colon, so one line is enough:
`gymnasium.make("etude.problems.allocation.registration:etude/Allocation-v0", agents=8)`.
"""

from __future__ import annotations

import gymnasium

ENVIRONMENT_ID = "etude/Allocation-v0"


def register() -> None:
    """Safe to call twice."""
    # No max_episode_steps: the world truncates at its own horizon, which a caller may change.
    if ENVIRONMENT_ID not in gymnasium.registry:
        gymnasium.register(
            id=ENVIRONMENT_ID,
            entry_point="etude.problems.allocation.gym:AllocationEnv",
            vector_entry_point="etude.problems.allocation.gym:AllocationVectorEnv",
        )


register()
