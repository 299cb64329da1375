"""One thread for everything, the processes that tests start included: small tensors run slower on several."""

import os

os.environ["OMP_NUM_THREADS"] = "1"
