"""A server's threads decode types for the first time at once, and it goes on."""

from __future__ import annotations

import subprocess
import sys

DECODE = """
import sys, threading
import msgspec
from etude.bootstrap.serving import build_types

sys.setswitchinterval(1e-5)
inner, types = int, []
for depth in range(300):
    fields = [(f"x{i}", dict[str, list[inner]] | None, None) for i in range(10)]
    inner = msgspec.defstruct(f"Level{depth}", fields, module="etude.levels") if depth % 6 else int
    types += [inner] if depth % 6 else []
if sys.argv[1] == "built":
    build_types()
ready = threading.Barrier(4)

def decode():
    for one in reversed(types):
        ready.wait()
        msgspec.json.decode(b'{"x1": {"a": []}}', type=one)

threads = [threading.Thread(target=decode) for _ in range(4)]
for one in threads:
    one.start()
for one in threads:
    one.join()
print("done")
"""


def test_threads_may_decode_a_type_for_the_first_time_at_once() -> None:
    done = subprocess.run([sys.executable, "-c", DECODE, "built"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
