# Buffers of sockets and pipes in many processes, to just past the bound on the
# whole sandbox.
import socket, time
print('filling', flush=True)
target, sent = P['target'], 0
r, wr = os.pipe()
def fill():
    held, n = [], 0
    chunk = b'x' * 65536
    while True:
        try:
            a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError:
            return n, held
        held.append((a, b))
        for s in (a, b):
            s.setblocking(False)
            try:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            except OSError:
                pass
            try:
                while n < per:
                    n += s.send(chunk)
            except OSError:
                pass
        if n >= per:
            return n, held
children = 24
per = target // children + 1
for _ in range(children):
    if os.fork() == 0:
        n, held = fill()
        os.write(wr, n.to_bytes(8, 'little'))
        time.sleep(40)
        os._exit(0)
total = 0
for _ in range(children):
    total += int.from_bytes(os.read(r, 8), 'little')
data['bytes'] = total
notes.append('%d MiB of buffers were given' % (total >> 20))
if total >= target:
    bad.append('%d MiB of socket buffers are held' % (total >> 20))
