import socket
AF_VSOCK = 40
for kind in (1, 2, 5):
    reaches('AF_VSOCK socket of kind %d' % kind, lambda: socket.socket(AF_VSOCK, kind).close())
# io_uring could open one past a filter.
params = ctypes.create_string_buffer(256)
refused('io_uring_setup', 'io_uring_setup', 8, params)
