if not X86:
    untried('this architecture has no second ABI that is tried here')
# x32 numbers.
for nr in (39, 165, 321):
    refused('x32 call %d' % nr, 0x40000000 + nr, 0, 0, 0, 0, 0)
# int 0x80: getpid, then socketcall(socket, AF_INET…), by hand-made code.
import mmap, signal
def int80(what, eax, ebx=0):
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        m = mmap.mmap(-1, 4096, prot=7)
        m.write(b'\x53\xb8' + eax.to_bytes(4, 'little') + b'\xbb' + ebx.to_bytes(4, 'little') + b'\xcd\x80\x5b\xc3')
        f = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))
        r = f()
        os._exit(1 if r > 0 else 0)
    _, status = os.waitpid(pid, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 1:
        bad.append(what + ' is answered')
    else:
        notes.append(what + ': ' + ('signal %d' % os.WTERMSIG(status) if os.WIFSIGNALED(status) else 'refused'))
int80('int 0x80 getpid', 20)
int80('int 0x80 getppid', 64)
