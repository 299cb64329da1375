"""One technology per file, each a twin of an in-memory one."""
