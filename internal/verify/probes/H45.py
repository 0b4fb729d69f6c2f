held = 0
for p in ['1', 'self', str(os.getppid())]:
    for ns in ('user', 'mnt', 'net', 'pid', 'ipc', 'uts', 'cgroup'):
        try:
            fd = os.open('/proc/%s/ns/%s' % (p, ns), os.O_RDONLY)
        except OSError as e:
            notes.append('open %s of %s: %s' % (ns, p, name(e.errno)))
            continue
        # Joining one's own user namespace is always EINVAL; with no type given
        # the privilege is checked first for the others.
        refused('setns %s of %s' % (ns, p), 'setns', fd, 0, also=(errno.EINVAL,) if ns == 'user' else ())
        held += 1
        os.close(fd)
refused('setns without a descriptor', 'setns', -1, 0, also=(errno.EBADF,))
notes.append('%d opened' % held)
