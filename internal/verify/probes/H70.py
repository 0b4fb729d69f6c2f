import stat
def look(pid):
    for f in sorted(os.listdir('/proc/%s/fd' % pid), key=int):
        path = '/proc/%s/fd/%s' % (pid, f)
        try:
            target, mode = os.readlink(path), os.stat(path).st_mode
        except OSError:
            continue   # the one that lists
        if stat.S_ISDIR(mode) and target.startswith('/proc/'):
            continue
        kind = 'pipe' if stat.S_ISFIFO(mode) else 'socket' if stat.S_ISSOCK(mode) else 'device' if stat.S_ISCHR(mode) else 'directory' if stat.S_ISDIR(mode) else 'file'
        if int(f) > 2 or kind in ('directory', 'socket') or (kind in ('device', 'file') and target != '/dev/null'):
            bad.append('descriptor %s is the %s %s' % (f, kind, target))
look('self')
for p in os.listdir('/proc'):
    if p.isdigit() and p != str(os.getpid()):
        try:
            os.listdir('/proc/%s/fd' % p)
            bad.append('lists the descriptors of process ' + p)
        except OSError:
            pass
notes.append('0, 1 and 2 are pipes or /dev/null; no other')
