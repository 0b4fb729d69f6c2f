def nice():
    try:
        os.setpriority(os.PRIO_PROCESS, 0, -20)
        notes.append('nice -20: accepted')
        return True
    except OSError as e:
        notes.append('nice -20: ' + name(e.errno))
        return False
data['nice'] = nice()
param = (1).to_bytes(4, 'little')
r = raw('sched_setscheduler', 0, 1, param)
data['fifo'] = r == 0
notes.append('SCHED_FIFO: ' + ('accepted' if r == 0 else name(-r)))
r = raw('ioprio_set', 1, 0, 1 << 13)
data['ioprio'] = r == 0 and raw('ioprio_get', 1, 0) >> 13 == 1
notes.append('real-time I/O: ' + ('accepted' if r == 0 else name(-r)))
import time
try:
    print('holding', flush=True)
    time.sleep(20)
except KeyboardInterrupt:  # the host has looked
    pass
