# Spins on 16 threads' worth of processes until it is stopped, at most for
# P['seconds'].
import time
print('spinning', flush=True)
end = time.monotonic() + P['seconds']
if P.get('pin'):
    cpus = sorted(os.sched_getaffinity(0))
for i in range(15):
    if os.fork() == 0:
        if P.get('pin'):
            try:
                os.sched_setaffinity(0, {cpus[i % len(cpus)]})
            except OSError:
                pass
        while time.monotonic() < end:
            pass
        os._exit(0)
while time.monotonic() < end:
    pass
bad.append('spun for %d s without being stopped' % P['seconds'])
