import stat
allowed = {(1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 2)}
for path in ('mem', 'kmem', 'port', 'kmsg', 'fuse', 'kvm', 'net/tun', 'uinput', 'loop0', 'loop-control', 'vda', 'sda', 'nvme0n1', 'dm-0', 'mapper/control', 'input/event0', 'dri/card0', 'vhost-net', 'vsock', 'userfaultfd', 'snapshot', 'hpet', 'cpu/0/msr', 'console', 'btrfs-control', 'autofs', 'rfkill', 'watchdog'):
    if os.path.lexists('/dev/' + path):
        bad.append('/dev/' + path + ' is there')
n = 0
for base in ('/dev', '/mnt', '/opt', '/run', '/srv', '/var'):
    for d, dirs, files in os.walk(base):
        for f in files:
            try:
                st = os.lstat(os.path.join(d, f))
            except OSError:
                continue
            if stat.S_ISBLK(st.st_mode):
                bad.append('block device ' + os.path.join(d, f))
            elif stat.S_ISCHR(st.st_mode):
                n += 1
                if (os.major(st.st_rdev), os.minor(st.st_rdev)) not in allowed and os.major(st.st_rdev) != 136 and '/dev/char' not in d:
                    text = '%s is device %d:%d' % (os.path.join(d, f), os.major(st.st_rdev), os.minor(st.st_rdev))
                    bad.append(text)
for what, mode, dev in (('a block device', 0o60600, os.makedev(7, 0)), ('/dev/mem', 0o20600, os.makedev(1, 1)), ('/dev/null', 0o20666, os.makedev(1, 3))):
    reaches('makes ' + what, lambda: os.mknod('/mnt/files/node', mode, dev))
notes[:] = ['%d character devices, of the harmless kinds; none can be made' % n]
