"""An agent loop: the model names a tool until it answers, as in Agent Zero. Each task becomes a trajectory.

It runs by itself: the model here is a script. Put yours into `model`, and its version into MODEL.
"""

from __future__ import annotations

import json
import operator
import random
import re
from typing import Any

import etude

MODEL = "scripted-2026.11"  # read it from the server that serves your model: it is recorded with every task
MAX_STEPS = 5
SIGNS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
WAYS = [
    {"name": "head", "description": "mental arithmetic: at once, often wrong for large numbers", "cost_usd": 0.0001},
    {"name": "python", "description": "starts an interpreter: slower, exact", "cost_usd": 0.002},
]


def model(history: list[dict[str, str]]) -> str:
    """The next step as JSON: a tool with its arguments. The tool `response` ends the task."""
    if history[-1]["role"] == "tool":
        return json.dumps({"tool_name": "response", "tool_args": {"text": history[-1]["content"]}})
    found = re.search(r"\d+ ?[-+*] ?\d+", history[-1]["content"])
    if found is None:
        return json.dumps({"tool_name": "response", "tool_args": {"text": "I can only calculate."}})
    return json.dumps({"tool_name": "calculate", "tool_args": {"text": found[0]}})


def calculate(text: str, way: str, rng: random.Random) -> str:
    left, sign, right = re.split(r" ?([-+*]) ?", text)
    exact = SIGNS[sign](int(left), int(right))
    return str(exact if way == "python" or exact < 100 or rng.random() < 0.3 else exact + rng.randint(1, 9))


def run(message: str, rng: random.Random, user: str) -> tuple[str, str]:
    """The answer to a message, and the id of its trajectory."""
    history = [{"role": "user", "content": message}]
    with etude.task(message, agent="loop", model=MODEL, user=user) as task:
        for _ in range(MAX_STEPS):
            step: dict[str, Any] = json.loads(model(history))
            name, text = step["tool_name"], step["tool_args"]["text"]
            if name == "response":
                task.turn(observation=history[-1]["content"], action=step)
                return text, task.id
            way = task.decide("way", {"text": text, "chars": len(text)}, options=WAYS)
            result = calculate(text, way["name"], rng)
            task.turn(observation=history[-1]["content"], action=step, result=result, cost_usd=way["cost_usd"])
            history.append({"role": "tool", "content": result})
        task.outcome(success=False, error=f"no answer after {MAX_STEPS} steps")
    return "I do not know.", task.id


def main(tasks: int = 20) -> None:
    rng, good = random.Random(0), 0
    for number in range(tasks):
        left, sign, right = rng.randint(2, 99), rng.choice("+-*"), rng.randint(2, 99)
        answer, id = run(f"What is {left} {sign} {right}?", rng, user=f"u{number % 3}")
        is_right = answer == str(SIGNS[sign](left, right))
        etude.feedback(id, thumbs="up" if is_right else "down", user=f"u{number % 3}")
        good += is_right
    print(f"{good} of {tasks} answers are right")


if __name__ == "__main__":
    main()
