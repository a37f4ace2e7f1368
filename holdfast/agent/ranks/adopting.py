"""Imported by the machine's fork server, and by nothing else: it adopts what its forks leave behind.

A process whose parent has died is given to the nearest ancestor that is a *subreaper*, and to init where there is
none. With the fork server as the subreaper everything that a rank started stays below it in the tree of processes:
other sessions, daemons that forked twice, and those that gave up their environment. So it can be found and checked to
be gone (:mod:`holdfast.agent.ranks.remains`).
"""

import ctypes
import warnings

_PR_SET_CHILD_SUBREAPER = 36

ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
# It reaps them with its own, and would warn each time.
warnings.filterwarnings("ignore", message="forkserver: waitpid returned unexpected pid")
