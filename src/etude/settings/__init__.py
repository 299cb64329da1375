"""What can be set, read from every source."""
