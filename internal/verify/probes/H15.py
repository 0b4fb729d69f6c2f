n, why = 0, 'nothing'
try:
    while n < P['files'] + 100:
        os.open('/dev/null', os.O_RDONLY)
        n += 1
except OSError as e:
    why = name(e.errno)
os.closerange(3, 1 << 16)
notes.append('%s after %d' % (why, n))
if why != 'EMFILE' or n > P['files']:
    bad.append('%d descriptors, then %s' % (n, why))
# Nor may a program raise its own limit.
import resource
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
try:
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard + 1, hard + 1))
    bad.append('the limit was raised')
except (OSError, ValueError):
    pass
