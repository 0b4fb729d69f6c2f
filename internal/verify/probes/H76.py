places = ['/sys/fs/cgroup']
for line in open('/proc/self/mountinfo'):
    left, _, right = line.partition(' - ')
    if right.startswith('cgroup'):
        places.append(left.split()[4])
n = 0
for place in set(places):
    for d, dirs, files in os.walk(place):
        if d.count('/') - place.count('/') > 2:
            dirs[:] = []
        for f in files:
            if f in ('cgroup.procs', 'tasks', 'cgroup.threads', 'memory.max', 'memory.limit_in_bytes', 'pids.max', 'cpu.max', 'cgroup.subtree_control'):
                n += 1
                # Opening is enough to see it: nobody is moved.
                try:
                    os.close(os.open(d + '/' + f, os.O_WRONLY))
                    bad.append('opens %s/%s for writing' % (d, f))
                except OSError:
                    pass
        if len(bad) > 5:
            break
notes.append('%d files of control groups are shown, none opens' % n)
