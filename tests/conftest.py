"""One thread for everything, the processes that tests start included, and files in memory where there is room."""

import os
import shutil
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # small tensors run slower on several

MEMORY = Path("/dev/shm")
ROOM_BYTES = 4 << 30
"""Every durable write waits for the disk, which takes a third of the time; no test depends on a disk."""
if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM_BYTES:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
