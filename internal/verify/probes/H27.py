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
time.sleep(0.3)
zombies = 0
for p in os.listdir('/proc'):
    if p.isdigit():
        stat = (readable('/proc/%s/stat' % p) or b'').decode('utf-8', 'replace')
        zombies += ') Z' in stat
notes.append('90 orphans, %d zombies left' % zombies)
if zombies > 5:
    bad.append('%d zombies are left' % zombies)
