"""The loop: when a slot is trained, the job that trains it, and what is done with its policy."""
