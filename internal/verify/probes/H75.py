for d, dirs, files in os.walk('/sys'):
    if d.count('/') > 6:
        dirs[:] = []
    for f in files:
        if f in ('release_agent', 'notify_on_release'):
            reaches('opens ' + d + '/' + f, lambda: os.close(os.open(d + '/' + f, os.O_WRONLY)))
for line in open('/proc/self/mountinfo'):
    left, _, right = line.partition(' - ')
    if right.startswith('cgroup') and os.access(left.split()[4], os.W_OK):
        bad.append('writable control groups at ' + left.split()[4])
os.makedirs('/tmp/cg', exist_ok=True)
for kind, opts in ((b'cgroup\0', b'memory\0'), (b'cgroup\0', b'rdma\0'), (b'cgroup\0', b'none,name=verify\0'), (b'cgroup2\0', b'\0')):
    refused('mount ' + kind[:-1].decode() + ' ' + opts[:-1].decode(), 'mount', b'none\0', b'/tmp/cg\0', kind, 0, opts)
