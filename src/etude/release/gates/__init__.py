"""Gates: what a policy has to pass before it makes a decision for anyone. One module per family; `run.py` runs all.

A gate is a function from a `GateContext` to a `GateResult`: pass, fail, or cannot tell, with the evidence. A policy is
released only if every gate passes; *cannot tell* waits for more evidence and never ships.
"""
