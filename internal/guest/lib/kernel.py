"""The Python interpreter of a context: it lives from cell to cell.

The driver becomes it when the guest says so. Cells come as frames on descriptor
4, see cellMessage in the guest; descriptor 5 takes "=<number> <exit code>". Where
the image has IPython, cells have its magics and its ways to show values;
otherwise a cell is plain Python, with await at its top level. What is shown goes
through the helper library, like everything that reaches out.
"""

import ast
import base64
import builtins
import errno
import json
import linecache
import os
import signal
import sys
import traceback
import types

CONTROL, REPORT = 4, 5
LIBRARIES = "/run/workbench/lib/python"
WORKSPACE = "/mnt/files"
KEPT_SOURCES = 1000  # of cells, for tracebacks


class State:
    busy = False  # a cell runs, and an interrupt is for it
    name = ""  # of the cell
    names = []  # of cells whose source is kept, oldest first
    loop = None


def preload():
    """Imports what a context needs, where it is there: it may be done ahead."""
    import asyncio  # noqa: F401
    if LIBRARIES not in sys.path:
        sys.path.append(LIBRARIES)
    import workbench  # noqa: F401
    import_shell()


def import_shell():
    """IPython's shell without its terminal, which takes most of the time."""
    if "IPython" in sys.modules:
        from IPython.core import interactiveshell
        return interactiveshell
    stubs = {}
    for name in ("IPython.terminal", "IPython.terminal.embed"):
        stubs[name] = types.ModuleType(name)
    stubs["IPython.terminal.embed"].embed = None
    stubs["jedi"] = None  # completion, which nobody asks for
    try:
        import importlib.util
        if importlib.util.find_spec("IPython") is None:
            return None
        sys.modules.update(stubs)
        try:
            from IPython.core import interactiveshell
        finally:
            for name in stubs:
                sys.modules.pop(name, None)
        import IPython
        for name in ("terminal", "embed"):
            IPython.__dict__.pop(name, None)
        return interactiveshell
    except Exception:
        return None


def on_interrupt(signum, frame):
    if State.busy:
        raise KeyboardInterrupt


class Frames:
    """Reads frames: a big-endian uint32 length and so many bytes."""

    def __init__(self):
        self.rest = b""

    def take(self, size):
        while len(self.rest) < size:
            part = os.read(CONTROL, max(65536, size - len(self.rest)))
            if not part:
                os._exit(0)  # the guest is gone
            self.rest += part
        part, self.rest = self.rest[:size], self.rest[size:]
        return part

    def next(self):
        return Strings(self.take(int.from_bytes(self.take(4), "big")))


class Strings:
    """Takes a frame apart."""

    def __init__(self, raw):
        self.raw, self.at = raw, 0

    def number(self):
        self.at += 4
        return int.from_bytes(self.raw[self.at - 4:self.at], "big")

    def bytes(self):
        size = self.number()
        self.at += size
        return self.raw[self.at - size:self.at]

    def text(self):
        return os.fsdecode(self.bytes())


def run_coroutine(coroutine):
    """Runs to the coroutine's end on the context's own loop, which stands still
    between cells. An interrupt cancels it."""
    import asyncio
    if State.loop is None or State.loop.is_closed():
        State.loop = asyncio.new_event_loop()
    loop = State.loop
    asyncio.set_event_loop(loop)
    task = loop.create_task(coroutine)
    try:
        return loop.run_until_complete(task)
    except KeyboardInterrupt:
        if not task.done():
            task.cancel()
            try:
                loop.run_until_complete(task)
            except BaseException:
                pass
        raise


def show(kind, data, metadata=None, id=None):
    """Shows a bundle of what code has not asked to show itself."""
    import workbench
    try:
        workbench._show(kind, data, metadata, id)
    except workbench.WorkbenchError as e:
        print("workbench: the value could not be shown: %s" % e, file=sys.stderr)


def remember(name, source):
    """Keeps a cell's source for tracebacks, as the interpreter would a file's."""
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    State.names.append(name)
    if len(State.names) > KEPT_SOURCES:
        linecache.cache.pop(State.names.pop(0), None)


def own_frames(trace):
    """The trace from the first frame of a cell on, without that of an interrupt."""
    at = trace
    while at is not None and at.tb_frame.f_code.co_filename not in linecache_names():
        at = at.tb_next
    last = at
    while last is not None and last.tb_next is not None:
        if last.tb_next.tb_frame.f_code is on_interrupt.__code__:
            last.tb_next = None
        else:
            last = last.tb_next
    return at


def linecache_names():
    return State.names


def complain(driver, error):
    """Prints an error and shows it; returns the exit code."""
    trace = own_frames(error.__traceback__)
    error = error.with_traceback(trace)
    if isinstance(error, OSError) and error.errno == errno.EMFILE:
        driver.met("open_files")
    sys.last_exc = error
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    try:
        lines = traceback.format_exception(type(error), error, trace)
        value = str(error)
    except BaseException:
        lines, value = ["%s: <the error cannot be shown>\n" % type(error).__name__], ""
    try:
        sys.stderr.write("".join(lines))
        sys.stderr.flush()
    except Exception:
        os.write(2, "".join(lines).encode("utf-8", "backslashreplace"))
    name = type(error).__name__
    told = {"ename": name, "evalue": value, "traceback": "".join(lines).splitlines()}
    show("error", {"application/json": json.dumps(told), "text/plain": "%s: %s" % (name, value) if value else name})
    return 130 if isinstance(error, KeyboardInterrupt) else 1


class PlainShell:
    """Runs cells as Python has them."""

    def __init__(self, module):
        self.module = module
        import workbench
        module.display = workbench.display

    def run(self, source, name):
        remember(name, source)
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        try:
            tree = compile(source, name, "exec", flags | ast.PyCF_ONLY_AST, dont_inherit=True)
            last = None
            if tree.body and isinstance(tree.body[-1], ast.Expr) and not source.rstrip().endswith(";"):
                last = ast.Expression(tree.body.pop().value)
            self.evaluate(compile(tree, name, "exec", flags, dont_inherit=True))
            if last is not None:
                value = self.evaluate(compile(last, name, "eval", flags, dont_inherit=True))
                if value is not None:
                    builtins._ = value
                    import workbench
                    data, metadata = workbench._bundle(value)
                    show("result", data, metadata)
        except BaseException as e:
            return e
        return None

    def evaluate(self, code):
        if code.co_flags & 0x80:  # CO_COROUTINE: it awaits at its top level
            return run_coroutine(types.FunctionType(code, self.module.__dict__)())
        return eval(code, self.module.__dict__)


def make_shell(module):
    """IPython where the image has it."""
    found = import_shell()
    if found is not None:
        try:
            import kernel_ipython
            return kernel_ipython.Shell(sys.modules[__name__], module)
        except Exception:
            traceback.print_exc()
            print("workbench: IPython does not work here; cells are plain Python", file=sys.stderr)
    return PlainShell(module)


def open_streams():
    """Makes standard streams usable again that a cell has closed."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name, None)
        if stream is None or getattr(stream, "closed", False):
            try:
                os.fstat(number)
            except OSError:
                os.dup2(SPARE_STREAMS[number], number)
            made = open(number, "w", encoding="utf-8", errors="surrogateescape" if number == 1 else "backslashreplace", closefd=False)
            made.reconfigure(write_through=True)
            setattr(sys, name, made)
            setattr(sys, "__%s__" % name, made)


SPARE_STREAMS = {}


def end_calls(error):
    """What was called without await completes, unless the cell was interrupted."""
    calls = sys.modules.get("workbench_aio")
    if calls is None:
        return
    try:
        if not isinstance(error, KeyboardInterrupt):
            calls.settle()
            return
        calls.abandon()
    except KeyboardInterrupt:
        calls.abandon()
        raise


def run_cell(driver, shell, cell):
    """Runs one cell; returns its exit code, and whether the context ends."""
    number, token, name = cell.number(), cell.text(), cell.text()
    cell.text()  # the language
    source = cell.bytes().decode("utf-8", "replace")
    os.environ["WORKBENCH_TOKEN"] = token
    open_streams()
    code, ends = 0, False
    me = os.getpid()
    try:
        try:
            State.busy = True
            error = shell.run(source, name)
            if isinstance(error, SystemExit):
                code, ends = driver.exit_code(error.code), True
            else:
                end_calls(error)
                import workbench_figures
                workbench_figures.show_open()
                if error is not None:
                    code = complain(driver, error)
                del error
            for stream in (sys.stdout, sys.stderr):
                try:
                    stream.flush()
                except Exception:
                    pass
        finally:
            State.busy = False
    except KeyboardInterrupt:
        code = 130
    except BaseException as e:  # of a shell that a cell has changed
        code = 1
        os.write(2, ("workbench: %s\n" % "".join(traceback.format_exception_only(e))).encode("utf-8", "backslashreplace"))
    if os.getpid() != me:
        os._exit(code)  # a child that the cell forked came back here
    return number, code, ends


def main(driver):
    frames = Frames()
    first = frames.next()
    directory = first.text()
    for _ in range(first.number()):
        key = first.bytes()
        os.environb[key] = first.bytes()
    # A user site of an earlier run is no place for code that runs by itself.
    if os.environ.get("PYTHONUSERBASE") == driver.NO_BASE:
        del os.environ["PYTHONUSERBASE"]
    try:
        os.chdir(directory)
    except OSError as e:
        print("workbench: cannot enter %s: %s" % (directory, e.strerror), file=sys.stderr)
        driver.report(126)
        os._exit(126)
    preload()
    import workbench_figures
    workbench_figures.install(close=True)
    module = type(sys)("__main__")
    module.__dict__.update(__builtins__=builtins, __annotations__={})
    driver.bind_helper(sys.modules["workbench"])
    sys.modules["__main__"] = module
    shell = make_shell(module)
    import site
    for place in (LIBRARIES, site.getusersitepackages()):
        if place not in sys.path:
            sys.path.append(place)
    driver.use_packages()
    sys.path[0] = WORKSPACE
    sys.argv[:] = [""]
    signal.signal(signal.SIGINT, on_interrupt)
    for number in (1, 2):
        SPARE_STREAMS[number] = os.dup(number)
    os.write(REPORT, b"began\n")
    while True:
        number, code, ends = run_cell(driver, shell, frames.next())
        if ends:
            code = driver.at_exit(module, code)
            driver.report(code)
            os._exit(code)
        os.write(REPORT, b"=%d %d\n" % (number, code))
