# Leaves, or looks for, SysV and POSIX objects by their key.
key = P['key']
for what, args in (('shmget', (key, 4096)), ('semget', (key, 1)), ('msgget', (key,))):
    flags = 0o1666 if P['leave'] else 0
    r = raw(what, *args, flags)
    if P['leave']:
        notes.append(what + (': left' if r >= 0 else ': ' + name(-r)))
        data[what] = r
    elif r >= 0:
        bad.append('finds the object of ' + what)
    else:
        notes.append(what + ': ' + name(-r))
r = raw('mq_open', b'wb%d\0' % key, 0o102 if P['leave'] else 0, 0o666, 0)
if r >= 0 and not P['leave']:
    bad.append('finds the message queue')
notes.append('mq_open: ' + ('opened' if r >= 0 else name(-r)))
