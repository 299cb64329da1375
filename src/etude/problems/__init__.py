"""What can be decided: each problem is one folder with the same files."""
