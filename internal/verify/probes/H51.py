import socket
AF_ALG = 38
for kind in (5, 1, 2):
    reaches('AF_ALG socket of kind %d' % kind, lambda: socket.socket(AF_ALG, kind).close())
