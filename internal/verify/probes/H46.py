# The smallest program there is: return 0, as a socket filter.
insns = (ctypes.c_uint64 * 2)(0x00000000000000b7, 0x0000000000000095)
lic = ctypes.create_string_buffer(b'GPL')
class Attr(ctypes.Structure):
    _fields_ = [('type', ctypes.c_uint32), ('count', ctypes.c_uint32), ('insns', ctypes.c_uint64), ('license', ctypes.c_uint64), ('rest', ctypes.c_char * 96)]
for kind in (1, 2, 5, 8):
    attr = (ctypes.c_char * 120).from_buffer_copy(Attr(kind, 2, ctypes.addressof(insns), ctypes.addressof(lic), b''))
    refused('load a program of kind %d' % kind, 'bpf', 5, attr, 120)
refused('make a map', 'bpf', 0, (ctypes.c_char * 120).from_buffer_copy((2).to_bytes(4, 'little') + (4).to_bytes(4, 'little') + (4).to_bytes(4, 'little') + (1).to_bytes(4, 'little') + b'\0' * 104), 120)
