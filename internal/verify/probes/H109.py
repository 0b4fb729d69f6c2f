import socket, time
if P['listen']:
    held = []
    for family, host in ((socket.AF_INET, '0.0.0.0'), (socket.AF_INET6, '::')):
        try:
            s = socket.socket(family, socket.SOCK_STREAM)
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            s.bind((host, P['port']))
            s.listen()
            held.append(s)
            notes.append('listens at ' + host)
        except OSError as e:
            notes.append(host + ': ' + name(e.errno))
    u = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    u.bind('\0workbench-verify-%d' % P['port'])
    u.listen()
    print('listening', flush=True)
    time.sleep(P['seconds'])
else:
    for host in ('127.0.0.1', '::1', '0.0.0.0'):
        s = socket.socket(socket.AF_INET6 if ':' in host else socket.AF_INET, socket.SOCK_STREAM)
        s.settimeout(2)
        reaches('connects to the neighbour at ' + host, lambda: s.connect((host, P['port'])))
    u = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    reaches("connects to the neighbour's abstract socket", lambda: u.connect('\0workbench-verify-%d' % P['port']))
