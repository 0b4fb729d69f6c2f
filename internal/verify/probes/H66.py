for path in ('/proc/sys/kernel/core_pattern', '/proc/sys/kernel/modprobe', '/proc/sys/kernel/hostname', '/proc/sys/kernel/domainname', '/proc/sys/vm/overcommit_memory', '/proc/sys/vm/drop_caches',
             '/proc/sys/kernel/panic', '/proc/sys/kernel/printk', '/proc/sys/fs/binfmt_misc/register', '/proc/sys/kernel/ns_last_pid', '/proc/sys/net/ipv4/ip_forward', '/proc/sys/kernel/shmmax', '/proc/sys/kernel/randomize_va_space',
             '/proc/sysrq-trigger', '/proc/timer_list', '/proc/acpi/wakeup', '/proc/1/oom_score_adj', '/proc/bus/pci', '/proc/irq/default_smp_affinity'):
    # What is masked is /dev/null under another name.
    if os.path.isdir(path) or os.path.exists(path) and os.stat(path).st_rdev == os.makedev(1, 3):
        notes.append(path + ': masked')
        continue
    # Opening is enough to see it: nothing is written.
    reaches('opens %s for writing' % path, lambda: os.close(os.open(path, os.O_WRONLY)))
