"""Settings to objects, and a run folder back to a policy: the only place where objects are wired, by problem."""
