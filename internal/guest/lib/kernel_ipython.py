"""Runs the cells of a context in IPython's shell, without its terminal: magics,
its ways to show values, top-level await. It keeps nothing on disk."""

import subprocess
import sys

from IPython.core import interactiveshell
from IPython.core.autocall import ExitAutocall
from IPython.core.compilerop import CachingCompiler
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.profiledir import ProfileDir
from traitlets import Type
from traitlets.config import Config


class Compiler(CachingCompiler):
    """Names cells as the guest does."""

    name = "cell.py"

    def get_code_name(self, raw_code, transformed_code, number):
        return Compiler.name


class Hook(DisplayHook):
    """Shows the value of a cell's last expression."""

    def write_output_prompt(self):
        pass

    def write_format_data(self, format_dict, md_dict=None):
        Shell.kernel.show("result", format_dict, md_dict)

    def finish_displayhook(self):
        sys.stdout.flush()


class Publisher(DisplayPublisher):
    """Shows what a cell asks to show."""

    def publish(self, data, metadata=None, source=None, *, transient=None, update=False, **kwargs):
        Shell.kernel.show("update" if update else "display", data, metadata, (transient or {}).get("display_id"))

    def clear_output(self, wait=False):
        Shell.kernel.show("clear", {})


class Exit(ExitAutocall):
    rewrite = True

    def __call__(self, code=None):
        raise SystemExit(code)


class Quiet(interactiveshell.InteractiveShell):
    """A shell without history, profile and start-up files."""

    displayhook_class = Type(Hook)
    display_pub_class = Type(Publisher)
    compiler_class = Type(Compiler)

    def init_ipython_dir(self, ipython_dir):
        self.ipython_dir = ""

    def init_profile_dir(self, profile_dir):
        nowhere = ProfileDir()
        nowhere._trait_values["location"] = "/nonexistent"  # set otherwise, it is made
        self.profile_dir = nowhere

    def init_virtualenv(self):
        pass

    def showtraceback(self, *args, **kwargs):
        pass  # the kernel does

    def showsyntaxerror(self, *args, **kwargs):
        pass

    def showindentationerror(self):
        pass

    def system(self, cmd):
        """Runs a command whose output is the cell's, as it comes."""
        self.user_ns["_exit_code"] = subprocess.call(["/bin/bash", "-c", self.var_expand(cmd, depth=1)])

    system_piped = system_raw = system

    def ask_exit(self):
        raise SystemExit(0)

    def enable_gui(self, gui=None):
        pass  # there is no window

    def enable_matplotlib(self, gui=None):
        """%matplotlib of whatever kind: figures are shown in any case."""
        return gui, "agg"


def run_bash(line, cell):
    """%%bash and %%sh: a script whose output is the cell's, as it comes."""
    result = subprocess.run(["/bin/bash", "-s", "--"] + line.split(), input=cell.encode())
    if result.returncode:
        raise subprocess.CalledProcessError(result.returncode, "bash")


class Shell:
    kernel = None

    def __init__(self, kernel, module):
        Shell.kernel = kernel
        config = Config()
        config.HistoryManager.enabled = False
        config.HistoryManager.hist_file = ":memory:"
        config.InteractiveShell.colors = "NoColor"
        config.InteractiveShell.show_rewritten_input = False
        config.Completer.use_jedi = False
        interactiveshell.PickleShareDB = lambda path: {}  # %store, for as long as the context lives
        interactiveshell.warn = lambda *args, **kwargs: None  # that SystemExit would not end it
        self.shell = Quiet.instance(config=config, user_module=module, user_ns=module.__dict__)
        self.shell.loop_runner = kernel.run_coroutine
        for name in ("exit", "quit"):
            self.shell.user_ns[name] = Exit(self.shell)
        for name in ("bash", "sh"):
            self.shell.register_magic_function(run_bash, "cell", name)
        import workbench_figures
        self.shell.display_formatter.formatters["image/png"].for_type_by_name("matplotlib.figure", "Figure", workbench_figures.png)

    def run(self, source, name):
        Compiler.name = name
        self.kernel.State.names.append(name)
        result = self.shell.run_cell(source, store_history=True)
        return result.error_before_exec or result.error_in_exec
