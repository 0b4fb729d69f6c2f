import socket, struct
def netlink(kind, flags, body, proto=0):
    s = socket.socket(16, socket.SOCK_RAW, proto)
    s.settimeout(3)
    s.bind((0, 0))
    s.send(struct.pack('=IHHII', 16 + len(body), kind, flags, 1, 0) + body)
    answer = s.recv(8192)
    _, kind, _, _, _ = struct.unpack('=IHHII', answer[:16])
    code = struct.unpack('=i', answer[16:20])[0] if kind == 2 else 0
    if code < 0:
        # Only a refusal of privilege is a refusal.
        if -code in REFUSED:
            raise OSError(-code, '')
        notes.append('answer: ' + name(-code))
REQUEST, ACK, CREATE = 1, 4, 0x400
def tries(what, f):
    try:
        f()
        bad.append(what)
    except (OSError, struct.error) as e:
        notes.append(what + ': ' + name(getattr(e, 'errno', 0) or 0))
route = struct.pack('=BBBBBBBBI', 2, 32, 0, 0, 254, 4, 253, 1, 0) + struct.pack('=HH4s', 8, 1, bytes([192, 0, 2, 7])) + struct.pack('=HHI', 8, 4, 1)
tries('adds a route', lambda: netlink(24, REQUEST | ACK | CREATE, route))
link = struct.pack('=BxHiII', 0, 0, 1, 0x1000, 0x1000)
tries('changes a link', lambda: netlink(16, REQUEST | ACK, link))
address = struct.pack('=BBBBI', 2, 32, 0, 0, 1) + struct.pack('=HH4s', 8, 2, bytes([192, 0, 2, 8])) + struct.pack('=HH4s', 8, 1, bytes([192, 0, 2, 8]))
tries('adds an address', lambda: netlink(20, REQUEST | ACK | CREATE, address))
batch = struct.pack('=BBH', 0, 0, 0x0a00)
tries('opens a batch of nftables', lambda: netlink(16, REQUEST | ACK, batch, 12))
for proto in (4, 6, 9, 15, 16, 21):
    reaches('netlink protocol %d' % proto, lambda: socket.socket(16, 3, proto).close())
