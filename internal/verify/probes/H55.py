import socket
image = ctypes.create_string_buffer(64)
refused('init_module', 'init_module', image, 64, b'\0')
refused('finit_module', 'finit_module', 0, b'\0', 0)
refused('delete_module', 'delete_module', b'workbench_verify\0', 0)
# Families and protocols whose first use would load a module.
for what, family, kind, proto in (('ax25', 3, 2, 0), ('ipx', 4, 2, 0), ('appletalk', 5, 2, 0), ('x25', 9, 5, 0), ('rose', 11, 5, 0), ('key', 15, 3, 2), ('rds', 21, 5, 0), ('pppox', 24, 1, 0), ('llc', 26, 2, 0), ('can', 29, 3, 1), ('tipc', 30, 1, 0), ('bluetooth', 31, 3, 1), ('phonet', 35, 2, 0), ('ieee802154', 36, 2, 0), ('caif', 37, 1, 0), ('alg', 38, 5, 0), ('nfc', 39, 1, 0), ('vsock', 40, 1, 0), ('kcm', 41, 2, 0), ('qipcrtr', 42, 2, 0), ('smc', 43, 1, 0), ('xdp', 44, 3, 0), ('dccp', 2, 6, 33), ('mctp', 45, 2, 0)):
    reaches('family ' + what, lambda: socket.socket(family, kind, proto).close())
