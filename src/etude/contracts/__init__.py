"""The words every room shares: no I/O, no torch."""
