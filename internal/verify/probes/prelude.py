import ctypes, errno, json, os, sys
P = json.loads(sys.argv[-1])
X86 = os.uname().machine == 'x86_64'
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
bad, notes, data = [], [], {}

# Numbers of system calls: x86_64, arm64.
NR = {
    'mount': (165, 40), 'umount2': (166, 39), 'pivot_root': (155, 41), 'chroot': (161, 51), 'move_mount': (429, 429), 'fsopen': (430, 430),
    'open_tree': (428, 428), 'mount_setattr': (442, 442), 'unshare': (272, 97), 'clone': (56, 220), 'clone3': (435, 435), 'setns': (308, 268),
    'bpf': (321, 280), 'io_uring_setup': (425, 425), 'io_uring_register': (427, 427), 'keyctl': (250, 219), 'add_key': (248, 217),
    'request_key': (249, 218), 'userfaultfd': (323, 282), 'perf_event_open': (298, 241), 'open_by_handle_at': (304, 265),
    'name_to_handle_at': (303, 264), 'init_module': (175, 105), 'finit_module': (313, 273), 'delete_module': (176, 106), 'reboot': (169, 142),
    'kexec_load': (246, 104), 'swapon': (167, 224), 'swapoff': (168, 225), 'acct': (163, 89), 'syslog': (103, 116), 'quotactl': (179, 60),
    'settimeofday': (164, 170), 'clock_settime': (227, 112), 'adjtimex': (159, 171), 'sethostname': (170, 161), 'ptrace': (101, 117),
    'process_vm_readv': (310, 270), 'mlock': (149, 228), 'sched_setscheduler': (144, 119), 'ioprio_set': (251, 30), 'ioprio_get': (252, 31),
    'timer_create': (222, 107), 'timer_settime': (223, 110), 'shmget': (29, 194), 'semget': (64, 190), 'msgget': (68, 186),
    'mq_open': (240, 180), 'getpid': (39, 172), 'prctl': (157, 167), 'seccomp': (317, 277),
}

# What a refusal looks like. Anything else a call answers means that it passed
# the check of privilege.
REFUSED = {errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT, errno.ESOCKTNOSUPPORT, errno.EOPNOTSUPP, errno.EROFS}

def raw(nr, *args):
    """One system call: its result, or minus its errno."""
    number = nr if isinstance(nr, int) else NR[nr][0 if X86 else 1]
    ctypes.set_errno(0)
    r = libc.syscall(ctypes.c_long(number), *[a if isinstance(a, (bytes, ctypes.Array)) else ctypes.c_long(a) for a in args])
    return -ctypes.get_errno() if r == -1 else r

def name(e):
    return errno.errorcode.get(e, str(e))

def refused(what, nr, *args, also=()):
    """Makes the call in a child, so that an answer by a kill ends nothing else."""
    r, w = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(w, b'%d' % raw(nr, *args))
        finally:
            os._exit(0)
    os.close(w)
    said = os.read(r, 32)
    os.close(r)
    _, status = os.waitpid(child, 0)
    if not said:
        notes.append(what + ': killed')
        return
    v = int(said)
    if v < 0 and (-v in REFUSED or -v in also):
        notes.append(what + ': ' + name(-v))
        return
    bad.append(what + (': ' + name(-v) if v < 0 else ': succeeded'))

def reaches(what, f):
    """Tries something that must raise OSError."""
    try:
        f()
    except OSError as e:
        notes.append(what + ': ' + name(e.errno))
        return False
    bad.append(what)
    return True

def readable(path, size=4096):
    try:
        with open(path, 'rb') as f:
            return f.read(size)
    except OSError:
        return None

def done(why=None):
    text = why or ('; '.join(bad) if bad else '; '.join(notes))
    print('\nVERDICT ' + json.dumps({'ok': not bad, 'why': text[:1800], 'data': data}), flush=True)
    os._exit(0)

def untried(why):
    print('\nVERDICT ' + json.dumps({'untried': True, 'why': why}), flush=True)
    os._exit(0)

