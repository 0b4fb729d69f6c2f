# A sibling that must go with the rest.
if os.fork() == 0:
    import time
    time.sleep(60)
    os._exit(0)
print('eating', flush=True)
import mmap
size = P['memory'] + (64 << 20)
m = mmap.mmap(-1, size)
for at in range(0, size, 4096):
    m[at] = 1
import time
time.sleep(P['held'])
bad.append('%d MiB were touched' % (size >> 20))
