import mmap, time
print('eating', flush=True)
r, wr = os.pipe()
for _ in range(60):
    if os.fork() == 0:
        m = mmap.mmap(-1, 10 << 20)
        for at in range(0, 10 << 20, 4096):
            m[at] = 1
        os.write(wr, b'x')
        time.sleep(30)
        os._exit(0)
have = 0
while have < 60:
    have += len(os.read(r, 64))
import time
time.sleep(P['held'])
bad.append('60 processes hold 10 MiB each')
