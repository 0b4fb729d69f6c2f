for path in ('/proc/kcore', '/proc/keys', '/proc/key-users', '/proc/timer_list', '/proc/timer_stats', '/proc/sched_debug', '/proc/kmsg', '/proc/kpagecount', '/proc/kpageflags', '/proc/vmallocinfo', '/proc/slabinfo', '/proc/interrupts', '/proc/latency_stats', '/proc/modules', '/proc/config.gz', '/sys/kernel/notes', '/sys/kernel/vmcoreinfo'):
    got = readable(path, 256)
    if got:
        bad.append('%s: %d bytes' % (path, len(got)))
    notes.append(path)
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
