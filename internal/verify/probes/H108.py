import socket, stat
names = ('docker.sock', 'containerd.sock', 'podman.sock', 'crio.sock', 'libpod', 'kubelet.sock', 'workbench.sock', 'snapd.socket', 'system_bus_socket', 'systemd', 'lxd', 'libvirt-sock', 'postgresql')
own = os.environ.get('WORKBENCH_SOCKET', '')
n = 0
for base in ('/run', '/var', '/tmp', '/mnt', '/opt', '/srv', '/dev', '/home', '/root', '/etc'):
    for d, dirs, files in os.walk(base):
        for f in dirs + files:
            path = os.path.join(d, f)
            try:
                st = os.lstat(path)
            except OSError:
                continue
            if stat.S_ISSOCK(st.st_mode) and path != own and not os.path.realpath(path) == os.path.realpath(own):
                bad.append('socket ' + path)
            elif any(x in f for x in names) and not d.startswith(('/var/lib/dpkg', '/etc', '/var/lib/systemd')) and stat.S_ISSOCK(st.st_mode):
                bad.append(path)
            n += 1
for path in ('/var/run/docker.sock', '/run/docker.sock', '/run/containerd/containerd.sock', '/run/podman/podman.sock', '/run/crio/crio.sock', '/var/run/postgresql/.s.PGSQL.5432', '/var/lib/kubelet/device-plugins/kubelet.sock'):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    s.settimeout(2)
    reaches('connects to ' + path, lambda: s.connect(path))
notes[:] = ['%d names, one socket: the one that code calls out through' % n]
