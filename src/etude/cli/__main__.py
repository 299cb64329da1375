"""`python -m etude.cli`."""

from __future__ import annotations

from etude.cli import main

if __name__ == "__main__":
    main()
