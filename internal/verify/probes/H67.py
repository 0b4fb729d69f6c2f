for path in ('/proc/kcore', '/proc/keys', '/proc/key-users', '/proc/timer_list', '/proc/timer_stats', '/proc/sched_debug', '/proc/kpagecount', '/proc/kpageflags', '/proc/vmallocinfo', '/proc/slabinfo', '/proc/interrupts', '/proc/latency_stats', '/proc/modules', '/proc/config.gz', '/sys/kernel/notes', '/sys/kernel/vmcoreinfo'):
    got = readable(path, 256)
    if got:
        bad.append('%s: %d bytes' % (path, len(got)))
    notes.append(path)
try:
    # Reading would take the messages from whoever should have them.
    fd = os.open('/proc/kmsg', os.O_RDONLY | os.O_NONBLOCK)
    if os.fstat(fd).st_rdev != os.makedev(1, 3):
        bad.append('/proc/kmsg opens')
except OSError:
    pass
got = readable('/proc/kallsyms', 1 << 16) or b''
if got:
    bad.append('/proc/kallsyms: %d bytes' % len(got))
for d in ('/sys/firmware', '/proc/acpi', '/proc/scsi', '/sys/kernel/debug', '/sys/kernel/security', '/sys/devices/virtual/powercap'):
    try:
        if os.listdir(d):
            bad.append(d + ' is listed')
    except OSError:
        pass
notes[:] = ['%d files give nothing' % len(notes)]
