"""A LangGraph graph whose first node asks Etude which worker answers, and whose last one reports what happened."""

from __future__ import annotations

from typing import Any, TypedDict

from langgraph.graph import END, START, StateGraph

import etude

WORKERS = [
    {"name": "faq", "description": "looks the answer up: free, knows opening hours and prices", "cost_usd": 0.0},
    {"name": "expert", "description": "a slow model for complaints and contracts", "cost_usd": 0.02},
]
KNOWN = {"When do you open?": "At nine.", "What does it cost?": "Ten euros."}


class Question(TypedDict, total=False):
    text: str
    worker: Any
    """The chosen option, which also carries the task that its outcome is reported to."""
    answer: str


def choose(state: Question) -> Question:
    return {"worker": etude.choose("worker", state["text"], options=WORKERS, agent="graph")}


def faq(state: Question) -> Question:
    return {"answer": KNOWN.get(state["text"], "")}


def expert(state: Question) -> Question:
    return {"answer": f"About “{state['text']}” we will write to you."}


def report(state: Question) -> Question:
    state["worker"].task.outcome(success=bool(state["answer"]), cost_usd=state["worker"]["cost_usd"])
    return {}


def build() -> Any:
    graph = StateGraph(Question)
    for node in (choose, faq, expert, report):
        graph.add_node(node.__name__, node)
    graph.add_edge(START, "choose")
    graph.add_conditional_edges("choose", lambda state: state["worker"]["name"], ["faq", "expert"])
    graph.add_edge("faq", "report")
    graph.add_edge("expert", "report")
    graph.add_edge("report", END)
    return graph.compile()


if __name__ == "__main__":
    answering = build()
    for text in [*KNOWN, "My contract is wrong!"]:
        done = answering.invoke({"text": text})
        print(f"{done['worker']['name']}: {done['answer'] or 'no answer'}")
