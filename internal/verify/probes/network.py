# Tries to reach addresses: each must be refused at once.
import socket, time
os.environ['RES_OPTIONS'] = 'timeout:1 attempts:1'   # a broken sandbox's resolver is not waited for
def tries(what, f, again=True):
    began = time.monotonic()
    try:
        f()
        bad.append('reached ' + what)
    except OSError as e:
        if isinstance(e, TimeoutError) or e.errno in (errno.ETIMEDOUT, errno.EINPROGRESS, errno.EAGAIN):
            bad.append('%s: not refused, but without an answer' % what)
        elif time.monotonic() - began > 2 and again:  # perhaps the machine stood still
            tries(what, f, again=False)
        elif time.monotonic() - began > 2:
            bad.append('%s: refused only after %.1f s' % (what, time.monotonic() - began))
        else:
            notes.append('%s: %s' % (what, name(e.errno) if e.errno else e.__class__.__name__))
def connect(host, port):
    s = socket.socket(socket.AF_INET6 if ':' in host else socket.AF_INET, socket.SOCK_STREAM)
    s.settimeout(3)
    s.connect((host, port))
def send(host, port):
    s = socket.socket(socket.AF_INET6 if ':' in host else socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(3)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    s.sendto(b'workbench-verify', (host, port))
for host, port in P.get('tcp', ()):
    tries('tcp %s %d' % (host, port), lambda: connect(host, port))
for host, port in P.get('udp', ()):
    tries('udp %s %d' % (host, port), lambda: send(host, port))
for names in P.get('dns', ()):
    tries('dns ' + names, lambda: socket.getaddrinfo(names, 80))
for path in P.get('unix', ()):
    def unix():
        s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        s.settimeout(3)
        s.connect(path.replace('@', '\0', 1) if path.startswith('@') else path)
    tries('socket ' + path, unix)
