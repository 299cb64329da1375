"""Generated prompts of many kinds, with defects that a particular mutation mends: a world whose optimum is known."""
