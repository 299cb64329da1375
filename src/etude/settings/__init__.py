"""Settings, read from every source."""
