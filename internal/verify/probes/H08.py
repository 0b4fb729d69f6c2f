import mmap
def locks(size):
    m = mmap.mmap(-1, size)
    at = ctypes.addressof(ctypes.c_char.from_buffer(m))
    return raw('mlock', at, size)
for size in (1 << 30, 4 << 20):
    r = locks(size)
    if r == 0:
        bad.append('locked %d MiB' % (size >> 20))
    else:
        notes.append('lock %d MiB: %s' % (size >> 20, name(-r)))
MAP_HUGETLB = 0x40000
try:
    m = mmap.mmap(-1, 4 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_HUGETLB)
    m[0] = 1
    # gVisor takes the flag and gives ordinary pages.
    if 'HugetlbPages' not in (readable('/proc/meminfo', 1 << 16) or b'').decode():
        notes.append('huge pages: ordinary memory was given')
except OSError as e:
    notes.append('huge pages: ' + name(e.errno))
