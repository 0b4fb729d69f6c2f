import socket
interfaces = [n for _, n in socket.if_nameindex()]
if set(interfaces) - {'lo'}:
    bad.append('has interfaces ' + ', '.join(interfaces))
for what, family, kind, proto in (('ARP by a packet socket', 17, 3, 0x0608), ('ICMP by a raw socket', 2, 3, 1), ('DHCP by a raw socket', 2, 3, 17)):
    reaches(what, lambda: socket.socket(family, kind, proto).close())
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
reaches('broadcasts a DHCP request', lambda: s.sendto(b'\1\1\6\0' + b'\0' * 236, ('255.255.255.255', 67)))
notes.insert(0, 'interfaces: ' + ', '.join(interfaces))
