"""Charts without a display: plt.show() shows open figures as images.

It waits for matplotlib to be imported, and imports nothing by itself.
"""

import sys

NAME = "matplotlib.pyplot"
_close = False
_shown = set()  # figures that were shown and stay open, by number


def png(figure, **_):
    """The figure as PNG bytes."""
    import io
    out = io.BytesIO()
    figure.savefig(out, format="png", bbox_inches="tight")
    return out.getvalue()


class _Finder:
    """Is asked about every import, and acts on one."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name != NAME:
            return None
        sys.meta_path.remove(cls)
        import importlib.util
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            module.show = show

        spec.loader.exec_module = exec_module
        return spec


def install(close):
    """close: figures that were shown are closed, so that none is shown by a
    later cell."""
    global _close
    _close = close
    if NAME in sys.modules:
        sys.modules[NAME].show = show
    else:
        sys.meta_path.insert(0, _Finder)


def show(*args, **kwargs):
    """Shows the open figures."""
    plt = sys.modules.get(NAME)
    if plt is None or not plt.get_fignums():
        return
    import workbench
    for number in plt.get_fignums():
        if number in _shown:
            continue
        figure = plt.figure(number)
        workbench.display({"image/png": png(figure), "text/plain": repr(figure)})
        if not _close:
            _shown.add(number)
    if _close:
        plt.close("all")


def show_open():
    """What a cell left open is shown at its end."""
    plt = sys.modules.get(NAME)
    if plt is not None and plt.get_fignums():
        show()
