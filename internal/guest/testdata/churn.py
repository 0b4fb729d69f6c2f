"""Changes the workspace at random in every way there is, and says what must be
in it: from a model, without ever reading a file back.

churn.py SEED STEPS OPERATIONS STATE waits for SIGCONT after each step. STATE is
a file outside the workspace that carries the model from run to run.
"""
import ctypes, hashlib, json, mmap, os, pickle, random, signal, socket, sys

seed, steps, operations, state = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
rng = random.Random(seed)
libc = ctypes.CDLL(None, use_errno=True)


class Inode:
    """A file, directory ("d") or link ("l")."""

    def __init__(self, kind, mode=0o644, data=b"", target=""):
        self.kind, self.mode, self.data, self.target = kind, mode, bytearray(data), target

    def write(self, offset, data):
        if len(self.data) < offset:
            self.data.extend(bytes(offset - len(self.data)))
        self.data[offset:offset + len(data)] = data

    def resize(self, size):
        if size < len(self.data):
            del self.data[size:]
        else:
            self.data.extend(bytes(size - len(self.data)))


tree = {}
if os.path.exists(state):
    with open(state, "rb") as f:
        tree = pickle.load(f)
held = []  # (descriptor, inode, mapping or None)
failed = {}


def noise():
    return rng.randbytes(rng.choice([1, 10, 500, 5000, 9000]))


def pick(kind):
    names = sorted(p for p, n in tree.items() if n.kind == kind)
    return rng.choice(names) if names else None


def fresh():
    above = rng.choice([""] + sorted(p + "/" for p, n in tree.items() if n.kind == "d" and p.count("/") < 4))
    return above + rng.choice(["", "é", "#", ".", " "]) + "%x" % rng.getrandbits(24)


def below(path):
    return [p for p in tree if p.startswith(path + "/")]


def mapped(fd, n):
    return mmap.mmap(fd, len(n.data)) if n.data else None


def through(m, n):
    data = noise()[:len(m)]
    at = rng.randrange(len(m) - len(data) + 1)
    m[at:at + len(data)] = data
    if at < len(n.data):  # it may have become shorter since
        n.write(at, data[:len(n.data) - at])


def create():
    p, n = fresh(), Inode("f")
    n.mode = rng.choice([0o644, 0o600, 0o755])
    fd = os.open(p, os.O_CREAT | os.O_EXCL | os.O_RDWR, n.mode)
    n.data[:] = noise()
    os.write(fd, n.data)
    tree[p] = n
    os.close(fd)


def overwrite(flags=0, reopen=False):
    p = pick("f")
    if not p:
        return
    n = tree[p]
    if reopen:
        first = os.open(p, rng.choice([os.O_RDONLY, os.O_PATH]))
        fd = os.open(f"/proc/self/fd/{first}", os.O_RDWR)
        os.close(first)
    else:
        fd = os.open(p, os.O_RDWR | flags)
    if flags & os.O_TRUNC:
        n.resize(0)
    data = noise()
    if flags & os.O_APPEND:
        os.write(fd, data)
        n.write(len(n.data), data)
    else:
        at = rng.randrange(len(n.data) + 1)
        os.pwrite(fd, data, at)
        n.write(at, data)
    os.close(fd)


def truncate():
    p = pick("f")
    if p:
        size = rng.randrange(9000)
        os.truncate(p, size)
        tree[p].resize(size)


def allocate():
    p = pick("f")
    if p:
        n, size = tree[p], rng.randrange(1, 9000)
        fd = os.open(p, os.O_RDWR)
        try:
            os.posix_fallocate(fd, 0, size)
            n.resize(max(size, len(n.data)))
        finally:
            os.close(fd)


def map_once():
    p = pick("f")
    if p and tree[p].data:
        fd = os.open(p, os.O_RDWR)
        m = mapped(fd, tree[p])
        os.close(fd)
        through(m, tree[p])
        m.close()


def hold():
    p = pick("f")
    if p and len(held) < 6:
        fd = os.open(p, os.O_RDWR)
        held.append((fd, tree[p], mapped(fd, tree[p]) if rng.random() < 0.7 else None))


def use_held():
    if not held:
        return
    fd, n, m = rng.choice(held)
    if m and rng.random() < 0.7:
        if len(n.data) >= len(m):  # else the access would end the process
            through(m, n)
    else:
        data = noise()
        os.pwrite(fd, data, 0)
        n.write(0, data)


def let_go():
    if held:
        fd, _, m = held.pop(rng.randrange(len(held)))
        if m and rng.random() < 0.5:
            os.close(fd)
            m.close()
        else:
            if m:
                m.close()
            os.close(fd)


def child():
    """A process that inherits a mapping writes through it."""
    p = pick("f")
    if p and tree[p].data:
        n = tree[p]
        data = noise()[:len(n.data)]
        fd = os.open(p, os.O_RDWR)
        m = mapped(fd, n)
        os.close(fd)
        pid = os.fork()
        if pid == 0:
            m[0:len(data)] = data
            os._exit(0)
        os.waitpid(pid, 0)
        m.close()
        n.write(0, data)


def in_flight():
    """A file stays open in a socket that nobody has any more."""
    p = pick("f")
    if p and tree[p].data:
        n = tree[p]
        fd = os.open(p, os.O_RDWR)
        decoy = os.open(p, os.O_RDONLY)
        m = mapped(fd, n)
        a, b = socket.socketpair()
        socket.send_fds(a, [b"x"], [fd, a.fileno(), b.fileno()])
        a.close(), b.close(), os.close(fd), os.close(decoy)
        through(m, n)
        m.close()


def copy_into(how):
    source, p = pick("f"), pick("f")
    if not source or source == p or tree[source] is tree[p] or not tree[source].data:
        return
    data = bytes(tree[source].data[:4000])
    i, o = os.open(source, os.O_RDONLY), os.open(p, os.O_WRONLY)
    try:
        if how == "sendfile":
            sent = os.sendfile(o, i, 0, len(data))
        elif how == "range":
            sent = os.copy_file_range(i, o, len(data), 0, 0)
        else:
            r, w = os.pipe()
            os.write(w, data)
            sent = os.splice(r, o, len(data))
            os.close(r), os.close(w)
        tree[p].write(0, data[:sent])
    finally:
        os.close(i), os.close(o)


def nameless():
    p, n = fresh(), Inode("f", 0o640, noise())
    fd = os.open(os.path.dirname(p) or ".", os.O_TMPFILE | os.O_RDWR, n.mode)
    os.write(fd, n.data)
    if libc.linkat(-100, f"/proc/self/fd/{fd}".encode(), -100, p.encode(), 0x400) != 0:
        os.close(fd)
        raise OSError(ctypes.get_errno(), "linkat")
    tree[p] = n
    if len(held) < 6:
        held.append((fd, n, mapped(fd, n)))
    else:
        os.close(fd)


def change_mode():
    p = pick(rng.choice("fd"))
    if p:
        mode = rng.choice([0o644, 0o600, 0o755, 0o711]) if tree[p].kind == "f" else rng.choice([0o755, 0o700, 0o1777])
        os.chmod(p, mode)
        tree[p].mode = mode


def mode_of_held():
    if held:
        fd, n, _ = rng.choice(held)
        n.mode = rng.choice([0o640, 0o664])
        os.fchmod(fd, n.mode)


def times():
    p = pick("f")
    if p:
        os.utime(p, ns=(10**18, 10**18 + rng.getrandbits(20)))


def make_dir():
    p = fresh()
    os.mkdir(p, 0o755)
    tree[p] = Inode("d", 0o755)
    if rng.random() < 0.5:  # something in it before anyone can watch it
        inner, n = p + "/inner", Inode("f", 0o644, noise())
        with open(inner, "wb") as f:
            f.write(n.data)
        os.chmod(inner, 0o644)
        tree[inner] = n


def remove_dir():
    p = pick("d")
    if p and len(below(p)) < 12:
        for q in sorted(below(p), key=lambda q: -q.count("/")):
            os.rmdir(q) if tree[q].kind == "d" else os.unlink(q)
            del tree[q]
        os.rmdir(p)
        del tree[p]
        if rng.random() < 0.5:  # its name for something else at once
            kind = rng.choice("dlf")
            if kind == "d":
                os.mkdir(p, 0o755)
            elif kind == "l":
                os.symlink("gone", p)
            else:
                os.close(os.open(p, os.O_CREAT | os.O_WRONLY, 0o644))
            tree[p] = Inode(kind, 0o755 if kind == "d" else 0o644, target="gone")


def rename():
    p, q = pick("f"), rng.choice([fresh(), pick("f")])
    if p and p != q and tree.get(q) is not tree[p]:
        os.rename(p, q)
        tree[q] = tree.pop(p)


def rename_dir():
    p, q = pick("d"), fresh()
    if p and q != p and not q.startswith(p + "/"):
        os.rename(p, q)
        moved = {q + r[len(p):]: tree.pop(r) for r in below(p)}
        tree[q] = tree.pop(p)
        tree.update(moved)


def exchange():
    p, q = pick("f"), pick(rng.choice("fl"))
    if p and q and p != q and tree[p] is not tree[q]:
        if libc.syscall(316 if os.uname().machine == "x86_64" else 276, -100, p.encode(), -100, q.encode(), 2) != 0:
            raise OSError(ctypes.get_errno(), "renameat2")
        tree[p], tree[q] = tree[q], tree[p]


def link():
    p, q = pick("f"), fresh()
    if p:
        os.link(p, q)
        tree[q] = tree[p]


def unlink():
    p = pick(rng.choice("fflp"))
    if p:
        os.unlink(p)
        del tree[p]


def symlink():
    p = pick("l")
    if p and rng.random() < 0.6:
        os.unlink(p)
    else:
        p = fresh()
    target = rng.choice(["a", "../b", "/etc/passwd", "%x" % rng.getrandbits(16)])
    os.symlink(target, p)
    tree[p] = Inode("l", target=target)


def fifo():
    p = fresh()
    os.mkfifo(p)
    tree[p] = Inode("p")


def read_only():
    p = pick("f")
    if p:
        with open(p, "rb") as f:
            f.read(10)


ways = [create, create, create, overwrite, lambda: overwrite(os.O_APPEND), lambda: overwrite(os.O_TRUNC), lambda: overwrite(reopen=True), truncate,
        allocate, map_once, hold, use_held, use_held, use_held, let_go, child, in_flight, lambda: copy_into("sendfile"), lambda: copy_into("range"),
        lambda: copy_into("splice"), nameless, change_mode, mode_of_held, times, make_dir, remove_dir, rename, rename, exchange, link, link,
        unlink, unlink, symlink, fifo, read_only]


def say():
    out = {}
    for p, n in tree.items():
        if n.kind == "p":
            continue  # is no part of the workspace
        elif n.kind == "d":
            out[p] = f"d {n.mode:o}"
        elif n.kind == "l":
            out[p] = f"l {n.target}"
        else:
            out[p] = f"f {n.mode:o} {len(n.data)} {hashlib.sha256(n.data).hexdigest()}"
    os.write(1, json.dumps({"tree": out, "failed": failed}).encode() + b"\n")


os.umask(0)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCONT})
for step in range(steps):
    for _ in range(rng.randrange(operations + 1)):
        way = rng.choice(ways)
        if way is rename and rng.random() < 0.1:
            way = rename_dir
        if len(tree) > 120:
            way = rng.choice([unlink, remove_dir])
        try:
            way()
        except OSError as e:
            if e.errno not in (18, 95, 2, 17):  # across mounts, not supported, no such file, exists
                raise
            name = f"{way.__name__} {e.errno}"
            failed[name] = failed.get(name, 0) + 1
    if step == steps - 1:
        with open(state, "wb") as f:
            pickle.dump(tree, f)
    say()
    if step < steps - 1:
        signal.sigwait({signal.SIGCONT})
