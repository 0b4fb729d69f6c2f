"""Name what every Python of a sandbox finds loaded.

Importing these takes seconds in a sandbox; the guest does it once, before
anything runs, and forks interpreters from there. One module a line. Each costs
memory in every sandbox, so the list is short: what most programs on data begin
with.
"""

import importlib.util
import os

MODULES = ["numpy", "pandas", "matplotlib.pyplot"]
LIST = "/opt/workbench/preload"

for name in MODULES:
    if importlib.util.find_spec(name.partition(".")[0]) is None:
        raise SystemExit("%s is not installed" % name)
os.makedirs(os.path.dirname(LIST), exist_ok=True)
with open(LIST, "w", encoding="utf-8") as f:
    f.write("".join(name + "\n" for name in MODULES))
