# The parent that started them is gone; what its children hold still counts.
import mmap, time
print('eating', flush=True)
r, wr = os.pipe()
if os.fork() == 0:
    for _ in range(40):
        if os.fork() == 0:
            m = mmap.mmap(-1, 10 << 20)
            for at in range(0, 10 << 20, 4096):
                m[at] = 1
            os.write(wr, b'x')
            time.sleep(30)
            os._exit(0)
    os._exit(0)
os.wait()
have = 0
while have < 40:
    have += len(os.read(r, 64))
import time
time.sleep(P['held'])
bad.append('40 orphans hold 10 MiB each')
