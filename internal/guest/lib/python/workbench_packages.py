"""Where packages are that code has installed: imports find them, here and in
interpreters that this one starts. They come before the image's own."""

import os
import sys

_ROOT = "/opt/workbench/packages/"


def use(*places):
    """Adds sets to those that there are, the most important first."""
    had = [place for place in os.environ.get("WORKBENCH_PACKAGES", "").split(":") if place]
    places = [place for place in places if place not in had] + had
    os.environ["WORKBENCH_PACKAGES"] = ":".join(places)
    python = [place + "/python" for place in places]
    _lead("PYTHONPATH", python)
    _lead("NODE_PATH", [place + "/node/node_modules" for place in places])
    _lead("PATH", [place + tail for place in places for tail in ("/python/bin", "/node/node_modules/.bin")])
    sys.path[:] = [p for p in sys.path if not str(p).startswith(_ROOT)]
    first = next((i for i, p in enumerate(sys.path) if str(p).endswith(("/site-packages", "/dist-packages"))), len(sys.path))
    sys.path[first:first] = python


def _lead(variable, places):
    rest = [p for p in os.environ.get(variable, "").split(":") if p and not p.startswith(_ROOT)]
    os.environ[variable] = ":".join(places + rest)


def loaded(place):
    """Modules of a set that this interpreter has already, from elsewhere."""
    python = place + "/python"
    names = {entry.partition(".")[0] for entry in os.listdir(python) if not entry.endswith((".dist-info", ".libs"))}
    return sorted(name for name in names if name in sys.modules and not (getattr(sys.modules[name], "__file__", None) or python).startswith(python))
