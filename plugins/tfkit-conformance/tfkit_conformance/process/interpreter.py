"""How tfkit starts a Python child process: no file of the working directory can run in it by its name alone.

`python -c` and `python -m` put the working directory in front of the module path, so that a `json.py` there would run in place
of the standard library's. The child is started isolated (`-I`): it takes neither that directory nor `PYTHONPATH`. Its module
path is the one of this process, passed before anything is imported, without its relative entries. The working directory
is in it only where this process has it as an absolute entry: then the user chose it (`PYTHONPATH`, `python -m tfkit`, an
editable install), and the same modules are found in both processes.
"""

from __future__ import annotations

import os
import site
import sys

ENVIRONMENT = {"PYTHONSAFEPATH": "1", "HYPOTHESIS_STORAGE_DIRECTORY": os.devnull}
"""What the environment of a child holds, so that a Python process which it starts leaves the working directory out as well, and
that Hypothesis neither reads nor writes `.hypothesis` there: in the place of a file it can make no directory."""


def python_command(code: str) -> list[str]:
    """The command line of a child that runs `code` with the module path of this process."""
    path = [entry for entry in sys.path if os.path.isabs(entry)]
    # `-I` leaves the user's own site-packages out, and their .pth files are how editable installs are found.
    user = "site.addsitedir(site.getusersitepackages()); " if site.ENABLE_USER_SITE else ""
    return [sys.executable, "-I", "-c", f"import sys, site; {user}sys.path[:] = {path!r}; {code}"]
