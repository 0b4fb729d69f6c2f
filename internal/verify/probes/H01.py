import time
n, why = 0, ''
stop = P['tasks'] + 40
children = []
while n < stop:
    try:
        pid = os.fork()
    except OSError as e:
        why = name(e.errno)
        break
    if pid == 0:
        time.sleep(30)
        os._exit(0)
    children.append(pid)
    n += 1
for pid in children:
    os.kill(pid, 9)
for pid in children:
    os.waitpid(pid, 0)
# A fork that was refused must work again once there is room.
if os.fork() == 0:
    os._exit(0)
os.wait()
data['forked'] = n
if why != 'EAGAIN' or n > P['tasks']:
    bad.append('%d processes, then %s' % (n, why or 'no refusal'))
notes.append('%s after %d processes' % (why, n))
