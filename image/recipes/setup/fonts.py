"""Let charts draw Chinese, Japanese and Korean text, and start quickly.

matplotlib tries the families of font.family in order for every character, so
the CJK font comes after the default one. Its list of fonts takes seconds to
make; it is made here and copied to $HOME/.cache in every sandbox.
"""

import json
import os

SKEL = "/opt/workbench/skel"
RC = "/etc/matplotlibrc"
CJK = "WenQuanYi Zen Hei"
SETTINGS = """
## Workbench: no display, and a fallback font for characters that the default
## one does not have.
backend: Agg
font.family: sans-serif, %s
axes.unicode_minus: True
""" % CJK

with open(RC, "a", encoding="utf-8") as f:
    f.write(SETTINGS)

os.environ["XDG_CACHE_HOME"] = os.path.join(SKEL, ".cache")
os.environ["XDG_CONFIG_HOME"] = "/tmp/matplotlib-config"
os.makedirs(os.environ["XDG_CACHE_HOME"], exist_ok=True)

import matplotlib  # noqa: E402  (reads the environment and the file above)
from matplotlib import font_manager  # noqa: E402

if CJK not in {font.name for font in font_manager.fontManager.ttflist}:
    raise SystemExit("the font %s is not installed" % CJK)

# In a fixed order, so that the same packages give the same image.
folder = matplotlib.get_cachedir()
for name in os.listdir(folder):
    path = os.path.join(folder, name)
    if name.startswith("fontlist-") and name.endswith(".json"):
        with open(path, encoding="utf-8") as f:
            fonts = json.load(f)
        for kind in ("afmlist", "ttflist"):
            fonts[kind].sort(key=lambda font: (font["fname"], font["name"]))
        with open(path, "w", encoding="utf-8") as f:
            json.dump(fonts, f, indent=1)
    else:
        os.remove(path)
