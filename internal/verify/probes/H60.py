import fcntl, termios
try:
    fd = os.open('/dev/tty', os.O_RDWR | os.O_NOCTTY)
    bad.append('has a controlling terminal')
except OSError as e:
    fd = -1
    notes.append('/dev/tty: ' + name(e.errno))
for f in (0, 1, 2):
    if os.isatty(f):
        bad.append('descriptor %d is a terminal' % f)
class Byte(ctypes.Structure):
    _fields_ = [('c', ctypes.c_char)]
for what, request in (('TIOCSTI', 0x5412), ('TIOCLINUX', 0x541c), ('TIOCSETD', 0x5423)):
    for high in (0, 1 << 32, 0xdead << 40):
        for f in [0, 1, 2] + ([fd] if fd >= 0 else []):
            # A byte that a shell ignores, and TIOCLINUX's harmless question.
            arg = ctypes.create_string_buffer(b'\0' if request == 0x5412 else b'\x06\0\0\0')
            r = raw(16 if X86 else 29, f, request | high, arg)
            if r >= 0:
                bad.append('%s on descriptor %d' % (what, f))
            else:
                notes.append('%s: %s' % (what, name(-r)))
del notes[6:]
