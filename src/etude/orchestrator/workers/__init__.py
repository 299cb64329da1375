"""What carries subtasks out, one kind a file, behind the port `Worker`."""
