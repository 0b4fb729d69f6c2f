import socket
s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
s.settimeout(3)
reaches('connects to the abstract socket @' + P['name'], lambda: s.connect('\0' + P['name']))
text = (readable('/proc/net/unix', 1 << 20) or b'').decode('utf-8', 'replace')
if P['name'] in text:
    bad.append('the socket is listed in /proc/net/unix')
foreign = [l.split()[-1] for l in text.splitlines()[1:] if len(l.split()) > 7 and not l.split()[-1].startswith(('/run/workbench/', '@workbench'))]
if len(foreign) > 0:
    bad.append('other sockets are listed: ' + ', '.join(foreign[:5]))
