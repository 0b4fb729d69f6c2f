"""Runs one program as Python's __main__, and reports how it ended.

Started by the guest before the program is known: it waits for it on descriptor
4, so that an interpreter that waited already and one that starts cold behave
alike. The exit code goes to descriptor 5 before the interpreter is torn down,
after everything the language promises to run at exit.
"""

import atexit
import builtins
import errno
import gc
import linecache
import os
import site
import sys
import threading
import traceback  # noqa: F401, not to be found in the workspace when it is needed
import types

CONTROL, REPORT = 4, 5
LIBRARIES = "/run/workbench/lib/python"
WORKSPACE = "/mnt/files"
NO_BASE = "/nonexistent"  # see noUserSite in the guest
BECOME_KERNEL = b"\xff\xff\xff\xff"  # see becomeKernel there
IMPORT_VARIABLES = (b"HOME", b"XDG_", b"MPL", b"MATPLOTLIB", b"NUMPY", b"NPY", b"PANDAS", b"SCIPY", b"IPYTHON")  # libraries read them once


def read_control():
    """What comes on the control descriptor. None: this interpreter is to live on,
    for cells that come there."""
    def read(size):
        raw = b""  # a file object would make twice as many system calls
        while len(raw) < size and (more := os.read(CONTROL, size - len(raw))):
            raw += more
        return raw

    head = read(4)
    if head == BECOME_KERNEL:
        return None
    raw = head + read(int.from_bytes(head, "big"))
    os.close(CONTROL)
    return raw


def parse_control(raw):
    """What to run: counted strings, see controlMessage in the guest."""
    at = 4

    def number():
        nonlocal at
        at += 4
        return int.from_bytes(raw[at - 4:at], "big")

    def text():
        nonlocal at
        size = number()
        at += size
        return raw[at - size:at]

    name, path, directory = (os.fsdecode(text()) for _ in range(3))
    args = [os.fsdecode(text()) for _ in range(number())]
    env = [(text(), text()) for _ in range(number())]
    return name, path, directory, args, env, text()


def use_own_site():
    """Has the effect of the user's own site directory, as at a start.

    A run may have left code there. It must not run before the run that this
    interpreter is for, so the start was told to look elsewhere.
    """
    if os.environ.get("PYTHONUSERBASE") != NO_BASE:
        return
    del os.environ["PYTHONUSERBASE"]
    site.USER_BASE = site.USER_SITE = None
    if site.ENABLE_USER_SITE and os.path.isdir(site.getusersitepackages()):
        site.addsitedir(site.getusersitepackages())
        site.execusercustomize()


def met(limit):
    """Says that a limit ended the program, which no kernel counts."""
    try:
        os.write(REPORT, limit.encode() + b"\n")
    except OSError:
        pass


def report(code):
    """Says how the run ended; the guest looks at nothing after it."""
    try:
        os.write(REPORT, b"%d\n" % (code & 0xFF))
    except OSError:
        pass


class MultiprocessingSupport:
    """Lets workers that multiprocessing starts afresh find the program.

    They import the main program by its path, and there is no file at the path
    that the program sees as its own. The finder is asked about every import
    and acts on one.
    """

    path = None

    @classmethod
    def begin(cls, path):
        cls.path = path
        if "multiprocessing.spawn" in sys.modules:
            cls.adapt(sys.modules["multiprocessing.spawn"])
        else:
            sys.meta_path.insert(0, cls)

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name != "multiprocessing.spawn":
            return None
        sys.meta_path.remove(cls)
        import importlib.util
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            cls.adapt(module)

        spec.loader.exec_module = exec_module
        return spec

    @classmethod
    def await_source(cls):
        """The guest writes the file while the program begins."""
        import time
        deadline = time.monotonic() + 10
        while not os.path.exists(cls.path) and time.monotonic() < deadline:
            time.sleep(0.001)

    @classmethod
    def adapt(cls, module):
        prepare = module.get_preparation_data

        def get_preparation_data(process_name):
            data = prepare(process_name)
            if "init_main_from_path" in data:
                cls.await_source()
                data["init_main_from_path"] = cls.path
            return data

        module.get_preparation_data = get_preparation_data


class LazyHelper(types.ModuleType):
    """The helper library: a module that is loaded when it is first used."""

    def __getattr__(self, name):
        if name.startswith("__") and name != "__all__":
            raise AttributeError(name)  # whoever looks at modules does not mean this one
        load_helper(self)
        return getattr(self, name)

    def __dir__(self):
        load_helper(self)
        return dir(self)


HELPER_LOADS = threading.Lock()


def load_helper(module):
    """Makes a LazyHelper the module that it stands for."""
    with HELPER_LOADS:
        if type(module) is not LazyHelper:
            return
        with open(module.__file__, "rb") as f:
            code = compile(f.read(), module.__file__, "exec", dont_inherit=True)
        exec(code, module.__dict__)
        module.__class__ = types.ModuleType


HELPER = None  # where it was loaded ahead


def load_ahead():
    """Loads the helper library, for forks of this process: compiling it takes
    longer than most calls."""
    global HELPER
    HELPER = sys.modules["workbench"] = new_helper()
    load_helper(HELPER)
    sys.path.append(LIBRARIES)
    import workbench_calls  # noqa: F401
    import workbench_packages  # noqa: F401
    sys.path.pop()
    del sys.modules["workbench"]


def new_helper():
    helper = LazyHelper("workbench", "The helper library of code in a sandbox.")
    helper.__file__ = LIBRARIES + "/workbench.py"
    helper.__spec__ = type(os.__spec__)("workbench", None, origin=helper.__file__)
    helper.__spec__.has_location = True
    return helper


def bind_helper(module):
    """Gives every module of the program the helper library, by its two names."""
    for name in ("workbench", "arc0"):
        sys.modules[name] = module
        setattr(builtins, name, module)


def exit_code(value):
    """What the interpreter does with SystemExit's value."""
    if value is None:
        return 0
    if isinstance(value, int):
        return value & 0xFF
    try:
        sys.stdout.flush()
    except Exception:
        pass
    try:
        print(value, file=sys.stderr)
    except Exception:
        pass
    return 1


def print_at_once(*values, sep=None, end=None, file=None, flush=False):
    out = sys.stdout
    if file is not None or out is not sys.__stdout__ or not (sep is None or type(sep) is str) or not (end is None or type(end) is str):
        return plain_print(*values, sep=sep, end=end, file=file, flush=flush)
    text = (" " if sep is None else sep).join([str(v) for v in values])
    out.write(text + ("\n" if end is None else end))
    if flush:
        out.flush()


# Output is not buffered, so that nothing of it is lost when a program is ended.
# The built-in print makes a system call for every value, every space and every
# end of line, which takes its time in gVisor; this one makes one.
plain_print = builtins.print
print_at_once.__name__ = print_at_once.__qualname__ = "print"
print_at_once.__module__ = "builtins"
print_at_once.__doc__ = plain_print.__doc__


def without_driver(trace):
    """The trace without the driver's own frames."""
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    at = trace
    while at is not None:
        after = at.tb_next
        while after is not None and after.tb_frame.f_code.co_filename == __file__:
            after = after.tb_next
        at.tb_next = after
        at = after
    return trace


def show(error):
    """Prints a traceback without the driver's own frames."""
    trace = without_driver(error.__traceback__)
    error = error.with_traceback(trace)
    if isinstance(error, OSError) and error.errno == errno.EMFILE:
        met("open_files")
    sys.last_exc = error
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    try:
        sys.excepthook(type(error), error, trace)
    except SystemExit as e:
        return exit_code(e.code)
    except BaseException:
        sys.__excepthook__(type(error), error, trace)
    return 1


def run_main(source, filename, module):
    """Compiles and runs the program; returns its exit code."""
    import _ast
    try:
        code = compile(source, filename, "exec", flags=_ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        if code.co_flags & 0x80:  # CO_COROUTINE: it awaits at its top level
            import asyncio
            asyncio.run(types.FunctionType(code, module.__dict__)())
        else:
            exec(code, module.__dict__)
    except SystemExit as e:
        return exit_code(e.code)
    except KeyboardInterrupt as e:
        show(e)
        return 130
    except BaseException as e:
        return show(e)
    return 0


def at_exit(module, code, rehearsal=False):
    """What the interpreter does before it goes: threads, exit functions,
    buffers. Objects that would be written out when they are freed are."""
    def attempt(step):
        try:
            step()
        except SystemExit:
            pass
        except BaseException as e:
            show(e)

    if not rehearsal:
        attempt(threading._shutdown)
        attempt(atexit._run_exitfuncs)
        # Threads that nobody waits for go on and find less and less; they end with
        # the process, and an interpreter that goes says nothing of them.
        threading.excepthook = lambda args: None
    flush_files()  # before objects go: a collector may close a file too early
    names = module.__dict__
    for private in (True, False):
        for key in [k for k in names if k.startswith("_") == private and k != "__builtins__"]:
            names[key] = None
    if len(gc.get_objects()) < 50_000:
        attempt(gc.collect)
    flush_files()
    for stream, failed in ((sys.stdout, 120), (sys.stderr, 120)):
        try:
            if stream is not None:
                stream.flush()
        except BaseException:
            code = code or failed
    return code


def flush_files():
    """Writes out files that the program left open."""
    import io
    kinds = {io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom}
    for o in [o for o in gc.get_objects() if type(o) in kinds]:
        try:
            if not o.closed:
                o.flush()
        except BaseException:
            pass


# REHEARSAL touches what nearly every program needs first: the compiler, calls,
# exceptions, formatting. It leaves nothing behind.
REHEARSAL = """
import os, sys
class C:
    def m(self, *a, **k): return f"{a!r:>3} {len(k):d}"
def f(x):
    try:
        with open(os.devnull) as n: pass
        return [C().m(i, k=i) for i in range(x) if i % 2] or {"a": (1.5, None, True)}
    except ValueError as e:
        raise RuntimeError(str(e)) from e
    finally:
        x += 1
print(f(3), file=None if sys.stdout is None else __import__("io").StringIO())
"""


def rehearse():
    """Goes once through what a run goes through, while nobody waits for it."""
    module = type(sys)("__rehearsal__")
    run_main(REHEARSAL, "<rehearsal>", module)
    at_exit(module, 0, rehearsal=True)


def shadowed(preloaded):
    """Whether a file that the program would import has the name of a module
    that is there already, or would settle how such a one is set up."""
    import importlib.machinery
    suffixes = tuple(importlib.machinery.all_suffixes())
    for place in (WORKSPACE, own_site(), *package_places()):
        try:
            names = os.listdir(place)
        except OSError:
            continue
        for name in names:
            stem = name.partition(".")[0]
            if stem not in preloaded:
                continue
            if name.endswith(suffixes) or any(os.path.isfile(os.path.join(place, name, "__init__" + s)) for s in suffixes):
                return True
    if "matplotlib" in preloaded:
        if os.path.exists(WORKSPACE + "/matplotlibrc"):
            return True
        own = os.path.expanduser("~/.config/matplotlib")
        return os.path.exists(own) and any(os.path.exists(own + name) for name in ("/matplotlibrc", "/stylelib"))
    return False


def package_places():
    """The directories of the packages that this run has, which come before the
    image's own."""
    return [place + "/python" for place in os.environ.get("WORKBENCH_PACKAGES", "").split(":") if place]


def use_packages():
    """Has imports find the run's packages, here and in interpreters that it starts."""
    if os.environ.get("WORKBENCH_PACKAGES"):
        import workbench_packages
        workbench_packages.use()


def own_site():
    """The user's own site directory, as site.py would have it."""
    return os.path.expanduser("~/.local/lib/python%d.%d/site-packages" % sys.version_info[:2])


def start_cold(raw):
    """Becomes an interpreter that has loaded nothing, with the same program."""
    fd = os.memfd_create("control", 0)
    left = memoryview(raw)
    while left:
        left = left[os.write(fd, left):]
    os.lseek(fd, 0, os.SEEK_SET)
    if fd != CONTROL:
        os.dup2(fd, CONTROL)
        os.close(fd)
    os.set_inheritable(REPORT, True)
    os.execv(sys.executable, [sys.executable, __file__])


def become_kernel(preloaded):
    """Goes on as the interpreter of a context, and does not return."""
    if preloaded and shadowed(preloaded):
        for fd in (CONTROL, REPORT):
            os.set_inheritable(fd, True)
        os.execv(sys.executable, [sys.executable, __file__, "kernel"])
    builtins.print = print_at_once
    sys.path[0] = os.path.dirname(os.path.abspath(__file__))
    if HELPER:
        sys.modules["workbench"] = HELPER
    import kernel
    kernel.main(types.SimpleNamespace(**globals()))


def main(preloaded=()):
    """Runs the program that comes. preloaded are the names of modules that are
    there and that a program may mean something else by."""
    me = os.getpid()
    sys.path.append(LIBRARIES)
    import workbench_figures
    sys.path.pop()
    rehearse()
    os.write(REPORT, b"ready\n")
    for fd in (CONTROL, REPORT):
        os.set_inheritable(fd, False)
    raw = None if sys.argv[1:] == ["kernel"] else read_control()
    if raw is None:
        become_kernel(preloaded)
    name, path, directory, args, env, source = parse_control(raw)
    for key, value in env:
        os.environb[key] = value
    if preloaded and (any(key.startswith(IMPORT_VARIABLES) for key, _ in env) or shadowed(preloaded)):
        start_cold(raw)
    builtins.print = print_at_once
    use_own_site()
    if directory != WORKSPACE:
        try:
            os.chdir(directory)
        except OSError as e:
            print("workbench: cannot enter %s: %s" % (directory, e.strerror), file=sys.stderr)
            report(126)
            os._exit(126)
    filename = os.path.join(WORKSPACE, name)
    sys.argv[:] = [name] + args
    sys.path[0] = WORKSPACE
    if LIBRARIES not in sys.path:
        sys.path.append(LIBRARIES)
    use_packages()
    # As the interpreter would: a line cache that needs no file.
    text = source.decode("utf-8", "replace")
    linecache.cache[filename] = (len(source), None, text.splitlines(True), filename)
    MultiprocessingSupport.begin(path)
    workbench_figures.install(close=False)

    module = type(sys)("__main__")
    module.__dict__.update(__builtins__=builtins, __file__=filename, __annotations__={}, __cached__=None)
    bind_helper(HELPER or new_helper())
    sys.modules["__main__"] = module
    gc.freeze()

    code = run_main(source, filename, module)
    if os.getpid() != me:
        # A child that the program forked came back here: it ends as any
        # interpreter does, and reports nothing.
        code = at_exit(module, code)
        os._exit(code)
    code = at_exit(module, code)
    report(code)
    os._exit(code)


if __name__ == "__main__":
    main()
