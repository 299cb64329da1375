"""Makes `etude/Allocation-v0` known to Gymnasium when imported; torch comes with the first environment made.

Gymnasium imports the module before a colon, so one line is enough:
`gymnasium.make("etude.problems.allocation.registration:etude/Allocation-v0", agents=8)`.
"""

from __future__ import annotations

import gymnasium

ENVIRONMENT_ID = "etude/Allocation-v0"


def register() -> None:
    """Safe to call twice."""
    # No max_episode_steps: the world truncates at its own horizon, also where a caller sets another.
    if ENVIRONMENT_ID not in gymnasium.registry:
        gymnasium.register(
            id=ENVIRONMENT_ID,
            entry_point="etude.problems.allocation.gym:AllocationEnv",
            vector_entry_point="etude.problems.allocation.gym:AllocationVectorEnv",
        )


register()
