"""Forks interpreters that wait, so that what they have in common is loaded once.

Started by the guest with the guest's own identity, in none of the groups:
nothing of a user ever runs in it, and nothing that a run can write is looked
at. A fork enters a group's namespaces, gives up every right for good and takes
limits and filter as a stage does; then it is what driver.py is when it starts.

Descriptors: 3 is the guest's socket, 4 the settings. A request is a number with
descriptors: the group's PID, mount and IPC namespaces, stdin, stdout, stderr,
control, report. An answer is four numbers, see zygote.go.
"""

import sys

STARTED_WITH = frozenset(sys.modules)  # what a script cannot hide behind a file of its own

import os  # noqa: E402

SOCKET, SETTINGS = 3, 4
CONTROL, REPORT = 4, 5  # of a fork
LIBRARY = os.path.dirname(os.path.abspath(__file__))
WORKSPACE = "/mnt/files"

NEW_PID, NEW_NS, NEW_IPC = 0x20000000, 0x20000, 0x8000000
SECCOMP_SET_MODE_FILTER, TSYNC = 1, 1
PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 4, 24, 38
READY, FORKED, ENDED, FAILED = 1, 2, 3, 4

# What programs of every kind begin with.
COMMON = ("re", "json", "math", "random", "datetime", "time", "collections", "itertools", "functools", "pathlib", "subprocess", "typing",
          "dataclasses", "csv", "string", "statistics")


class Settings:
    """Counted strings, as a driver's control message has them."""

    def __init__(self):
        with open(SETTINGS, "rb", buffering=0) as f:
            self.raw, self.at = f.readall(), 0
        self.files, self.tasks, self.seccomp_call = self.number(), self.number(), self.number()
        self.uid, self.gid, self.copies_much = self.number(), self.number(), self.number()
        self.filter = self.text()
        self.modules = [self.text().decode() for _ in range(self.number())]
        self.env = [(self.text(), self.text()) for _ in range(self.number())]
        del self.raw

    def number(self):
        self.at += 4
        return int.from_bytes(self.raw[self.at - 4:self.at], "big")

    def text(self):
        size = self.number()
        self.at += size
        return self.raw[self.at - size:self.at]


def load_driver():
    """driver.py as a name space: it is nobody's module."""
    path = os.path.join(LIBRARY, "driver.py")
    with open(path, "rb") as f:
        code = compile(f.read(), path, "exec", dont_inherit=True)
    driver = type(sys)("driver")
    driver.__file__ = path
    exec(code, driver.__dict__)
    return driver


def preload(modules):
    """Imports what runs will import, from the image alone."""
    import importlib
    place, sys.path[:] = sys.path[:], sys.path[1:]
    for name in (*COMMON, *modules):
        try:
            importlib.import_module(name)
        except Exception as e:  # an image may name what it does not have
            print("guest: preload %s: %r" % (name, e), file=sys.stderr)
    sys.path[:] = place


class Rights:
    """What this process has and its forks must not."""

    def __init__(self, settings):
        import ctypes
        self.settings, self.ctypes = settings, ctypes
        self.libc = ctypes.CDLL(None, use_errno=True)

        class Program(ctypes.Structure):
            _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

        self.code = ctypes.create_string_buffer(settings.filter, len(settings.filter))
        self.program = Program(len(settings.filter) // 8, ctypes.cast(self.code, ctypes.c_void_p))

    def prctl(self, option, value):
        if self.libc.prctl(option, self.ctypes.c_ulong(value), *[self.ctypes.c_ulong(0)] * 3):
            number = self.ctypes.get_errno()
            raise OSError(number, os.strerror(number), "prctl %d" % option)

    def share_pages(self):
        """Has gVisor copy a page of what is loaded when a fork writes to it, and
        not the 2 MiB around it, which it does only in memory that is executable.
        For the code in a fork, which may map memory as it likes, that changes
        nothing."""
        for start, size in writable():
            self.libc.mprotect(self.ctypes.c_void_p(start), self.ctypes.c_size_t(size), 1 | 2 | 4)

    def bound(self):
        """Keeps whatever is executed from here on from gaining a right."""
        self.prctl(PR_SET_DUMPABLE, 0)
        self.prctl(PR_SET_NO_NEW_PRIVS, 1)
        for capability in range(64):
            try:
                self.prctl(PR_CAPBSET_DROP, capability)
            except OSError:
                break  # beyond the last that the kernel knows

    def drop(self):
        """Becomes user code's identity, for good."""
        import resource
        s = self.settings
        for what, most in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_NOFILE, s.files), (resource.RLIMIT_NPROC, s.tasks)):
            if most or what == resource.RLIMIT_CORE:
                resource.setrlimit(what, (most, most))
        os.umask(0o022)
        try:
            with open("/proc/self/oom_score_adj", "w") as f:
                f.write("1000")  # the first to go when memory runs out
        except (FileNotFoundError, PermissionError):
            pass
        # The filter first: nothing of user code's identity is ever without.
        if self.libc.syscall(self.ctypes.c_long(s.seccomp_call), self.ctypes.c_long(SECCOMP_SET_MODE_FILTER), self.ctypes.c_long(TSYNC),
                             self.ctypes.byref(self.program)) != 0:
            raise OSError(self.ctypes.get_errno(), "the filter is refused")
        os.setgroups([])
        os.setresgid(s.gid, s.gid, s.gid)
        os.setresuid(s.uid, s.uid, s.uid)  # takes every capability
        self.check()
        self.prctl(PR_SET_DUMPABLE, 1)  # as after an execution

    def check(self):
        """Fails unless every right is gone."""
        with open("/proc/self/status") as f:
            status = dict(line.rstrip("\n").split(":\t", 1) for line in f if ":\t" in line)
        for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            if int(status.get(name, "0"), 16):
                raise PermissionError("%s: %s" % (name, status[name]))
        if os.getresuid() != (self.settings.uid,) * 3 or os.getresgid() != (self.settings.gid,) * 3 or os.getgroups():
            raise PermissionError("identity")
        if status.get("Seccomp", "2").strip() != "2":
            raise PermissionError("no filter")


def writable():
    """Private memory of this process but its stack: places and sizes."""
    with open("/proc/self/maps") as f:
        lines = f.read().splitlines()
    for line in lines:
        place, mode, _, _, _, *name = line.split(maxsplit=5)
        if mode == "rw-p" and name != ["[stack]"]:
            start, end = (int(n, 16) for n in place.split("-"))
            yield start, end - start


class Zygote:
    def __init__(self, rights, own):
        import _socket
        import select
        self.rights = rights
        self.CMSG = _socket.CMSG_SPACE(16 * 4)
        self.socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, SOCKET)
        self.own = own
        self.poll = select.poll()
        self.poll.register(SOCKET, select.POLLIN)
        self.children = {}  # pidfd: pid

    def answer(self, kind, number, a=0, b=0):
        self.socket.send(b"".join(v.to_bytes(8, "big") for v in (kind, number, a, b)))

    def serve(self):
        """Forks when asked. Returns in a fork alone, when it is one of user
        code's processes."""
        self.answer(READY, 0)
        while True:
            for fd, _ in self.poll.poll():
                if fd != SOCKET:
                    self.reap(fd)
                    continue
                number, fds = self.receive()
                try:
                    pid = self.fork(*fds)
                except OSError as e:
                    self.answer(FAILED, number, e.errno or 0)
                else:
                    if pid == 0:
                        return
                    self.answer(FORKED, number, pid)
                for fd in fds:
                    os.close(fd)

    def receive(self):
        message, control, _, _ = self.socket.recvmsg(8, self.CMSG)
        if not message:
            os._exit(0)  # the guest has given it up
        fds = []
        for _, _, data in control:
            fds += [int.from_bytes(data[i:i + 4], sys.byteorder) for i in range(0, len(data), 4)]
        return int.from_bytes(message, "big"), fds

    def reap(self, fd):
        pid = self.children.pop(fd)
        self.poll.unregister(fd)
        os.close(fd)
        _, status, usage = os.wait4(pid, 0)
        self.answer(ENDED, pid, status, max(0, usage.ru_maxrss - self.size) << 10)

    size = 0  # KiB that a fork has from the beginning

    def fork(self, pids, mounts, ipc, *fds):
        os.setns(pids, NEW_PID)
        try:
            pid = os.fork()
        except OSError:
            os.setns(self.own, NEW_PID)
            raise
        if pid == 0:
            self.enter(mounts, ipc, fds)
            return 0
        os.setns(self.own, NEW_PID)
        fd = os.pidfd_open(pid)
        self.children[fd] = pid
        self.poll.register(fd, 1)  # POLLIN: it has ended
        return pid

    def enter(self, mounts, ipc, fds):
        """Makes the fork a process of its group. It must not go on if anything
        fails."""
        try:
            os.setsid()
            os.setns(mounts, NEW_NS)
            os.setns(ipc, NEW_IPC)
            high = [os.dup2(fd, 64 + i, False) for i, fd in enumerate(fds)]
            for fd, place in zip(high, (0, 1, 2, CONTROL, REPORT), strict=True):
                os.dup2(fd, place)
            self.socket.detach()
            os.close(SOCKET)
            os.closerange(REPORT + 1, 1024)
            os.chdir(WORKSPACE)
            self.rights.drop()
        except BaseException as e:
            try:
                os.write(2, ("workbench: %r\n" % e).encode())
            finally:
                os._exit(125)


def fresh(env):
    """Makes what a fork would share with others its own: randomness, names,
    places, clocks."""
    for key, value in env:
        os.environb[key] = value
    loaded = sys.modules.get
    if m := loaded("random"):
        m.seed()
    if m := loaded("numpy.random"):
        m.seed()
    if m := loaded("_ssl"):
        m.RAND_add(os.urandom(64), 64.0)
    if m := loaded("uuid"):
        m._node = m._last_timestamp = None
    if m := loaded("tempfile"):
        m._name_sequence = m.tempdir = None
    if m := loaded("multiprocessing.process"):
        m.current_process()._config["authkey"] = m.AuthenticationString(os.urandom(32))
    if m := loaded("logging"):
        import time
        m._startTime = time.time_ns() if isinstance(m._startTime, int) else time.time()
    if m := loaded("matplotlib"):
        own_matplotlib(m)


def own_matplotlib(matplotlib):
    """Has it look for its directories in the right home again."""
    for find in (matplotlib.get_configdir, matplotlib.get_cachedir):
        try:
            find.__closure__[find.__code__.co_freevars.index("called")].cell_contents = False
        except (AttributeError, TypeError, ValueError):
            pass  # another version, which finds them anew, or keeps them
    style = sys.modules.get("matplotlib.style.core")
    if style:
        style.USER_LIBRARY_PATHS[:] = [os.path.join(os.path.expanduser("~/.config"), "matplotlib", "stylelib")]


def preloaded():
    """The names of which a fork has modules that an interpreter which starts
    would look for."""
    names = {name.partition(".")[0] for name in sys.modules}
    return names - STARTED_WITH - set(sys.builtin_module_names) - {"__main__"}


def main():
    import gc
    settings = Settings()
    rights = Rights(settings)
    own = os.open("/proc/self/ns/pid", os.O_RDONLY)
    rights.bound()
    driver = load_driver()
    preload(settings.modules)
    driver.load_ahead()
    driver.rehearse()
    zygote = Zygote(rights, own)
    names = preloaded()
    sys.orig_argv[1:] = [driver.__file__]
    import resource
    zygote.size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    gc.collect()
    gc.freeze()
    if settings.copies_much:
        rights.share_pages()
    zygote.serve()
    fresh(settings.env)
    os.write(REPORT, b"pid %d\n" % os.getpid())
    return driver.main, names


if __name__ == "__main__":
    go, names = main()
    go(names)
