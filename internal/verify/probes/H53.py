import socket
for what, family, kind, proto in (('AF_PACKET raw', 17, 3, 0x0300), ('AF_PACKET datagram', 17, 2, 0x0300), ('raw TCP', 2, 3, 6), ('raw ICMP', 2, 3, 1), ('raw IP', 2, 3, 255), ('raw IPv6', 10, 3, 58), ('AF_XDP', 44, 3, 0)):
    reaches(what, lambda: socket.socket(family, kind, proto).close())
