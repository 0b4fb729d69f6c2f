# 90 orphans whose parents do not wait. Each is the init's to collect.
import time
for i in range(45):
    try:
        pid = os.fork()
    except OSError as e:
        bad.append('after %d orphans: %s' % (2 * i, name(e.errno)))
        break
    if pid == 0:
        try:
            for _ in range(2):
                if os.fork() == 0:
                    os._exit(0)
        except OSError:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if status:
        bad.append('after %d orphans a fork was refused' % (2 * i))
        break
    time.sleep(0.002)
def count():
    return sum(') Z' in (readable('/proc/%s/stat' % p) or b'').decode('utf-8', 'replace') for p in os.listdir('/proc') if p.isdigit())
# The init works on: as long as they become fewer, it is waited for.
zombies, fewer = count(), time.monotonic()
while zombies > 5 and time.monotonic() - fewer < 3:
    time.sleep(0.05)
    left = count()
    if left < zombies:
        fewer = time.monotonic()
    zombies = left
notes.append('90 orphans, %d zombies left' % zombies)
if zombies > 5:
    bad.append('%d zombies are left' % zombies)
