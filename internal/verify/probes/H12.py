import time
class Spec(ctypes.Structure):
    _fields_ = [('is', ctypes.c_long), ('ins', ctypes.c_long), ('vs', ctypes.c_long), ('vns', ctypes.c_long)]
import signal
signal.signal(signal.SIGALRM, signal.SIG_IGN)
one = Spec(0, 1000, 0, 1000)
event = (ctypes.c_char * 64)()
ctypes.memset(event, 0, 64)
ctypes.cast(event, ctypes.POINTER(ctypes.c_int))[2] = 14
made = 0
print('storming', flush=True)
end = time.monotonic() + P['seconds']
timer = ctypes.c_int()
while made < 100_000 and time.monotonic() < end:
    if libc.syscall(ctypes.c_long(NR['timer_create'][0 if X86 else 1]), 1, ctypes.byref(event), ctypes.byref(timer)) != 0:
        notes.append('timers end at %d: %s' % (made, name(ctypes.get_errno())))
        break
    libc.syscall(ctypes.c_long(NR['timer_settime'][0 if X86 else 1]), timer, 0, ctypes.byref(one), None)
    made += 1
while time.monotonic() < end:
    pass
data['timers'] = made
bad.append('stormed for %d s without being stopped' % P['seconds'])
