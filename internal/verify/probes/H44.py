for flag, what in ((0x10000000, 'user'), (0x20000, 'mount'), (0x40000000, 'network'), (0x20000000, 'pid'), (0x08000000, 'ipc'), (0x04000000, 'uts'), (0x02000000, 'cgroup'), (0x10020000, 'user and mount')):
    refused('unshare ' + what, 'unshare', flag)
    refused('clone ' + what, 'clone', flag | 17, 0, 0, 0, 0)
args = (ctypes.c_uint64 * 11)()
args[0] = 0x10000000
args[4] = 17
refused('clone3 user', 'clone3', args, 88)
