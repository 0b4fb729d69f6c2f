n = 0
for path in ('/sys/kernel/uevent_helper', '/sys/power/state', '/sys/power/disk', '/sys/kernel/mm/ksm/run', '/sys/kernel/mm/transparent_hugepage/enabled', '/sys/module/kernel/parameters/panic', '/sys/kernel/profiling', '/sys/fs/cgroup/release_agent', '/sys/class/net/lo/mtu', '/sys/block/loop0/queue/nr_requests', '/sys/devices/system/cpu/cpu1/online'):
    reaches('opens %s for writing' % path, lambda: os.close(os.open(path, os.O_WRONLY)))
for d, dirs, files in os.walk('/sys'):
    if d.count('/') > 5 or n > 3000:
        dirs[:] = []
        continue
    for f in files:
        n += 1
        try:
            os.close(os.open(os.path.join(d, f), os.O_WRONLY))
            if len(bad) < 8:
                bad.append('opens %s/%s for writing' % (d, f))
        except OSError:
            pass
notes[:] = ['%d files of /sys, none opens for writing' % n]
